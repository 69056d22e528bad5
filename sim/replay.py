"""Replay step by step: one request at a time, for a user's own loop, for reinforcement learning and for tests.

In `simulate` a policy decides; here the caller gives the steps. Loop, world and cost are those of `simulate` at batch
1, so the same steps have the same outcomes, text and seconds, to the bit. No other request waits (`load.num_waiting` is
0).
"""

from pathlib import Path
from types import MappingProxyType

from ..base.errors import ArgumentError, known_are
from ..base.files import recording_path
from ..decoding.loop import Loop
from ..decoding.results import OpRecord, StepRecord
from ..decoding.seen import Observation, start_of
from ..decoding.session import Session
from ..decoding.steps import Outcome, Step
from ..traces.opening import is_recording, open_recording
from ..traces.recording import Recording
from .cost.base import CostModel
from .cost.by_name import default_cost, make_cost
from .recorded import placement_of
from .replay_tables import tables_of
from .simulate import Scenario, run_world


class _Given:
    """The loop's policy: returns `step`, and keeps its outcomes."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.outcomes: list[Outcome] = []

    def decide(self, seen: Observation) -> Step:
        assert self.step is not None
        return self.step

    def learn(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class _Unwritten:
    """A ledger that keeps nothing: training takes millions of steps."""

    def note_op(self, record: OpRecord) -> None:
        pass

    def note_step(self, record: StepRecord) -> None:
        pass

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        pass

    def note_preempted(self, request_id: str) -> None:
        pass


class Replay:
    """Requests of a recording, one at a time, each taken through its steps by the caller of `step`.

    Args:
        recording: as `open_recording` returns it, or its path, or the name of one that comes with the package.
        cost: seconds, as a model or a name (`make_cost`); None for the default of `compare`.
        seed: of modelled decisions.
        strict: raise for what is not recorded instead of modelling it.
        start: `prefill`, `draft` or `recorded`, how requests begin; None for the recording's default.
        devices: of members, as in `placement_of`; None for one device.
        decide_s: further seconds of each step, 0 to 1e9.

    Attributes:
        requests: tags by request id, in the order of the recording.
        pool: the members.
        cost: seconds.
        outcomes: of the latest step, one for each part of an `Overlap`, in the order of a policy's `learn`.

    Raises:
        ValueError: a bad argument, in one line.
    """

    def __init__(
        self,
        recording: Recording | str | Path,
        cost: CostModel | str | None = None,
        *,
        seed: int = 0,
        strict: bool = False,
        start: str | None = None,
        devices: str | None = None,
        decide_s: float = 0.0,
    ) -> None:
        opened = open_recording(recording_path(recording)) if isinstance(recording, str | Path) else recording
        if not is_recording(opened):
            raise ArgumentError(f"`recording` must be a path or an opened recording, got {recording!r}")
        tables = tables_of(opened)
        scenario = Scenario(
            tables=tables,
            cost=_priced(cost, opened),
            seed=seed,
            strict=strict,
            decide_s=decide_s,
            start=None if start is None else start_of(start),
            placement=placement_of(devices, tables.pool),
        )
        self.requests = MappingProxyType({request.request_id: request.tag for request in opened.requests})
        self.pool = tables.pool
        self.cost = scenario.cost
        self.outcomes: tuple[Outcome, ...] = ()
        self._name = opened.about.name
        self._decide_s = decide_s
        self._prefill_before = tables.prefill_before(scenario.begins)
        self._world = run_world(scenario, lambda: self._loop.load.now_s)
        self._given = _Given()
        self._loop = Loop(
            pool=tables.pool,
            policy=self._given,
            name=type(self).__name__,
            world=self._world,
            ledger=_Unwritten(),
            decide_s=(lambda _: decide_s) if decide_s else None,
            by_hand=True,
        )
        self._seconds = 0.0
        self._session: Session | None = None
        self._done = False

    @property
    def seconds(self) -> float:
        """The clock: seconds of all operations of all requests so far; never decreases."""
        return self._seconds

    @property
    def done(self) -> bool:
        """Whether the request has ended; True where none has begun."""
        return self._session is None or self._done

    def reset(self, request_id: str) -> Observation:
        """Begin a request, from its prompt; an unfinished one is given up.

        Its prefill is run and charged if requests begin with it (`start`). It may end with its first token: see `done`.

        Returns:
            A policy's view. It is live until the request has ended; then it shows the answer (`emitted_from`) and
                counts.

        Raises:
            ArgumentError: an unknown request.
            CostRangeError: outside the range of the cost.
        """
        if request_id not in self.requests:
            known = known_are(request_id, self.requests)
            raise ArgumentError(f"`request_id` must be a request of {self._name} ({known}), got {request_id!r}")
        self._let_go()
        self.outcomes = ()
        session = self._world.session(request_id, self._prefill_before)
        self._session, self._done = session, False
        self._loop.admit(session)
        view = Observation(session, self._loop.load, self._world.signal)
        if session.prefills_first:
            self._advance()
        self._show_clock()
        return view

    def step(self, step: Step) -> Outcome:
        """Carry out one step of the request, as `simulate` would.

        An illegal step changes nothing, and another may be tried. After any other error the request is given up.

        Returns:
            Its outcome; of an `Overlap`, that of its last part (`outcomes` has all).

        Raises:
            ArgumentError: no request has begun, or it has ended.
            PolicyError: an illegal step, or too many in a row that did nothing; names request and step.
            UnrecordedContextError: `strict`, and a decision is not recorded.
            CostRangeError: outside the range of the cost.
        """
        session = self._session
        if session is None or self._done:
            why = "no request has begun" if session is None else f"request {session.request_id} has ended"
            raise ArgumentError(f"`step` goes with a request that runs, and {why}: call reset(request_id)")
        self._loop.check(session, step)
        given = self._given
        given.step = step
        given.outcomes.clear()
        while not given.outcomes:  # the prefill runs before a kept draft
            self._advance()
        self._show_clock()
        self.outcomes = tuple(given.outcomes)
        return self.outcomes[-1]

    def _advance(self) -> None:
        """One operation, or a Commit; if it raises, the request is given up."""
        loop = self._loop
        try:
            op = loop.next_op(self._seconds)
            start_s = self._seconds = loop.load.now_s
            if op is not None:
                results = op.run(self._world)
                self._seconds = start_s + results.duration_s
                loop.finish(op, results, start_s=start_s, now_s=self._seconds)
        except BaseException:
            self._let_go()
            raise
        if loop.failed:
            _, error = loop.failed.pop()
            self._session = None
            raise error
        if loop.finished:
            loop.finished.clear()
            self._done = True

    def _show_clock(self) -> None:
        """Set what a policy sees when it decides: deciding takes time, too."""
        self._loop.load.now_s = self._seconds + self._decide_s

    def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is not None and not self._done:
            self._loop.give_up(session)


def _priced(cost: CostModel | str | None, recording: Recording) -> CostModel:
    if isinstance(cost, CostModel):
        return cost
    if cost is not None and not isinstance(cost, str):
        raise ArgumentError(f"`cost` must be a CostModel or the name of one, got {cost!r}")
    return make_cost(default_cost(recording) if cost is None else cost, recording)
