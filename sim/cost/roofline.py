"""Seconds of a forward from a model's shape and the published figures of an accelerator, which `devices.toml` has."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from math import ceil, inf, log2

from ...base.errors import ArgumentError
from ...traces.meta import WIDTHS, Experts, ModelInfo
from .base import ContextLine, CostModel, ShapedCost, upper_line
from .engines import EngineTerms, of_other_rounds

# Seconds of a layer outside arithmetic and memory traffic: about ten kernels of 1 microsecond each.
LAYER_LAUNCH_S = 1e-5
# Seconds of an all-reduce in addition to its bytes over NVLink or ICI: start-up and synchronisation.
LINK_LATENCY_S = 1e-5

SHEET = "docs/costs.md"  # lists all devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator."""

    name: str  # for `cost`
    # dense peak by dtype, and of "fp8", "fp4" and "int8" units, without sparsity; those without a published figure are
    # absent
    flops_per_s: dict[str, float]
    bytes_per_s: float  # memory bandwidth
    memory_bytes: float  # of device memory
    source: str  # where the figures are published
    link_bytes_per_s: float | None = None  # to other devices of its kind, one direction; None where there is no link
    # seconds an all-reduce adds to its bytes. An assumption, not a published figure.
    link_latency_s: float = LINK_LATENCY_S
    # seconds of a layer outside arithmetic and memory traffic (kernel launches, small kernels). An assumption, not a
    # published figure.
    layer_launch_s: float = LAYER_LAUNCH_S

    def reaching(self, efficiency: Mapping[str, float]) -> "Device":
        """The device with shares of its peaks: `bandwidth`, `flops`, or both."""
        flops = efficiency.get("flops", 1.0)
        return replace(
            self,
            name=f"{self.name} at {', '.join(f'{name} {share:g}' for name, share in efficiency.items())}",
            flops_per_s={dtype: peak * flops for dtype, peak in self.flops_per_s.items()},
            bytes_per_s=self.bytes_per_s * efficiency.get("bandwidth", 1.0),
        )


def device_sheet() -> dict[str, Device]:
    """Every known accelerator by name; "a100" and "h100" stand for the 80 GB and SXM ones."""
    return {device.name: device for device, _ in _devices()}


def device_called(hardware: str) -> str | None:
    """The device of the sheet in a recording's `hardware`, as drivers report it; None if there is none."""
    reported = hardware.partition(";")[0].strip()
    return next((device.name for device, reported_as in _devices() if reported_as == reported != ""), None)


@cache
def _devices() -> tuple[tuple[Device, str], ...]:
    """Every device and its name by drivers, "" if unknown."""
    sheet = tomllib.loads(files(__package__).joinpath("devices.toml").read_text(encoding="utf-8"))
    known, aliases = [], []
    for name, figures in sheet.items():
        alias, reported_as = figures.pop("called", ""), figures.pop("reported_as", "")
        device = Device(name=name, **figures)
        known.append((device, reported_as))
        aliases += [(replace(device, name=alias), "")] if alias else []
    return (*known, *aliases)


REDUCES = 2  # all-reduces of a layer: after attention and after the feed-forward part


