"""PEARL: the draft writes on while the target judges, and the window is where both take equally long.

Liu et al. 2024 (arXiv:2408.11850). *Pre-verify*: while the draft writes its first tokens, the target already judges the
first one. *Post-verify*: while the target judges a draft, the next one is written behind it. The draft's length is the
ratio of the speeds of target and draft (their section 4.3), so that neither waits.

Where we differ: the target's own token after an accepted draft is compared with the first token that was written ahead
at once. There that token is judged in the next round, so that a draft written in vain is found out a round later, and
each round takes its tokens a round later, too.
"""

from ...arguments import ArgumentError, check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Overlap, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.member_seconds import MemberSeconds

START, MOST, MEMORY = 4, 8, 64


class Pearl:
    """Two levels, both always at work.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        window: tokens written ahead in each step, 1 to 1,000,000; None: as many as take the target's time. The other
            options are about the choice of these.
        start: window until both members' seconds are known, 1 to `most`; default 4, or `most` if that is less.
        most: longest window, 1 to 1,000,000; default 8.
        memory: measured steps that averages of seconds reach back, >= 1; default 64.
        costs: of forwards, as `draft:1/target:10`, in place of measured seconds; see `member_seconds`.

    Attributes:
        window: of the next step.
        most_pending: tokens it may have pending, at most, those that are written ahead among them.

    Raises:
        ValueError: an option out of range or without effect beside another one, or a drafter that is not below the
            target.
    """

    about = About(paper="PEARL, arXiv:2408.11850", lossless=True, members=A_DRAFTER, works_ahead=True)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        window: int | None = None,
        start: int | None = None,
        most: int | None = None,
        memory: int | None = None,
        costs: str | None = None,
    ) -> None:
        self._drafter, self._target = drafter_of(pool, draft), pool.target
        self._chooses = window is None
        if window is not None:
            check_within("window", window, ONE_STEP)
            _refuse_beside(f"window={window}", start=start, most=most, memory=memory, costs=costs)
        if costs is not None:
            _refuse_beside(f"costs={costs}", memory=memory)
        self._seconds = MemberSeconds(pool, costs, memory=MEMORY if memory is None else memory)
        self._most = window or (MOST if most is None else most)
        check_within("most", self._most, ONE_STEP)
        if start is not None:
            check_within("start", start, f"[1, most={self._most}]")
        self._verify = Verify(pool.target)
        self._aheads = [Overlap((self._verify, Draft(self._drafter, count))) for count in range(1, self._most + 1)]
        self.most_pending = 2 * self._most
        self.window = window or start or min(START, self._most)
        if self._chooses and self._choose() and start is not None:
            _refuse_beside(f"costs={costs}", start=start)

    def decide(self, seen: Observation) -> Step:
        """Judge what is pending and write on behind it; at the end of the text there is nothing to write."""
        room = seen.room
        if room < 1:
            return self._verify
        return self._aheads[min(self.window, room) - 1]

    def learn(self, outcome: Outcome) -> None:
        """Take in what members took, and choose the window anew."""
        if self._chooses:
            self._seconds.charge(outcome)
            self._choose()

    def _choose(self) -> bool:
        """As many tokens as the draft writes while the target judges them; whether seconds are known."""
        verify_s = self._seconds.verify_s(self._target, self.window)
        draft_s = self._seconds.draft_s(self._drafter, 1)
        if verify_s is None or draft_s is None or draft_s <= 0.0:
            return False
        self.window = self.fitting(verify_s / draft_s)
        return True

    def fitting(self, ratio: float) -> int:
        """The window for a target that takes `ratio` times as long as a drafted token, 1 to `most`."""
        return min(max(round(ratio), 1), self._most)


def _refuse_beside(given: str, **options: object) -> None:
    """Raise ArgumentError for the first option that is there: beside what is given it would do nothing."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{name} does nothing beside {given}, got {value!r}")
