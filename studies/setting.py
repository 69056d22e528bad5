"""The setting of a study: the recording, seconds, scenarios by seed, and named policies, built again for each run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from weakref import ref

from ..base.errors import ArgumentError, check_within, counted, repeated
from ..base.files import recording_path
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.prefix_cache import prefix_cache_size
from ..decoding.seen import start_of
from ..policies.about import about_of, check_declared
from ..policies.by_name import PolicySpec, own_policies
from ..policies.combined import OnlyLossless
from ..sim.contexts import TrieTables
from ..sim.cost.base import CostModel
from ..sim.cost.by_name import OnDevice, default_cost, make_cost, measured_on_device
from ..sim.cost.measured import is_profiled_here
from ..sim.cost.what_if import MappedBy
from ..sim.recorded import placement_of
from ..sim.replay_tables import ReplayTables, in_order, is_ready, tables_of
from ..sim.simulate import Scenario
from ..traces.folder import META
from ..traces.opening import is_recording
from ..traces.opening import open_recording as read_recording
from ..traces.recording import Recording, by_session
from .options import (
    LEAST_SEEDS,
    MOST_ORDERS,
    MOST_SEEDS,
    MixOptions,
    OrdersOptions,
    PlacementOptions,
    PrefixOptions,
    ReplayOptions,
    SeedsOptions,
    shared,
)

# Policies of this package are trusted in what they declare; those of others are checked step by step.
OUR_POLICIES = OnlyLossless.__module__.rpartition(".")[0] + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenarios:
    """The same scenario at every seed; with a shift of acceptance each seed has a recording of its own."""

    recording: Recording  # without what-ifs
    first: Scenario  # at the first seed; its tables are those of `recording`
    shifts: Mapping[str, float]  # by drafter, change of its rate of acceptance: decisions are then flipped at random
    num_seeds: int  # >= 1
    num_orders: int = 1  # of the requests, >= 1; the recorded one is the first
    _made: dict[int, Scenario] = field(default_factory=dict)

    def at(self, index: int) -> Scenario:
        """The scenario at the seed and in the order `index` after the first; the fewer of both are cycled.

        Raises ValueError for a shift out of range.
        """
        if index not in self._made:
            seed = self.first.seed + index % self.num_seeds
            tables = self.first.tables
            if self.shifts:
                tables = tables_of(self.recording.shifted(self.shifts, seed=seed))
            tables = in_order(tables, index % self.num_orders)
            self._made[index] = replace(self.first, tables=tables, seed=seed)
        return self._made[index]

    def with_batch(self, batch: int) -> "Scenarios":
        """The same with `batch` requests running at a time."""
        return replace(self, first=replace(self.first, batch=batch), _made={})

    def with_cost(self, cost: CostModel) -> "Scenarios":
        """The same seeds at other seconds; shifted recordings are not shifted again."""
        made = {index: replace(scenario, cost=cost) for index, scenario in self._made.items()}
        return replace(self, first=replace(self.first, cost=cost), _made=made)


PolicyGiven = str | PolicySpec | Callable[[Pool], Policy]
PoliciesGiven = PolicyGiven | Sequence[PolicyGiven] | Mapping[str, PolicyGiven]


@dataclass(slots=True, kw_only=True)
class NamedPolicy:
    """A policy to build again for every run. `build` mutates it: it notes the built policy, to reject it next time."""

    name: str  # shown in tables
    make: Callable[[Pool], Policy]  # makes it for a pool
    made_by: object  # its class, or a function; None for a text that names a pool's target
    _made: list[Callable[[], Policy | None]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def file_name(self) -> str:
        """The name as a part of a file's; unlike names may have one."""
        return "".join(char if char.isalnum() or char in "=,.-" else "_" for char in self.name)

    def build(self, pool: Pool) -> Policy:
        """A new policy; raises ValueError if it cannot be made, or is one made before."""
        policy = self.make(pool)
        check_declared(policy, self.name)
        self._made = [one for one in self._made if one() is not None]
        if any(one() is policy for one in self._made):
            raise ArgumentError(
                f"`policies` {self.name} must make a new policy for every run, or what one learnt goes into the next; "
                "it returned the same one twice"
            )
        self._made.append(_reference(policy))
        return policy

    def admitted(self, pool: Pool, *, lossless: bool) -> Policy:
        """The policy for a run on a pool, if it may run; `lossless`: it must commit the target's own text.

        A policy of this package is judged by what it declares; any other is also checked step by step.

        Raises:
            ArgumentError: `lossless`, and the policy is not.
            ValueError: it cannot be built.
        """
        policy = self.build(pool)
        if not lossless:
            return policy
        about = about_of(policy)
        if about is not None and not about.lossless:
            raise ArgumentError(f"policy {self.name} is lossy, and `lossless` was asked for")
        if about is not None and type(policy).__module__.startswith(OUR_POLICIES):
            return policy
        return OnlyLossless(policy, about)


