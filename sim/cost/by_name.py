"""Cost models by name."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from numbers import Real
from pathlib import Path
from typing import Any

from ...base.by_name import NamedKind, Spec, name_and_options
from ...base.errors import ArgumentError, innermost, known_are, pass_interrupt, said, told
from ...traces.contexts.recording import TrieRecording
from ...traces.meta import ModelInfo
from ...traces.opening import by_form
from ...traces.parts import parts_of
from ...traces.recording import Recording
from ...traces.rounds.recording import TIMED
from ...traces.shapes import FORMATS, SHAPES_PAGE
from .base import ContextLine, CostModel, CostRangeError, DraftTerms
from .devices import OWN_DEVICE, NamedDevice, device_named
from .engines import BARE, DEFAULT_ENGINE, EngineTerms, check_shares, engine_terms, of_release, with_shares
from .files import FileCost, TableCost, read_cost_file
from .kernel_tables import KERNELS, KernelTables
from .kernels import KernelCost, engines_of_kernels
from .measured import HERE, TimedCost, names_profile, profiled_cost
from .roofline import SHEET, Device, RooflineCost, device_called, device_sheet
from .what_if import MappedBy, MappedCost, ScaledCost, scaled

DEFAULT_DEVICE = "h100"
SOME_SHAPE = "llama-3.1-8b"  # example in messages

CostClass = Callable[..., CostModel]


class CostSpecError(ValueError):
    """A cost of another package, file or module that cannot be used, or broke its contract; one line."""


COSTS: NamedKind[CostClass] = NamedKind(
    noun="cost",
    group="paceline.costs",
    methods=("forward_s",),
    example="MyCost",
    refused=CostSpecError,
    own=lambda: dict.fromkeys((*device_sheet(), TIMED, HERE)),
    first="a recording",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """The device to which measured seconds are mapped."""

    device: str  # of the sheet
    # device of the sheet on which the seconds were measured; None: by the recording's hardware
    measured_on: str | None = None
    reading: MappedBy = MappedBy.device  # of the measurement


def make_cost(
    name: str,
    recording: Recording,
    *,
    tensor_parallel: int = 1,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    scale: Mapping[str, float] | None = None,
    extrapolate: bool = False,
    on: OnDevice | None = None,
    shapes_given: bool = False,
    allow_foreign_profile: bool = False,
) -> CostModel:
    """The cost model called `name`: one measured with the recording, a device of the sheet, a JSON file, or a class.

    Args:
        name: a key of `meta.costs` ("cpu" for recordings made here), "timed" for imported recordings with seconds, a
            device name, "kernels:" and a folder of tables, a path to a JSON file (docs/costs.md), a profile's file,
            "here", the newest profile of this machine, or a class of another package, of a file or of a module, with
            its options. Recorded costs take precedence over a device of that name.
        recording: to be replayed.
        tensor_parallel: devices over which every model is split, >= 1; for a device of the sheet or kernels only.
        engine: for the seconds of a device of the sheet, see `engine_terms`, or for kernels; for these only.
        efficiency: shares of peak `bandwidth` and `flops`, in (0, 1], in place of those of the engine's fit; of a
            device of the sheet only.
        scale: factors on the seconds of members.
        extrapolate: also beyond measured points; not for a device of the sheet, which has no range.
        on: the device to which measured seconds are mapped; for seconds measured with the recording only.
        allow_foreign_profile: take a profile of another machine, or of models of other sizes.
        shapes_given: whether the recording's shapes were given by options (`models`), which only rooflines and kernels
            use.

    Raises:
        ValueError: unknown name, an option that does not apply, or a file that breaks the format; one line.
    """
    cost = _unscaled(name, recording, tensor_parallel, engine, efficiency or {}, extrapolate, allow_foreign_profile)
    if on is not None and shapes_given and recording.about.source is None:
        raise ArgumentError(
            f"`models` goes with `cost` DEVICE, not with `on`: seconds of {recording.about.name} are of its own models"
        )
    if on is not None:
        cost = _taken_to(cost, name, recording, on)
    elif shapes_given and not isinstance(innermost(cost), RooflineCost | KernelCost):
        raise ArgumentError(
            f"`models` is for a device of the sheet, as `cost` DEVICE or `on` DEVICE, or for `cost` {KERNELS}DIR; "
            f"{name} has no shapes"
        )
    return scaled_by_name(cost, scale or {}, recording)


def scaled_by_name(cost: CostModel, scale: Mapping[str, float], recording: Recording) -> CostModel:
    """`cost` with the seconds of a recording's models multiplied; raises ArgumentError for an unknown name."""
    members = recording.about.models
    unknown = [model for model in scale if model not in members]
    if unknown:
        raise ArgumentError(f"`scale` must name a model that has forwards ({', '.join(members)}), got {unknown[0]!r}")
    return scaled(cost, scale, target=members[-1])


