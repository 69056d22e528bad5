"""Keywords of the main jobs, each option declared once: type, default and words.

The command line makes its options of these records (`cli/typed.py`), the functions check their keywords against them,
and `__init__.pyi` is written from them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..base.errors import ArgumentError
from ..base.options import declared, opt
from ..base.options import takes as takes
from ..decoding.rollouts import Rollouts
from ..decoding.seen import Start
from ..reports.intervals import OverTags
from ..runtime.forward_kinds import AheadKind, CacheKind, ForwardKind
from ..traces.meta import Closure, Sampling
from ..traces.workloads.arrival import ClosedLoopOptions, WorkloadChanges

LEAST_SEEDS, MOST_SEEDS = 1, 1000
MOST_ORDERS = 1000
# Promised times by name, for all requests, or by class and name: seconds, or texts as `reports.limits` takes them.
Promised = Mapping[str, float | str | Mapping[str, float | str]]
ClosureKind = Literal["monotone", "full"]
NO_PROFILE = "none"
_DEBUG = "--debug/--no-debug"
_LOSSLESS = "Refuse policies that may commit other text than the target's."


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of every replay of a recording."""

    cost: str | Path | None = opt(
        None,
        "What was measured with the recording (cpu, cuda, timed), a device (a100, h100, h200, b200, l40s, "
        "rtx4090, ...; docs/costs.md) or your own in a FILE.toml, kernels:DIR of measured kernels, FILE.json, "
        "FILE.profile, here, the newest profile of this machine, or a class, FILE.py:Class; "
        "default: what was measured; under a workload, the cluster's own.",
    )
    engine: str | None = opt(
        None,
        "Whose seconds a device of the sheet is to have (vllm, vllm-0.12, vllm-0.9, sglang, trtllm; "
        "docs/fidelity.md), or bare, published peaks; of kernels, whose tables; default: the engine that a log came "
        "from, else vllm.",
    )
    efficiency: Mapping[str, float] | None = opt(
        None,
        "Shares of a device's peaks that you know better, as bandwidth=0.75,flops=0.56: in place of those of the "
        "engine's fit.",
        metavar="NAME=SHARE,...",
    )
    scale: Mapping[str, float] | None = opt(
        None, "What if this model's forwards took FACTOR times as long; repeat it for others.", metavar="NAME=FACTOR"
    )
    tensor_parallel: int = opt(1, "Devices each model is split over; with a device of the sheet or kernels.", least=1)
    extrapolate: bool = opt(False, "Extrapolate a measured cost beyond what was measured, and say so.")
    models: Sequence[str] | Mapping[str, str] | None = opt(
        None,
        "Shapes for costs: a preset (target=llama-3.1-8b, drafter=eagle3), a Hugging Face config.json or its "
        "folder, or a JSON list of shapes; after @ weights, cache, tokens a forward drafts "
        "(@fp8,kv=fp8,block=15); repeatable.",
        metavar="NAME=PRESET|NAME=CONFIG|FILE",
    )
    on: str | None = opt(
        None,
        "Scale measured seconds (--cost timed, cuda) to this device of the sheet, with a range.",
        metavar="DEVICE",
    )
    measured_on: str | None = opt(
        None, "With --on: the device that was measured, if the recording does not say.", metavar="DEVICE"
    )
    shift_acceptance: Mapping[str, float] | None = opt(
        None, "What if this drafter were accepted more often by this share: draft=+0.05.", metavar="NAME=DELTA"
    )
    seed: int = opt(0, "Seed of decisions that are modelled; under a workload, of everything that is drawn.")
    decide_s: float | None = opt(
        None,
        "Seconds a policy costs per step; default: what a profile knows of it, else 0.",
        flag="--decide-seconds",
        least=0,
    )
    allow_foreign_profile: bool = opt(False, "Take a profile of another machine as --cost, and say so.")
    strict: bool = opt(False, "Refuse what is not recorded.")
    lossless: bool = opt(False, _LOSSLESS)


