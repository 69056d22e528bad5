"""A recording of contexts, ready for replay by any number of policies."""

from collections.abc import Callable

from ...decoding.prefill import Start, prefill_before
from ...policies.about import ALL_OBSERVABLES, BRANCHES
from ...policies.default_policies import default_policies
from ...policies.oracles.foresight import Answer, Foreseen
from ...traces.tries.recording import TrieRecording
from ..cost.base import CostModel
from ..recorded_pool import recorded_pool
from .agreement_rates import Fallback
from .answers import TrieAnswers
from .request_tables import TablesByRequest
from .world import ReplayWorld


class TrieTables(TablesByRequest):
    """A recording of contexts; see `ReplayTables`."""

    def __init__(self, trace: TrieRecording) -> None:
        super().__init__(trace)
        self.pool = recorded_pool(trace)
        self._fitted = Fallback(trace)
        self.observables = ALL_OBSERVABLES if trace.meta.closure.trees else ALL_OBSERVABLES - BRANCHES
        self.default_start = Start.prefill
        names = default_policies(self.pool)
        # Not for `agree`, whose recording would have to be as deep as the longest chain it may ever choose.
        self.default_policies = (*names, "specrouter") if self.pool.target_level > 0 else tuple(names)

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """See `ReplayTables`; a recording of contexts began in no way of its own."""
        return prefill_before(start, self.pool, what=f"recording {self.trace.meta.name}")

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """See `ReplayTables`; what a fallback would answer is no part of it, whatever the seed."""
        world = self.world(cost, seed=seed, strict=False)
        answers = {}
        for session in world.sessions(prefill_before):
            recorded = self.of(session.request_id)
            answers[session.request_id] = Answer(session, recorded.trunk_tokens, recorded.trunk)
        return Foreseen(world, answers, drawn=False)

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> ReplayWorld:
        """See `ReplayTables`."""
        fallback = None if strict else self._fitted.reseeded(seed)
        return ReplayWorld(tables=self, pool=self.pool, cost=cost, fallback=fallback, now_s=now_s)

    def answers(self, *, seed: int, strict: bool) -> TrieAnswers:
        """See `ReplayTables`."""
        return TrieAnswers(tables=self, fallback=None if strict else self._fitted.reseeded(seed))
