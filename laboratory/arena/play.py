"""Play one policy in one cell at one seed: in batches, or in the serving engine, in which every request arrives once.

A process of the arena keeps a recording: its tables and costs are built once, for all runs on it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median

import numpy as np
from paceline.base.errors import ArgumentError, check_least, check_within
from paceline.decoding.legal_steps import Policy
from paceline.policies.about import About, about_of, decides_by_pending, runs_target_alone
from paceline.policies.by_name import PolicySpec
from paceline.policies.fixed import Plain
from paceline.reports.summary import summarise_run
from paceline.runs.log import UNKNOWN_COUNT, RunLog
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import ServingAbout
from paceline.sim.context_tables import RequestTables
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.replay_tables import ReplayTables, check_observed, in_order, tables_of
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.replica import ReplicaSpec
from paceline.sim.serving.requests import DrawnRequests
from paceline.sim.serving.routers import Dispatcher, RoundRobin, RouterSetting
from paceline.sim.serving.serve import serve
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.opening import by_form
from paceline.traces.recording import Recording
from paceline.traces.rounds.rounds import TARGET_ALONE
from paceline.traces.workloads.arrival import PS_PER_S, Arrival, WorkloadAbout

from ..replays import TimedSteps
from .cells import MOST_RUNNING, ArenaCell, load
from .ladders import ladder

# Output tokens after which seconds are read for learning curves.
MARKS = (100, 1_000, 10_000)
# The policy's name under which the best static chain of a cell in hindsight is kept.
BEST_STATIC = "best-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A finished run of one policy in one cell; raises ArgumentError for a number out of range.

    All fields except `think_us`, a measurement, are compared: a repeated run has the same ones on every machine.
    """

    cell: ArenaCell
    policy: str  # as it was named, options with it; `best-static` is the best static chain in hindsight
    seed: int  # 0 is the recorded order of requests, each other another order; >= 0
    tokens: int  # of output, >= 1
    # simulated, > 0: to the end of the run with a batch; with arrivals those in which the device was busy
    seconds: float
    # of those, until 100, 1,000 and 10,000 output tokens; None if the run is shorter, and under arrivals, where they
    # mean little
    seconds_at: tuple[float | None, ...]
    mean_e2e_s: float  # simulated mean time from a request's arrival to its last token, > 0
    # share of decisions that were recorded, not modelled, 0 to 1; None under arrivals
    exact_share: float | None
    # how it was played: `walked` in the tables of the recording, `stepped` by the loop, `served` by the engine
    path: str
    chain: str = ""  # of `best-static`, the chain; "" of others
    # whether the policy may write other text than the target's; one without `about` may not, if no token differs
    lossy: bool = False
    # of a lossy policy, share of output tokens that equal the target's own text at their place, 0 to 1; None for
    # others, without a recorded text, and under arrivals
    same_share: float | None = None
    # of a lossy policy, output tokens that differ from it, or that one of both texts lacks, >= 0; None for others, and
    # under arrivals
    divergences: int | None = None
    # median microseconds of this host for a decision of the policy; None if it was not called step by step
    think_us: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_least("`seed`", self.seed, 0)
        check_least("`tokens`", self.tokens, 1)
        check_within("`seconds`", self.seconds, "(0, inf)")
        check_within("`mean_e2e_s`", self.mean_e2e_s, "(0, inf)")
        if self.exact_share is not None:
            check_within("`exact_share`", self.exact_share, "[0, 1]")
        if len(self.seconds_at) != len(MARKS):
            raise ArgumentError(f"`seconds_at` must have {len(MARKS)} entries, got {len(self.seconds_at)}")

    @property
    def tokens_per_s(self) -> float:
        """Speed: output tokens over seconds."""
        return self.tokens / self.seconds


PARTS = 4  # of a recording, within which requests are reordered: changes in mid-run are kept
PLAIN = "plain"