class RooflineCost(ShapedCost):
    """The larger of arithmetic and memory time, and a launch cost per layer (Williams et al. 2009, the roofline).

    Arithmetic: 2 x parameters x new tokens, and 4 x layers x heads' outputs x new tokens x the context a new token
    attends to in the mean, what its row holds and half of what is fed. Memory: every weight once, and the keys and
    values of all tokens held. Layers with a window attend to and read no more than it, as if rows were equally long.
    Neither counts an embedding that the output does not share. Peak figures: a lower bound on seconds.

    Of a mixture of experts, arithmetic counts the parameters that a token uses, and memory the experts that the new
    tokens of all rows use in the mean (`Experts.touched`; under an engine a share of a row's tokens beyond its first
    adds none). Device memory holds all of them. Quantised weights are read
    in their own bytes, and multiplied in their own format where activations are also in it and the device has such
    units; else they are dequantised and multiplied in the model's dtype. A draft by a block drafter is one forward over
    all its tokens.

    Tensor parallel over N devices: arithmetic and weights of every member, drafters too, are split evenly; keys and
    values by whole heads, so that with fewer heads than devices several read the same one. Each layer adds two ring
    all-reduces of new tokens x hidden values, each 2 (N - 1) / N of those bytes over the link and its latency (Shoeybi
    et al. 2019, arXiv:1909.08053). Launches are not split.

    An engine reaches a share of the peaks, and adds seconds per layer, all-reduce and row, and per round: with a
    forward of a member that drafts, of each of its layers if it has several, with one of the target in which some row
    is fed more than one token, and with a draft that is copied. Where its attention does not pack heads of queries, a
    row that is fed several tokens reads keys and values again.

    Args:
        device: the accelerator.
        models: shapes of the recorded models, the target last; device memory holds all of them at once.
        engine: that serves them; None: the peaks are reached, and launches are the device's.
        tensor_parallel: devices over which the models are split, 1 to the least hidden size.
        remarks: first in `notes`.
        free: members that copy text, as prompt lookup does: a draft by them costs a lookup for each row, and what their
            rounds take under the engine.
        target: the pool's last member, if it is on another device: all `models` draft for it. None: the last of them.

    Raises:
        ValueError: a number out of range, a dtype the device sheet has no figure for, weights that do not fit, or
            devices without a link.
    """

    knows_reads = True

    def __init__(
        self,
        device: Device,
        models: tuple[ModelInfo, ...],
        *,
        engine: EngineTerms | None = None,
        tensor_parallel: int = 1,
        remarks: tuple[str, ...] = (),
        free: Collection[str] = (),
        target: ModelInfo | None = None,
    ) -> None:
        most = min(model.hidden_size for model in models)
        if not 1 <= tensor_parallel <= most:
            raise ValueError(f"tensor_parallel must be in [1, {most}], the least hidden size, got {tensor_parallel}")
        self.engine, self.bound_only = engine, engine is None
        served = "" if engine is None else f" ({engine.label})"
        split = "" if tensor_parallel == 1 else f" x{tensor_parallel} tensor parallel"
        self.name = f"{device.name}{split}{served}"
        self._remarks = remarks
        self._free, self._target = frozenset(free), models[-1] if target is None else target
        self._served = partial(
            RooflineCost,
            device,
            models,
            tensor_parallel=tensor_parallel,
            remarks=remarks,
            free=self._free,
            target=target,
        )
        check_memory(self.name, device, models, tensor_parallel)
        self._tensor_parallel = tensor_parallel
        self._terms = {
            model.name: _terms(device, model, tensor_parallel, engine, drafts=model.name != self._target.name)
            for model in models
        }
        self._mixtures = tuple(model.name for model in models if model.experts is not None)
        self._blocks = {model.name: model.draft_block for model in models if model.draft_block is not None}
        self._quantised = tuple(_weights_note(device, model) for model in models if model.quantised is not None)
        self._models = models
        if engine is not None:
            self._copied = engine.lookup_terms(self._target.layers)
        self._evenly = tuple(
            model.name for model in models if tensor_parallel > 1 and model.kv_bytes_per_token and not model.kv_heads
        )

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Raises ValueError for an unknown model."""
        return self.shared_forward_s(
            model,
            num_rows=num_rows,
            new_tokens=new_tokens,
            context_tokens=context_tokens,
            read_tokens=context_tokens,
        )

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """See `CostModel`: arithmetic is over tokens attended to, memory over tokens read."""
        terms = self._of(model)
        arithmetic_s = terms.arithmetic_s(num_rows, new_tokens, context_tokens)
        busy_s = max(arithmetic_s, terms.memory_s(num_rows, new_tokens, context_tokens, read_tokens))
        again_s = terms.again_s(num_rows, new_tokens, context_tokens, read_tokens)
        return busy_s + again_s + terms.beside_s(num_rows, new_tokens)

    def busy_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> tuple[float, float]:
        """Seconds of (arithmetic, memory) of one forward; they overlap. Arguments as of `forward_s`."""
        terms, counts = self._of(model), (num_rows, new_tokens, context_tokens)
        return terms.arithmetic_s(*counts), terms.memory_s(*counts, context_tokens)

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `CostModel`: arithmetic and memory are a line each until windows are full, and the larger one counts."""
        terms = self._of(model)
        start, end, arithmetic, memory, again = terms.lines(num_rows, new_tokens, context_tokens)
        first, last, start_s, slope_s = upper_line(arithmetic, memory, context_tokens - start)
        beside_s = terms.beside_s(num_rows, new_tokens) + again[0] + again[1] * first
        return ContextLine(start + first, min(end, start + last), start_s + beside_s, slope_s + again[1])

    def notes(self) -> tuple[str, ...]:
        notes = self._remarks
        if self.engine is not None:
            drafters = [each for each in self._models if each is not self._target]
            notes += (*self.engine.notes(self._target), *of_other_rounds(self.engine.name, drafters, self._free))
        notes += self._quantised
        if self._evenly:
            split = f"not said, so their cache is split evenly over {self._tensor_parallel} devices"
            notes += (f"heads of keys and values of {', '.join(self._evenly)}: {split}",)
        notes += windows_notes(self._models, "under load they hold no more, and a prefix hit finds them")
        if self._blocks:
            notes += (f"a whole draft in one forward: {', '.join(self._blocks)}",)
        if self._mixtures:
            drawn = "experts drawn uniformly and independently by each token, so more of them are read than in one text"
            if self.engine is not None:
                share = f"{self.engine.alike:.0%} of the tokens fed to a row beyond its first"
                drawn = f"experts drawn uniformly, but {share} use none of their own"
            notes += (f"{', '.join(self._mixtures)}: {drawn}",)
        return notes

    def ends(self, *, whole: bool = False) -> tuple[CostModel, ...]:
        """See `CostModel`: rounds with the least, or the most, measured seconds beyond the target's plain step.

        With `whole` also the shortest, or the longest, plain steps. Both are those of the target's group.
        """
        engine = self.engine
        if engine is None:
            return ()
        sure = engine.sure(self._target)
        engines = [engine.plain_times(factor) for factor in sure.plain.bounds] if whole else [engine]
        return tuple(self._served(engine=one.rounds_times(factor)) for one in engines for factor in sure.rounds.bounds)

    def _of(self, model: str) -> "_Terms":
        terms = self._terms.get(model)
        if terms is None:
            raise ValueError(
                f"cost {self.name}: no shape for model {model!r}; the recording has {', '.join(self._terms)}"
            )
        return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Seconds of a forward of one model on its devices."""

    token_s: float  # of arithmetic, for a new token
    # of arithmetic, for a new token and a token it attends to: in layers that attend to all, and in those with a window
    attended_s: tuple[float, float]
    window: float  # tokens of it, infinite without one
    weights_s: float  # of reading every weight once
    experts: Experts | None  # of a mixture of experts
    alike: float  # share of a row's tokens beyond its first that use no experts of their own
    expert_s: float  # of reading one expert in each layer with experts
    held_s: tuple[float, float]  # of reading the keys and values of one token, by the same layers
    rereads: float  # times that these are read again for a row that is fed several tokens, >= 0
    launch_s: float  # of launches and of starting all-reduces
    reduced_s: float  # of all-reduces' bytes for a new token
    row_s: float  # per row
    wide_s: float  # per forward that feeds a row several tokens

    def beside_s(self, num_rows: int, new_tokens: int) -> float:
        """Of all outside arithmetic and memory traffic."""
        seconds = self.launch_s + self.reduced_s * new_tokens + self.row_s * num_rows
        return seconds if new_tokens == num_rows else seconds + self.wide_s

    def arithmetic_s(self, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Of multiplying; rows count as equally long."""
        attended = (context_tokens + (new_tokens + num_rows) / 2) / num_rows
        in_all_s, in_windows_s = self.attended_s
        return new_tokens * (self.token_s + in_all_s * attended + in_windows_s * min(attended, self.window))

    def memory_s(self, num_rows: int, new_tokens: int, held_tokens: int, read_tokens: int) -> float:
        """Of reading weights, keys and values, and of writing those of new tokens.

        In windows each row reads for itself what others hold too, as in vLLM.
        """
        in_all_s, in_windows_s = self.held_s
        windows = min(held_tokens, num_rows * self.window)
        read_s = in_all_s * (read_tokens + new_tokens) + in_windows_s * (windows + new_tokens)
        return self.read_s(num_rows, new_tokens) + read_s

    def again_s(self, num_rows: int, new_tokens: int, held_tokens: int, read_tokens: int) -> float:
        """Of reading keys and values again where a row is fed several tokens, which no product hides."""
        if new_tokens == num_rows:
            return 0.0
        in_all_s, in_windows_s = self.held_s
        return self.rereads * (in_all_s * read_tokens + in_windows_s * min(held_tokens, num_rows * self.window))

    def lines(
        self, num_rows: int, new_tokens: int, context_tokens: int
    ) -> tuple[int, float, tuple[float, float], tuple[float, float], tuple[float, float]]:
        """(tokens held from which, and up to which, all are lines, arithmetic, memory, what is read again).

        A line is as `upper_line` has it.

        They bend where new tokens, and where tokens held, fill the windows.
        """
        (attended_s, near_s), (held_s, read_s) = self.attended_s, self.held_s
        full = num_rows * self.window
        bend, start, end = full - (new_tokens + num_rows) / 2, 0, inf
        if context_tokens < bend:
            end = bend
            attended_s += near_s
            held_s += read_s
        elif context_tokens < full:
            start, end = max(0, ceil(bend)), full
            held_s += read_s
        else:
            start = int(full)
        return (
            start,
            end if end == inf else ceil(end),
            (self.arithmetic_s(num_rows, new_tokens, start), attended_s * new_tokens / num_rows),
            (self.memory_s(num_rows, new_tokens, start, start), held_s),
            (self.again_s(num_rows, new_tokens, start, start), self.rereads * held_s if new_tokens > num_rows else 0.0),
        )

    def read_s(self, num_rows: int, new_tokens: int) -> float:
        """Of reading the weights that the new tokens of all rows use, each once."""
        if self.experts is None:
            return self.weights_s
        of_their_own = new_tokens - self.alike * (new_tokens - num_rows)
        return self.weights_s - self.expert_s * (self.experts.number - self.experts.touched(of_their_own))