def default_cost(recording: Recording) -> str:
    """The cost measured with the recording, else a device of the sheet.

    Raises:
        ValueError: an imported recording with neither seconds nor shapes of all its models.
    """
    measured = recording.about.costs
    if measured:
        return measured[0]
    if _without_shape(recording):
        about = recording.about
        raise ArgumentError(
            f"{about.name} holds no seconds: give `cost` FILE.json, or `cost` DEVICE and `models`, as in "
            f"`cost` {DEFAULT_DEVICE} `models` {about.target}={SOME_SHAPE}"
        )
    return DEFAULT_DEVICE


def measured_on_device(recording: Recording, on: OnDevice) -> str | None:
    """The device of measured seconds, as given or by the recording's hardware; None: unknown."""
    return on.measured_on or device_called(recording.about.hardware)


def _unscaled(
    name: str,
    recording: Recording,
    tensor_parallel: int,
    engine: str | None,
    efficiency: Mapping[str, float],
    extrapolate: bool,
    allow_foreign_profile: bool,
) -> CostModel:
    measured = recording.about.costs
    if allow_foreign_profile and not names_profile(name):
        raise ArgumentError(f"`allow_foreign_profile` is for profiles; {name} is none")
    named = None if name in measured else device_named(name)
    if named is not None:
        if extrapolate:
            raise ArgumentError(f"`extrapolate` is for measured costs; {name} has no range to leave")
        remarks = _as_replicas(name, named, tensor_parallel, engine)
        about, device = recording.about, named.device
        terms = engine_terms(engine, named.like, source=about.source, software=about.software)
        remarks += (*lower_bound(device.name, engine, terms), *_unused(name, device, recording, tensor_parallel))
        if efficiency and terms is not None:
            terms = with_shares(terms, efficiency)
        elif efficiency:
            remarks = (f"shares of published peaks as given ({check_shares(efficiency)}): no range is known", *remarks)
            device = device.reaching(efficiency)
        return roofline_of(device, name, recording, engine=terms, tensor_parallel=tensor_parallel, remarks=remarks)
    kernels = name.startswith(KERNELS)
    of_devices = {"engine": engine is not None, "tensor_parallel": tensor_parallel != 1, "efficiency": bool(efficiency)}
    for option, is_given in of_devices.items():
        if is_given and (not kernels or option == "efficiency"):
            raise ArgumentError(
                f"`{option}` goes with a device as `cost`, got `cost` {name}, whose seconds are its own"
            )
    if kernels:
        return _kernels(name, recording, tensor_parallel, engine, extrapolate)
    if names_profile(name):
        if extrapolate:
            raise ArgumentError(f"`extrapolate` is for measured tables; {name} has a smooth model for other shapes")
        return profiled_cost(name, recording, allow_foreign=allow_foreign_profile)
    if name in measured:
        return by_form(
            recording,
            tries=lambda tries: _recorded(name, tries, extrapolate=extrapolate),
            rounds=lambda rounds: TimedCost(rounds, extrapolate=extrapolate),
        )
    if name.endswith(".json"):
        found = read_cost_file(Path(name), recording.about.models)
        return FileCost(name, found.figures, extrapolate=extrapolate, remarks=found.remarks)
    if COSTS.is_foreign(name_and_options(name)[0]):
        if extrapolate:
            raise ArgumentError(f"`extrapolate` is for measured tables; {name} answers for itself")
        return cost_of_class(COSTS.parse(name), recording)
    known = sorted({*measured, *device_sheet(), *COSTS.registered()})
    if name == TIMED:
        held = "this recording holds no seconds of rounds or answers"
        raise ValueError(f"cost timed: {held}; {known_are('', known, 'or a FILE.json', where=SHEET)}")
    others = known_are(name, known, "kernels:DIR", "or a FILE.json", where=SHEET)
    raise ValueError(f"unknown cost {name!r}: {others}; {OWN_DEVICE}")


