"""Seconds of a forward as the sum of measured kernels (`kernel_tables.py`).

What tables lack is charged from terms: seconds of a layer and of a round (`kernels.toml`), of a row, a layer of a
drafter with several and a copied draft (`engines.toml`), and the bytes between two products.

Letters: n outputs and k inputs of a product, m tokens multiplied; a row is fed q tokens and holds h.
"""

import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product
from math import ceil, exp, inf, log, sqrt
from typing import Any, NamedTuple

from ...base.errors import ArgumentError
from ...traces.meta import WIDTHS, ModelInfo
from ...traces.parts import Matrix, ModelParts
from .base import LOADED_ADVICE, ContextLine, CostModel, CostRangeError, ShapedCost
from .engines import EngineTerms, Sure, engines, for_class, of_other_rounds, sure_of
from .files import extrapolation_notes, interpolated
from .kernel_tables import (
    DECODING,
    EXPERTS,
    GEMM,
    KERNELS,
    PROMPTS,
    QUANTISING,
    RANGE_ADVICE,
    REDUCE,
    Curve,
    KernelTables,
)
from .roofline import REDUCES, SHEET, Device, check_memory, device_called, device_sheet, windows_notes

# Experts of a layer are not equally busy: a power law with this exponent, as in the tables' own project.
DISTRIBUTION = "power_law_1.2"
# An engine computes the output where a token is chosen or judged: of a prompt only at its last token. The most tokens
# of a row that count.
JUDGED = 64


class _Knots(NamedTuple):
    """Seconds by tokens held over all rows, linear between these."""

    held: list[int]
    seconds: list[float]
    most: float  # most measured tokens held; infinite where they make no difference


def _between(points: Sequence[int], where: float) -> list[tuple[int, float]]:
    """The points around a value with their weights, by logarithms; below the first point the first."""
    place = bisect_left(points, where)
    if place == 0 or points[place] == where:
        return [(points[place], 1.0)]
    low, high = points[place - 1], points[place]
    weight = log(where / low) / log(high / low)
    return [(low, 1.0 - weight), (high, weight)]


class _Product:
    """A matrix product on one device.

    Between measured n and k, logarithms of seconds are interpolated along those of n and k. A product wider than any
    measured n is split into equal parts; a narrower one than the first counts as the first, as kernels pad.
    """

    def __init__(self, tables: KernelTables, dtype: str, matrix: Matrix, num_devices: int) -> None:
        self.outputs = matrix.outputs / (num_devices if matrix.split == "outputs" else 1)
        self.inputs = matrix.inputs / (num_devices if matrix.split == "inputs" else 1)
        self.times = matrix.times
        curves = tables.curves(GEMM, {"gemm_dtype": dtype})
        widths, depths = (sorted({key[place] for key in curves}) for place in (0, 1))
        self._parts = ceil(self.outputs / widths[-1])
        if self.inputs > depths[-1]:
            told = (
                f"{tables.engine} {GEMM.name} of gemm_dtype {dtype} was measured for k {depths[0]:,} to {depths[-1]:,}"
            )
            raise CostRangeError(f"{told}, asked for {self.inputs:,.0f}", "use more devices (`tensor_parallel`)")
        corners = product(_between(widths, self.outputs / self._parts), _between(depths, self.inputs))
        # TRT-LLM's products of fp8 were measured with computing the scales of inputs, which published weights contain.
        self._scales: list[tuple[float, Curve]] = []
        if tables.engine == "trtllm" and dtype == "fp8":
            found = tables.curves(QUANTISING, {"quant_dtype": dtype})
            self._scales = [(w, found[(k,)]) for k, w in _between(sorted(k for (k,) in found), self.inputs)]
        self._corners = []
        for (wide, one), (deep, other) in corners:
            if (wide, deep) not in curves:
                told = f"{tables.engine} {GEMM.name} of gemm_dtype {dtype} has no rows of n {wide:,} and k {deep:,}"
                raise CostRangeError(
                    f"{told}, asked for {self.outputs:,.0f} and {self.inputs:,.0f}", "use another cost"
                )
            self._corners.append((one * other, curves[wide, deep]))

    def seconds(self, tokens: int) -> float:
        """Of all its repeats in a forward, for `tokens`."""
        each_s = exp(sum(weight * log(curve.at(tokens)) for weight, curve in self._corners))
        each_s -= sum(weight * curve.at(tokens) for weight, curve in self._scales)
        return self.times * self._parts * max(0.0, each_s)