def _terms(device: Device, model: ModelInfo, num_devices: int, engine: EngineTerms | None, *, drafts: bool) -> _Terms:
    peak, read_bytes = device.flops_per_s.get(model.dtype), model.read_bytes
    if peak is None or read_bytes is None:
        known = model.dtype in WIDTHS
        hint = f"; of quantised weights it is one of {', '.join(WIDTHS)} as well"
        ways = f": flops_per_s of a device of your own may have it, or `models` {model.name}=PRESET another dtype"
        told = f"cost {device.name}: no peak figure for dtype {model.dtype!r} of {model.name}{ways if known else hint}"
        raise ArgumentError(told)
    width, experts, quantised = WIDTHS[model.dtype], model.experts, model.quantised
    expert_width = width if quantised is None or not quantised.experts else quantised.bytes_per_parameter
    flops_per_s, bytes_per_s = peak * num_devices, device.bytes_per_s * num_devices
    per_byte_s, reduce_s, narrow = 0.0, 0.0, 1.0
    if num_devices > 1:
        if device.link_bytes_per_s is None:
            raise ValueError(f"cost {device.name}: no link to split models over, got tensor_parallel {num_devices}")
        per_byte_s = 2 * (num_devices - 1) / num_devices / device.link_bytes_per_s
        reduce_s = device.link_latency_s
        if engine is not None:
            per_byte_s, reduce_s = per_byte_s / engine.link, engine.reduce_s * log2(num_devices)
    windowed = 0.0 if model.windowed is None else model.windowed.layers / model.layers
    held_bytes = model.kv_bytes_on(num_devices)
    attended_s = 4.0 * model.layers * (model.attention_size or model.hidden_size)
    layer_s = device.layer_launch_s if engine is None else engine.width_s * model.hidden_size
    launch_s = model.layers * (layer_s + REDUCES * reduce_s)
    if engine is not None:
        flops_per_s, bytes_per_s = flops_per_s * engine.arithmetic, bytes_per_s * engine.bandwidth
        narrow = engine.narrow / engine.arithmetic
        launch_s += engine.experts_s(model)
        launch_s += engine.drafting_s(model.layers) if drafts else engine.step_s
    return _Terms(
        token_s=2.0 * _multiplied(device, model, peak, narrow) / flops_per_s,
        attended_s=(attended_s * (1 - windowed) / flops_per_s, attended_s * windowed / flops_per_s),
        window=inf if model.windowed is None else model.windowed.tokens,
        weights_s=read_bytes / bytes_per_s,
        experts=experts,
        alike=0.0 if engine is None else engine.alike,
        expert_s=0.0 if experts is None else experts.layers * experts.parameters * expert_width / bytes_per_s,
        held_s=(held_bytes * (1 - windowed) / bytes_per_s, held_bytes * windowed / bytes_per_s),
        rereads=0.0 if engine is None else engine.rereads * (_queries_of_a_key(model, num_devices) - 1.0),
        launch_s=launch_s,
        reduced_s=model.layers * REDUCES * model.hidden_size * width * per_byte_s,
        row_s=0.0 if engine is None else engine.draft_row_s if drafts else engine.row_s,
        wide_s=0.0 if engine is None or drafts else engine.wide_s,
    )


