"""A guard: another policy decides while it is faster than the target alone, which takes over where it is not.

Both are measured: seconds per token of whole rounds, recent ones with more weight. A policy that makes decoding slower
(its drafter is seldom right, or the batch so large that width costs) is set aside for a while and then tried again.
"""

from ...decoding.contract import Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ..about import About, about_parts, most_pending
from ..parts.member_seconds import MemberSeconds


class Guarded:
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
        most_pending: tokens the policy may have pending, at most, as far as it says.
        falls: how often the policy was set aside.

    Raises:
        ValueError: an option out of range.
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
        if not -1.0 < margin < float("inf"):
            raise ValueError(f"margin must be > -1 and finite, got {margin!r}")
        for name, value in (("trial", trial), ("retry", retry), ("memory", memory)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self.wrapped = policy
        self._plain = Verify(pool.target)
        self._margin, self._trial, self._retry, self._memory = margin, trial, retry, memory
        self._seconds = MemberSeconds(pool, costs)
        self._plain_pace = _Pace(memory)
        self._pace = _Pace(memory)
        self._open: dict[str, _Request] = {}
        self._pause = trial
        self.falls = 0
        self.about = about_parts((policy,))
        self.most_pending = most_pending((policy,))

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
        if self._plain_pace.seconds_per_token < (1.0 + self._margin) * self._pace.seconds_per_token:
            self._pause = self._retry
            self._pace = _Pace(self._memory)
            self.falls += 1


class _Request:
    """Where one request stands: what decides its round, and what that has cost so far."""

    __slots__ = ("between_rounds", "plain", "seconds")

    def __init__(self) -> None:
        self.between_rounds = True
        self.plain = True
        self.seconds = 0.0


class _Pace:
    """Seconds per token over recent rounds."""

    __slots__ = ("_kept", "_seconds", "_tokens", "num_rounds")

    def __init__(self, memory: int) -> None:
        self._kept = 1.0 - 1.0 / memory
        self._seconds = 0.0
        self._tokens = 0.0
        self.num_rounds = 0

    def note(self, seconds: float, tokens: int) -> None:
        self._seconds = self._kept * self._seconds + seconds
        self._tokens = self._kept * self._tokens + tokens
        self.num_rounds += 1

    @property
    def seconds_per_token(self) -> float:
        return self._seconds / self._tokens
