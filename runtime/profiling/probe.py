"""Decodes with real models and notes every operation: the seconds of its forwards, and of all else until its end.

From that come what operations cost beside their forwards, and how much longer forwards took than measured alone. A
journal, a file of JSON lines that only grows, keeps the measurements, so that an interrupted profile continues where it
was. Letters: R requests of an operation.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls
from torch import Tensor

from ...base.errors import ArgumentError
from ...base.files import decode_json, write_whole
from ...decoding.legal_steps import Policy
from ...decoding.results import DRAFT, VERIFY, Drafted, DraftResults, VerifyResults
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ...traces.meta import Sampling
from ...traces.profile import (
    MOST_JUDGED,
    BatchShape,
    BesideForwards,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    WeightsRead,
)
from ..caches import Placement
from ..clock import Clock
from ..decode import Run, sessions_of
from ..forward import ModelForward, WrappedForward
from ..pools.members import LoadedMembers
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..verify import Chunk
from ..world import TorchWorld

# Member, rows, new tokens of each, tokens held by each.
ShapeKey = tuple[str, int, int, int]
Group = tuple[int, int]


class Journal:
    """Seconds by round and group of shapes; mutated by `note` and `forget`.

    Only a cache: a file that cannot be read is started again, and a failed write is ignored. A file with another
    `about` (what is measured, and how) is started again too, and any file without `resume`.

    Attributes:
        begun_at: when the first known group was measured; None if there is none.
        refused_drift: drift of all groups, for which a profile of them was refused; None: it was not.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, resume: bool = True) -> None:
        self._path = path
        self._about = json.loads(json.dumps(about))  # as it is after reading
        self._known: dict[tuple[int, Group], dict[ShapeKey, float]] = {}
        self._can_grow = False
        self.begun_at: datetime | None = None
        self.refused_drift: float | None = None
        if resume:
            self._read()

    def __len__(self) -> int:
        return len(self._known)

    def known(self, number: int, group: Group) -> dict[ShapeKey, float] | None:
        """Seconds of a group's shapes in a round; None where they were not measured."""
        return self._known.get((number, group))

    def note(self, number: int, group: Group, seconds: Mapping[ShapeKey, float]) -> None:
        """Note the seconds of a group in a round."""
        self._known[number, group] = dict(seconds)
        with suppress(OSError):
            if self._can_grow:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(_line_of(number, group, seconds))
            else:
                self._begin()

    def seconds(self) -> dict[ShapeKey, list[float]]:
        """Seconds of each known shape, round by round."""
        found: dict[ShapeKey, list[float]] = {}
        for _, known in sorted(self._known.items()):
            for key, value in known.items():
                found.setdefault(key, []).append(value)
        return found

    def refuse(self, drift: float) -> None:
        """Note that a profile of the known groups was refused for their drift."""
        self.refused_drift = drift
        with suppress(OSError):
            self._begin()

    def forget(self) -> None:
        """Forget everything, and remove the file."""
        self._known.clear()
        self.begun_at, self.refused_drift, self._can_grow = None, None, False
        with suppress(OSError):
            self._path.unlink()

    def _begin(self) -> None:
        """Write a file of what is known: the first one, or without a line that an interrupt cut short."""
        self.begun_at = self.begun_at or datetime.now(UTC)
        refused = {} if self.refused_drift is None else {"refused_drift": self.refused_drift}
        header = json.dumps({"about": self._about, "begun_at": self.begun_at.isoformat(), **refused})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [_line_of(number, group, seconds) for (number, group), seconds in self._known.items()]
        write_whole(self._path, "".join([header + "\n", *lines]))
        self._can_grow = True

    def _read(self) -> None:
        """Read what is there, up to a line that was cut short."""
        try:
            header, *lines = self._path.read_bytes().split(b"\n")
            first = decode_json(header)
            if first["about"] != self._about:
                return
            begun_at = datetime.fromisoformat(first["begun_at"])
            refused_drift = float(first["refused_drift"]) if "refused_drift" in first else None
        except (OSError, ValueError, KeyError, TypeError):
            return
        whole = lines[:-1]
        for line in whole:
            try:
                number, group, seconds = _read_line(line)
            except (ValueError, KeyError, TypeError):
                break
            self._known[number, group] = seconds
        self._can_grow = lines[-1:] == [b""] and len(self._known) == len(whole)
        if self._known:
            self.begun_at, self.refused_drift = begun_at, refused_drift


def _line_of(number: int, group: Group, seconds: Mapping[ShapeKey, float]) -> str:
    shapes = [[*key, value] for key, value in seconds.items()]
    return json.dumps({"round": number, "group": group, "shapes": shapes}) + "\n"