def _reference(policy: Policy) -> Callable[[], Policy | None]:
    """A function that returns the policy while it exists: a maker that returns it again has kept it."""
    try:
        return ref(policy)
    except TypeError:  # a class with slots has no weak references
        return lambda: policy


def named_policy(given: PolicyGiven) -> NamedPolicy:
    """A named policy from a text or spec, or from a class or function that makes the policy for a pool.

    Raises:
        PolicySpecError: a text that names no policy.
        ArgumentError: anything else, such as a built policy, which would keep learning from run to run.
    """
    spec = PolicySpec.parse(given) if isinstance(given, str) else given
    if isinstance(spec, PolicySpec):
        return NamedPolicy(name=spec.label, make=spec.build, made_by=spec.policy_class)
    if not callable(spec):
        raise ArgumentError(f"`policies` must be texts, or classes and functions that take a pool, got {spec!r}")
    return NamedPolicy(name=getattr(spec, "__name__", repr(spec)), make=spec, made_by=spec)


def named_policies(given: PoliciesGiven) -> list[NamedPolicy]:
    """One or several policies in their order, a mapping's by the names it gives them.

    Raises ArgumentError for no policy, a repeated name, or the name of one of ours for another policy.
    """
    if isinstance(given, str | PolicySpec) or callable(given):
        found = [named_policy(given)]
    elif isinstance(given, Mapping):
        found = [replace(named_policy(one), name=_checked_name(name)) for name, one in given.items()]
    elif isinstance(given, Sequence):
        found = [named_policy(one) for one in given]
    else:
        raise ArgumentError(f"`policies` must be a policy, a list of them or a mapping by name, got {given!r}")
    if not found:
        raise ArgumentError("`policies` must hold at least one, got none")
    for policy in found:
        ours = own_policies().get(policy.name)
        if ours is not None and policy.made_by is not ours:  # the baseline and oracles are known by their names
            raise ArgumentError(f"`policies` must leave the name {policy.name} to paceline's own policy of that name")
    twice = repeated(policy.name for policy in found)
    if twice:
        raise ArgumentError(f"`policies` {twice[0]} is given twice")
    return found


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"`policies` must have names that are texts, got {name!r}")
    return name


def open_recording(path: str | Path | None = None) -> Recording:
    """Read a recording, of contexts or of an imported log.

    `path` is a .trace folder, or the name of a recording that comes with the package; None for the default one.

    Raises:
        TraceFormatError: no recording, or one that breaks the format; names the path and what is wrong.
    """
    return read_recording(recording_path(path))


def opened_recording(given: Recording | str | Path | None) -> Recording:
    """A recording that is given opened, or as `open_recording` takes it; raises as that."""
    return open_recording(given) if given is None or isinstance(given, str | Path) else given


def with_models(recording: Recording, models: Mapping[str, str] | Sequence[str] | None) -> Recording:
    """The recording with shapes of members, as `ReplayOptions` takes them; raises as `Recording.with_shapes`."""
    texts = [f"{name}={shape}" for name, shape in models.items()] if isinstance(models, Mapping) else models
    return recording.with_shapes(texts) if texts else recording


