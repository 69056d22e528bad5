"""What a comparison is run under, as it was asked for: the recording, the seconds, the what-ifs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from ...arguments import ArgumentError
from ...decoding.prefill import Start, start_of
from ...decoding.prefixes.size import prefix_cache_size
from ...sim.cost.base import CostModel, OperationCost
from ...sim.cost.make import OnDevice, default_cost, make_cost, measured_on_device
from ...sim.cost.what_if.other_device import Reading
from ...sim.placement import placement_of
from ...sim.replay_tables import tables_of
from ...sim.simulate import Scenario
from ...sim.tries.tables import TrieTables
from ...traces.forms import is_recording
from ...traces.recording import Recording
from ..open_recording import open_recording
from ..remarks import remarks_on
from .scenarios import Scenarios

LEAST_SEEDS, MOST_SEEDS = 2, 1000
# Of keywords: there are no others, and each is of its kind; 1 is no bool and True no number.
STRICT = ConfigDict(strict=True, extra="forbid")


@with_config(STRICT)
class ReplayOptions(TypedDict, total=False):
    """The keywords of every replay of a recording; `Setting` says what they mean and what they are by default."""

    cost: str | Path | None
    scale: Mapping[str, float] | None
    tensor_parallel: int
    extrapolate: bool
    models: Sequence[str] | Mapping[str, str] | None
    on: str | None
    measured_on: str | None
    shift_acceptance: Mapping[str, float] | None
    seed: int
    decide_s: float | None
    allow_foreign_profile: bool
    strict: bool
    lossless: bool


@with_config(STRICT)
class SettingOptions(ReplayOptions, total=False):
    """The keywords that `compare` and `sweep` share."""

    seeds: int
    start: Start | str | None


@with_config(STRICT)
class SharingOptions(SettingOptions, total=False):
    """Further keywords of `compare`, which replays texts."""

    prefix_cache: int | None
    block_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What policies are compared under.

    Attributes:
        recording: that is replayed.
        batch: requests running at a time, 1 to 1,000,000.
        cost: what a forward costs: what was measured with the recording ("cpu", "timed"), a device ("h100") or a
            FILE.json; None: what was measured, else a device.
        scale: what if these models' seconds were multiplied: factors by name.
        tensor_parallel: devices every model is split over, of a device of the sheet.
        extrapolate: answer beyond what a measured cost was measured for, and say so.
        models: shapes of members: by name a preset or a config.json, or texts as `--models` takes them. None: as
            recorded, or as names say. Where a recording holds those of its models, what if they had these.
        on: device that measured seconds are taken to.
        measured_on: device that they were measured on, if the recording does not say.
        shift_acceptance: what if these drafters were accepted more often: change of the rate by name.
        seed: the first, of decisions that have to be modelled.
        seeds: that a policy is run at where chance has a part, 2 to 1,000.
        start: how requests begin: "prefill", "draft" or "recorded"; None: prefill, of an imported log recorded.
        devices: where members run that a policy lets work at the same time: "one", "each" on its own, or devices by
            name, also as text (`placement_of`); None: one.
        decide_s: seconds that a policy costs per step; None: what a profile knows of it, else 0.
        allow_foreign_profile: take a profile of another machine as `cost`.
        strict: refuse what is not recorded instead of modelling it.
        lossless: refuse policies that may commit other text than the target's.
        prefix_cache: blocks of each member's prefix cache, >= 1; None for none.
        block_tokens: of one of these blocks, >= 1; 16 if None.

    Raises:
        ArgumentError: an argument out of range, or without the one that it goes with.
    """

    recording: Recording
    batch: int = 1
    cost: str | Path | None = None
    scale: Mapping[str, float] | None = None
    tensor_parallel: int = 1
    extrapolate: bool = False
    models: Sequence[str] | Mapping[str, str] | None = None
    on: str | None = None
    measured_on: str | None = None
    shift_acceptance: Mapping[str, float] | None = None
    seed: int = 0
    seeds: int = 5
    start: Start | str | None = None
    devices: str | Mapping[str, str] | None = None
    decide_s: float | None = None
    allow_foreign_profile: bool = False
    strict: bool = False
    lossless: bool = False
    prefix_cache: int | None = None
    block_tokens: int | None = None

    def __post_init__(self) -> None:
        prefix_cache_size(self.prefix_cache, self.block_tokens)
        if not LEAST_SEEDS <= self.seeds <= MOST_SEEDS:
            raise ArgumentError(f"`seeds` must be in [{LEAST_SEEDS}, {MOST_SEEDS}], got {self.seeds}")
        if self.start is not None:
            start_of(self.start)
        if self.measured_on is not None and self.on is None:
            raise ArgumentError(f"`measured_on` goes with `on` DEVICE, got `measured_on` {self.measured_on}")

    @property
    def device(self) -> OnDevice | None:
        """Where measured seconds are taken to; None: nowhere."""
        return None if self.on is None else OnDevice(device=self.on, measured_on=self.measured_on)

    @property
    def device_measured_on(self) -> str:
        """The device that measured seconds are of; empty if nothing says it."""
        assert self.device is not None
        return measured_on_device(self.recording, self.device) or ""

    @property
    def cost_name(self) -> str:
        """As it was asked for, or what there is."""
        return default_cost(self.recording) if self.cost is None else str(self.cost)

    def priced(self, reading: Reading = Reading.device) -> CostModel:
        """The cost model; `reading` of a measurement that is taken to another device."""
        source = self.recording
        return make_cost(
            self.cost_name,
            source,
            tensor_parallel=self.tensor_parallel,
            scale=self.scale,
            extrapolate=self.extrapolate,
            on=None if self.device is None else replace(self.device, reading=reading),
            shapes_given=bool(self.models),
            allow_foreign_profile=self.allow_foreign_profile,
        )

    def _profiled_deciding(self, first: Scenario) -> bool:
        """Whether each policy is charged what a profile knows of it."""
        return self.decide_s is None and isinstance(first.cost, OperationCost)

    def scenarios(self) -> Scenarios:
        """The runs to be made, seed by seed; raises ValueError for options that do not go with the recording."""
        tables = tables_of(self.recording)
        if self.devices is not None and not isinstance(tables, TrieTables):
            name = self.recording.about.name
            raise ArgumentError(f"`devices` is for recordings of contexts: nobody works ahead in a replay of {name}")
        first = Scenario(
            tables=tables,
            cost=self.priced(),
            batch=self.batch,
            seed=self.seed,
            strict=self.strict,
            decide_s=self.decide_s,
            start=None if self.start is None else start_of(self.start),
            placement=placement_of(self.devices, tables.pool),
            prefixes=prefix_cache_size(self.prefix_cache, self.block_tokens),
        )
        return Scenarios(self.recording, first, self.shift_acceptance or {}, self.seeds)

    def meta(self, first: Scenario) -> dict[str, Any]:
        """What a comparison says of its recording, its cost and its what-ifs; `first` is the first scenario."""
        recording = self.recording
        about = recording.about
        return {
            "trace": about.name,
            "kind": about.kind,
            "source": about.source,
            "trust": about.trust,
            "notes": list(about.notes),
            "remarks": remarks_on(recording, batch=self.batch),
            "sampling": about.sampling,
            "cost": first.cost.name,
            "hardware": "" if about.kind == "synthetic" or self.cost_name not in about.costs else about.hardware,
            "what_if": {
                "acceptance": dict(self.shift_acceptance or {}),
                "scale": dict(self.scale or {}),
                "tensor_parallel": self.tensor_parallel,
            },
            "extrapolate": self.extrapolate,
            "batch": self.batch,
            "seed": self.seed,
            "seeds": self.seeds,
            "decide_s": None if self._profiled_deciding(first) else self.decide_s or 0.0,
            "start": first.begins.value,
            "devices": first.placement.name,
            "prefix_cache": None if first.prefixes is None else asdict(first.prefixes),
        }