def _queries_of_a_key(model: ModelInfo, num_devices: int) -> float:
    """Heads of queries on a device that share one of keys and values, as if these were of the model's dtype.

    1 if unknown, and where there is one, which may be that of compressed keys and values.
    """
    if (model.kv_heads or 0) < 2:
        return 1.0
    numbers = model.kv_bytes_on(num_devices) / (2 * model.layers * WIDTHS[model.dtype])
    return max(1.0, (model.attention_size or model.hidden_size) / numbers)


def _multiplied(device: Device, model: ModelInfo, peak: float, narrow: float) -> float:
    """Parameters multiplied with a token, those in faster units weighted by their share of the time.

    `narrow` is the share of peak that faster units reach, over that of `peak`.
    """
    quantised, experts, looked_up = model.quantised, model.experts, model.embedding_parameters or 0
    multiplied = model.active_parameters - looked_up
    fast = None if quantised is None or quantised.arithmetic is None else device.flops_per_s.get(quantised.arithmetic)
    if quantised is None or fast is None:
        return multiplied
    idle = experts.all_parameters - experts.active_parameters if experts is not None and quantised.experts else 0
    quick = quantised.parameters - idle - (looked_up if quantised.embedding else 0)
    return multiplied - quick + quick * peak / (fast * narrow)