def _read_line(line: bytes) -> tuple[int, Group, dict[ShapeKey, float]]:
    """The round, the group and its seconds; raises ValueError, KeyError or TypeError for any other line."""
    found = decode_json(line)
    rows, context = map(int, found["group"])
    seconds = {
        (str(member), int(num_rows), int(new), int(held)): float(value)
        for member, num_rows, new, held, value in found["shapes"]
    }
    return int(found["round"]), (rows, context), seconds


class ProbedForward(NamedTuple):
    """A forward of an operation."""

    level: int
    shape: BatchShape
    ended_s: float  # by the world's clock
    seconds: float  # of the forward, placing its tokens included


class ProbedOp(NamedTuple):
    """An operation."""

    kind: int  # DRAFT or VERIFY
    level: int
    num_rows: int  # R
    num_tokens: int  # drafted, or judged and written, over all rows
    forwards: tuple[ProbedForward, ...]  # none of a model-free member
    beside_s: float  # from the end of the operation before it to its own, without forwards and without the policy
    decisions: int  # steps that the policy decided meanwhile
    policy_s: float  # seconds of the policy for them, and to learn from the previous operation
    num_running: int  # running requests at its last decision
    stops: bool  # whether it is a draft with a stop in some row


class _WatchedForward(WrappedForward):
    """A forward that notes the shapes it was called with, and when it ended."""

    def __init__(self, inner: ModelForward, clock: Clock, ran: list[tuple[BatchShape, float]]) -> None:
        super().__init__(inner)
        self._clock, self._ran = clock, ran

    def logits(self, logits: Tensor, placement: Placement) -> Tensor:
        counts, apart = placement.counts, not isinstance(placement.rows, slice)
        shape = BatchShape(len(counts), sum(counts), max(counts), placement.num_slots, apart)
        self._ran.append((shape, self._clock.now_s()))
        return logits


def check_probed(pool: LoadedMembers) -> None:
    """Raises ArgumentError for a pool whose operations are more than forwards over all tokens fed."""
    if pool.feature_level is not None:
        name = pool.members[pool.feature_level].name
        raise ArgumentError(f"`pool` must not have a member that reads the target's states to be profiled, got {name}")