class RecordingStage:
    """A recording with everything that its runs share."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._tables = {0: tables_of(recording)}
        # Held, so that they are built once for all runs in any order.
        self._held = by_form(recording, tries=self._all_requests, rounds=lambda _: ())
        self._costs: dict[str, CostModel] = {}
        self._capacities: dict[str, float] = {}

    def tables(self, seed: int) -> ReplayTables:
        """Ready for replay, in the order of a seed."""
        if seed not in self._tables:
            self._tables[seed] = in_order(self._tables[0], seed, parts=PARTS)
        return self._tables[seed]

    def _all_requests(self, tries: TrieRecording) -> Sequence[RequestTables]:
        tables = self._tables[0]
        assert isinstance(tables, TrieTables)
        return tuple(tables.of(request.request_id) for request in tries.requests)

    def cost(self, name: str) -> CostModel:
        """Seconds of a ladder; raises ArgumentError for an unknown name."""
        if name not in self._costs:
            self._costs[name] = ladder(name)(self.recording)
        return self._costs[name]

    def capacity_per_s(self, name: str) -> float:
        """Output tokens a second of the target alone at a ladder, with `MOST_RUNNING` requests at a time."""
        if name not in self._capacities:
            tables = self.tables(0)
            target_alone: Policy = Plain(tables.pool)
            log = simulate(Scenario(tables=tables, cost=self.cost(name), batch=MOST_RUNNING), target_alone, PLAIN)
            seconds = float(log.requests["finished_at_s"].max())
            self._capacities[name] = int(log.requests["emitted_tokens"].sum()) / seconds
        return self._capacities[name]


TOKEN_BUDGET = 8192  # tokens of a step
BLOCKS = 100_000  # of 16 tokens, in each member: memory is always enough


class PoissonArrivals:
    """The requests of a recording, in their order, at random times: a workload.

    The engine draws the recorded request for an arrival by its name. So each has a name for which its own request is
    drawn: otherwise a third would repeat earlier answers, and longer ones would start again.
    """

    def __init__(self, recording: Recording, tokens_per_s: float, *, seed: int) -> None:
        self._lengths = by_form(
            recording,
            tries=lambda tries: [
                (one.request_id, one.tag, len(one.prompt), len(one.trie.trunk) - 1) for one in tries.requests
            ],
            rounds=lambda rounds: [
                (one.request_id, one.tag, max(1, one.prompt_tokens), one.length(TARGET_ALONE))
                for one in rounds.requests
            ],
        )
        self._drawn = DrawnRequests(recording.requests, seed=seed)
        mean_tokens = sum(tokens for *_, tokens in self._lengths) / len(self._lengths)
        gaps_s = np.random.default_rng(seed).exponential(mean_tokens / tokens_per_s, len(self._lengths))
        self._arrives_ps: list[int] = np.rint(np.cumsum(gaps_s) * PS_PER_S).astype(np.int64).tolist()
        name = recording.about.name
        self.about = WorkloadAbout(
            name=name, files=(), format="", unit_tokens=0, num_requests=len(self._lengths), notes=(), drawn=True
        )

    def __iter__(self) -> Iterator[Arrival]:
        for (request_id, tag, prompt, tokens), at_ps in zip(self._lengths, self._arrives_ps, strict=True):
            yield Arrival(self._name(request_id, tag), at_ps, prompt, tokens, tag)

    def _name(self, recorded_id: str, tag: str) -> str:
        names = (f"{recorded_id}#{number}" for number in count())
        return next(name for name in names if self._drawn.of(name, tag) == recorded_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigures:
    """The figures of a served run."""

    tokens: int  # of output
    busy_s: float  # seconds in which the device ran a member
    mean_e2e_s: float  # from a request's arrival to its last token, in the mean


def served(
    tables: ReplayTables, cost: CostModel, policy: Policy, name: str, *, tokens_per_s: float, seed: int
) -> ServedFigures:
    """Serve all requests of a recording to the end; on average `tokens_per_s` of output are requested.

    Raises:
        PolicyError: the policy broke the contract.
        ArgumentError: seconds unknown to the cost, a policy that needs what the recording lacks, or one that sees
            ahead.
    """
    workload = PoissonArrivals(tables.trace, tokens_per_s, seed=seed)
    blocks = [None if member.model_free else BLOCKS for member in tables.pool.members]
    recorder = ServingRecorder(tables.pool.names, {"replica": blocks})
    memory = KvLimits(num_blocks=BLOCKS, prefix_cache=False)
    kv = {member.name: memory for member in tables.pool.members if not member.model_free}
    limits = EngineLimits(max_num_seqs=MOST_RUNNING, token_budget=TOKEN_BUDGET, kv=kv)
    spec = ReplicaSpec(policy=policy, policy_name=name, cost=cost, limits=limits)
    router = RoundRobin(RouterSetting(num_replicas=1, seed=0))
    dispatch = partial(Dispatcher, router, "round-robin")
    try:
        serve(workload, tables, [spec], dispatch=dispatch, recorder=recorder, seed=seed)
    except CostRangeError as error:
        raise error.loaded() from None
    log = recorder.log(ServingAbout(policy="policy", workload="arena", cluster="arena", seed=seed))
    e2e_ps = log.requests["ended_at_ps"] - log.requests["arrived_at_ps"]
    return ServedFigures(
        tokens=int(log.requests["emitted_tokens"].sum()),
        busy_s=sum(member.busy_ps for replica in log.meta.replicas for member in replica.members) / PS_PER_S,
        mean_e2e_s=float(e2e_ps.mean()) / PS_PER_S,
    )


WALKED, STEPPED, SERVED = "walked", "stepped", "served"


def play(stage: RecordingStage, cell: ArenaCell, policy: PolicySpec, seed: int) -> Played:
    """Play a newly built policy in a cell; `seed` determines the order of requests, arrivals and modelled decisions.

    Raises:
        PolicyError: the policy broke the contract.
        ValueError: it cannot be built for the recording's pool, needs what the recording lacks, or seconds unknown to
            the cost; names the policy.
    """
    at, tables, cost, name = load(cell.load), stage.tables(seed), stage.cost(cell.ladder), policy.label
    built = policy.build(tables.pool)
    check_observed(built, name, tables)
    about, asked = about_of(built), _timed(built)
    played = partial(Played, cell=cell, policy=name, seed=seed)
    if at.share is not None:
        tokens_per_s = at.share * stage.capacity_per_s(cell.ladder)
        found = served(tables, cost, asked or built, name, tokens_per_s=tokens_per_s, seed=seed)
        return played(
            tokens=found.tokens,
            seconds=found.busy_s,
            seconds_at=(None,) * len(MARKS),
            mean_e2e_s=found.mean_e2e_s,
            exact_share=None,
            path=SERVED,
            lossy=_is_lossy(about),
            think_us=_think_us(asked),
        )
    assert at.batch is not None
    log = simulate(Scenario(tables=tables, cost=cost, batch=at.batch, seed=seed), asked or built, name)
    summary = summarise_run(log)
    same_share, divergences = _quality(log)
    lossy = _is_lossy(about) or (about is None and divergences > 0)
    return played(
        tokens=summary.output_tokens,
        seconds=summary.duration_s,
        seconds_at=seconds_at(log),
        mean_e2e_s=summary.e2e_s.mean,
        exact_share=summary.exact_share,
        path=STEPPED if asked or tables.trace.about.drafts_only or (about is not None and about.oracle) else WALKED,
        lossy=lossy,
        same_share=same_share if lossy else None,
        divergences=divergences if lossy else None,
        think_us=_think_us(asked),
    )


def seconds_at(log: RunLog) -> tuple[float | None, ...]:
    """Seconds until each number of output tokens in `MARKS`; None where the run has fewer."""
    order = np.argsort(log.steps["end_s"], kind="stable")
    out = np.cumsum(log.steps["emitted"][order])
    places = np.searchsorted(out, MARKS)
    ends_s = log.steps["end_s"][order]
    return tuple(float(ends_s[place]) if place < len(out) else None for place in places)


def _timed(policy: Policy) -> TimedSteps | None:
    """The policy with a clock; None for an oracle, and for a policy that need not be called step by step."""
    about = about_of(policy)
    if decides_by_pending(policy) or runs_target_alone(policy) or (about is not None and about.oracle):
        return None
    return TimedSteps(policy, about)


def _think_us(asked: TimedSteps | None) -> float | None:
    """Median microseconds of this host for a decision; None if it was not timed."""
    return 1e6 * median(asked.steps_s) if asked and asked.steps_s else None


def _is_lossy(about: About | None) -> bool:
    return about is not None and not about.lossless


def _quality(log: RunLog) -> tuple[float | None, int]:
    """(share of tokens that are the target's own, None if unknown; tokens that differ)."""
    divergences = int(log.requests["divergent_tokens"].sum())
    same = log.requests["same_tokens"]
    if (same == UNKNOWN_COUNT).any():
        return None, divergences
    return float(same.sum() / log.requests["emitted_tokens"].sum()), divergences