def setting_of(
    recording: Recording | str | Path | None, batch: int, options: ReplayOptions | SettingOptions | SharingOptions
) -> Setting:
    """What is asked for, of the recording with the shapes that `models` gives; raises as `Recording.with_shapes`.

    None is the recording that comes with the package. Raises ArgumentError for what is neither a path nor a recording.
    """
    opened = open_recording(recording) if recording is None or isinstance(recording, str | Path) else recording
    if not is_recording(opened):
        raise ArgumentError(f"`recording` must be a path or an opened recording, got {recording!r}")
    models = options.get("models")
    texts = [f"{name}={shape}" for name, shape in models.items()] if isinstance(models, Mapping) else models
    return Setting(recording=opened.with_shapes(texts) if texts else opened, batch=batch, **options)


def check_kinds(given: Mapping[str, object], keywords: type) -> None:
    """Refuse keywords that are none, and values of another kind.

    Args:
        given: what a function was called with.
        keywords: a `STRICT` TypedDict that says which there are, and their types.

    Raises:
        ArgumentError: the first breach, by the keyword's name.
    """
    try:
        TypeAdapter(keywords).validate_python(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        rule = "several texts" if first["type"] == "sequence_str" else first["msg"].removeprefix("Input should be ")
        if first["type"] == "extra_forbidden":
            raise ArgumentError(f"no keyword `{name}`; there are {', '.join(keywords.__annotations__)}") from None
        raise ArgumentError(f"`{name}` must be {rule}, got {given[str(name)]!r}") from None
