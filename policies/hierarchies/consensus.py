"""Consensus of drafters: a draft goes on as long as several drafters would write the same, and ends where they differ.

Two models that agree on a token are more often right than one alone, and where they part nobody should draft further
on either. The smallest of the voters writes a few tokens, each larger one votes on them by a forward over all of them
(it keeps what it would have written itself), and only while nobody objects is more drafted. Then the target judges
everything, so the text is its own. What stands at the first objection is the objector's token.

The idea is that of consensus verification in tightwad 0.4 (2026, a proxy of llama.cpp servers), mode `strict`: there
the drafters write side by side, and what all of them wrote is committed without asking the target, which is lossy. We
found no paper of it. A vote by verification, the windows, and the target's judgement of everything are ours. Against
the chain `draft:4/mid:8/target`: there the middle member goes on after it has corrected the draft, here it stops.
"""

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation, found_nothing
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_VERIFIER_BETWEEN, next_verifier, smallest_model
from ..parts.drafted_blocks import DraftedBlocks


class Consensus(DraftedBlocks):
    """Draft while the drafters agree, then let the target judge.

    Args:
        pool: the members.
        voters: two drafters or more from smallest to largest, separated by `@`, as `draft@mid`; all but the first must
            be able to verify. Default the smallest model and the smallest verifier above it.
        tokens: drafted between two votes, 1 to `most`.
        most: tokens drafted ahead of the target, 1 to 1,000,000; every voter but the first may add one.

    Raises:
        ValueError: an option out of range, or voters that are fewer than two, not in order, or unable to verify.
    """

    about = About(paper="consensus verification, tightwad 2026", lossless=True, members=A_VERIFIER_BETWEEN)

    def __init__(self, pool: Pool, *, voters: str | None = None, tokens: int = 4, most: int = 12) -> None:
        check_within("most", most, ONE_STEP)
        check_within("tokens", tokens, f"[1, most={most}]")
        names = _default_voters(pool) if voters is None else _named_voters(pool, voters)
        super().__init__(Draft(names[0], tokens), Verify(pool.target))
        self._votes = dict(zip(names, (*map(Verify, names[1:]), None), strict=True))
        self._drafts = {name: Draft(name, tokens) for name in names}
        self._most = most
        self.most_pending = most + len(names) - 1

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """The next voter's vote; with all in favour more is drafted, with one against the target judges."""
        step = last.step
        if last.refused_at is not None or isinstance(step, Commit):
            return self._verify
        vote = self._votes[step.model]
        if found_nothing(last):
            # A lookup without a match has no vote, and the next voter writes in its place.
            return self._verify if seen.num_pending or vote is None else self._drafts[vote.model]
        if vote is not None:
            return vote
        goes_on = step.__class__ is Verify and seen.has_room and seen.num_pending + self._draft.tokens <= self._most
        return self._draft if goes_on else self._verify


def _default_voters(pool: Pool) -> tuple[str, ...]:
    smallest = smallest_model(pool)
    return smallest, next_verifier(pool, None, smallest, "consensus")


def _named_voters(pool: Pool, text: str) -> tuple[str, ...]:
    names = tuple(text.split("@"))
    levels = [pool.level(name) for name in names]
    if len(names) < 2 or levels != sorted(set(levels)) or levels[-1] == pool.target_level:
        raise ValueError(
            f"voters must be two members below the target or more, from smallest to largest and separated by @, "
            f"got {text!r}; the pool has {', '.join(pool.names)}"
        )
    mute = [name for name, level in zip(names, levels, strict=True) if not pool.members[level].verifies]
    if set(mute) - {names[0]}:
        raise ValueError(f"voters but the first must be able to verify, {mute[-1]!r} cannot")
    return names
