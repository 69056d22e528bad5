"""Options that commands share, and texts of the command line as values.

Texts of options that hold several numbers, names, or numbers by name.

The options of `run`, `record` and `agree` on models: what they read, how tokens are chosen, keys and values.

Recordings on a command line: a folder, or the name of one that comes with the package.

Options that say what a workload is, shared by the commands that take one.

Options of the commands that serve a workload.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from ..base.errors import ArgumentError
from ..base.files import pool_path, recording_path
from ..runtime.launched import launched
from ..runtime.pools.pool_file import read_pool_file
from ..traces.meta import Sampling
from ..traces.workloads.arrival import ZERO_TOKENS

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PRESET|NAME=CONFIG|FILE",
        help="Shapes for costs: a preset (target=llama-3.1-8b, drafter=eagle3), a Hugging Face config.json or its "
        "folder, or a JSON list of shapes; after @ weights, cache, tokens a forward drafts (@fp8,kv=fp8,block=15); "
        "repeatable.",
    ),
]
_MOST_DIGITS = 7


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The comma-separated numbers of an option; raises ValueError with the part that is none."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"{option} must hold numbers with commas between, got {part!r}") from None
    return tuple(values)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The comma-separated whole numbers of an option; raises ValueError with the part that is none."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS):
            raise ValueError(f"{option} must hold whole numbers with commas between, got {part!r}")
    return tuple(int(part) for part in parts)


def words(option: str, text: str) -> tuple[str, ...]:
    """The comma-separated names of an option; raises ValueError for an empty one."""
    values = tuple(text.split(","))
    if not all(values):
        raise ValueError(f"{option} must hold names with commas between, got {text!r}")
    return values


def named_numbers(option: str, what: str, texts: Sequence[str] | None) -> dict[str, float]:
    """The number of each name, in the order given: `--scale draft=0.5 --scale target=2`.

    Args:
        option: as the command line calls it.
        what: the number is, in capitals.
        texts: `NAME=number`, one for each name.

    Raises:
        ValueError: a text of another form, a number that is not finite, or a name given twice.
    """
    values: dict[str, float] = {}
    for name, number in named_texts(option, what, texts).items():
        found = _number(number)
        if found is None:
            raise ValueError(f"{option} must be NAME={what}, got {f'{name}={number}'!r}")
        if not isfinite(found):
            raise ValueError(f"{option} of {name} must be finite, got {number}")
        values[name] = found
    return values


def named_texts(option: str, what: str, texts: Sequence[str] | None) -> dict[str, str]:
    """The text of each name, in the order given; as `named_numbers`, of `NAME=text`."""
    values: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if name in values:
            raise ValueError(f"{option} {name} is given twice")
        if not name or not value:
            raise ValueError(f"{option} must be NAME={what}, got {text!r}")
        values[name] = value
    return values


def _number(text: str) -> float | None:
    """What a text says as people write numbers, without what only Python takes: `1_000`, spaces, other digits."""
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None


PromptsOption = Annotated[Path, typer.Option(help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')]
LimitOption = Annotated[int | None, typer.Option(help="Only the first so many prompts.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option(help="Longest answer.", min=1)]
RolloutsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N@DEPTH/...",
        help="Several answers to each prompt that branch: 4@0/2@32 starts four paths at the prompt, each of which goes "
        "on as two after 32 tokens of answer. For coupled and rejection sampling.",
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
        help="How members work that the policy lets work at the same time: in threads, in turns, or whichever the "
        "run's first operations show to be quicker. What they write is the same."
    ),
]
DebugOption = Annotated[bool, typer.Option(help="Say how models run: their forwards, and what multiplies weights.")]
# Only a log can have begun in a way of its own.
LiveStartOption = Annotated[
    Literal["prefill", "draft"],
    typer.Option(help="How requests begin: the target's prefill writes the first token, or a draft does."),
]

Cache = Literal["slots", "mask"]

CacheOption = Annotated[
    Cache, typer.Option(help="Of keys and values: a slot per position, or append-only with a mask.")
]
KVLimitOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Memory of all caches on a device together; where it is short, the youngest request waits and recomputes. "
        "One number for every device, or DEVICE=MIB for each, as cuda:1=4096.",
    ),
]
PrefixCacheOption = Annotated[
    int | None, typer.Option(help="Blocks of each member's prefix cache; default: none is kept.", min=1)
]
BlockTokensOption = Annotated[
    int | None, typer.Option(help="Of --prefix-cache: tokens of a block; default: 16.", min=1)
]
SharedAttentionOption = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        help="With --prefix-cache: compute attention over a prefix that all rows of a fused forward share once: "
        "always, never, or where that is quicker here."
    ),
]
DeadShareOption = Annotated[
    float | None, typer.Option(help="Of --cache mask: share of dead slots that are truncated, in (0, 1]; 0.5.")
]


_HOW = "How tokens are chosen."


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSampling:
    """How tokens are chosen, as it is typed where a recording may say it: each field is an option."""

    sampling: Annotated[
        Literal["greedy", "coupled", "rejection"] | None,
        typer.Option(help=f"{_HOW} Default: greedy; of a forced pool, as --trace was recorded."),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="Of coupled and rejection sampling, >= 0.001.")] = None
    seed: Annotated[int | None, typer.Option(help="Of coupled and rejection sampling.")] = None
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that hold this share, in (0, 1].")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Sample from so many of the most probable tokens, >= 1; before --top-p.")
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
    temperature: Annotated[float | None, typer.Option(help="Of coupled sampling, >= 0.001.")] = None
    seed: Annotated[int | None, typer.Option(help="Of coupled sampling.")] = None

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


def check_split(pool: Path | None) -> None:
    """Raises ValueError where several processes have nothing to share, and PoolFileError for a broken pool file."""
    num_ranks = launched().num_ranks
    if num_ranks == 1:
        return
    file, content = read_pool_file(pool_path(pool))
    if not any(entry.tp_plan for entry in content.members):
        raise ValueError(f'{file}: torchrun needs a member with tp_plan = "auto", got none for {num_ranks} processes')


def named_recording(given: Path | None) -> Path | None:
    """Callback of options that take a recording; none stays none."""
    return None if given is None else recording_path(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChanges:
    """Scaling and truncation as they are typed: each field is an option, and one of `WorkloadOptions`."""

    time_scale: Annotated[float | None, typer.Option(help="Multiply all times by this; not beside --rate.")] = None
    limit: Annotated[int | None, typer.Option(help="Keep the first so many arrivals.")] = None
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Cut longer prompts to this.")] = None
    max_output_tokens: Annotated[int | None, typer.Option(help="Cut longer outputs to this.")] = None
    zero_tokens: Annotated[
        str, typer.Option(metavar="|".join(ZERO_TOKENS), help="What becomes of requests without a token.")
    ] = "refuse"
    tag: Annotated[str | None, typer.Option(help="Give this tag to all requests.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsked(WorkloadChanges):
    """Further options of what is only looked at."""

    horizon_s: Annotated[
        float | None, typer.Option("--horizon-seconds", help="Leave out what would arrive at this time or later.")
    ] = None
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0


WORKLOAD = "A file of requests (docs/workloads.md), or a generator, as in poisson:rate=4,requests=1000."
SloOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[CLASS:]NAME=SECONDS,...",
        help="Longest times in seconds for goodput: ttft=2,tpot=0.05; also e2e and queue. Of one class of requests: "
        "chat:ttft=0.5,tpot=0.05; repeat it for others.",
    ),
]
CLUSTER = "A TOML file (docs/cluster.md), or a device of the sheet (h100, ...): one replica on it."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked(WorkloadChanges):
    """What is served and until when, as it is typed: each field is an option."""

    horizon_s: Annotated[
        float | None,
        typer.Option("--horizon-seconds", help="Stop the run then, whatever is unfinished; default: the cluster's."),
    ] = None
    slo: SloOption = None

    def options(self) -> dict[str, Any]:
        """As keywords; raises ValueError for an SLO that is none."""
        return asdict(self) | {"slo": promised(self.slo)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAsked(LoadAsked):
    """What `compare` serves, if it is to serve anything."""

    workload: Annotated[
        str | None, typer.Option(metavar="FILE|SPEC", help=f"Serve these requests on --cluster. {WORKLOAD}")
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(metavar="R,R,...", help="Of --workload: mean arrivals per second; default: the workload's own."),
    ] = None
    cluster: Annotated[str | None, typer.Option(metavar="FILE|DEVICE", help=f"Of --workload. {CLUSTER}")] = None

    def options(self) -> dict[str, Any]:
        """Those of `LoadAsked`, as keywords."""
        given = LoadAsked.options(self)
        for name in ("workload", "rate", "cluster"):
            del given[name]
        return given

    def refuse_without_workload(self) -> None:
        """Refuse options that only --workload takes; raises ArgumentError for the first that was given."""
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        if given:
            raise ArgumentError(f"`{given[0]}` goes with `workload`")


def promised(slo: list[str] | None) -> Mapping[str, float | Mapping[str, float]]:
    """Seconds by name, and by class and name; raises ValueError for a text of another form."""
    parts: dict[str, list[str]] = {}
    for text in slo or ():
        name, colon, _ = text.partition("=")[0].rpartition(":")
        if colon and not name:
            raise ValueError(f"--slo must be [CLASS:]NAME=SECONDS,..., got {text!r}")
        parts.setdefault(name, []).extend(text[len(name + colon) :].split(","))
    of_all = named_numbers("--slo", "SECONDS", parts.pop("", None))
    if both := sorted(of_all.keys() & parts):
        raise ValueError(f"--slo cannot promise {both[0]} to all where a class has that name, got {both[0]} as both")
    return {
        **of_all,
        **{name: named_numbers(f"--slo {name}:", "SECONDS", of_class) for name, of_class in parts.items()},
    }
