"""Options that commands share."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, nan
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from ..base.files import pool_path, recording_path
from ..studies.options import LoadOptions, ReplayOptions
from ..traces.meta import Sampling
from .typed import named_texts, option_of

ModelsOption = Annotated[list[str] | None, option_of(ReplayOptions, "models")]
SloOption = Annotated[list[str] | None, option_of(LoadOptions, "slo")]
LosslessOption = Annotated[bool, option_of(ReplayOptions, "lossless")]
ForeignProfileOption = Annotated[bool, option_of(ReplayOptions, "allow_foreign_profile")]
WORKLOAD = "A file of requests (docs/workloads.md), or a generator, as in poisson:rate=4,requests=1000."
CLUSTER = "A TOML file (docs/cluster.md), or a device of the sheet (h100, ...): one replica on it."
RateOption = Annotated[float | None, typer.Option(help="Scale times of arrival to this mean rate per second.")]
RatesOption = Annotated[
    str | None,
    typer.Option(
        metavar="R,LOW:HIGH:STEP,...",
        help="With --workload: mean arrivals per second, also ranges; default: the workload's own.",
    ),
]
FindRateOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help="With --workload: find the highest rate at which each policy keeps these limits, as in 'p99_ttft < 1, "
        "p99_tpot < 0.03'; mean, p50, p90, p95 or p99 of ttft, tpot, itl, e2e, queue, in seconds, or slo_share > 0.9.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE#N",
        help="Run candidate N of a recommendation.json (recommend --out) again, by itself; exit 1 if figures differ.",
    ),
]
GivenClusterOption = Annotated[str | None, typer.Option(metavar="FILE|DEVICE", help=f"With --workload. {CLUSTER}")]
PromptsOption = Annotated[Path, typer.Option(help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')]
LimitOption = Annotated[int | None, typer.Option(help="Only this many prompts, the first ones.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option(help="Longest answer.", min=1)]
RolloutsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N@DEPTH/...",
        help="Several answers to each prompt that branch: 4@0/2@32 starts four paths at the prompt, each of which "
        "splits in two after 32 tokens of answer. For coupled and rejection sampling.",
    ),
]
_POOL_HELP = "A pool.toml, its folder, or the name of a shipped pool; default: pico."
PoolOption = Annotated[Path | None, typer.Option(parser=pool_path, metavar="POOL", help=_POOL_HELP)]
PoolArgument = Annotated[Path | None, typer.Argument(parser=pool_path, metavar="[POOL]", help=_POOL_HELP)]
MemberDevicesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device", metavar="NAME=DEVICE", help="Run a member elsewhere than its pool says, as target=cuda:1; repeated."
    ),
]
ChatOption = Annotated[
    bool, typer.Option("--chat", help="Put prompts as questions of a dialogue, by the tokenizer's chat template.")
]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of torch.", min=1, max=1024)]
OverlapOption = Annotated[
    Literal["auto", "threads", "turns"],
    typer.Option(
        help="How members that the policy runs at the same time share this machine: in threads, in turns, or by what "
        "is quicker in the first operations. The text is the same."
    ),
]
DebugOption = Annotated[
    bool, typer.Option(help="Print which forward runs each model, and what multiplies its weights.")
]
# Only a log can have begun in a way of its own.
LiveStartOption = Annotated[
    Literal["prefill", "draft"],
    typer.Option(help="How requests begin: the target's prefill writes the first token, or a draft does."),
]

Cache = Literal["slots", "mask"]

CacheOption = Annotated[
    Cache, typer.Option(help="How keys and values are kept: a slot per position, or append-only with a mask.")
]
KVLimitOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Memory of all caches on a device together; where it is short, the youngest request waits and recomputes. "
        "One number for every device, or DEVICE=MIB for each, as cuda:1=4096.",
    ),
]
SharedAttentionOption = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        help="With --prefix-cache: compute attention over a prefix that all rows of a fused forward share once: "
        "always, never, or where that is quicker here."
    ),
]
DeadShareOption = Annotated[
    float | None,
    typer.Option(help="With --cache mask: share of dead slots at which they are truncated, in (0, 1]; 0.5."),
]


_HOW = "How tokens are chosen."


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSampling:
    """How tokens are chosen, as it is typed where a recording may say it: each field is an option."""

    sampling: Annotated[
        Literal["greedy", "coupled", "rejection"] | None,
        typer.Option(help=f"{_HOW} Default: greedy; of a forced pool, as --trace was recorded."),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="For coupled and rejection sampling, >= 0.001.")] = None
    seed: Annotated[int | None, typer.Option(help="For coupled and rejection sampling.")] = None
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that hold this share, in (0, 1].")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Number of the most probable tokens to sample from, >= 1; before --top-p.")
    ] = None

    modes: ClassVar[str] = "coupled or rejection"  # beside greedy

    def given(self) -> Sampling | None:
        """The sampling asked for, None where no option was given; raises as `chosen`."""
        return None if all(value is None for value in asdict(self).values()) else self.chosen()

    def chosen(self) -> Sampling:
        """The sampling asked for; raises ValueError for options that do not belong together, or out of range."""
        given = asdict(self) | {"sampling": self.sampling or "greedy"}
        mode = given.pop("sampling")
        if mode == "greedy" and any(value is not None for value in given.values()):
            raise ValueError(
                f"--temperature, --seed, --top-p, --top-k belong to --sampling {self.modes}; greedy takes none"
            )
        if mode != "greedy" and None in (self.temperature, self.seed):
            raise ValueError(f"--sampling {mode} needs --temperature and --seed")
        return Sampling(mode=mode, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSampling(GivenSampling):
    """The same where nothing else says it."""

    sampling: Annotated[Literal["greedy", "coupled", "rejection"], typer.Option(help=_HOW)] = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSampling(GivenSampling):
    """The same where a recording holds it: rejection sampling draws again for every chain, so that none does."""

    sampling: Annotated[Literal["greedy", "coupled"], typer.Option(help=_HOW)] = "greedy"
    temperature: Annotated[float | None, typer.Option(help="For coupled sampling, >= 0.001.")] = None
    seed: Annotated[int | None, typer.Option(help="For coupled sampling.")] = None

    modes: ClassVar[str] = "coupled"


def limit_bytes(texts: Sequence[str] | None) -> int | dict[str, int] | None:
    """Bytes of --kv-limit-mib, of each device or by its name; raises ValueError for what is no amount of memory."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return _bytes(texts[0])
    return {name: _bytes(mib) for name, mib in named_texts("--kv-limit-mib", "MIB", texts).items()}


def _bytes(mib: str) -> int:
    try:
        amount = float(mib)
    except ValueError:
        amount = nan
    if not 0 < amount < inf:
        raise ValueError(f"--kv-limit-mib must be > 0 and finite, got {mib}")
    return max(1, int(amount * 2**20))


def dead_share_of(cache: Cache, share: float | None) -> float:
    """--dead-share; raises ValueError for a cache that has no dead slots."""
    if share is None:
        return 0.5
    if cache != "mask":
        raise ValueError("--dead-share belongs to --cache mask")
    return share


def named_recording(given: Path | None) -> Path | None:
    """Callback of options that take a recording; none stays none."""
    return None if given is None else recording_path(given)


TraceOption = Annotated[
    Path | None, typer.Option(callback=named_recording, help="A .trace folder, or a shipped one's name; default: pico.")
]
PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME, NAME,key=value,..., a chain (draft:4/target), file.py:Class or package.module:Class."),
]