def kept_recording(path: str | None) -> Recording:
    """A recording as `open_recording` reads it; cached for the next call, which is mostly for the same one.

    The key is its path and its `meta.json`: a process that lives on may change the folder, or see it recorded again.
    """
    return _recording_at(*_place_of(path))


def kept_tables(path: str | None) -> ReplayTables:
    """As `kept_recording`, ready for replay."""
    return _tables_at(*_place_of(path))


def _place_of(path: str | None) -> tuple[Path, int, int]:
    """(path of a recording, when its `meta.json` was written (ns), its bytes); -1 without one."""
    found = recording_path(path).resolve()
    try:
        meta = (found / META).stat()
    except OSError:  # opening it raises the reason
        return found, -1, -1
    return found, meta.st_mtime_ns, meta.st_size


@lru_cache(maxsize=1)
def _recording_at(path: Path, *_: int) -> Recording:
    return read_recording(path)


@lru_cache(maxsize=1)
def _tables_at(path: Path, *written: int) -> ReplayTables:
    return tables_of(_recording_at(path, *written))


def batch_remarks(batch: int, num_requests: int, *, of: str) -> list[str]:
    """A remark if there are fewer requests than `batch`; `of` names what they are of."""
    if batch <= num_requests:
        return []
    return [
        f"`batch` {batch:,}: the {of} has {counted(num_requests, 'request')}, so at most {num_requests:,} run together"
    ]


def ahead_remarks(overlap: Mapping[str, Any] | None) -> list[str]:
    """How members of a run worked at the same time, from its meta's `overlap`; empty if none did."""
    if overlap is None or not overlap["used"]:
        return []
    threads_s, turns_s = overlap["threads_s"], overlap["turns_s"]
    if overlap["why"]:
        return [f"members worked in turns, not in threads: {overlap['why']}"]
    if threads_s is None or turns_s is None:
        return [f"members worked in {overlap['used']}, as asked"]
    quicker = "threads pay" if threads_s < turns_s else "threads do not pay"
    return [
        f"members worked in {overlap['used']}: {quicker} here, {threads_s * 1e3:.2f} ms a step in threads and "
        f"{turns_s * 1e3:.2f} ms in turns (medians of the first ones)"
    ]