class _Attention:
    """Attention of one layer on one device.

    Reading tokens held takes the seconds of a step of one token a row; arithmetic takes those of a prompt with as many
    pairs of tokens, q q / 2 + q h. The longer one counts. Between measured numbers of rows it is linear.
    """

    def __init__(self, tables: KernelTables, parts: ModelParts, kv_dtype: str, num_devices: int) -> None:
        if parts.heads % num_devices:
            raise ArgumentError(f"`tensor_parallel` must divide heads of attention, {parts.heads}, got {num_devices}")
        keys = {
            "num_heads": parts.heads // num_devices,
            "num_key_value_heads": ceil(parts.kv_heads / num_devices),
            "head_dim": parts.head_size,
            "window_size": 0,
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": kv_dtype,
        }
        self._decoding = _by_rows(tables.curves(DECODING, {**keys, "isl": 1}))
        self._prompts = _by_rows(tables.curves(PROMPTS, {**keys, "step": 0}))
        self._extrapolate = tables.extrapolate

    def knots(self, num_rows: int, fed: float) -> tuple[list[float], list[float], float]:
        """(tokens held by a row, seconds, the most measured), linear between. `fed` is q.

        With `extrapolate` one point lies beyond the most.
        """
        decoding = _around(self._decoding, num_rows)
        most = min(curve.points[-1] for curve in decoding.values()) - (fed - 1)
        if fed > 1:
            prompts = _around(self._prompts, num_rows)
            longest = min(prompts.values(), key=lambda curve: curve.points[-1])
            most = min(most, (longest.points[-1] ** 2 / fed - fed) / 2)
            if most < 0:
                longest.refuse(fed)
                most = 0.0
        steps = next(iter(decoding.values())).points
        held = [0.0, *(step - (fed - 1) for step in steps if 0 < step - (fed - 1) < most), most]
        if self._extrapolate:
            held.append(2 * most + 1)
        seconds = []
        for each in held:
            read = Curve.at if each <= most else Curve.on
            found = _across(decoding, num_rows, max(1.0, each + fed - 1), read)
            if fed > 1:
                found = max(found, _across(prompts, num_rows, sqrt(fed * fed + 2 * fed * each), read))
            seconds.append(found)
        return held, seconds, most


def _by_rows(curves: Mapping[tuple[int, ...], Curve]) -> dict[int, Curve]:
    return {rows: curves[(rows,)] for (rows,) in sorted(curves)}


def _around(curves: Mapping[int, Curve], num_rows: int) -> dict[int, Curve]:
    """The curves of the numbers of rows around one; raises CostRangeError beyond those measured."""
    rows = list(curves)
    place = bisect_left(rows, num_rows)
    if not rows[0] <= num_rows <= rows[-1]:
        curves[rows[-1]].refuse(num_rows, "batch_size", rows)
    near = {num_rows} & set(rows) or rows[max(0, place - 1) : place + 1]
    return {each: curves[each] for each in sorted(near)}


def _across(curves: Mapping[int, Curve], num_rows: int, where: float, read: Callable[[Curve, float], float]) -> float:
    rows = list(curves)
    return interpolated(rows, lambda place: read(curves[rows[place]], where), num_rows)