def _as_replicas(name: str, named: NamedDevice, tensor_parallel: int, engine: str | None) -> tuple[str, ...]:
    """Remarks on options at their default where replicas of the file differ in them.

    Raises ArgumentError for one at its default, which no replica of the file has.
    """
    remarks = []
    for option, given, default in (("tensor_parallel", tensor_parallel, 1), ("engine", engine, None)):
        of_file = dict.fromkeys(getattr(replica, option) for replica in named.replicas)
        have = ", ".join(str(one or "none") for one in of_file)
        if of_file and given == default and default not in of_file:
            raise ArgumentError(f"`{option}` must be given with `cost` {name}, whose replicas have {have}, not {given}")
        if len(of_file) > 1 and given == default:
            taken = given or "the default one"
            remarks.append(f"replicas of {name} have `{option}` {have}: these are seconds of {taken}")
    return tuple(remarks)


def _recorded(name: str, recording: TrieRecording, *, extrapolate: bool) -> TableCost:
    meta = recording.meta
    doubt = (meta.costs_doubt,) if meta.costs_doubt else ()
    return TableCost(name, meta.costs[name], extrapolate=extrapolate, remarks=doubt)


# Shapes that check a foreign cost before use: rows, new tokens a row, tokens held a row.
_PROBES = (*product((1, 8), (1, 5), (0, 1000)),)
_FAR, _OFF_LINE = 1000, 1e-6  # tokens held beyond those asked, and share of a forward, where its lines are checked


def cost_of_class(spec: Spec[CostClass], recording: Recording) -> CostModel:
    """A cost of another package, of a file or of a module; raises CostSpecError, when it is asked as well."""
    cost = spec.build(recording)
    if not isinstance(cost, CostModel):
        raise CostSpecError(f"cost {spec.label!r}: its class must derive from paceline.sim.cost.base.CostModel")
    if not isinstance(getattr(cost, "name", None), str):
        raise CostSpecError(f"cost {spec.label!r}: must have a name, which tables show")
    check_seconds(cost, recording.about.models, _PROBES, spec.label)
    checked = ForeignCost(cost, recording.about.target, spec.label)
    checked.check_answers(recording.about.models)
    return checked


