"""A fixed chain of any length, `draft:4/target` or `draft:3/mid:6/target`.

The lower part runs until the tokens kept by a level number at least its window, then the next level judges all of
them (multi-level speculation as in SpecRouter, arXiv:2505.07680; two levels: Leviathan et al., arXiv:2211.17192).
"""

from dataclasses import replace

from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import Stop
from ..about import SIGNALS, About
from ..chain_notation import parse_chain


class Chain:
    """A fixed chain with fixed windows.

    Args:
        pool: the members.
        spec: the chain in notation.
        stop: ends the lowest level's drafts early; None drafts whole windows.

    Attributes:
        spec: the chain.
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: a text that is no chain of this pool.
    """

    about = About(
        paper="Leviathan et al. 2023, arXiv:2211.17192; SpecRouter, arXiv:2505.07680",
        lossless=True,
        members="those of the chain",
        by_pending=True,
    )

    def __init__(self, pool: Pool, spec: str, *, stop: Stop | None = None) -> None:
        chain = parse_chain(spec, pool)
        self.spec = chain
        self.most_pending = sum(chain.windows)
        verifiers = chain.members[1:] or chain.members
        # The lowest verifier judges whatever was drafted: a draft that came back short had a reason to end.
        windows = (1, *chain.windows[1:])
        self._verifies = [(name, Verify(name), window) for name, window in zip(verifiers, windows, strict=True)]
        self._draft = Draft(chain.members[0], chain.windows[0], stop) if chain.windows else None
        if stop is not None:
            self.about = replace(self.about, observes=SIGNALS)
        if chain.members == (pool.target,):
            self.about = replace(self.about, target_alone=True)

    def decide(self, seen: Observation) -> Step:
        """Climb as far as windows are full, else draft."""
        if not seen.num_pending:
            return self._verifies[0][1] if self._draft is None or seen.found_nothing else self._draft
        if len(self._verifies) == 1:
            return self._verifies[0][1]
        hurry = not seen.has_room or seen.found_nothing
        for model, verify, window in self._verifies:
            waiting = seen.waiting(model)
            if waiting >= window or (waiting and hurry):
                return verify
            if waiting:
                break  # what this level has not kept is not for the levels above
        assert self._draft is not None  # a chain of one level never has anything pending
        return self._draft

    def learn(self, outcome: Outcome) -> None:
        """A fixed chain learns nothing."""
