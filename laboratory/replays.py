"""Code shared by experiments and benchmarks on a recording; needs no torch.

Chains in notation, prices of published models, replays and their speeds by tag, seconds of policies' decisions, and
jobs that run in turn with their seconds and memory.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from paceline.base.terminal import quiet
from paceline.decoding.legal_steps import Policy
from paceline.decoding.pool import Pool
from paceline.decoding.results import VERIFY
from paceline.decoding.seen import Observation
from paceline.decoding.steps import Outcome, Step
from paceline.policies.about import About
from paceline.policies.by_name import make_policy
from paceline.policies.chain_text import ChainSpec
from paceline.runs.log import RunLog
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import Price
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.meta import ModelInfo
from paceline.traces.shapes import presets

from .findings import ExperimentSetting


def chain(members: Sequence[str], windows: Sequence[int]) -> str:
    """Members from smallest to target, each except the last with its window."""
    return str(ChainSpec(members=tuple(members), windows=tuple(windows)))


def two_levels(drafters: Sequence[str], target: str, windows: Sequence[int]) -> list[str]:
    """Every drafter at every window."""
    return [chain((drafter, target), (window,)) for drafter in drafters for window in windows]


def three_levels(pool: Pool, *, lower: Sequence[int], upper: Sequence[int]) -> list[str]:
    """Every pair of members below the target whose upper one can judge, at every pair of windows."""
    return [
        chain((low.name, high.name, pool.target), windows)
        for low, high in combinations(pool.members[:-1], 2)
        if high.verifies
        for windows in product(lower, upper)
    ]


DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Three models in place of drafter, middle level and target, and their devices."""

    name: str
    device: str  # of the device sheet
    models: tuple[ModelInfo, ...]  # shapes, the target's last
    devices: tuple[int, ...]  # that each is split over

    @property
    def target(self) -> ModelInfo:
        """The largest."""
        return self.models[-1]

    def price(self, model: ModelInfo, num_devices: int) -> Price:
        """Seconds of one of its models, by roofline; raises ValueError where all three do not fit together."""
        device = device_sheet()[self.device]
        RooflineCost(device, self.models, tensor_parallel=self.devices[-1])  # raises if it does not fit
        return Price(cost=RooflineCost(device, (model,), tensor_parallel=num_devices), model=model.name)


def families() -> tuple[Family, ...]:
    """Smallest target first; bfloat16 throughout."""
    return (
        _family("7B (160M, 1.1B)", "h100", {"llama-160m": 1, "tinyllama-1.1b": 1, "llama-2-7b": 1}),
        _family("70B (1B, 8B)", "h100", {"llama-3.2-1b": 1, "llama-3.1-8b": 1, "llama-3.1-70b": 4}),
        _family("405B (1B, 8B)", "h200", {"llama-3.2-1b": 1, "llama-3.1-8b": 1, "llama-3.1-405b": 8}),
        _family("405B (8B, 70B)", "h200", {"llama-3.1-8b": 1, "llama-3.1-70b": 8, "llama-3.1-405b": 8}),
    )


def submodel(target: ModelInfo, share: float) -> ModelInfo:
    """The target with `share` of its parameters, layers and cache, the ratio of a recorded submodel to its target."""
    return target.model_copy(
        update={
            "name": f"{target.name}-slim",
            "parameters": max(1, round(target.parameters * share)),
            "layers": max(1, round(target.layers * share)),
            "kv_bytes_per_token": round(target.kv_bytes_per_token * share),
        }
    )


def _family(name: str, device: str, devices: Mapping[str, int]) -> Family:
    known = presets()
    models = tuple(replace(known[model], dtype=DTYPE).info(model) for model in devices)
    return Family(name=name, device=device, models=models, devices=tuple(devices.values()))


# Weights over 2.04e12 bytes/s, two operations a parameter over 3.12e14/s, keys and values over 2.04e12 bytes/s: models
# of 1, 3 and 8 billion parameters (Llama 3) on an A100.
A100_COST = {
    "draft": {"intercept_s": 0.00121, "per_new_token_s": 7.9e-6, "per_kv_token_s": 1.61e-8},
    "mid": {"intercept_s": 0.00315, "per_new_token_s": 2.06e-5, "per_kv_token_s": 5.62e-8},
    "target": {"intercept_s": 0.00788, "per_new_token_s": 5.15e-5, "per_kv_token_s": 6.43e-8},
}


def a100_cost(trace: TrieRecording, folder: Path, models: Collection[str] = tuple(A100_COST)) -> str:
    """A cost file in a folder: members with a name in `models` have its seconds, others the target's."""
    names = {member.name: member.name if member.name in models else "target" for member in trace.meta.models}
    cost = folder / "cost.json"
    cost.write_text(json.dumps({member: A100_COST[name] for member, name in names.items()}))
    return str(cost)


ALL = "all"
TARGET_ALONE = "plain"


def recording_of(setting: ExperimentSetting) -> TrieRecording:
    """The recording, with at most the limit's number of requests."""
    trace = read_trace(setting.trace)
    return replace(trace, requests=trace.requests[: setting.limit])


def scenario_of(setting: ExperimentSetting, trace: TrieRecording) -> Scenario:
    """One request at a time, at the seconds measured with the recording."""
    cost = make_cost(default_cost(trace), trace)
    return Scenario(tables=TrieTables(trace), cost=cost, seed=setting.seed)