class ForeignCost(ScaledCost):
    """A foreign cost, called `text` in errors, whose every forward and line is checked.

    What is no number would end a run far from here without a name, or pass for one (a None in an array is NaN).
    """

    def __init__(self, cost: CostModel, target: str, text: str) -> None:
        super().__init__(cost, {}, target)
        self._text = text

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """See `CostModel`; raises CostSpecError unless it is a number above 0."""
        return self._seconds(
            "forward_s", model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens
        )

    def shared_forward_s(self, model: str, **fed: int) -> float:
        """See `CostModel`; raises CostSpecError unless it is a number above 0."""
        return self._seconds("shared_forward_s", model, **fed)

    def _seconds(self, verb: str, model: str, **fed: int) -> float:
        seconds: float = self._said(verb, model, **fed)
        if not (isinstance(seconds, Real) and 0 < seconds < inf):
            raise self._refusal(verb, f"must be seconds above 0, got {said(seconds, repr)}", model, **fed)
        return float(seconds)  # numpy's of few bits would round what is added to them

    def context_line(self, model: str, **fed: int) -> ContextLine:
        """See `CostModel`; raises CostSpecError for another kind, or where `forward_s` does not lie on it."""
        found = self._said("context_line", model, **fed)
        is_line = isinstance(found, ContextLine) and all(isinstance(number, Real) for number in found)
        rows, asked = fed["num_rows"], fed["context_tokens"]
        if not (is_line and found.start <= asked < found.end):
            rule = f"must be a ContextLine of numbers around the tokens held, got {said(found, repr)}"
            raise self._refusal("context_line", rule, model, **fed)
        plain: list[Any] = [number.item() if hasattr(number, "item") else number for number in found]  # numpy's wrap
        line = ContextLine(*plain)
        last = ceil(min(line.end, 2 * asked + _FAR)) - 1
        for held in (-(-line.start // rows) * rows, asked, last - last % rows):  # as rows of equal length hold
            if not line.start <= held < line.end:
                continue
            try:
                seconds = self.forward_s(model, **fed | {"context_tokens": held})
            except CostRangeError:
                if held == asked:
                    raise
                continue  # the line is longer than what the cost knows
            lined = line.start_s + line.slope_s * (held - line.start)
            if not abs(lined - seconds) <= _OFF_LINE * seconds:
                rule = f"must be the {seconds:g} s of forward_s at {held} tokens held, got {lined:g}"
                raise self._refusal("context_line", rule, model, **fed)
        return line

    def check_answers(self, models: Iterable[str]) -> None:
        """Raise CostSpecError for an answer of another kind, which would fail far from here, or pass for one."""
        self._check_lookup("lookup_s", self._cost.lookup_s)
        self._check_lookup("lookups_s(1)", self._said("lookups_s", 1))
        notes, unlined = self._said("notes"), self._said("unlined")
        if not (isinstance(notes, tuple | list) and all(isinstance(note, str) for note in notes)):
            raise self._refusal("notes", f"must be a tuple of texts, got {said(notes, repr)}")
        if not isinstance(unlined, str):
            raise self._refusal("unlined", f'must be a text, "" with lines, got {said(unlined, repr)}')
        for model in models:
            terms = self._said("draft_terms", model)
            if not (terms is None or isinstance(terms, DraftTerms)):
                raise self._refusal("draft_terms", f"must be DraftTerms, got {said(terms, repr)}", model)

    def _check_lookup(self, name: str, seconds: object) -> None:
        if not (isinstance(seconds, Real) and 0 <= float(seconds) < inf):
            rule = f"must be seconds >= 0 and finite, got {said(seconds, repr)}"
            raise CostSpecError(f"cost {self._text!r}: {name} {rule}")

    def _said(self, method: str, *args: object, **fed: int) -> Any:  # noqa: ANN401 - foreign code
        try:
            return getattr(self._cost, method)(*args, **fed)
        except (CostRangeError, CostSpecError):  # say what is wrong
            raise
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self._refusal(method, f"raised {told(error)}", *args, **fed) from error

    def _refusal(self, method: str, rule: str, *args: object, **fed: int) -> CostSpecError:
        given = ", ".join([*map(repr, args), *(f"{name}={value}" for name, value in fed.items())])
        return CostSpecError(f"cost {self._text!r}: {method}({given}) {rule}")

    def ends(self, *, whole: bool = False) -> tuple[CostModel, ...]:
        return tuple(ForeignCost(end, self._target, self._text) for end in self._cost.ends(whole=whole))


def check_seconds(
    cost: CostModel, models: Iterable[str], shapes: Iterable[tuple[int, int, int]], text: str
) -> dict[tuple[str, int, int, int], float]:
    """Compute seconds of forwards; raises CostSpecError, with `text`, for a bad value or an exception.

    `shapes` are rows, new tokens of each, and tokens held by each. Returns seconds by model and shape.
    """
    checked, found = ForeignCost(cost, "", text), dict[tuple[str, int, int, int], float]()
    for model, (rows, new, held) in product(models, shapes):
        seconds = checked.forward_s(model, num_rows=rows, new_tokens=rows * new, context_tokens=rows * held)
        found[model, rows, new, held] = seconds
    return found


def _unused(name: str, device: Device, recording: Recording, tensor_parallel: int) -> tuple[str, ...]:
    """A remark on measured seconds that a roofline does not use, and that could be mapped to its device."""
    known = device_called(recording.about.hardware)
    measured = [kind for kind in recording.about.costs if kind == TIMED or known is not None]
    if not measured or tensor_parallel != 1:
        return ()
    way = f"`cost` {measured[0]} `on` {name}" + (" `measured_on` DEVICE" if known is None else "")
    if known is not None and _alike(device, device_sheet()[known]):
        return (f"the recording holds seconds measured on this device: `cost` {measured[0]}",)
    return (f"the recording holds measured seconds, which {way} takes to this device from another one",)


def lower_bound(device: str, asked: str | None, terms: EngineTerms | None) -> tuple[str, ...]:
    """A remark on a bare roofline: `terms` is None, by `asked` or since no engine is known on the device."""
    if terms is not None:
        return ()
    why = "" if asked == BARE else f" of {device}, on which no engine was measured"
    return (f"published peaks{why}: a lower bound on seconds, which says nothing of the best draft length",)


def _taken_to(cost: CostModel, name: str, recording: Recording, on: OnDevice) -> CostModel:
    if name not in recording.about.costs:
        raise ArgumentError(
            f"`on` is for seconds measured with the recording ({', '.join(recording.about.costs) or 'it holds none'}), "
            f"got `cost` {name}"
        )
    there = _device("`on`", on.device)
    measured_on = measured_on_device(recording, on)
    if measured_on is None:
        raise ArgumentError(
            f"`on` {on.device} needs the device of the sheet that {name} was measured on: give `measured_on` DEVICE; "
            f"the recording says {recording.about.hardware or 'nothing'!r}"
        )
    here = _device("`measured_on`", measured_on)
    if _alike(here, there):
        raise ArgumentError(
            f"`on` must name another device than {name} was measured on, got {on.device} for {measured_on}"
        )
    asked = f"{name} `on` {on.device}"
    rooflines = (roofline_of(here, asked, recording), roofline_of(there, asked, recording))
    return MappedCost(cost, *rooflines, on.reading, target=recording.about.target)


def _alike(one: Device, other: Device) -> bool:
    return one.bytes_per_s == other.bytes_per_s and one.flops_per_s == other.flops_per_s


def _device(option: str, name: str) -> Device:
    """A device that measured seconds are taken from or to, one to one, whatever engine was measured."""
    named = device_named(name)
    if named is None:
        known = known_are(name, sorted(device_sheet()), where=SHEET)
        raise ArgumentError(f"{option} must be a device of the sheet ({known}; {OWN_DEVICE}), got {name!r}")
    for key, default in (("tensor_parallel", 1), ("engine", None)):
        for given in (getattr(replica, key) for replica in named.replicas):
            if given != default:
                rule = f"`on` takes seconds from one device to one, as their engine took them, got {option} {name}"
                raise ArgumentError(f"{rule}, whose replicas have {key} {given}")
    return named.device


def roofline_of(
    device: Device,
    name: str,
    recording: Recording,
    *,
    engine: EngineTerms | None = None,
    tensor_parallel: int = 1,
    remarks: tuple[str, ...] = (),
    members: Collection[str] | None = None,
) -> RooflineCost:
    """The roofline of a recording's models, or of the given members (None: all).

    `engine` serves them; None: bare. The models are split over `tensor_parallel` >= 1 devices. `name` is for messages;
    `remarks` come first in its notes.

    Raises:
        ValueError: a model of unknown shape, or as `RooflineCost`.
    """
    known = _shapes(name, recording, members)
    return RooflineCost(
        device,
        known.models,
        engine=engine,
        tensor_parallel=tensor_parallel,
        remarks=(*remarks, *known.remarks),
        free=known.free,
        target=known.target,
    )


def _kernels(
    name: str, recording: Recording, tensor_parallel: int, engine: str | None, extrapolate: bool
) -> KernelCost:
    """The kernels of a folder, by default of the engine of an imported log, else vLLM's."""
    logged = (recording.about.source or "").partition("-")[0]
    known = engines_of_kernels()
    named = engine or (logged if logged in known else DEFAULT_ENGINE)
    if named not in known:
        raise ArgumentError(f"`engine` must be {' or '.join(known)} with `cost` {KERNELS}DIR, got {named!r}")
    tables = KernelTables(Path(name.removeprefix(KERNELS)), named, extrapolate=extrapolate)
    shapes, version = _shapes(name, recording, None), recording.about.software.get(logged, "")
    told = f"the log is of {logged} {version}, but rounds are those of present releases of {named}"
    older = engine is None and of_release(logged, version) != logged
    remarks = (told, *shapes.remarks) if older else shapes.remarks
    parts = {model.name: parts_of(model, recording.decoders) for model in shapes.models}
    return KernelCost(
        tables,
        shapes.models,
        {model: found for model, found in parts.items() if found is not None},
        tensor_parallel=tensor_parallel,
        remarks=remarks,
        free=shapes.free,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """Shapes of a recording's members."""

    models: tuple[ModelInfo, ...]  # of these; the target last
    target: ModelInfo | None  # the recording's, also if not among them; None: unknown
    free: tuple[str, ...]  # members that copy text
    remarks: tuple[str, ...]  # assumptions


def _shapes(name: str, recording: Recording, members: Collection[str] | None) -> _Shapes:
    """Those of some members, or of all; raises ArgumentError, which names the cost, where one is unknown."""
    missing = [model for model in _without_shape(recording) if members is None or model in members]
    if missing:
        raise ArgumentError(
            f"cost {name}: no shape for {', '.join(missing)}: give `models` {missing[0]}=PRESET, "
            f"{missing[0]}=config.json or FILE.json, of quantised weights PRESET@FORMAT ({', '.join(FORMATS)}); "
            f"presets are in {SHAPES_PAGE}, as llama-3.1-8b, or eagle3 for such a head of the target"
        )
    shapes = recording.known_shapes()
    known = {name: named for name, named in shapes.items() if members is None or name in members}
    words = [named.words for named in known.values() if named.words]
    remarks: tuple[str, ...] = ()
    if words:
        remarks = (f"assumed from names, unless `models` says otherwise: {'; '.join(words)}",)
    about = recording.about
    if about.made_shapes:
        remarks += (
            f"{about.name} is made, and so are the shapes of its models: these are seconds of toys; give `models`, as "
            f"in `models` {about.target}={SOME_SHAPE}",
        )
    models = (named.shape for named in known.values() if named.shape is not None)
    target = shapes.get(about.target)
    return _Shapes(
        target=None if target is None else target.shape,
        models=tuple(sorted(models, key=lambda shape: shape.name == about.target)),
        free=tuple(member for member, named in known.items() if named.shape is None),
        remarks=remarks,
    )


def _without_shape(recording: Recording) -> list[str]:
    known = recording.known_shapes()
    return [name for name in reversed(recording.about.models) if name not in known]
