"""PipeSpec: a chain whose members all work at the same time, each on what the one below has made.

McDanel et al. 2025 (arXiv:2505.01572). A pipeline of k models: each judges what the next smaller one has endorsed and
writes on, and a refusal throws away what all smaller ones made of what was refused.

Where we differ: members there run asynchronously, each as fast as it can. Here all of a step begin and end together.
"""

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Overlap, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_VERIFIER_BETWEEN, drafter_of, middle_verifier, verifiers_between


class PipeSpec:
    """The drafter, members between, and the target, all at work in each step.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        middle: the one member between; None takes all that can verify.
        window: tokens that the drafter writes in each step, 1 to 1,000,000.

    Attributes:
        most_pending: tokens it may have pending, at most, those that are written ahead among them.

    Raises:
        ValueError: an option out of range, or a pool without a member between that can verify.
    """

    about = About(paper="PipeSpec, arXiv:2505.01572", lossless=True, members=A_VERIFIER_BETWEEN, works_ahead=True)

    def __init__(self, pool: Pool, *, draft: str | None = None, middle: str | None = None, window: int = 4) -> None:
        check_within("window", window, ONE_STEP)
        drafter = drafter_of(pool, draft)
        largest = middle_verifier(pool, middle, drafter, "pipespec")
        between = verifiers_between(pool, drafter) if middle is None else [largest]
        self._verifies = tuple([Verify(name) for name in (pool.target, *reversed(between))])
        # Each verifier's own token may stand behind what it was given.
        self.most_pending = window * (len(self._verifies) + 1) + len(between)
        self._pipeline = Overlap((*self._verifies, Draft(drafter, window)))

    def decide(self, seen: Observation) -> Step:
        """All members at once; at the end of the text nobody writes, and each that has tokens to judge does."""
        if seen.has_room:
            return self._pipeline
        # A member that endorses all there is, or stands above one that does, has nothing to do but the target.
        at_work = tuple([step for step in self._verifies if step.model == seen.pool.target or seen.waiting(step.model)])
        return Overlap(at_work) if len(at_work) > 1 else at_work[0]

    def learn(self, outcome: Outcome) -> None:
        """Nothing is learnt: who works when follows from the text alone."""