def replayed(scenario: Scenario, policy: str) -> RunLog:
    """The run of a policy built for it."""
    return simulate(scenario, make_policy(policy, scenario.tables.pool), policy)


def drafters_of(scenario: Scenario) -> tuple[str, ...]:
    """Every member below the target, smallest first; raises ValueError if there is none."""
    names = scenario.tables.pool.names[:-1]
    if not names:
        raise ValueError(
            f"recording {scenario.tables.trace.about.name}: models must be two or more, got the target alone"
        )
    return names


def tags_of(trace: TrieRecording) -> tuple[str, ...]:
    """The tags, in the order of their first requests."""
    return tuple(dict.fromkeys(request.tag for request in trace.requests))


def speed_of(log: RunLog, *, tag: str = ALL, among: Sequence[str] | None = None) -> float:
    """Output tokens per second of the requests of a tag, or of those named in `among`, in a run with batch 1.

    Seconds are from admission to the last token, summed over requests. Raises ValueError for no such request.
    """
    requests = log.requests
    chosen = np.ones(len(requests["tag"]), dtype=bool) if tag == ALL else requests["tag"] == tag
    if among is not None:
        chosen &= np.isin(requests["request_id"], list(among))
    if not chosen.any():
        raise ValueError(f"run of {log.meta['policy']}: requests of tag {tag} must be one or more, got none")
    duration_s = (requests["finished_at_s"] - requests["admitted_at_s"])[chosen].sum()
    return int(requests["emitted_tokens"][chosen].sum()) / float(duration_s)


def speed_up_of(log: RunLog, alone: RunLog, *, tag: str = ALL, among: Sequence[str] | None = None) -> float:
    """The speed of a run over that of `alone`, on the same requests; see `speed_of`."""
    return speed_of(log, tag=tag, among=among) / speed_of(alone, tag=tag, among=among)


def steps_of(log: RunLog, tag: str = ALL) -> NDArray[np.bool_]:
    """Which steps belong to requests of a tag."""
    if tag == ALL:
        return np.ones(len(log.steps["request"]), dtype=bool)
    chosen: NDArray[np.bool_] = log.requests["tag"][log.steps["request"]] == tag
    return chosen


def calls_per_token(log: RunLog, tag: str = ALL) -> float:
    """Forwards of the target per token committed, in requests of a tag."""
    steps, here = log.steps, steps_of(log, tag)
    calls = here & (steps["kind"] == VERIFY) & (steps["level"] == len(log.meta["members"]) - 1)
    return int(calls.sum()) / int(steps["emitted"][here].sum())


class TimedSteps:
    """Forwards calls to a policy, with the given `about`, and keeps their seconds.

    `deciding_s` and `learning_s` are totals of this thread: other work on the machine adds none. `steps_s` is by the
    wall clock, of each step `decide` and `learn` together, in the order in which steps finished.
    """

    def __init__(self, policy: Policy, about: About | None = None) -> None:
        self.about = about
        self._policy = policy
        self._decided_s: dict[str, float] = {}
        self.deciding_s = self.learning_s = 0.0
        self.steps_s: list[float] = []

    def decide(self, seen: Observation) -> Step:
        """See `Policy`."""
        thread_s, start_s = thread_time(), perf_counter()
        step = self._policy.decide(seen)
        self._decided_s[seen.request_id] = perf_counter() - start_s
        self.deciding_s += thread_time() - thread_s
        return step

    def learn(self, outcome: Outcome) -> None:
        """See `Policy`."""
        thread_s, start_s = thread_time(), perf_counter()
        self._policy.learn(outcome)
        self.steps_s.append(perf_counter() - start_s + self._decided_s.pop(outcome.request_id, 0.0))
        self.learning_s += thread_time() - thread_s


RUNS = 7
Name = TypeVar("Name")
Result = TypeVar("Result")


class Timing(NamedTuple):
    """Seconds by the wall clock, and of this process's own work (a busy machine adds none)."""

    wall_s: float
    cpu_s: float


def in_turns(
    jobs: Mapping[Name, Callable[[], Result]], *, runs: int = RUNS, warm_ups: int = 0
) -> dict[Name, list[Result]]:
    """Results of each job in `runs` runs after `warm_ups`, all jobs in turn, so that a slow spell affects all alike."""
    given: dict[Name, list[Result]] = {name: [] for name in jobs}
    with quiet():  # showing progress takes time too
        for turn in range(warm_ups + runs):
            for name, job in jobs.items():
                result = job()
                if turn >= warm_ups:
                    given[name].append(result)
    return given


def interleaved(jobs: Mapping[str, Callable[[], object]], *, runs: int = RUNS) -> dict[str, Timing]:
    """Medians over `runs` runs after one that warms up, all jobs in turn."""
    taken = in_turns({name: _timed(job) for name, job in jobs.items()}, runs=runs, warm_ups=1)
    return {name: Timing(*(median(column) for column in zip(*each, strict=True))) for name, each in taken.items()}


def peak_bytes(of: int = resource.RUSAGE_SELF) -> int:
    """Largest resident memory so far of this process, or of its largest child with `RUSAGE_CHILDREN`."""
    return resource.getrusage(of).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _timed(job: Callable[[], object]) -> Callable[[], Timing]:
    def run() -> Timing:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        job()
        return Timing(time.perf_counter() - wall_s, time.process_time() - cpu_s)

    return run