class ProbedWorld(TorchWorld):
    """A world that notes its operations in `ops`; `begin` before each run."""

    def __init__(self, *, pool: LoadedMembers, sampling: Sampling) -> None:
        check_probed(pool)
        self._ran: list[tuple[BatchShape, float]] = []
        super().__init__(pool=pool, sampling=sampling, watch=self._watched)

    def sessions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Session]:
        """The requests of prompts."""
        assert isinstance(self.pool, ModelPool)
        return sessions_of(self.pool, prompts, max_new_tokens)

    def _watched(self, forward: ModelForward) -> ModelForward:
        return _WatchedForward(forward, self.clock, self._ran)

    def begin(self, run: Run) -> None:
        """Note the operations of a run that is about to start."""
        self.ops: list[ProbedOp] = []
        self._timed = run.timed
        self._before = self._reading()

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        results = super().draft(level, items)
        written = sum(len(row.tokens) for row in results.rows if isinstance(row, Drafted))
        stops = any(step.stop is not None for _, step in items)
        self._note(DRAFT, level, len(items), written, results, stops=stops)
        return results

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> VerifyResults:
        judged = sum(len(session.tokens) - session.first_unjudged(level) + 1 for session, _ in items)
        results = super().verify(level, items, chunks)
        self._note(VERIFY, level, len(items), judged, results)
        return results

    def _shapes(self, level: int, results: DraftResults | VerifyResults) -> list[tuple[BatchShape, float]]:
        """The shapes that forwards noted; even rows for operations that ran as a whole, without forward by forward."""
        if len(self._ran) == len(results.forwards):
            return self._ran
        cache, now_s = self.manager.cache(level), self.clock.now_s()
        num_slots = max(cache.length(request_id) for request_id in cache.rows)
        return [(BatchShape(rows, new, -(-new // rows), num_slots), now_s) for rows, new, _, _ in results.forwards]

    def _reading(self) -> tuple[float, int, float]:
        return self.clock.now_s(), self._timed.decisions, self._timed.seconds

    def _note(
        self,
        kind: int,
        level: int,
        num_rows: int,
        num_tokens: int,
        results: DraftResults | VerifyResults,
        *,
        stops: bool = False,
    ) -> None:
        forwards = tuple(
            ProbedForward(level, shape, ended_s, seconds)
            for (shape, ended_s), (_, _, _, seconds) in zip(self._shapes(level, results), results.forwards, strict=True)
        )
        self._ran.clear()
        before, self._before = self._before, self._reading()
        now_s, decisions, policy_s = (now - then for now, then in zip(self._before, before, strict=True))
        beside_s = now_s - policy_s - sum(forward.seconds for forward in forwards)
        running = self._timed.num_running
        self.ops.append(
            ProbedOp(kind, level, num_rows, num_tokens, forwards, beside_s, int(decisions), policy_s, running, stops)
        )


def probe(
    world: ProbedWorld,
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    name: str,
    batch: int,
    max_new_tokens: int,
) -> list[ProbedOp]:
    """Decode prompts, `batch` at a time, and return the operations.

    Raises:
        ValueError: a request failed.
    """
    run = Run(world, policy, name=name)
    sessions = world.sessions(prompts, max_new_tokens)
    world.begin(run)
    for _ in run.driver.run(sessions, batch):
        pass
    for request_id, error in run.driver.failed.items():
        raise ValueError(f"request {request_id} failed while profiling: {error}")
    return world.ops


# An operation that took more than this times the median of similar ones was interrupted by other work on the machine.
_INTERRUPTED_BESIDE = 4.0


def fit_beside(ops: Sequence[ProbedOp]) -> BesideForwards:
    """Seconds by operation, forward, row and token, by non-negative least squares over means of similar operations.

    `ops` are of one kind; without any all are 0.
    """
    if not ops:
        return BesideForwards()
    alike: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for op in ops:
        alike[len(op.forwards), op.num_rows, op.num_tokens].append(op.beside_s)
    means, weights, terms = [], [], []
    for counts, seconds in alike.items():
        kept = [one for one in seconds if one <= _INTERRUPTED_BESIDE * median(seconds)]
        means.append(sum(kept) / len(kept))
        weights.append(len(kept) ** 0.5)
        terms.append((1.0, *map(float, counts)))
    # Relative errors count: an operation of one request must be as exact as one of many.
    scale = np.array(weights) / np.array(means)
    solved, _ = nnls(np.array(terms) * scale[:, None], np.array(means) * scale)
    per_op_s, per_forward_s, per_row_s, per_token_s = solved.tolist()
    return BesideForwards(per_op_s=per_op_s, per_forward_s=per_forward_s, per_row_s=per_row_s, per_token_s=per_token_s)


# Least forwards for a mean, and the most times the median of a forward that other work did not interrupt.
_LEAST_SEEN, _INTERRUPTED = 25, 3.0

# By new tokens, (predicted, measured) seconds.
_Seen = dict[int, list[tuple[float, float]]]


def longer_in_decoding(
    ops: Sequence[ProbedOp], known: Sequence[ForwardsInDecoding | None], names: Sequence[str], read: WeightsRead
) -> dict[str, InDecoding]:
    """By member, from operations that were watched, in order; without forwards that read a prompt.

    `known` is by level what is predicted, None for a member without a model; `read` is of no forward yet, and mutated.
    """
    seen: dict[tuple[str, bool], _Seen] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        for place, (level, shape, ended_s, seconds) in enumerate(op.forwards):
            member = known[level]
            if member is None:
                continue
            foreseen_s = member.seconds(shape, first=not place)
            if not place:
                foreseen_s += member.reloads_s(shape.new_tokens, read.away(names[level], ended_s - seconds))
            read.note(names[level], ended_s)
            if shape.longest <= MOST_JUDGED:
                seen[names[level], not place][shape.new_tokens].append((foreseen_s, seconds))
    return {
        name: InDecoding(first=_longer(seen[name, True]), later=_longer(seen[name, False]))
        for name, member in zip(names, known, strict=True)
        if member is not None
    }


def _longer(seen: _Seen) -> Longer:
    """Means over forwards by number of tokens, similar numbers together where few were seen."""
    tokens, longer = [], []
    group: list[tuple[int, float]] = []
    for new_tokens in sorted(seen):
        ratio = median(seconds / foreseen_s for foreseen_s, seconds in seen[new_tokens])
        group += [
            (new_tokens, seconds - foreseen_s)
            for foreseen_s, seconds in seen[new_tokens]
            if seconds <= _INTERRUPTED * ratio * foreseen_s
        ]
        if len(group) >= _LEAST_SEEN:
            tokens.append(round(fmean(count for count, _ in group)))
            longer.append(fmean(seconds for _, seconds in group))
            group = []
    return Longer(new_tokens=tuple(tokens), longer_s=tuple(longer))
