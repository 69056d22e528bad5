"""What every oracle shares: shown the future, it plans each request from end to end, then follows the plan."""

from abc import ABC, abstractmethod

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..lossless.chain import Chain
from .foresight import Foresight
from .least_seconds import Plan, least_seconds
from .rounds import Round

WINDOWS = "[1, 1,000]"  # tokens; far beyond what is recorded, since every window shorter than the longest is tried too


class Oracle(ABC):
    """A policy that sees ahead.

    Plans are made for batch 1 and without seconds for decisions; a larger batch follows the same plans.

    Args:
        pool: the members.
    """

    def __init__(self, pool: Pool) -> None:
        self._alone = Chain(pool, pool.target)
        self._plans: dict[str, Plan] | None = None
        self._running: dict[str, Chain] = {}

    @abstractmethod
    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """What may be done at a position, at least one round."""
        ...

    def foresee(self, foresight: Foresight) -> dict[str, float]:
        """Plan every request anew; whoever runs the policy calls it before the first step.

        Returns:
            Seconds that each request will take at batch 1.
        """
        self._running.clear()
        self._plans = {name: self._planned(foresight, name) for name in foresight.request_ids}
        return {name: plan.seconds for name, plan in self._plans.items()}

    def decide(self, seen: Observation) -> Step:
        """As the chain that was planned for this round; after the recorded answer, the target alone.

        Raises:
            ValueError: nobody called `foresee`.
        """
        request_id = seen.request_id
        chain = self._running.get(request_id)
        if chain is None:
            if self._plans is None:
                raise ValueError("an oracle sees ahead, which only a recording can grant")
            planned = self._plans[request_id].rounds.get(seen.num_emitted)
            chain = self._running[request_id] = self._alone if planned is None else planned.chain
        return chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """A round that has committed is over."""
        if outcome.num_emitted:
            self._running.pop(outcome.request_id, None)

    def _planned(self, foresight: Foresight, request_id: str) -> Plan:
        positions = range(foresight.num_tokens(request_id))
        offered = [self.rounds(foresight, request_id, position) for position in positions]
        return least_seconds(foresight, request_id, offered)
