"""Types of the functions that `__init__.py` imports when asked for them. Written by tests/stub.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .decoding.seen import Start
from .reports.comparison import Comparison, Sweep
from .reports.intervals import OverTags
from .reports.serving_tables import LoadComparison
from .reports.sweeps import Tuned
from .runtime.generate import generate as generate
from .runtime.prepare import load_assistants as load_assistants
from .runtime.prepare import prepare as prepare
from .studies.agree import agree as agree
from .studies.decode import decode as decode
from .studies.import_logs import import_logs as import_logs
from .studies.options import Promised
from .studies.record import record as record
from .studies.serving import Simulated
from .studies.serving import metrics as metrics
from .studies.setting import PoliciesGiven, PolicyGiven
from .studies.setting import open_recording as open_recording
from .studies.sweeps import best_cells as best_cells
from .studies.sweeps import collect as collect
from .studies.sweeps import sweep_grid as sweep_grid
from .traces.recording import Recording

__version__: str

__all__ = [
    "agree",
    "best_cells",
    "collect",
    "compare",
    "compare_under_load",
    "decode",
    "generate",
    "import_logs",
    "load_assistants",
    "metrics",
    "open_recording",
    "prepare",
    "record",
    "simulate",
    "sweep",
    "sweep_grid",
    "tune",
]

def compare(
    recording: Recording | str | Path,
    policies: PoliciesGiven | None = None,
    *,
    cost: str | Path | None = None,
    scale: Mapping[str, float] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    models: Sequence[str] | Mapping[str, str] | None = None,
    on: str | None = None,
    measured_on: str | None = None,
    shift_acceptance: Mapping[str, float] | None = None,
    seed: int = 0,
    decide_s: float | None = None,
    allow_foreign_profile: bool = False,
    strict: bool = False,
    lossless: bool = False,
    seeds: int = 5,
    start: Start | str | None = None,
    devices: str | Mapping[str, str] | None = None,
    prefix_cache: int | None = None,
    block_tokens: int | None = None,
    by_tag: bool = False,
    regret: bool = False,
    log: str | Path | None = None,
    batch: int = 1,
) -> Comparison: ...
def compare_under_load(
    recording: Recording | str | Path | None = None,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    concurrency: int | None = None,
    active_sessions: int | None = None,
    time_scale: float | None = None,
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    max_output_tokens: int | None = None,
    max_wait_s: float | None = None,
    zero_tokens: str = "refuse",
    tag: str | None = None,
    horizon_s: float | None = None,
    slo: Promised | None = None,
    cost: str | Path | None = None,
    scale: Mapping[str, float] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    models: Sequence[str] | Mapping[str, str] | None = None,
    on: str | None = None,
    measured_on: str | None = None,
    shift_acceptance: Mapping[str, float] | None = None,
    seed: int = 0,
    decide_s: float | None = None,
    allow_foreign_profile: bool = False,
    strict: bool = False,
    lossless: bool = False,
    seeds: int = 5,
    start: Start | str | None = None,
    log: str | Path | None = None,
    rates: Sequence[float] | None = None,
) -> LoadComparison: ...
def simulate(
    workload: str | Path,
    policy: PolicyGiven | None = None,
    recording: Recording | str | Path | None = None,
    *,
    cluster: str | Path,
    concurrency: int | None = None,
    active_sessions: int | None = None,
    time_scale: float | None = None,
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    max_output_tokens: int | None = None,
    max_wait_s: float | None = None,
    zero_tokens: str = "refuse",
    tag: str | None = None,
    horizon_s: float | None = None,
    slo: Promised | None = None,
    cost: str | Path | None = None,
    scale: Mapping[str, float] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    models: Sequence[str] | Mapping[str, str] | None = None,
    on: str | None = None,
    measured_on: str | None = None,
    shift_acceptance: Mapping[str, float] | None = None,
    seed: int = 0,
    decide_s: float | None = None,
    allow_foreign_profile: bool = False,
    strict: bool = False,
    lossless: bool = False,
    rate: float | None = None,
    out: str | Path | None = None,
) -> Simulated: ...
def sweep(
    recording: Recording | str | Path,
    chains: str | Sequence[str],
    *,
    cost: str | Path | None = None,
    scale: Mapping[str, float] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    models: Sequence[str] | Mapping[str, str] | None = None,
    on: str | None = None,
    measured_on: str | None = None,
    shift_acceptance: Mapping[str, float] | None = None,
    seed: int = 0,
    decide_s: float | None = None,
    allow_foreign_profile: bool = False,
    strict: bool = False,
    lossless: bool = False,
    seeds: int = 5,
    start: Start | str | None = None,
    batches: Sequence[int] = (1,),
) -> Sweep: ...
def tune(
    policy: str,
    recording: str | Path | None = None,
    *,
    out: str | Path,
    jobs: int | None = None,
    cost: str | Path | None = None,
    scale: Mapping[str, float] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    models: Sequence[str] | Mapping[str, str] | None = None,
    on: str | None = None,
    measured_on: str | None = None,
    shift_acceptance: Mapping[str, float] | None = None,
    seed: int = 0,
    decide_s: float | None = None,
    allow_foreign_profile: bool = False,
    strict: bool = False,
    lossless: bool = False,
    seeds: int = 5,
    start: Start | str | None = None,
    devices: str | Mapping[str, str] | None = None,
    prefix_cache: int | None = None,
    block_tokens: int | None = None,
    trials: int | None = None,
    over_tags: OverTags | str = "mean",
    split: float = 0.5,
    split_seed: int = 0,
    batch: int = 1,
) -> Tuned: ...
