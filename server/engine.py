"""The simulator's replica over real models, in wall time: one thread in which requests join and leave between steps.

`sim.serving.engine.Replica` decides what runs: admission, token budget, chunks of prefills, blocks, preemption. Its
world here is the runtime's. Every policy has a replica, and keys and values, of its own; of those with anything to run,
the one that ran for the least time gets the next operation. How tokens are chosen is set per request: temperature,
truncation, seed and stop strings differ within a batch.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from time import perf_counter_ns
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..base.terminal import tell
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.request_text import Ending
from ..decoding.results import Deferred, Failed, Judged
from ..decoding.session import Session
from ..decoding.steps import Draft, Verify
from ..runs.recorder import ServingRecorder
from ..runtime.coupled_noise import RequestNoise
from ..runtime.pools.members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.sampler import SameToken
from ..runtime.sampler import noise_of as noise_of_state
from ..runtime.sampling import truncated
from ..runtime.state import RequestState
from ..runtime.threads import use_threads
from ..runtime.world import TorchWorld
from ..sim.cost.base import CostModel
from ..sim.recorded import RecordedAnswers, Replayed
from ..sim.rounds_once import SharedRounds
from ..sim.serving.engine import Replica
from ..sim.serving.limits import EngineLimits
from ..sim.serving.replica import ReplicaSpec, ServedFrom
from ..sim.serving.requests import READS, DrawnRequests, ServedRequest
from ..sim.serving.world import Fed, Ran
from ..traces.meta import Sampling
from ..traces.workloads.arrival import PS_PER_S, Arrival
from .logprobs import TokenLogprob, token_logprobs

_PS_PER_NS = 1000
_TRUNCATION = attrgetter("temperature", "top_p", "top_k")  # of a sampling

# Receives a request's new tokens, and how it ended, if it did. Called in the engine's thread.
Deliver = Callable[["Job", Sequence[int], "End | None"], None]


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended."""

    reason: str  # "eos", "stop" or "length"; "" if it failed
    error: str = ""  # why it failed
    left: bool = False  # whether the client went before its end


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One requested answer, and its result; mutated by the engine once it is submitted."""

    request_id: str  # unique
    policy: str  # by name
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling  # greedy or coupled
    noise_name: str  # with the seed, the key of its noise
    eos: frozenset[int]
    ending: Ending | None
    deliver: Deliver
    text: str = ""  # of the prompt, where it was sent as text
    arrived_at_ps: int = 0  # on the engine's clock, as all times
    first_token_at_ps: int | None = None
    ended_at_ps: int | None = None
    tokens: list[int] = field(default_factory=list)  # committed so far
    steps: list[tuple[int, int]] = field(default_factory=list)  # (drafted, accepted) of each step of the target
    num_top: int | None = None  # likeliest tokens sent with each token's log-probability; None: neither is
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of `tokens`, where they are sent

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token, which must have come."""
        assert self.first_token_at_ps is not None
        return (self.first_token_at_ps - self.arrived_at_ps) / PS_PER_S

    @property
    def e2e_s(self) -> float:
        """From its arrival to its end, which must have come."""
        assert self.ended_at_ps is not None
        return (self.ended_at_ps - self.arrived_at_ps) / PS_PER_S


class LiveRequest(ServedRequest):
    """A request whose answer is not known in advance: it ends once, at the end of its text or at its token limit."""

    __slots__ = ("job",)

    def __init__(self, *, pool: Pool, job: Job, arrival: Arrival, serial: int, answers: RecordedAnswers) -> None:
        super().__init__(pool=pool, arrival=arrival, serial=serial, answers=answers, recorded_id=job.request_id)
        self.job = job

    def _begins_segment(self) -> bool:
        """Never: an answer of models has one end."""
        return False


class Jobs:
    """The requests of a replica by id, in the form in which the simulator's sessions replay them."""

    def __init__(self) -> None:
        self.by_id: dict[str, Job] = {}
        self.sessions: dict[str, LiveRequest] = {}  # made when a request is first considered

    def replay(self, session_id: str, request_id: str) -> Replayed:
        """What a session starts with; see `RecordedAnswers`."""
        job = self.by_id[request_id]
        assert session_id == request_id, "a request that is served twice"
        return Replayed("", job.prompt, job.max_tokens, job.eos, job.ending, 0)

    def noise(self, request_id: str, vocab_size: int) -> RequestNoise | None:
        """The noise of a sampled request's own seed and name; None for a greedy one."""
        job = self.by_id[request_id]
        seed = job.sampling.seed
        return None if seed is None else RequestNoise(seed=seed, request_id=job.noise_name, vocab_size=vocab_size)