@dataclass(frozen=True, kw_only=True)
class SeedsOptions:
    """Further options of comparisons."""

    seeds: int = opt(
        5, "Seeds a policy is run at, from --seed on, where decisions are modelled.", least=LEAST_SEEDS, most=MOST_SEEDS
    )
    start: Start | str | None = opt(
        None,
        "How requests begin: the target's prefill writes the first token, as in engines; a draft does; or as "
        "each method of an imported log began. Default: prefill; of an imported log, recorded.",
    )


@dataclass(frozen=True, kw_only=True)
class OrdersOptions:
    """In which orders requests are replayed."""

    orders: int = opt(
        1,
        "Orders of the requests to take the mean over, the recorded one first, where order matters: policies that "
        "learn, and batches.",
        least=1,
        most=MOST_ORDERS,
    )


@dataclass(frozen=True, kw_only=True)
class MixOptions:
    """Which requests a comparison generalises to."""

    fixed_mix: bool = opt(
        False,
        "In intervals, keep the number of requests of each tag, as of a benchmark; default: the mix of tags is chance "
        "too.",
    )


@dataclass(frozen=True, kw_only=True)
class PrefixOptions:
    """Prefix caches, of replays and of models."""

    prefix_cache: int | None = opt(None, "Blocks of each member's prefix cache; default: none is kept.", least=1)
    block_tokens: int | None = opt(None, "With --prefix-cache: tokens of a block; default: 16.", least=1)


@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """Where members run."""

    devices: str | Mapping[str, str] | None = opt(
        None,
        "Devices of members that a policy runs at the same time: one for all (the default), each its own, or as "
        "named, with the others together.",
        metavar="one|each|NAME=DEVICE,...",
    )


@dataclass(frozen=True, kw_only=True)
class WhyOptions:
    """Whether a comparison explains its gains."""

    why: bool = opt(False, "Also where the gain is lost: from perfect acceptance at no cost down to the speed-up.")