class _Member:
    """Seconds of a member's forward on its devices, without engines' seconds outside kernels."""

    def __init__(
        self,
        tables: KernelTables,
        device: Device,
        model: ModelInfo,
        parts: ModelParts,
        *,
        num_devices: int,
        layer_s: float,
    ) -> None:
        own, weights, routed = _dtypes(tables, model)
        self._products = [
            _Product(tables, weights if matrix.in_layers else own, matrix, num_devices) for matrix in parts.matrices
        ]
        self._layers, self._hidden = parts.layers, parts.hidden
        self._attention = _Attention(tables, parts, own if parts.kv_dtype in WIDTHS else parts.kv_dtype, num_devices)
        self._experts, self._expert_layers = None, parts.expert_layers
        if parts.mixture is not None:
            keys = {
                "moe_dtype": routed,
                "hidden_size": parts.hidden,
                "inter_size": parts.mixture.intermediate,
                "num_experts": parts.mixture.experts,
                "topk": parts.mixture.per_token,
                "moe_tp_size": num_devices,
                "moe_ep_size": 1,
                "distribution": DISTRIBUTION,
            }
            self._experts = tables.curves(EXPERTS, keys)[()]
        self._reduce = None
        if num_devices > 1:
            self._reduce = tables.curves(REDUCE, {"allreduce_dtype": "bfloat16", "num_gpus": num_devices})[()]
        self._layer_s = model.layers * layer_s
        self._knots: dict[tuple[int, int], _Knots] = {}  # computed so far, shared by all ends of a cost
        # Bytes of tokens that a product reads and writes, once each.
        self._byte_s = WIDTHS["bfloat16"] / device.bytes_per_s

    def beside_s(self, num_rows: int, new_tokens: int) -> float:
        """Of all except attention."""
        seconds = self._layer_s
        for each in self._products:
            tokens = min(new_tokens, JUDGED * num_rows) if each is self._products[-1] else new_tokens
            seconds += each.seconds(tokens) + each.times * (each.outputs + each.inputs) * tokens * self._byte_s
        if self._experts is not None:
            seconds += self._expert_layers * self._experts.at(new_tokens)
        if self._reduce is not None:
            seconds += REDUCES * self._layers * self._reduce.at(new_tokens * self._hidden)
        return seconds

    def knots(self, num_rows: int, new_tokens: int) -> _Knots:
        """Seconds of such forwards."""
        found = self._knots.get((num_rows, new_tokens))
        if found is None:
            beside_s = self.beside_s(num_rows, new_tokens)
            held, attention, most = [0.0], [0.0], inf
            if self._layers:
                held, attention, most = self._attention.knots(num_rows, new_tokens / num_rows)
            by_held = {
                int(each * num_rows): beside_s + self._layers * of for each, of in zip(held, attention, strict=True)
            }
            found = _Knots(list(by_held), list(by_held.values()), most if most == inf else int(most * num_rows))
            self._knots[num_rows, new_tokens] = found
        return found


# Tables' names by the format of weights and the units that multiply them, None: those of the model's dtype. "sq" is
# SmoothQuant: both sides in int8.
_QUANTISED: dict[tuple[str, str | None], str] = {
    ("fp8", "fp8"): "fp8",
    ("int8", "int8"): "sq",
    ("int8", None): "int8_wo",
    ("int4", None): "int4_wo",
    ("nvfp4", "fp4"): "nvfp4",
    ("mxfp4", None): "w4a16_mxfp4",
}


def _dtypes(tables: KernelTables, model: ModelInfo) -> tuple[str, str, str]:
    """Tables' names for the dtypes of (products outside layers, products in layers, experts)."""
    if model.dtype == "float32":
        raise ArgumentError(f"cost {KERNELS}{tables.folder}: tables are of 16 bits, {model.name} is of float32")
    own, quantised = "bfloat16", model.quantised
    if quantised is None:
        return own, own, own
    called = _QUANTISED.get((quantised.format, quantised.arithmetic))
    if called is None:
        units = quantised.arithmetic or model.dtype
        raise ArgumentError(
            f"cost {KERNELS}{tables.folder}: no table has weights in {quantised.format} multiplied in {units}, as of "
            f"{model.name}; use another cost"
        )
    # Scales of blocks add bytes to the weights; those of whole matrices are negligible.
    if called == "fp8" and quantised.bytes_per_parameter > 1:
        called = "fp8_block"
    routed = model.experts.all_parameters if model.experts is not None and quantised.experts else 0
    return own, called if quantised.parameters > routed else own, called if routed else own