class LiveRequests(ServedFrom):
    """What only this replica has: sessions of jobs, in place of drawn requests of a recording."""

    def session(self, arrival: Arrival, serial: int) -> ServedRequest:
        """The session of a request that is considered for the first time."""
        jobs = cast(Jobs, self.answers)
        job = jobs.by_id[arrival.request_id]
        made = LiveRequest(pool=self.pool, job=job, arrival=arrival, serial=serial, answers=self.answers)
        jobs.sessions[arrival.request_id] = made
        return made


class OwnSampling(SameToken):
    """Chooses tokens by each request's own sampling: greedy or coupled, at its own temperature and truncation."""

    def __init__(self) -> None:
        super().__init__(Sampling(mode="coupled", temperature=1.0, seed=0))
        # While the target runs: `[K + 1, V]` log-probabilities of requests that want them, by id. None: no request
        # does.
        self.kept: dict[str, Tensor] | None = None

    def distributions(self, logits: Tensor, states: Sequence[RequestState]) -> Tensor:
        """See `Sampler`; consecutive rows with the same truncation are truncated together."""
        if self.kept is not None:
            self._keep(logits, states, self.kept)
        parts, start = [], 0
        for _, rows in groupby((_job_of(state.session).sampling for state in states), key=_TRUNCATION):
            alike = list(rows)
            parts.append(truncated(logits[start : start + len(alike)], alike[0]))
            start += len(alike)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def _keep(logits: Tensor, states: Sequence[RequestState], kept: dict[str, Tensor]) -> None:
        start = 0
        for request_id, rows in groupby(states, key=lambda state: state.request_id):
            end = start + len(list(rows))
            if _job_of(states[start].session).num_top is not None:
                kept[request_id] = logits[start:end].float().log_softmax(dim=-1)
            start = end

    def scores(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> Tensor:
        """See `SameToken`; a greedy request has no noise."""
        if all(state.noise is None for state in states):
            return logits
        nothing = np.zeros(logits.shape[-1], dtype=np.float32)
        rows = zip(states, positions, strict=True)
        noise = [nothing if state.noise is None else noise_of_state(state).at(position) for state, position in rows]
        return logits + torch.from_numpy(np.stack(noise)).to(logits.device)


def _job_of(session: Session) -> Job:
    return cast(LiveRequest, session).job


class LiveWorld:
    """Runs the operations of one replica with the models; implements `sim.serving.world.EngineWorld`.

    The request of a row that fails is in `failed`, for the replica's driver to take out before the replica commits.
    """

    def __init__(self, models: TorchWorld, sampler: OwnSampling, stepped: Callable[[int, int], None]) -> None:
        self.failed: dict[str, str] = {}
        self._sampler, self._stepped = sampler, stepped
        self._models = models
        self._target = len(models.pool.members) - 1
        self.open, self.close = models.open, models.close
        self.preempt, self.signal = models.preempt, models.signal

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> Ran:
        """See `EngineWorld`; raises MemoryError where the device has no room."""
        start_ns = perf_counter_ns()
        results = self._models.draft(level, [(row, cast(Draft, row.step)) for row in rows])
        self._note_failed(rows, results.rows)
        return Ran.of(results, self._took_ps(start_ns))

    def verify(
        self, level: int, rows: Sequence[ServedRequest], chunks: Sequence[ServedRequest] = (), fed: Fed = None
    ) -> Ran:
        """See `EngineWorld`; raises as `draft`. Notes what the target accepted of every draft."""
        start_ns = perf_counter_ns()
        items = [(row, cast(Verify, row.step)) for row in rows]
        by_target = level == self._target
        wanted = by_target and any(_job_of(row).num_top is not None for row in rows)
        kept: dict[str, Tensor] | None = {} if wanted else None
        self._sampler.kept = kept
        results = self._models.verify(level, items, [(row, row.chunk) for row in chunks])
        self._sampler.kept = None
        self._note_failed(rows, results.rows)
        for (session, step), row in zip(items, results.rows, strict=True):
            if not isinstance(row, Judged):
                continue
            if by_target and step is not READS:
                step_tokens = len(session.tokens), row.num_accepted
                _job_of(session).steps.append(step_tokens)
                self._stepped(*step_tokens)
            if kept and session.request_id in kept:
                self._note(session, row, kept[session.request_id])
        return Ran.of(results, self._took_ps(start_ns))

    @staticmethod
    def _note(session: Session, found: Judged, log_probs: Tensor) -> None:
        """Note log-probabilities of the tokens that the target commits now: accepted pending ones and its own."""
        job, count = _job_of(session), found.num_accepted + 1
        assert job.num_top is not None
        tokens = [*session.tokens[: found.num_accepted], found.own_token]
        job.logprobs += token_logprobs(log_probs[:count], tokens, job.num_top)

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        """See `EngineWorld`; raises as `draft`."""
        start_ns = perf_counter_ns()
        self._models.verify(level, [], [(row, row.chunk) for row in rows])
        return self._took_ps(start_ns)

    def _note_failed(self, requests: Sequence[ServedRequest], rows: Sequence[object]) -> None:
        for request, row in zip(requests, rows, strict=True):
            if isinstance(row, Deferred):
                raise MemoryError(row.reason)
            if isinstance(row, Failed):
                self.failed[request.request_id] = str(row.error)

    def _took_ps(self, start_ns: int) -> int:
        self._models.clock.now_s()  # waits for the devices
        return (perf_counter_ns() - start_ns) * _PS_PER_NS


class LiveReplica:
    """One policy with its replica, models and requests. Called in the engine's thread alone.

    `stepped` is called with the drafted and the accepted tokens of each step of the target; `debug` checks every cache
    at every step.
    """

    def __init__(
        self,
        models: ModelPool,
        name: str,
        policy: Policy,
        limits: EngineLimits,
        *,
        recorder: ServingRecorder,
        stepped: Callable[[int, int], None],
        debug: bool = False,
    ) -> None:
        self.name = name
        self._jobs = Jobs()
        target = models.target.model
        assert target is not None
        vocab_size = int(target.config.vocab_size)
        sampler = OwnSampling()
        self._models = TorchWorld(
            pool=models,
            sampling=sampler.sampling,
            sampler=sampler,
            make_noise=lambda request_id: self._jobs.noise(request_id, vocab_size),
            overlap="turns",
            debug=debug,
        )
        self._world = LiveWorld(self._models, sampler, stepped)
        pool, answers = loaded_pool(models), cast(RecordedAnswers, self._jobs)
        shared = LiveRequests(
            pool=pool,
            answers=answers,
            rounds=SharedRounds(pool, answers),
            drawn=DrawnRequests((), seed=0),
            unit_tokens=0,
            deadlines={},
            recorder=recorder,
            outputs=None,
            on_ended=lambda *_: None,
            on_reached=lambda *_: None,
        )
        spec = ReplicaSpec(
            policy=policy,
            policy_name=name,
            cost=CostModel(),  # not used: models take their own time
            limits=limits,
            make_world=lambda *_: self._world,
        )
        self._replica = Replica(0, spec, shared, may_lag=False)

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Waiting and running jobs, by id."""
        return self._jobs.by_id

    def arrive(self, job: Job, now_ps: int) -> None:
        """Take a request in; one that can never run ends at once."""
        arrival = Arrival(
            request_id=job.request_id,
            arrives_ps=job.arrived_at_ps,
            prompt_tokens=len(job.prompt),
            output_tokens=job.max_tokens,
        )
        refused = self._replica.refuses(arrival)
        if refused:
            job.deliver(job, (), End("", refused))
            return
        self._jobs.by_id[job.request_id] = job
        self._replica.arrive(arrival, now_ps)

    def leave(self, request_id: str, now_ps: int) -> None:
        """Cancel a request whose client has left; nothing happens to one that has ended."""
        if self._jobs.by_id.pop(request_id, None) is not None:
            self._jobs.sessions.pop(request_id, None)
            self._replica.leave(request_id, now_ps)

    def step(self, now_ps: Callable[[], int]) -> bool:
        """Run one operation and deliver its result; False: there was nothing to run.

        Raises:
            PolicyError: the policy broke the contract.
            MemoryError: a device has no room for what the blocks hold.
        """
        end_ps = self._replica.plan(now_ps()) if self._jobs.by_id else None
        if end_ps is None:
            return False
        failed, self._world.failed = self._world.failed, {}
        for request_id in failed:
            self._replica.leave(request_id, end_ps)
        self._replica.commit()
        at_ps = now_ps()
        for request_id, error in failed.items():
            self._end(self._jobs.by_id[request_id], (), End("", error), at_ps)
        for request in list(self._jobs.sessions.values()):
            if len(request.emitted) > len(request.job.tokens):
                self._deliver(request, at_ps)
        return True

    def fail_all(self, error: str, at_ps: int) -> None:
        """End every request with an error and free the memory; the replica cannot be used any more."""
        for job in list(self._jobs.by_id.values()):
            self._end(job, (), End("", error), at_ps)
        self._models.manager.drop_all()

    def _deliver(self, request: LiveRequest, at_ps: int) -> None:
        job = request.job
        new = request.emitted[len(job.tokens) :]
        if not job.tokens:
            job.first_token_at_ps = at_ps
        job.tokens += new
        assert job.num_top is None or len(job.logprobs) >= len(job.tokens), "a token that the target did not judge"
        reason = request.finish_reason
        if reason is None:
            job.deliver(job, new, None)
        else:
            self._end(job, new, End(reason), at_ps)

    def _end(self, job: Job, new: Sequence[int], end: End, at_ps: int) -> None:
        del self._jobs.by_id[job.request_id]
        self._jobs.sessions.pop(job.request_id, None)
        job.ended_at_ps = at_ps
        job.deliver(job, new, end)


class LiveEngine:
    """Runs replicas in a thread of its own, while there is anything to run.

    All methods may be called in any thread.

    Args:
        make_replicas: by the name of a policy, makes its replica: at once, and again after a failure, which ends the
            replica.
        threads: CPU threads of torch.

    Attributes:
        num_open: requests that have not ended.
        on_began: called with every request when it arrives.
        on_ended: called with every request that ended, or failed, or whose client left, and how.
    """

    def __init__(self, make_replicas: Mapping[str, Callable[[], LiveReplica]], *, threads: int) -> None:
        self._make_replicas, self._threads = make_replicas, threads
        self._replicas = {name: make() for name, make in make_replicas.items()}
        self.on_began: list[Callable[[Job], None]] = []
        self.on_ended: list[Callable[[Job, End], None]] = []
        self._inbox: deque[tuple[str, Job]] = deque()
        self._wake, self._stopping = threading.Event(), False
        self.num_open = 0
        self._ran_ns = dict.fromkeys(self._replicas, 0)  # how long each replica ran
        self._lock = threading.Lock()
        self._began_ns = perf_counter_ns()
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests."""
        return self._thread.is_alive() and not self._stopping

    def now_ps(self) -> int:
        """Picoseconds since the engine was made; monotonic."""
        return (perf_counter_ns() - self._began_ns) * _PS_PER_NS

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its operation; requests that have not ended fail."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """A request arrives now."""
        job.arrived_at_ps = self.now_ps()
        deliver = job.deliver

        def noting(one: Job, tokens: Sequence[int], end: End | None) -> None:
            if end is not None:
                self._note_ended(one, end)
            deliver(one, tokens, end)

        job.deliver = noting
        with self._lock:
            self.num_open += 1
        for tell_began in self.on_began:
            tell_began(job)
        self._inbox.append(("submit", job))
        self._wake.set()

    def cancel(self, job: Job) -> None:
        """The client has left: the job is cancelled before the next operation."""
        self._inbox.append(("cancel", job))
        self._wake.set()

    def _note_ended(self, job: Job, end: End) -> None:
        with self._lock:
            self.num_open -= 1
        for tell_ended in self.on_ended:
            tell_ended(job, end)

    def _run(self) -> None:
        use_threads(self._threads)
        while not self._stopping:
            self._wake.clear()
            self._take_in()
            if not self._turn() and not self._inbox and not self._stopping:
                self._wake.wait()
        self._take_in()
        for replica in self._replicas.values():
            replica.fail_all("the server is shutting down", self.now_ps())

    def _take_in(self) -> None:
        while self._inbox:
            what, job = self._inbox.popleft()
            replica = self._replicas[job.policy]
            if what == "submit":
                if not replica.jobs:  # it is not compensated for time without a request
                    busy = [self._ran_ns[name] for name, one in self._replicas.items() if one.jobs]
                    self._ran_ns[job.policy] = max(self._ran_ns[job.policy], min(busy, default=0))
                replica.arrive(job, self.now_ps())
            elif job.request_id in replica.jobs:
                job.ended_at_ps = self.now_ps()
                replica.leave(job.request_id, job.ended_at_ps)
                self._note_ended(job, End("", left=True))

    def _turn(self) -> bool:
        """Run an operation of the replica that ran for the least time, of those that can; False: none can."""
        for name in sorted(self._replicas, key=self._ran_ns.__getitem__):
            start_ns = perf_counter_ns()
            if self._step(name):
                self._ran_ns[name] += perf_counter_ns() - start_ns
                return True
        return False

    def _step(self, name: str) -> bool:
        replica = self._replicas[name]
        try:
            return replica.step(self.now_ps)
        except Exception as error:  # noqa: BLE001 - a policy is foreign code; its requests fail, the server runs on
            tell(f"policy {name}: {type(error).__name__}: {error}")
            replica.fail_all(f"policy {name} failed: {error}", self.now_ps())
            self._replicas[name] = self._make_replicas[name]()
            return True