@dataclass(frozen=True, kw_only=True)
class PartsOptions:
    """Further parts of a comparison."""

    by_tag: bool = opt(False, "Also the speed-up of each tag's own requests.")
    regret: bool = opt(False, "Also the oracles, and what each policy loses against the best chain per round.")


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What is kept of each run."""

    log: str | Path | None = opt(
        None, "Write each policy's run log, at the first seed, into this new folder.", metavar="<path>"
    )


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(
    LogOptions,
    PartsOptions,
    WhyOptions,
    PrefixOptions,
    PlacementOptions,
    MixOptions,
    OrdersOptions,
    SeedsOptions,
    ReplayOptions,
):
    """The keywords of `compare`."""

    batch: int = opt(1, "Requests running at a time, 1 to 1,000,000.")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(MixOptions, SeedsOptions, ReplayOptions):
    """The keywords of `sweep`."""

    batches: Sequence[int] = opt(
        (1,), "Requests running at a time, each with every chain; at most 1,000 chains x batches."
    )


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """Which requests a choice is made on; figures are of the others."""

    split: float = opt(
        0.5, "Share of each tag's requests, or sessions, that is tuned on, in (0, 1); figures are of the others."
    )
    split_seed: int = opt(0, "Seed that draws these requests.", least=0)


@dataclass(frozen=True, kw_only=True)
class TrialsOptions(SplitOptions):
    """How values are searched, and on which requests."""

    trials: int | None = opt(
        None, "Number of values, which Optuna chooses (extra `search`); default: every one of the ranges.", least=1
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(TrialsOptions):
    """The same, and the figure to maximise without arrivals."""

    over_tags: OverTags | str = opt("mean", "Tokens per second: the mean over tags, or those of the worst tag.")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SearchOptions, PrefixOptions, PlacementOptions, OrdersOptions, SeedsOptions, ReplayOptions):
    """The keywords of `tune`."""

    batch: int = opt(1, "Requests running at a time, 1 to 1,000,000.")


@dataclass(frozen=True, kw_only=True)
class DraftLengthOptions(SplitOptions):
    """Which draft lengths are tried, and how the choice is printed."""

    drafter: str | None = opt(None, "Member that drafts; default: the only one, else the smallest model.")
    most: int | None = opt(
        None,
        "Longest draft that is tried, K; 0 (no speculation) and the present K always are. Default: 8, of a log at most "
        "its longest.",
        least=1,
        most=32,
    )
    present: int | None = opt(
        None, "K that your server uses now, to compare with; 0: no speculation.", least=0, most=32
    )
    sample: int = opt(
        400,
        "Requests of the recording that are replayed at most, of each tag its share, drawn by --split-seed; what of a "
        "larger recording is left out is said.",
        least=2,
    )
    paste_into: str | None = opt(
        None, "Engine whose settings are printed, as of `settings`; default: that of the seconds.", metavar="ENGINE"
    )
    weights: str | None = opt(
        None,
        "What drafts there, as --drafter of `settings`: model=PATH, eagle=PATH, eagle3=PATH, mtp, ngram or suffix; "
        "default: as recorded, or as this engine's log says.",
        metavar="KIND[=PATH]",
    )
    engine_version: str | None = opt(
        None,
        "Version of your engine; default: that of the log or of --engine, if it names one. Where it is too old for a K "
        "by running requests, one K is set.",
    )


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(DraftLengthOptions, MixOptions, SeedsOptions, ReplayOptions):
    """The keywords of `recommend`."""

    batches: Sequence[int] | None = opt(
        None, "Running requests, each with every K; default: 1, 2, 4, ... up to the requests of a half."
    )


@dataclass(frozen=True, kw_only=True)
class LoadOptions(WorkloadChanges, ClosedLoopOptions):
    """The horizon of serving, and promises."""

    horizon_s: float | None = opt(
        None, "Stop the run then, whatever is unfinished; default: the cluster's.", flag="--horizon-seconds"
    )
    slo: Promised | None = opt(
        None,
        "Longest times in seconds for goodput: ttft=2,tpot=0.05; also e2e and queue. Of one class of requests: "
        "chat:ttft=0.5,tpot=0.05; repeat it for others.",
        metavar="[CLASS:]NAME=SECONDS,...",
    )


@dataclass(frozen=True, kw_only=True)
class ServingOptions(ReplayOptions, LoadOptions):
    """Options of every served workload; `start` may be "prefill" only."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(ServingOptions):
    """The keywords of `simulate`."""

    workload: str | Path
    cluster: str | Path
    rate: float | None = opt(None, "Mean arrivals per second that the workload is scaled to, > 0; default: its own.")
    out: str | Path | None = opt(None, "New folder for the run.")
    events: bool = opt(False, "Keep every operation, for the timeline: the run is computed step by step, and slower.")


@dataclass(frozen=True, kw_only=True)
class ChainsOptions:
    """Policies to compare under load, given as chains."""

    chains: Sequence[str] | None = opt(
        None, 'Chains with ranges of windows in place of policies, as `sweep` takes them: ["draft:1..4/target"].'
    )


@dataclass(frozen=True, kw_only=True)
class UnderLoadOptions(ChainsOptions, LogOptions, WhyOptions, SeedsOptions, ServingOptions):
    """The keywords of `compare_under_load`."""

    workload: str | Path
    cluster: str | Path
    rates: Sequence[float] | None = opt(
        None, "Mean arrivals per second, each > 0, that the workload is scaled to; default: its own."
    )


@dataclass(frozen=True, kw_only=True)
class FindRatesOptions(ChainsOptions, SeedsOptions, ServingOptions):
    """The keywords of `find_rates`."""

    workload: str | Path
    cluster: str | Path
    limits: str
    rate: float | None = opt(None, "Arrivals per second for which the number of such clusters is given, > 0.")


@dataclass(frozen=True, kw_only=True)
class TuneUnderLoadOptions(TrialsOptions, SeedsOptions, ServingOptions):
    """The keywords of `tune_under_load`."""

    workload: str | Path
    cluster: str | Path
    rate: float | None = opt(None, "Mean arrivals per second that the workload is scaled to, > 0; default: its own.")
    limits: str | None = None


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions(SeedsOptions, ServingOptions):
    """The keywords of `what_if`."""

    workload: str | Path
    cluster: str | Path
    changes: Sequence[str]
    rate: float | None = opt(None, "Mean arrivals per second that the workload is scaled to, > 0; default: its own.")