def windows_notes(models: Iterable[ModelInfo], told: str) -> tuple[str, ...]:
    """A line for each model with windows, which ends in `told`."""
    shapes = ((model, model.windowed) for model in models)
    return tuple(
        f"{model.name}: {windowed.layers} of {model.layers} layers attend to {windowed.tokens:,} tokens; {told}"
        for model, windowed in shapes
        if windowed is not None
    )


def _weights_note(device: Device, model: ModelInfo) -> str:
    quantised = model.quantised
    assert quantised is not None
    share = f"{model.name}: {quantised.format} weights, {quantised.parameters / model.parameters:.1%} of all"
    if quantised.arithmetic in device.flops_per_s:
        return f"{share}, multiplied in {quantised.arithmetic}"
    why = "" if quantised.arithmetic is None else f", as {device.name} has no {quantised.arithmetic} units"
    return f"{share}, dequantised and multiplied in {model.dtype}{why}"


def check_memory(name: str, device: Device, models: tuple[ModelInfo, ...], num_devices: int) -> None:
    """Raise ValueError for models whose weights `num_devices` devices cannot hold together; `name` is the cost's."""
    names = {model.name for model in models}
    # A submodel's weights are its model's; one whose model is not in the pool has its own.
    held = [model for model in models if model.submodel_of not in names]
    needed = sum(model.weights_bytes or 0 for model in held)
    total = device.memory_bytes * num_devices
    if needed > total:
        raise ArgumentError(
            f"cost {name}: the weights of {', '.join(model.name for model in held)} take {needed / 1e9:,.1f} GB, "
            f"memory holds {total / 1e9:,.1f} GB; use a larger `tensor_parallel`, another device, or weights "
            f"of fewer bits (`models` {held[-1].name}=...@int4)"
        )
