"""A guard: another policy decides while it is faster than the target alone, which takes over where it is not.

Both are measured: seconds per token of whole rounds, recent ones with more weight. A policy that makes decoding slower
(its drafter is seldom right, or the batch so large that width costs) is set aside for a while and then tried again.
"""

from dataclasses import dataclass

from ...arguments import check_least, check_within
from ...decoding.contract import Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ..about import About
from ..parts.acceptance_rate import RunningRatio
from ..parts.member_seconds import MemberSeconds
from .made_of import MadeOf, check_step_by_step


class Guarded(MadeOf):
    """Another policy, with plain decoding in its place while its predicted gain is negative.

    The first `trial` rounds are plain, to know what is to be beaten. One judgement serves all requests; with
    `per-tag,default=guarded+policy=...` there is one for each tag.

    Args:
        pool: the members.
        policy: asked where it is not set aside. It learns from its own steps only, so that of a request which ends
            while it is set aside it is not told the end.
        margin: least gain, seconds per token of plain decoding over those of the policy less 1, > -1.
        trial: rounds before a judgement, >= 1.
        retry: plain rounds before the policy is tried again, >= 1.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        wrapped: the policy.
        falls: how often the policy was set aside. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, or a policy that works ahead.
    """

    about: About | None = About(lossless=True, members="what its policy needs")

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy,
        margin: float = 0.0,
        trial: int = 8,
        retry: int = 64,
        memory: int = 32,
        costs: str | None = None,
    ) -> None:
        check_within("margin", margin, "(-1, inf)")
        check_least("trial", trial, 1)
        check_least("retry", retry, 1)
        check_step_by_step((policy,))
        self.wrapped = policy
        self._plain = Verify(pool.target)
        self._margin, self._trial, self._retry, self._memory = margin, trial, retry, memory
        self._seconds = MemberSeconds(pool, costs)
        self._plain_pace = RunningRatio(memory=memory)  # seconds per token, as below
        self._pace = RunningRatio(memory=memory)
        self._open: dict[str, _Request] = {}
        self._pause = trial
        self.falls = 0
        super().__init__((policy,))

    def decide(self, seen: Observation) -> Step:
        """As the policy says, or plain decoding."""
        request_id = seen.request_id
        request = self._open.get(request_id)
        if request is None:
            request = self._open[request_id] = _Request()
        if not seen.num_pending and request.between_rounds:
            request.between_rounds = False
            request.plain = self._pause > 0
            self._pause -= request.plain
        if request.plain:
            return self._plain
        return self.wrapped.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Charge the round; the policy learns from what it asked for."""
        request = self._open[outcome.request_id]
        request.seconds += self._seconds.charge(outcome)
        if not request.plain:
            self.wrapped.learn(outcome)
        if outcome.num_emitted:
            pace = self._plain_pace if request.plain else self._pace
            pace.note(request.seconds, outcome.num_emitted)
            request.seconds = 0.0
            request.between_rounds = True
            if not request.plain:
                self._judge()
        if outcome.done:
            del self._open[outcome.request_id]

    def _judge(self) -> None:
        """Set the policy aside where its gain is below the margin; it comes back as one that is not known."""
        # In a large batch whole rounds of the policy may end before the first plain one does.
        if self._pace.num_rounds < self._trial or self._pause > 0 or not self._plain_pace.num_rounds:
            return
        if self._plain_pace.rate < (1.0 + self._margin) * self._pace.rate:
            self._pause = self._retry
            self._pace = RunningRatio(memory=self._memory)
            self.falls += 1


@dataclass(slots=True)
class _Request:
    """Where one request stands: what decides its round, and what that has cost so far."""

    between_rounds: bool = True
    plain: bool = True
    seconds: float = 0.0