@dataclass(frozen=True, kw_only=True)
class ServiceLevelOptions:
    """The workload and its limits, for recommending a draft length under load."""

    rate: float | None = opt(
        None, "With --workload: mean arrivals per second that it is scaled to, > 0; default: its own."
    )
    slo: str | None = opt(
        None,
        "With --workload: limits to keep at this rate, as in 'p99_ttft < 1, p99_tpot < 50ms', in seconds, as "
        "--find-rate of compare takes it. The highest rate that keeps it is found for every candidate.",
        metavar="LIMITS",
    )
    observed: str | Path | None = opt(
        None,
        "With --workload: a run of your server at the present setting (observe --out, a benchmark's result); the same "
        "is simulated and compared with it.",
        metavar="RUN",
    )


@dataclass(frozen=True, kw_only=True)
class RecommendUnderLoadOptions(ServiceLevelOptions, DraftLengthOptions, SeedsOptions, ReplayOptions, WorkloadChanges):
    """The keywords of `recommend_under_load`; `start` may be "prefill" only."""

    workload: str | Path
    cluster: str | Path


@dataclass(frozen=True, kw_only=True)
class TimelineOptions:
    """The keywords of `timeline`."""

    from_s: float = opt(0.0, "Leave out what ended before, in seconds of each run.", flag="--from-seconds")
    until_s: float | None = opt(None, "Leave out what begins later; default: nothing.", flag="--until-seconds")


@dataclass(frozen=True, kw_only=True)
class SettingsOptions:
    """The keywords of `settings`."""

    target: str = opt("TARGET", "Path or name of the target's weights.")
    max_batch: int | None = opt(
        None, "Most requests that run at a time, which is set too; default: the engine's.", least=1, metavar="N"
    )
    tree_top_k: int | None = opt(None, "Draft trees: children of a node; K is their depth.", least=2, metavar="N")
    tree_tokens: int | None = opt(None, "With --tree-top-k: tokens drafted in a round.", least=2, metavar="N")
    per_request: bool = opt(False, "K is chosen for each request by itself; no serving engine supports that.")
    engine_version: str | None = opt(
        None, "Version of your engine, if its options may have other names than those known here."
    )


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """How the models of a pool are loaded, and how they write. `sampling` is greedy if None."""

    threads: int = opt(1, "CPU threads of torch.", least=1, most=1024)
    chat: bool = opt(False, "Put prompts as questions of a dialogue, by the tokenizer's chat template.")
    sampling: Sampling | None = None
    max_new_tokens: int = opt(64, "Longest answer.", least=1)


@dataclass(frozen=True, kw_only=True)
class RecordOptions(ModelsOptions):
    """The keywords of `record`.

    `closure` selects the contexts off the trunk: those of Exact chains (`monotone`, also None) or those of lossy rules
    too (`full`); or it is a `Closure`, which has a reach and a run of its own. `reach` is the most tokens off the
    trunk, 16 if None; `run` the most of them by a member after a larger one's, 8 if None. `trees` are token trees whose
    contexts are kept too, each a member and a shape as `draft:4x2x1` or `draft:beam=4,depth=5`.
    """

    closure: Closure | str | None = None
    reach: int | None = None
    run: int | None = None
    trees: Sequence[str] = ()
    name: str | None = opt(None, "Name of the recording; default: that of the folder.")
    costs: bool = opt(True, "Also measure seconds per forward on this machine.", flag="--costs/--no-costs")
    profile: Path | str = opt(
        NO_PROFILE, "Take seconds from a profile: here (the newest of this machine), FILE.profile or none."
    )
    debug: bool = opt(
        False,
        "Print which forward runs each model, and what multiplies its weights.",
        flag=_DEBUG,
    )


