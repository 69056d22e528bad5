"""An imported recording, ready for replay by any number of policies."""

from collections.abc import Callable

from ...decoding.prefill import Start, prefill_before
from ...policies.about import Observable
from ...policies.default_policies import policies_at_windows
from ...policies.oracles.foresight import Answer, Foreseen
from ...traces.rounds.recording import RoundsRecording
from ..cost.base import CostModel
from ..hazard.draws import Hazard
from ..recorded_pool import recorded_pool
from .answers import ON_TRUNK, RoundAnswers
from .world import RoundsWorld


class RoundsTables:
    """An imported recording; see `ReplayTables`."""

    def __init__(self, trace: RoundsRecording) -> None:
        self.trace = trace
        self.pool = recorded_pool(trace)
        has_text = all(request.output for request in trace.requests)
        self.observables = frozenset({Observable.text}) if has_text else frozenset[Observable]()
        self.default_start = Start.recorded
        windows = {drafter.name: trace.window(drafter) for drafter in trace.meta.drafters}
        self.default_policies = tuple(policies_at_windows(self.pool, windows))
        self._fitted = Hazard(trace)

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """See `ReplayTables`; the target, and lookups, wait for the prefill if every drafter did."""
        if start is not Start.recorded:
            return prefill_before(start, self.pool)
        drafters = self.trace.meta.drafters
        every = all(drafter.prefilled for drafter in drafters)
        num_free = len(self.pool.members) - len(drafters) - 1
        return (*(every,) * num_free, *(drafter.prefilled for drafter in drafters), every)

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """See `ReplayTables`; draws are keyed, so that an oracle knows its run's luck, unless that is strict."""
        world = self.world(cost, seed=seed, strict=False)
        answers = {}
        for session in world.sessions(prefill_before):
            text = world.foresee(session.request_id)
            answers[session.request_id] = Answer(session, text, [ON_TRUNK] * (len(text) + 1))
        return Foreseen(world, answers, drawn=not strict)

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> RoundsWorld:
        """See `ReplayTables`; seconds of recorded rounds do not depend on the time."""
        return RoundsWorld(
            trace=self.trace,
            pool=self.pool,
            cost=cost,
            hazard=None if strict else self._fitted.reseeded(seed),
        )

    def answers(self, *, seed: int, strict: bool) -> RoundAnswers:
        """See `ReplayTables`."""
        num_free = len(self.pool.members) - len(self.trace.meta.drafters) - 1
        hazard = None if strict else self._fitted.reseeded(seed)
        return RoundAnswers(trace=self.trace, num_free=num_free, hazard=hazard)
