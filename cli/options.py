"""Options that commands share."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from ..base.files import pool_path, recording_path
from ..base.options import opt
from ..decoding.prefix_cache import prefix_cache_size
from ..runtime.forward_kinds import CacheKind, SharedKind
from ..studies.options import (
    AgreeOptions,
    LoadOptions,
    ModelsOptions,
    PrefixOptions,
    RecordOptions,
    ReplayOptions,
    RunOptions,
)
from ..traces.meta import Sampling
from .typed import named_texts, option_of

ModelsOption = Annotated[list[str] | None, option_of(ReplayOptions, "models")]
SloOption = Annotated[list[str] | None, option_of(LoadOptions, "slo")]
LosslessOption = Annotated[bool, option_of(ReplayOptions, "lossless")]
ForeignProfileOption = Annotated[bool, option_of(ReplayOptions, "allow_foreign_profile")]
WORKLOAD = "A file of requests (docs/workloads.md), or a generator, as in poisson:rate=4,requests=1000."
CLUSTER = "A TOML file (docs/cluster.md), or a device of the sheet (h100, ...): one replica on it."
RateOption = Annotated[float | None, typer.Option(help="Scale times of arrival to this mean rate per second.")]
RATES = "With --workload: mean arrivals per second, also ranges; default: the workload's own."
RATES_METAVAR = "R,LOW:HIGH:STEP,..."
RatesOption = Annotated[
    str | None,
    typer.Option(
        metavar=RATES_METAVAR,
        help=f"{RATES} With --find-rate: one, for which the number of such clusters is given.",
    ),
]
FindRateOption = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help="With --workload: find the highest rate at which each policy keeps these limits, as in 'p99_ttft < 1, "
        "p99_tpot < 30ms'; mean, p50, p90, p95 or p99 of ttft, tpot, itl, e2e, queue, in seconds, or slo_share > 0.9.",
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
GivenWorkloadOption = Annotated[
    str | None, typer.Option(metavar="FILE|SPEC", help=f"Serve these requests on --cluster. {WORKLOAD}")
]
GivenClusterOption = Annotated[str | None, typer.Option(metavar="FILE|DEVICE", help=f"With --workload. {CLUSTER}")]
PromptsOption = Annotated[Path, typer.Option(help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')]
MaxNewTokensOption = Annotated[int, option_of(ModelsOptions, "max_new_tokens")]
_POOL_HELP = "A pool.toml, its folder, or the name of a shipped pool; default: pico."
PoolOption = Annotated[Path | None, typer.Option(parser=pool_path, metavar="POOL", help=_POOL_HELP)]
PoolArgument = Annotated[Path | None, typer.Argument(parser=pool_path, metavar="[POOL]", help=_POOL_HELP)]
MemberDevicesOption = Annotated[list[str] | None, option_of(RunOptions, "devices")]
ChatOption = Annotated[bool, option_of(ModelsOptions, "chat")]
ThreadsOption = Annotated[int, option_of(ModelsOptions, "threads")]
DebugOption = Annotated[bool, option_of(RecordOptions, "debug")]


_HOW = "How tokens are chosen."


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSampling:
    """Options of sampling where a recording may hold them."""

    sampling: Literal["greedy", "coupled", "rejection"] | None = opt(
        None, f"{_HOW} Default: greedy; of a forced pool, as --trace was recorded."
    )
    temperature: float | None = opt(None, "For coupled and rejection sampling, >= 0.001.")
    seed: int | None = opt(None, "For coupled and rejection sampling.")
    top_p: float | None = opt(None, "Sample from the most probable tokens that hold this share, in (0, 1].")
    top_k: int | None = opt(None, "Number of the most probable tokens to sample from, >= 1; before --top-p.")

    modes: ClassVar[str] = "coupled or rejection"  # beside greedy

    def given(self) -> Sampling | None:
        """The sampling asked for, None where no option was given; raises as `chosen`."""
        return None if all(value is None for value in asdict(self).values()) else self.chosen()

    def chosen(self) -> Sampling:
        """The sampling asked for; raises ValueError for options that contradict each other or are out of range."""
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
    """The same without a recording."""

    sampling: Literal["greedy", "coupled", "rejection"] = opt("greedy", _HOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSampling(GivenSampling):
    """The same for recordings: never rejection sampling, which draws again for every chain."""

    sampling: Literal["greedy", "coupled"] = opt("greedy", _HOW)
    temperature: float | None = opt(None, "For coupled sampling, >= 0.001.")
    seed: int | None = opt(None, "For coupled sampling.")

    modes: ClassVar[str] = "coupled"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMemory(PrefixOptions):
    """Options: how keys and values are kept."""

    cache: Annotated[CacheKind, option_of(AgreeOptions, "cache")] = "slots"
    kv_limit_mib: list[str] | None = opt(
        None,
        "Memory of all caches on a device together; where it is short, the youngest request waits and "
        "recomputes. One number for every device, or DEVICE=MIB for each, as cuda:1=4096.",
    )
    dead_share: float | None = opt(
        None, "With --cache mask: share of dead slots at which they are truncated, in (0, 1]; 0.5."
    )
    shared_attention: SharedKind = opt(
        "auto",
        "With --prefix-cache: compute attention over a prefix that all rows of a fused forward share once: "
        "always, never, or where that is quicker here.",
    )

    def checked(self) -> dict[str, Any]:
        """The fields of `Memory`; raises ValueError for a bad amount of memory, or options that do not combine."""
        if self.dead_share is not None and self.cache != "mask":
            raise ValueError("--dead-share belongs to --cache mask")
        return {
            "cache": self.cache,
            "prefixes": prefix_cache_size(self.prefix_cache, self.block_tokens),
            "limit_bytes": limit_bytes(self.kv_limit_mib),
            "dead_share": 0.5 if self.dead_share is None else self.dead_share,
            "shared_attention": self.shared_attention,
        }


def limit_bytes(texts: Sequence[str] | None) -> int | dict[str, int] | None:
    """Bytes of --kv-limit-mib, of each device or by its name; raises ValueError for a bad amount of memory."""
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
