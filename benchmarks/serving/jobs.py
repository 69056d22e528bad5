"""What `benchmarks/serving` runs: published and drawn workloads on replicas of one H100 each.

The target alone is a model of 8 billion parameters by its roofline; policies replay a recording of small models, which
represent members of 1 to 8 billion parameters.
"""

import importlib.util
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

from paceline.decoding.pool import Pool
from paceline.policies.by_name import make_policy
from paceline.reports.serving import Promises, ServiceLevels, metrics_of
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import ServingAbout
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.replay_tables import ReplayTables, tables_of
from paceline.sim.serving.charges import ForwardLines
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.replica import ReplicaSpec
from paceline.sim.serving.routers import ROUTERS, Dispatcher, RouterSetting
from paceline.sim.serving.serve import serve
from paceline.traces.opening import open_recording
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import RoundsMeta, RoundsRequest
from paceline.traces.shapes import shape_called
from paceline.traces.workloads.arrival import Workload
from paceline.traces.workloads.opening import open_workload

ROOT = Path(__file__).parents[2]
AZURE = Path("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz")
MOONCAKE = Path("mooncake_fast25/conversation_trace.jsonl.gz")
PICO = "recordings/pico.trace"
SHAPE = shape_called("llama-3.1-8b", "target", None)
PROMISED = Promises(others=ServiceLevels(ttft=1.0, tpot=0.05))
# Seconds of members with 1 to 8 billion parameters on one H100, as in docs/serving.md.
LARGE = {
    "draft": CostLine(intercept_s=0.00074, per_new_token_s=2.5e-6, per_kv_token_s=1e-8),
    "mid": CostLine(intercept_s=0.0018, per_new_token_s=6e-6, per_kv_token_s=3.4e-8),
    "slim": CostLine(intercept_s=0.0024, per_new_token_s=8e-6, per_kv_token_s=2e-8),
    "target": CostLine(intercept_s=0.0048, per_new_token_s=1.6e-5, per_kv_token_s=3.9e-8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A served run."""

    source: str  # file below the data, or a generator's text with "{requests}"
    num_replicas: int  # each with its own memory
    policy: str = "target"  # text of every replica's
    recording: str | None = None  # below the repository; members take the seconds of `LARGE`; None: the target alone
    prefix_cache: bool = False  # whether replicas have one
    router: str = "round-robin"  # before the replicas
    stepwise: bool = False  # simulate every step separately
    limit: int | None = None  # most arrivals; None: all
    goal: float | None = None  # output tokens per second


JOBS = {
    "azure": Job(source=str(AZURE), num_replicas=4, goal=1.65e6),
    "azure, prefix cache": Job(source=str(AZURE), num_replicas=4, prefix_cache=True),
    "azure, step by step": Job(source=str(AZURE), num_replicas=4, stepwise=True, limit=2000),
    "mooncake, prefix cache": Job(source=str(MOONCAKE), num_replicas=8, prefix_cache=True),
    "azure, draft:4/target": Job(
        source=str(AZURE), num_replicas=4, policy="draft:4/target", recording=PICO, goal=1.5e6
    ),
    "azure, draft:3/mid:6/target": Job(
        source=str(AZURE), num_replicas=4, policy="draft:3/mid:6/target", recording=PICO, goal=0.8e6
    ),
    "azure, draft:4/target, step by step": Job(
        source=str(AZURE), num_replicas=4, policy="draft:4/target", recording=PICO, stepwise=True, limit=500
    ),
    "azure, draft:3/mid:6/target, step by step": Job(
        source=str(AZURE), num_replicas=4, policy="draft:3/mid:6/target", recording=PICO, stepwise=True, limit=500
    ),
    "azure, adaptive": Job(source=str(AZURE), num_replicas=4, policy="adaptive", recording=PICO, goal=0.5e6),
    "azure, SpecRouter per request": Job(
        source=str(AZURE), num_replicas=4, policy="specrouter,select=request", recording=PICO, goal=0.12e6
    ),
    "generated": Job(source="poisson:rate=300,requests={requests},prompt=512,output=200", num_replicas=64),
}


def workload_of(job: Job, data: Path, requests: int) -> Workload:
    """The workload of a job, not read yet."""
    if ":" in job.source:
        return open_workload(job.source.format(requests=requests))
    return open_workload(data / job.source, limit=job.limit)


def served(job: Job, data: Path, requests: int) -> tuple[int, float]:
    """Output tokens, and seconds of this process for reading, serving, the log and all metrics."""
    return served_workload(job, workload_of(job, data, requests))


def served_workload(job: Job, workload: Workload) -> tuple[int, float]:
    """`served` for a workload that is not read yet."""
    if job.recording is None:
        tables, cost = _alone(), _roofline()
    else:
        tables, cost = tables_of(open_recording(ROOT / job.recording)), FileCost("large", LARGE)
    limits = _limits(job, tables.pool)
    started_s = time.process_time()
    names = tables.pool.names
    blocks = [limits.kv[name].num_blocks for name in names]
    recorder = ServingRecorder(names, {f"replica{index}": blocks for index in range(job.num_replicas)})
    specs = [
        ReplicaSpec(policy=make_policy(job.policy, tables.pool), policy_name=job.policy, cost=cost, limits=limits)
        for _ in range(job.num_replicas)
    ]
    router = ROUTERS.parse(job.router).build(RouterSetting(num_replicas=job.num_replicas))
    run = serve(
        workload,
        tables,
        specs,
        dispatch=lambda replicas: Dispatcher(router, job.router, replicas),
        recorder=recorder,
        stepwise=job.stepwise,
    )
    metrics_of(recorder.log(ServingAbout(policy=job.policy, workload=job.source, cluster="h100")), PROMISED)
    return run.num_emitted, time.process_time() - started_s


def served_plainly(data: Path) -> tuple[int, float]:
    """`served` by the plain reference of the tests, for the first requests of the Azure workload."""
    module = _loaded(ROOT / "tests/sim/serving/engine/plain_reference.py")
    job = JOBS["azure"]
    lines = ForwardLines(_roofline())

    def forward_ps(num_rows: int, new_tokens: int, context_tokens: int) -> int:
        return lines.line("target", num_rows, new_tokens, context_tokens).ps(context_tokens)

    limits = _limits(job, _alone().pool)
    started_s = time.process_time()
    arrivals = list(workload_of(job, data, 0))
    for replica in range(job.num_replicas):
        module.serve_plainly(list(islice(arrivals, replica, None, job.num_replicas)), limits, forward_ps)
    return sum(arrival.output_tokens for arrival in arrivals), time.process_time() - started_s


def _loaded(path: Path) -> ModuleType:
    """The module of a file outside packages."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def _roofline() -> RooflineCost:
    assert SHAPE is not None
    return RooflineCost(device_sheet()["h100"], (SHAPE,))


def _alone() -> ReplayTables:
    """A recording of the target alone: sixteen answers of 512 tokens."""
    requests = tuple(
        RoundsRequest(request_id=f"r{index}", tag="", num_tokens={"": 512}, rounds={}) for index in range(16)
    )
    return tables_of(RoundsRecording(meta=RoundsMeta(name="alone", source="made", drafters=()), requests=requests))


def _limits(job: Job, pool: Pool) -> EngineLimits:
    kv = KvLimits(num_blocks=25_000, block_tokens=16, prefix_cache=job.prefix_cache)
    return EngineLimits(max_num_seqs=256, token_budget=8192, kv=dict.fromkeys(pool.names, kv))