@dataclass(frozen=True, kw_only=True)
class Setting(PrefixOptions, PlacementOptions, MixOptions, OrdersOptions, SeedsOptions, ReplayOptions):
    """The setting in which policies are compared on a recording.

    Raises ArgumentError for an argument out of range, or one that needs another.
    """

    recording: Recording
    tables: ReplayTables | None = None  # the recording, if ready for replay already
    batch: int = 1  # requests running at a time, 1 to 1,000,000

    def __post_init__(self) -> None:
        prefix_cache_size(self.prefix_cache, self.block_tokens)
        if not LEAST_SEEDS <= self.seeds <= MOST_SEEDS:
            raise ArgumentError(f"`seeds` must be in [{LEAST_SEEDS}, {MOST_SEEDS}], got {self.seeds}")
        check_within("`orders`", self.orders, f"[1, {MOST_ORDERS}]")
        if self.start is not None:
            start_of(self.start)
        if self.fixed_mix and len({request.tag for request in self.recording.requests}) < 2:
            name = self.recording.about.name
            raise ArgumentError(f"`fixed_mix` needs requests of several tags, which recording {name} does not have")
        if self.measured_on is not None and self.on is None:
            raise ArgumentError(f"`measured_on` goes with `on` DEVICE, got `measured_on` {self.measured_on}")

    @property
    def device(self) -> OnDevice | None:
        """The device to which measured seconds are mapped; None: not mapped."""
        return None if self.on is None else OnDevice(device=self.on, measured_on=self.measured_on)

    @property
    def device_measured_on(self) -> str:
        """The device of measured seconds; empty if unknown."""
        assert self.device is not None
        return measured_on_device(self.recording, self.device) or ""

    @property
    def cost_name(self) -> str:
        """The name as given, or the default."""
        return default_cost(self.recording) if self.cost is None else str(self.cost)

    def remarks(self, *batches: int) -> list[str]:
        """Remarks on the recording, its replay at these batches and an assumed device, each once."""
        about = self.recording.about
        assumed = self.cost is None and not about.costs and (self.models or about.kind == "recorded")
        count = len(self.recording.requests)
        found = [each for batch in batches for each in (*batch_remarks(batch, count, of="recording"), *about.remarks)]
        if not assumed:
            return [*dict.fromkeys(found)]
        taken = f"the recording holds no seconds, so these are those of device {default_cost(self.recording)}"
        if self.models:
            return [*dict.fromkeys(found), taken]
        advice = "for this machine's run paceline profile, then give `cost` here"
        if is_profiled_here(self.recording):
            advice = "`cost` here takes this machine's, of its newest profile of these models"
        return [*dict.fromkeys(found), f"{taken}; {advice}"]

    def priced(self, reading: MappedBy = MappedBy.device) -> CostModel:
        """The cost model; `reading` is for a measurement mapped to another device."""
        source = self.recording
        return make_cost(
            self.cost_name,
            source,
            tensor_parallel=self.tensor_parallel,
            engine=self.engine,
            efficiency=self.efficiency,
            scale=self.scale,
            extrapolate=self.extrapolate,
            on=None if self.device is None else replace(self.device, reading=reading),
            shapes_given=bool(self.models),
            allow_foreign_profile=self.allow_foreign_profile,
        )

    def scenarios(self) -> Scenarios:
        """The runs to be made, seed by seed; raises ValueError for options that do not fit the recording."""
        tables = tables_of(self.recording) if self.tables is None else self.tables
        if self.devices is not None and not isinstance(tables, TrieTables):
            name = self.recording.about.name
            raise ArgumentError(f"`devices` is for recordings of contexts: no member works ahead in a replay of {name}")
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
        return Scenarios(
            recording=self.recording,
            first=first,
            shifts=self.shift_acceptance or {},
            num_seeds=self.seeds,
            num_orders=self.orders,
        )

    def meta(self, first: Scenario) -> dict[str, Any]:
        """A comparison's metadata of its recording, its cost and its what-ifs; `first` is the first scenario."""
        recording = self.recording
        about, units = recording.about, by_session(recording.requests)
        return {
            "trace": about.name,
            "kind": about.kind,
            "source": about.source,
            "trust": about.trust,
            "notes": list(about.notes),
            "remarks": self.remarks(self.batch),
            "sampling": about.sampling,
            "sessions": 0 if len(units) == len(recording.requests) else len(units),
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
            "orders": self.orders,
            "fixed_mix": self.fixed_mix,
            # None: each policy is charged its seconds in a profile.
            "decide_s": None if self.decide_s is None and first.cost.knows_operations else self.decide_s or 0.0,
            "start": first.begins.value,
            "devices": first.placement.name,
            "prefix_cache": None if first.prefixes is None else asdict(first.prefixes),
        }


def setting_of(
    recording: Recording | ReplayTables | str | Path | None, asked: ReplayOptions, *, batch: int = 1
) -> Setting:
    """The setting, on the recording with the shapes of `models`; raises as `Recording.with_shapes`.

    None is the recording that comes with the package. Raises ArgumentError unless it is a path or a recording.
    """
    tables = recording if is_ready(recording) and not asked.models else None
    opened = (
        recording.trace if is_ready(recording) else opened_recording(cast(Recording | str | Path | None, recording))
    )
    if not is_recording(opened):
        raise ArgumentError(f"`recording` must be a path or an opened recording, got {recording!r}")
    given = {"batch": batch} | shared(Setting, asked)
    return Setting(recording=with_models(opened, asked.models), tables=tables, **given)