class KernelCost(ShapedCost):
    """The sum of measured kernels, and engines' seconds outside them.

    Tensor parallel over N devices: products, heads and experts are split, and each layer adds two all-reduces. Experts
    are busy by a power law. A drafter adds its engine's seconds per forward and row, the target those per row, and per
    forward in which some row is fed more than one token.

    Args:
        tables: of kernels.
        models: shapes of the recorded models, the target last; device memory holds all of them at once.
        parts: their products, by name; a member without them raises when used, the target at once.
        tensor_parallel: devices over which the models are split.
        remarks: first in `notes`.
        free: members that copy text, as prompt lookup does: a draft by them costs a lookup for each row, and what their
            rounds take under the engine.

    Raises:
        ArgumentError: a device that is not on the sheet, weights that do not fit, heads that the devices cannot divide,
            or kernels missing in the tables.
        CostRangeError: by `forward_s`, beyond measured points.
    """

    def __init__(
        self,
        tables: KernelTables,
        models: Sequence[ModelInfo],
        parts: Mapping[str, ModelParts],
        *,
        tensor_parallel: int = 1,
        remarks: tuple[str, ...] = (),
        free: Collection[str] = (),
    ) -> None:
        name = device_called(tables.hardware)
        if name is None:
            raise ArgumentError(
                f"`cost` {KERNELS}{tables.folder} must be of a device of {SHEET}, got {tables.hardware!r}"
            )
        self.device, device = name, device_sheet()[name]
        split = "" if tensor_parallel == 1 else f" x{tensor_parallel} tensor parallel"
        self.name = f"kernels of {name}{split} ({tables.engine})"
        check_memory(self.name, device, tuple(models), tensor_parallel)
        self._beside = beside_kernels(tables.engine, name)
        self._sure = self._beside.mixture if models[-1].experts is not None else self._beside.dense
        self._tables, self._remarks, self._free = tables, remarks, frozenset(free)
        self._models, self._target = {each.name: each for each in models}, models[-1].name
        self._mixtures = tuple(each.name for each in models if each.experts is not None)
        self._blocks = {each.name: each.draft_block for each in models if each.draft_block is not None}
        self._engine, self._plain = self._beside.terms, 1.0
        self._copied = self._engine.lookup_terms(models[-1].layers)
        self._knots: dict[tuple[str, int, int], _Knots] = {}
        self._long: dict[str, None] = {}  # members used with more tokens held than measured
        self._members: dict[str, _Member] = {}
        self._made = partial(_Member, tables, device, num_devices=tensor_parallel, layer_s=self._beside.layer_s)
        self._parts = parts
        self._member(self._target)  # raises at once, others when used

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        held, seconds, _ = self._between(model, num_rows, new_tokens, context_tokens)
        return interpolated(held, seconds.__getitem__, context_tokens)

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `CostModel`: a line between two measured numbers of tokens held."""
        held, seconds, _ = self._between(model, num_rows, new_tokens, context_tokens)
        place = min(bisect_right(held, context_tokens), len(held) - 1)
        if not place:
            return ContextLine(0, inf, seconds[0], 0.0)
        slope_s = (seconds[place] - seconds[place - 1]) / (held[place] - held[place - 1])
        if context_tokens >= held[-1]:  # the last knot, or beyond
            return ContextLine(held[-1], inf, seconds[-1], max(0.0, slope_s))
        return ContextLine(held[place - 1], held[place], seconds[place - 1], slope_s)

    def notes(self) -> tuple[str, ...]:
        engine = self._tables.engine
        measured, *lost = self._sure.words()
        notes = (
            *self._remarks,
            f"kernels of {engine} {', '.join(self._tables.versions)}, the rest by a fit; {measured}",
            *lost,
        )
        devices = _table()["devices"]
        if self.device not in devices:
            notes += (f"what tables lack was measured on {', '.join(devices)} alone, not on {self.device}",)
        drafters = [each for name, each in self._models.items() if name != self._target]
        notes += (*self._beside.terms.elsewhere(self._sure), *of_other_rounds(engine, drafters, self._free))
        notes += windows_notes(self._models.values(), "these tables count all tokens, memory under load the window's")
        if self._blocks:
            notes += (f"a whole draft in one forward: {', '.join(self._blocks)}",)
        if self._mixtures:
            notes += (f"{', '.join(self._mixtures)}: experts busy by {DISTRIBUTION}",)
        return (*notes, *extrapolation_notes([*self._long, *self._tables.beyond]))

    def ends(self, *, whole: bool = False) -> tuple[CostModel, ...]:
        sure = self._sure
        found = []
        for factor, rounds in product(sure.plain.bounds if whole else (1.0,), sure.rounds.bounds):
            end = copy(self)
            end._plain, end._engine, end._knots = factor, self._engine.rounds_times(rounds), {}
            end._copied = end._engine.lookup_terms(self._models[self._target].layers)
            found.append(end)
        return tuple(found)

    def _between(self, model: str, num_rows: int, new_tokens: int, context_tokens: int) -> _Knots:
        """The knots of such forwards; raises for more tokens held than measured."""
        key = model, num_rows, new_tokens
        found = self._knots.get(key)
        if found is None:
            found = self._knots[key] = self._forwards(*key)
        if context_tokens > found.most:
            self._long[model] = None
            if not self._tables.extrapolate:
                told = f"{self.name}: {model} with {num_rows} rows and {new_tokens} new tokens was measured"
                told += f" for up to {found.most:,} tokens held, asked for {context_tokens:,}"
                raise CostRangeError(told, RANGE_ADVICE, LOADED_ADVICE)
        return found

    def _forwards(self, model: str, num_rows: int, new_tokens: int) -> _Knots:
        member, engine = self._member(model), self._engine
        if model == self._target:
            row_s, beside_s = engine.row_s, engine.wide_s if new_tokens != num_rows else 0.0
        else:
            row_s, beside_s = engine.draft_row_s, engine.drafting_s(self._models[model].layers)
        knots = member.knots(num_rows, new_tokens)
        beside_s += (self._plain * row_s if model == self._target else row_s) * num_rows
        return knots._replace(seconds=[self._plain * each + beside_s for each in knots.seconds])

    def _member(self, model: str) -> _Member:
        if model in self._members:
            return self._members[model]
        shape = self._models.get(model)
        if shape is None:
            raise ValueError(f"cost {self.name}: no shape for model {model!r}; it has {', '.join(self._models)}")
        parts = self._parts.get(model)
        if parts is None:
            raise ArgumentError(
                f"cost {self.name}: what {model} multiplies does not follow from its counts: give `models` "
                f"{model}=PRESET or {model}=config.json of a decoder whose layers are quantised as a whole or not, "
                "without compressed keys and values (DeepSeek) or sinks (gpt-oss)"
            )
        return self._members.setdefault(model, self._made(shape, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideKernels:
    """An engine's seconds outside the kernels of tables, the same on all devices, and how sure they are there."""

    layer_s: float  # per layer of any member: small kernels, and gaps between kernels
    terms: EngineTerms  # per row and round; its shares of peak, layers and residuals are for rooflines
    dense: Sure
    mixture: Sure


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("kernels.toml").read_text(encoding="utf-8"))


def engines_of_kernels() -> tuple[str, ...]:
    """Engines whose kernels may be added up."""
    return tuple(_table()["engines"])


@cache
def beside_kernels(engine: str, device: str) -> BesideKernels:
    """For an engine with terms on a device of the sheet; ranges are wide where no rounds of it were measured there."""
    held = _table()
    own: dict[str, Any] = dict(held["engines"][engine])
    by_device, layer_s = engines()[engine], own.pop("layer_s")
    measured = device in held["devices"] and by_device[device].rounds_measured
    terms = replace(next(iter(by_device.values())), rounds_measured=measured, **own)
    sure = sure_of(held["sure"], engine if measured else "")
    dense, mixture = (for_class(sure[group], "all") for group in ("dense", "mixture"))
    return BesideKernels(layer_s=layer_s, terms=terms, dense=dense, mixture=mixture)
