"""Carries out an `Overlap` with the two verbs that every world has, one part after the other."""

from collections.abc import Sequence
from typing import NamedTuple

from .overlap import front_of, spans_of
from .results import Deferred, Drafted, DraftResults, Failed, Judged, OverlapResults, Parted, PartRun, VerifyResults
from .session import Session
from .steps import Draft, Verify
from .world import OverlapItem, World


def in_turns(world: World, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
    """Let each member do its part, the largest first, on the text as it was before; takes the sum of their seconds.

    Not for a world whose answers change what the next part would read, as real caches do.
    """
    spans = [spans_of(session, step, levels) for session, step in items]
    answers: list[DraftResults | VerifyResults] = []
    parts: list[PartRun] = []
    now_s = 0.0
    for number, level in enumerate(levels):
        fronts, drafts, verifies = part_of(number, items, [each[number][1] for each in spans])
        results: DraftResults | VerifyResults = world.draft(level, drafts) if drafts else world.verify(level, verifies)
        for front, (session, _) in zip(fronts, items, strict=True):
            session.place = front.place  # where replay re-anchored
        answers.append(results)
        parts.append(PartRun(now_s, results.forwards, results.duration_s, results.prefixes))
        now_s += results.duration_s
    rows = [together(row) for row in zip(*[answer.rows for answer in answers], strict=True)]
    return OverlapResults(rows, parts, now_s, answers[-1].free_kv_share)


def together(row: Sequence[Drafted | Judged | Failed | Deferred]) -> Parted | Failed | Deferred:
    """The result of one request: those of all its parts, or why one of them has none."""
    ran = [each for each in row if isinstance(each, Drafted | Judged)]
    if len(ran) == len(row):
        return tuple(ran)
    apart = [each for each in row if isinstance(each, Failed | Deferred)]
    return next((each for each in apart if isinstance(each, Failed)), apart[0])


class OnePart(NamedTuple):
    """One part of the overlaps of some requests: what its member drafts or judges, each text as it was before."""

    fronts: list[Session]
    drafts: list[tuple[Session, Draft]]
    verifies: list[tuple[Session, Verify]]


def part_of(number: int, items: Sequence[OverlapItem], ends: Sequence[int]) -> OnePart:
    """The part at an index, of requests whose texts end there for its member."""
    part = OnePart([front_of(session, end) for (session, _), end in zip(items, ends, strict=True)], [], [])
    for front, (_, step) in zip(part.fronts, items, strict=True):
        asked = step.steps[number]
        if isinstance(asked, Draft):
            part.drafts.append((front, asked))
        else:
            part.verifies.append((front, asked))
    return part
