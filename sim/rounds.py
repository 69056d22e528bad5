"""An imported recording, ready for replay by any number of policies, and the world that replays it."""

from collections.abc import Callable

from ..decoding.pool import Pool
from ..decoding.seen import Start, prefill_before
from ..decoding.session import Session
from ..policies.about import Observable
from ..policies.chain_text import policies_at_windows
from ..policies.oracles import Answer, Foreseen
from ..runs.log import TextQuality
from ..traces.rounds.recording import RoundsRecording
from .charges import Charges, RoundCharges
from .cost.base import CostModel
from .hazard import Hazard
from .recorded import recorded_pool
from .rounds_answers import ON_TRUNK, RequestRounds, RoundAnswers, started
from .rounds_in_step import RoundsInStep
from .world import RecordedWorld


class RoundsWorld(RoundAnswers, RecordedWorld):
    """Answers operations from an imported recording and charges seconds from a cost model.

    `hazard` draws what no round shows; None makes the first unknown an error.
    """

    def __init__(self, *, trace: RoundsRecording, pool: Pool, cost: CostModel, hazard: Hazard | None) -> None:
        super().__init__(trace=trace, num_free=pool.num_free, hazard=hazard)
        self._recording, self._pool = trace, pool
        by_rounds = cost.knows_rounds
        self._charges = RoundCharges(cost, pool, trace.meta, self._open) if by_rounds else Charges(cost, pool)
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}

    def session(self, request_id: str, prefill_before: tuple[bool, ...]) -> Session:
        """See `RecordedWorld`."""
        request = self._requests[request_id]
        state = self._open[request_id] = RequestRounds(request, self._trace.meta, waits=any(prefill_before))
        return started(state).session(self._pool, request_id, prefill_before)

    def foresee(self, request_id: str) -> list[int]:
        """Prepare to try any round of a request from any position; returns its text, the longest of all methods."""
        state = self._open[request_id]
        state.foresee()
        return state.trunk

    def open(self, session: Session) -> None:
        """Nothing: a request is prepared when its session is made."""

    def close(self, session: Session) -> None:
        """Forget the request, except its divergence from the trunk."""
        state = self._open.pop(session.request_id)
        differ = sum([ours != theirs for ours, theirs in zip(session.emitted, state.trunk, strict=False)])
        self.num_divergent[session.request_id] = differ + abs(state.num_tokens - len(session.emitted))


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
        ours = type(self) is RoundsTables  # a subclass may answer otherwise
        self.in_step = RoundsInStep(trace, self.pool, self._fitted) if ours else None

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """See `ReplayTables`; the target, and lookups, wait for the prefill if every drafter did."""
        if start is not Start.recorded:
            return prefill_before(start, self.pool)
        drafters = self.trace.meta.drafters
        every = all(drafter.prefilled for drafter in drafters)
        return (*(every,) * self.pool.num_free, *(drafter.prefilled for drafter in drafters), every)

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """See `ReplayTables`; draws are keyed, so that an oracle sees its run's draws, unless that is strict."""
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
        hazard = None if strict else self._fitted.reseeded(seed)
        return RoundAnswers(trace=self.trace, num_free=self.pool.num_free, hazard=hazard)