@dataclass(frozen=True, kw_only=True)
class LiveOptions(ModelsOptions):
    """Options of models that run under policies."""

    limit: int | None = opt(None, "Only this many prompts, the first ones.", least=1)
    start: Start | str = opt(
        "prefill", "How requests begin: the target's prefill writes the first token, or a draft does."
    )
    lossless: bool = opt(False, _LOSSLESS)
    overlap: AheadKind = opt(
        "auto",
        "How members that the policy runs at the same time share this machine: in threads, in turns, or by what is "
        "quicker in the first operations. The text is the same.",
    )


@dataclass(frozen=True, kw_only=True)
class AgreeOptions(LiveOptions, PrefixOptions):
    """The keywords of `agree`."""

    batch: int = opt(1, "Requests running at a time.", least=1)
    cache: CacheKind = opt("slots", "How keys and values are kept: a slot per position, or append-only with a mask.")
    closure: ClosureKind | None = opt(
        None, "What to record: monotone (the default), or full, which holds more of what lossy policies do."
    )
    reach: int | None = opt(
        None,
        "Most tokens off the trunk that are recorded; a policy needs as many as it ever has pending, a chain the sum "
        "of its windows. Default: the most that any policy says it needs, at least 16.",
        least=0,
    )
    run: int | None = opt(
        None,
        "With --closure monotone: most tokens in a row by one member after a larger one's; default: as --reach.",
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(LiveOptions):
    """The keywords of `decode` except `memory`, which needs torch.

    `forward` is how models run (`runtime.forward_kinds`), and `run_tests` whether code that the models wrote is run
    with the prompts' tests: in a sandbox, or `unsandboxed` with the rights of this process.
    """

    batch: int = opt(1, "Requests that share each forward.", least=1)
    stop: str | Sequence[str] | None = opt(None, "Text that ends an answer; may be repeated.")
    devices: Mapping[str, str] | None = opt(
        None,
        "Run a member elsewhere than its pool says, as target=cuda:1; repeated.",
        flag="--device",
        metavar="NAME=DEVICE",
    )
    forward: str = "auto"
    rollouts: Rollouts | str | None = opt(
        None,
        "Several answers to each prompt that branch: 4@0/2@32 starts four paths at the prompt, each of which splits in "
        "two after 32 tokens of answer. For coupled and rejection sampling.",
        metavar="N@DEPTH/...",
    )
    quality: bool = opt(
        True,
        "After the run of a lossy policy, let the target answer alone and judge the texts.",
        flag="--quality/--no-quality",
    )
    run_tests: bool | str = False
    debug: bool = opt(False, "Print which forward runs each model; check every cache at every step.", flag=_DEBUG)

    @property
    def forward_kind(self) -> ForwardKind:
        """`forward`; the code that runs models rejects unknown ones by name."""
        return cast(ForwardKind, self.forward)


Record = TypeVar("Record")


def checked(record: Callable[..., Record], given: Mapping[str, object]) -> Record:
    """The keywords that a function was called with, as the record that declares them.

    Raises ArgumentError for the first unknown one, or one of another kind, by name; 1 is no bool and True no number.
    """
    try:
        _keywords(record).model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        rule = "several texts" if first["type"] == "sequence_str" else first["msg"].removeprefix("Input should be ")
        if first["type"] == "literal_error":
            rule = f"one of {', '.join(_choices(declared(record)[str(name)][0].annotation))}"
        if first["type"] == "extra_forbidden":
            raise ArgumentError(f"no keyword `{name}`; there are {', '.join(declared(record))}") from None
        raise ArgumentError(f"`{name}` must be {rule}, got {given[str(name)]!r}") from None
    return record(**given)


def shared(record: type, asked: object, *, but: Collection[str] = ()) -> dict[str, Any]:
    """The values of options that another record declares too, except those named in `but`."""
    names = {one.name for one in fields(record)}
    return {name: value for name, value in vars(asked).items() if name in names and name not in but}


def _choices(kind: object) -> Iterator[str]:
    """The texts that a type of literals takes."""
    for one in get_args(kind):
        if isinstance(one, str):
            yield one
        else:
            yield from _choices(one)


@cache
def _keywords(record: Callable[..., object]) -> type[BaseModel]:
    kinds: dict[str, Any] = {name: (field.annotation, None) for name, (field, _) in declared(record).items()}
    return create_model(record.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **kinds)
