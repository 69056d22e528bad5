"""A fallback within a request: one policy begins every turn, and another one ends those in which it does not pay.

Servers do this by acceptance. TensorRT-LLM keeps the acceptance rates of its latest steps, and switches speculation off
for good where their mean falls below a threshold (#12905); a proposal for the server of llama.cpp (#22931) did so for
a request whose drafts yield little, and one for mlx-lm (#1557) where a request's measured milliseconds per token exceed
those of plain decoding. Here it is decided for every request (a turn of a conversation) by that request alone, for its
rest, and by either measure. `guarded` is another thing: it judges by all requests together, tries the policy again
after a while, and spends plain rounds to know what is to be beaten.
"""

from collections import deque
from dataclasses import dataclass

from ...arguments import check_least, check_within
from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.member_seconds import MemberSeconds
from .made_of import MadeOf, check_step_by_step

LEAST = {"acceptance": 0.3, "speed": 1.0}


class PerTurn(MadeOf):
    """Another policy at the beginning of every request, until too little of what it drafts stays, or it is too slow.

    Each policy learns from its own steps only, so that of a request which ends under the other one it is not told the
    end.

    Args:
        pool: the members.
        policy: begins every request.
        then: ends the requests in which it fell below; default the target alone.
        by: `speed`, tokens per second in parts of what the target alone would write (by the line of `MemberSeconds`, so
            that no plain round is needed), or `acceptance`, of the tokens that the target judged the share that stayed.
        least: of either, over the latest `window` rounds of the request; below it the other policy takes over. Default
            1 by speed, where it must be >= 0, and 0.3 by acceptance, where it must be in [0, 1].
        after: rounds of a request before it is looked at first, >= 1.
        window: latest rounds that count, `after` or more.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        falls: requests that went over so far. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, costs where acceptance decides, token trees there (of which a path stays and
            no share), or a policy that works ahead where speed does.
    """

    about: About | None = About(lossless=True, members="what its policies need")

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy,
        then: Policy | None = None,
        by: str = "speed",
        least: float | None = None,
        after: int = 16,
        window: int = 32,
        costs: str | None = None,
    ) -> None:
        if by not in LEAST:
            raise ValueError(f"by must be acceptance or speed, got {by!r}")
        if by == "acceptance" and costs is not None:
            raise ValueError(f"costs goes with by=speed, got {costs!r}")
        if by == "acceptance" and len(getattr(policy, "trees", ())):
            raise ValueError(f"a policy of token trees goes with by=speed, got {type(policy).__name__} by acceptance")
        if by == "speed":
            check_step_by_step((policy,))
        least = LEAST[by] if least is None else least
        check_within("least", least, "[0, 1]" if by == "acceptance" else "[0, inf)")
        check_least("after", after, 1)
        check_least("window", window, after)
        self._first = policy
        self._then: Policy = Chain(pool, pool.target) if then is None else then
        self._by_speed, self._least, self._after, self._window = by == "speed", least, after, window
        self._target = pool.target
        self._seconds = MemberSeconds(pool, costs)
        self._open: dict[str, _Turn] = {}
        self.falls = 0
        super().__init__((policy, self._then))

    def decide(self, seen: Observation) -> Step:
        """As the policy that has the request; it changes hands between rounds only."""
        turn = self._open.get(seen.request_id)
        if turn is None:
            turn = self._open[seen.request_id] = _Turn(self._first, deque(maxlen=self._window))
        elif turn.falls and not seen.num_pending:
            turn.falls, turn.policy = False, self._then
        return turn.policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy that decided learns; at the end of a round it is looked at whether it goes on."""
        turn = self._open[outcome.request_id]
        turn.policy.learn(outcome)
        turn.seconds += self._seconds.charge(outcome)
        if outcome.done:
            del self._open[outcome.request_id]
        elif outcome.num_emitted and turn.policy is self._first and not turn.falls:
            self._judge(turn, outcome)

    def _judge(self, turn: "_Turn", outcome: Outcome) -> None:
        """Take in a round: what it brought, and out of how much."""
        if self._by_speed:
            turn.rounds.append((outcome.num_emitted, turn.seconds))
        else:
            turn.rounds.append((outcome.num_accepted, outcome.num_judged))
        turn.seconds = 0.0
        if len(turn.rounds) >= self._after:
            # Seconds of the target alone turn tokens into seconds; none where a Commit came before any verification.
            unit = self._seconds.verify_s(self._target, 1) if self._by_speed else 1.0
            brought, out_of = (sum(column) for column in zip(*turn.rounds, strict=True))
            turn.falls = unit is not None and brought * unit < self._least * out_of
            self.falls += turn.falls


@dataclass(slots=True)
class _Turn:
    """Where one request stands: who decides, the latest rounds of the first policy, and what this one took so far."""

    policy: Policy
    rounds: deque[tuple[int, float]]
    seconds: float = 0.0
    falls: bool = False
