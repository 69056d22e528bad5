"""Options of commands that compare policies, on a recording or beside an observed run.

The options of `paceline compare`, some of which other commands share.

Options of `paceline validate --observed`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, cast

import typer

from ..base.errors import ArgumentError
from ..decoding.seen import Start
from ..sim.simulate import MOST_BATCH
from ..studies.calibrate import ObservedValidation, validate_observed
from ..studies.compare import MOST_CELLS
from ..studies.setting import ReplayOptions, SettingOptions
from .options import ModelsOption, named_numbers, named_recording

TraceOption = Annotated[
    Path | None, typer.Option(callback=named_recording, help="A .trace folder, or a shipped one's name; default: pico.")
]
PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME, NAME,key=value,..., a chain (draft:4/target), file.py:Class or package.module:Class."),
]
ForeignProfileOption = Annotated[
    bool, typer.Option("--allow-foreign-profile", help="Take a profile of another machine as --cost, and say so.")
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        metavar="one|each|NAME=DEVICE,...",
        help="Where members run that a policy lets work at the same time: all on one device (the default), each on one "
        "of its own, or as named, the others together.",
    ),
]
LosslessOption = Annotated[
    bool, typer.Option("--lossless", help="Refuse policies that may commit other text than the target's.")
]
DetailOption = Annotated[
    bool, typer.Option("--detail", help="Also what the first table leaves out: further figures, and by member.")
]
ByTagOption = Annotated[bool, typer.Option("--by-tag", help="Also the speed-up of each tag's own requests.")]
RegretOption = Annotated[
    bool,
    typer.Option("--regret", help="Also the oracles, and what each policy loses against the best chain per round."),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHAIN",
        help=f"Chains with ranges of windows, draft:1..12/target or draft:1..9:2/mid:4..8/target, instead of policies; "
        f"repeatable, {MOST_CELLS:,} chains x batches at most.",
    ),
]
LogOption = Annotated[
    Path | None, typer.Option(help="Write each policy's run log, at the first seed, into this new folder.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAsked:
    """What every replay of a recording runs under, as it is typed: each field is an option."""

    cost: Annotated[
        str | None,
        typer.Option(
            help="What was measured with the recording (cpu, cuda, timed), a device (a100, h100, h200, b200, l40s, "
            "rtx4090, ...; docs/costs.md), FILE.json, FILE.profile or here, the newest profile of this machine; "
            "default: what was measured; under a workload, the cluster's own."
        ),
    ] = None
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FACTOR", help="What if this model's seconds were multiplied; once for each model."),
    ] = None
    tensor_parallel: Annotated[
        int, typer.Option(help="Devices every model is split over; of a device of the sheet.", min=1)
    ] = 1
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Answer beyond what a measured cost was measured for, and say so.")
    ] = False
    models: ModelsOption = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Take measured seconds (--cost timed, cuda) to this device of the sheet; prints a range, too.",
        ),
    ] = None
    measured_on: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Of --on: what was measured on, if the recording does not say.")
    ] = None
    shift_acceptance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DELTA", help="What if this drafter's rate of acceptance were so much higher (+0.05)."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(help="Of decisions that have to be modelled; under a workload, of all that is drawn.")
    ] = 0
    decide_s: Annotated[
        float | None,
        typer.Option(
            "--decide-seconds",
            help="Seconds a policy costs per step; default: what a profile knows of it, else 0.",
            min=0,
        ),
    ] = None
    allow_foreign_profile: ForeignProfileOption = False
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is not recorded.")] = False
    lossless: LosslessOption = False

    def setting(self) -> ReplayOptions:
        """As keywords; raises ValueError for numbers by name that are none."""
        given = asdict(self) | {
            "scale": named_numbers("--scale", "FACTOR", self.scale),
            "shift_acceptance": named_numbers("--shift-acceptance", "DELTA", self.shift_acceptance),
        }
        return cast(ReplayOptions, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonAsked(ReplayAsked):
    """What `compare` and `sweep` run under: further options."""

    batch: Annotated[
        str, typer.Option(metavar="N", help="Requests running at a time; of a sweep also several, as in 1,4,16.")
    ] = "1"
    seeds: Annotated[
        int,
        typer.Option(help="Seeds a policy is run at, from --seed on, where decisions are modelled.", min=2, max=1000),
    ] = 5
    start: Annotated[
        Start | None,
        typer.Option(
            help="How requests begin: the target's prefill writes the first token, as in engines; a draft does; or as "
            "each method of an imported log began. Default: prefill; of an imported log, recorded."
        ),
    ] = None

    def setting(self) -> SettingOptions:
        """All but the batch, as keywords; raises as above."""
        given = dict(ReplayAsked.setting(self))
        del given["batch"]
        return cast(SettingOptions, given)


def batches(text: str) -> tuple[int, ...]:
    """The comma-separated batches of `--batch`; raises ValueError with the part that is none."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 7 and 1 <= int(part) <= MOST_BATCH):
            raise ValueError(f"--batch must be a whole number from 1 to {MOST_BATCH:,}, got {part!r}")
    return tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What observed requests are served on in the simulator: options that `validate` has for others as well.

    Attributes:
        cluster: a TOML file, or a device; None: it was not given.
        policy: as it was given, each time.
        trace: that acceptance is drawn from; None: the shipped one.
        cost: of all replicas; None: the cluster's own.
        seed: of all that is drawn.
    """

    cluster: str | None
    policy: list[str] | None
    trace: Path | None
    cost: str | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAsked:
    """What of a running server is judged, as it is typed: each field is an option."""

    observed: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Judge the simulator, on --cluster, by what paceline observe saw of a server, or by the detailed "
            "result of a benchmark.",
        ),
    ] = None
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Of --observed: fit the seconds of forwards to this other run first."),
    ] = None
    mean_bound: Annotated[
        float, typer.Option(help="Of --observed: error of means, medians, throughput and total time that passes.")
    ] = 0.1
    tail_bound: Annotated[float, typer.Option(help="Of --observed: error of p90 and p99 that passes.")] = 0.2

    def validated(self, asked: Replayed, unused: Mapping[str, object]) -> ObservedValidation:
        """What comes of it; raises ValueError for what is missing, or for one of `unused` that was given."""
        assert self.observed is not None
        for name, given in unused.items():
            if given:
                raise ArgumentError(f"`{name}` has no part in `observed`, whose requests are those of the run")
        if asked.cluster is None:
            raise ArgumentError("`observed` goes with `cluster` FILE or `cluster` DEVICE")
        if asked.policy is not None and len(asked.policy) > 1:
            raise ValueError(f"--policy must be given once beside --observed, got {', '.join(asked.policy)}")
        return validate_observed(
            self.observed,
            cluster=asked.cluster,
            calibrate_on=self.calibrate,
            policy=None if asked.policy is None else asked.policy[0],
            recording=asked.trace,
            cost=asked.cost,
            mean_bound=self.mean_bound,
            tail_bound=self.tail_bound,
            seed=asked.seed,
        )

    def needed_without(self, trace: Path | None) -> Path:
        """The recording that all else needs; raises ArgumentError without it, or for what only --observed takes."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ArgumentError(f"`{field.name}` goes with `observed`")
        if trace is None:
            raise ArgumentError("`trace` must be given, but with `observed`")
        return trace
