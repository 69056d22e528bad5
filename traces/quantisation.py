"""Quantised weights by a config: their format, the modules that are not quantised, and bytes per parameter.

Matrices are quantised, except those that a config, or a file that an engine writes next to it, skips by the names of
their modules. Letter: L layers.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import translate
from pathlib import Path
from typing import Any, TypeVar

from ..base.errors import known_are
from ..base.files import checked_config, kind_of_json
from .errors import TraceFormatError
from .meta import Arithmetic
from .shapes import FORMATS, DecoderShape, QuantisedWeights, WeightFormat, grouped

# Names of output and embedding in configs, and prefixes of the decoder's part.
OUTPUT, TABLE = "lm_head", "model.embed_tokens"
_PREFIXES = ("", "language_model.", "model.language_model.")
# Parts of multimodal models, of prediction modules and of layers that are not matrices: never quantised.
_ELSEWHERE = re.compile(
    r"vis(?:ion|ual)|vit\b|audio|modality|projector|merger|image|patch|rotary|norm|mtp|embed|correction_bias"
)
_GATED = ("gate_proj", "up_proj", "down_proj")
_MIXTRALS = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # its checkpoints' names


class UnknownModuleError(ValueError):
    """`pattern` breaks `rule`: it matches no part of the decoder, or only some of its experts."""

    def __init__(self, rule: str, pattern: str) -> None:
        super().__init__(rule)
        self.pattern = pattern


def quantised_weights(
    decoder: DecoderShape, weight: WeightFormat, *, skipped: Sequence[str] = (), tables: Collection[str] = ()
) -> QuantisedWeights:
    """The quantised weights of a decoder in its own dtype: the matrices of its layers, without routers.

    Args:
        decoder: in its own dtype.
        weight: format of the quantised ones.
        skipped: modules that are not, as configs list them: `lm_head`, `model.layers.0.mlp`, `re:.*self_attn.*`,
            `model.layers.*.mlp.gate`.
        tables: of `OUTPUT` and `TABLE`, those that are quantised unless skipped.

    Raises:
        UnknownModuleError: a pattern that matches no module, or some experts and not all.
    """
    layers = [_layer(decoder, index) for index in range(decoder.layers)]
    # One table counts for both where output and embedding share it.
    sizes = {TABLE: decoder.table_parameters, OUTPUT: 0 if decoder.tied else decoder.table_parameters}
    names, skips = [*(name for layer in layers for name in layer), *sizes], set[str]()
    for pattern in skipped:
        matched = {name for name in names if any(_matches(pattern, called) for called in _called(name))}
        if not matched and not _ELSEWHERE.search(pattern.lower()):
            raise UnknownModuleError(f"must name modules of a decoder, as {OUTPUT} or model.layers.0.mlp", pattern)
        skips |= matched
    by_layer = [
        sum(size for name, size in layer.items() if name not in skips and ".experts." not in name) for layer in layers
    ]
    routed = [name not in skips for layer in layers for name in layer if ".experts." in name]
    if len(set(routed)) > 1:
        raise UnknownModuleError("must skip all experts of a mixture or none", ", ".join(skipped))
    return QuantisedWeights(
        format=weight,
        in_layers=sum(by_layer),
        of_layers=decoder.layers,
        is_even=len(set(by_layer)) == 1,
        experts=bool(routed) and routed[0],
        in_tables=sum(sizes[name] for name in tables if name not in skips),
        embedding=not decoder.tied and TABLE in tables and TABLE not in skips,
    )


def _layer(decoder: DecoderShape, index: int) -> dict[str, int]:
    """Parameters of a layer's matrices by their modules' names.

    One expert represents all of its layer. Routers and other parts that are never quantised have 0.
    """
    hidden, start, mixture = decoder.hidden, f"model.layers.{index}", decoder.mixture
    found = {f"{start}.self_attn.{name}": size for name, size in decoder.attention_matrices.items()}
    if mixture is None or index < mixture.dense_layers:
        return found | {f"{start}.mlp.{name}": hidden * decoder.intermediate for name in _GATED}
    found |= {f"{start}.mlp.experts.0.{name}": hidden * mixture.intermediate for name in _GATED}
    found |= {f"{start}.mlp.gate": 0, f"{start}.mlp.shared_expert_gate": 0}
    if mixture.shared:
        beside = "shared_expert" if mixture.shared_gate else "shared_experts"
        found |= {f"{start}.mlp.{beside}.{name}": hidden * mixture.shared for name in _GATED}
    return found


def _called(name: str) -> Iterable[str]:
    """A module's names: routers and experts have others in checkpoints of Mixtral and gpt-oss."""
    mixtrals = ".".join(_MIXTRALS.get(part, part) for part in name.split("."))
    return (
        (name, mixtrals, name.replace(".gate", ".router"))
        if ".mlp.experts." in name or name.endswith(".mlp.gate")
        else (name,)
    )


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a module, or a parent of it."""
    if pattern.startswith("re:") or "*" in pattern:
        text = pattern.removeprefix("re:") if pattern.startswith("re:") else translate(pattern)
        try:
            whole = re.compile(text)
        except re.error:
            raise UnknownModuleError("must be names or patterns of modules", pattern) from None
        return any(whole.match(prefix + name) is not None for prefix in _PREFIXES)
    plain = pattern.removesuffix(".")
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix) if prefix and plain != prefix else plain
    return f".{plain}." in f".{name}."


_Value = TypeVar("_Value")

CONFIG = "config.json"
# Places of quantisation in a config, and in files next to it; with their method, "" if they name it.
QUANTISED_KEYS = {"quantization_config": "", "quantization": "mlx", "compression_config": "compressed-tensors"}
QUANTISED_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
MOST_LAYERS = 10_000  # with modules by name
_UNITS: dict[tuple[int, str], Arithmetic] = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "fp4"}
_CACHES = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}
_SEVERAL = "weights of several kinds are not known"
# Keys by which some method or other leaves modules as they are.
_SKIPPING = (
    *("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules", "dynamic"),
    "modules_in_block_to_quantize",
)
_CLOSE = 0.85  # by difflib: a letter or two of such a key
_SAYS_QUANTISED = re.compile("quanti[sz]|^quant_")
_PACKED = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """The contents of one place: the format, skipped modules, quantised tables, and the cache's dtype.

    `skipped_key` is the key of `skipped`; with `dense` it is unknown whether experts are quantised.
    """

    format: WeightFormat
    skipped: tuple[str, ...] = ()
    skipped_key: str = ""
    tables: tuple[str, ...] = ()
    kv_dtype: str = ""
    dense: bool = False


def quantised_decoder(decoder: DecoderShape, file: Path, content: Mapping[str, Any]) -> DecoderShape:
    """The decoder of a config with its quantised weights and cache; itself where nothing is quantised.

    Args:
        decoder: without quantisation.
        file: of the config; files next to one that is called config.json are read too.
        content: of the config.

    Raises:
        TraceFormatError: an unknown method or part of one, or two places that differ.
    """
    found = [(section, _with(decoder, section)) for section in _sections(file, content)]
    if not found:
        return decoder
    first, whole = found[0]
    for other, differing in found[1:]:
        if differing != whole:
            raise other.error("", f"must say of quantised weights what {first.name} of {first.path.name} says", "other")
    return whole


def _with(decoder: DecoderShape, section: "_Section") -> DecoderShape:
    said = section.said()
    if decoder.layers > MOST_LAYERS:
        raise section.error("", f"must be of at most {MOST_LAYERS} layers", decoder.layers)
    if said.dense and decoder.mixture is not None:
        rule = "must be another for a mixture: what it does to experts is not known"
        raise section.error("quant_method", rule, section.keys.get("quant_method"))
    try:
        weights = quantised_weights(decoder, said.format, skipped=said.skipped, tables=said.tables)
    except UnknownModuleError as error:
        raise section.error(said.skipped_key, str(error), error.pattern) from None
    return replace(decoder, quantised=weights, kv_dtype=said.kv_dtype)


def _sections(file: Path, content: Mapping[str, Any]) -> Iterator["_Section"]:
    text = content.get("text_config")
    keys = {**content, **text} if isinstance(text, dict) else content
    mlx = keys.get("quantization")
    for name, method in QUANTISED_KEYS.items():
        said = keys.get(name)
        if said is None or (name == "quantization_config" and said == mlx):  # MLX writes its section twice
            continue
        yield _Section(file, name, _object(file, name, said), method)
    for name, said in keys.items():
        if _SAYS_QUANTISED.search(name) and name not in QUANTISED_KEYS and isinstance(said, dict):
            known = ", ".join(QUANTISED_KEYS)
            raise TraceFormatError(file, name, f"must be one of {known}, where it says what is quantised", "an object")
    if file.name != CONFIG:
        return
    for beside, method in QUANTISED_FILES.items():
        path = file.with_name(beside)
        if path.is_file():
            said = checked_config(path, TraceFormatError)
            nested = said.get("quantization") if method == "modelopt" else said
            yield _Section(path, path.stem, _object(path, "quantization", nested), method)


def _object(path: Path, key: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise TraceFormatError(path, key, "must be an object", "nothing" if found is None else kind_of_json(found))
    return found


class _Section:
    """One place, and the keys in it, checked as they are read."""

    def __init__(self, path: Path, name: str, keys: Mapping[str, Any], method: str = "") -> None:
        self.path = path
        self.name = name
        self.keys = keys
        self._method = method
        self._read = set[str]()  # keys that its method knows, of those that leave modules out

    def said(self) -> _Said:
        method = self.keys.get("quant_method", self._method or None)
        reader = _METHODS.get(method) if isinstance(method, str) else None
        if reader is None:
            known = known_are(method, _METHODS)
            rule = f"must be a known one ({known}); of other weights give the shape itself in FILE.json"
            raise self.error("quant_method", rule, method)
        said = reader(self)
        for key, found in self.keys.items():  # that leave modules out by a name that is not this method's
            near = get_close_matches(key, _SKIPPING, n=1, cutoff=_CLOSE)
            if near and found and key not in self._read:
                own = [name for name in _SKIPPING if name in self._read]
                rule = f"must be {' or '.join(own)}" if own else "must be absent, it is not known what it leaves out"
                raise self.error(key, rule, found)
        return said

    def error(self, key: str, rule: str, found: object) -> TraceFormatError:
        shown = "nothing" if found is None else kind_of_json(found) if isinstance(found, dict) else found
        return TraceFormatError(self.path, f"{self.name}.{key}" if key else self.name, rule, shown)

    def one_of(self, key: str, known: tuple[_Value, ...]) -> _Value:
        """A key's value, one of `known`; None in it means that the key may be absent."""
        found = self.keys.get(key)
        for each in known:
            if type(found) is type(each) and found == each:  # as 1 == True
                return each
        raise self.error(key, f"must be one of {', '.join(str(each) for each in known if each is not None)}", found)

    def absent(self, *keys: str, why: str) -> None:
        """Raise for keys with a value; `why` it cannot be priced."""
        for key in keys:
            if self.keys.get(key):
                raise self.error(key, f"must be absent, {why}", self.keys[key])

    def group(self, key: str) -> int | None:
        """Weights that share a scale; None for a row or a whole matrix."""
        found = self.keys.get(key)
        if found is None or found == -1:
            return None
        if type(found) is not int or found < 1:
            raise self.error(key, "must be a whole number >= 1, or -1", found)
        return found

    def names(self, *keys: str) -> tuple[tuple[str, ...], str]:
        """(names of modules, their key), of the first key that exists; raises for a later one with other names."""
        self._read.update(keys)
        given = [key for key in keys if self.keys.get(key) is not None]
        for key in given:
            found = self.keys[key]
            if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
                raise self.error(key, "must be a list of names", found)
            if set(found) != set(self.keys[given[0]]):
                raise self.error(key, f"must hold the names of {given[0]}", found)
        return (tuple(self.keys[given[0]]), given[0]) if given else ((), keys[0])

    def part(self, key: str) -> "_Section":
        """An object within it; raises TraceFormatError where there is none."""
        return _Section(self.path, f"{self.name}.{key}", _object(self.path, f"{self.name}.{key}", self.keys.get(key)))


def _fp8(section: _Section) -> _Said:
    """Transformers and DeepSeek: blocks with a scale each, or whole matrices."""
    section.one_of("activation_scheme", ("dynamic", "static", None))
    section.one_of("fmt", ("e4m3", "float8_e4m3fn", None))
    section.one_of("expert_dtype", ("fp8", None))
    section.absent("modules_to_convert", why=_SEVERAL)
    section.absent("dequantize", why="it is not known whether weights are quantised when they are read")
    block, scale = section.keys.get("weight_block_size"), section.one_of("scale_fmt", ("float", "ue8m0", None))
    if block is None:
        size = None
    elif isinstance(block, list) and len(block) == 2 and all(type(each) is int and each > 0 for each in block):
        size = block[0] * block[1]
    else:
        raise section.error("weight_block_size", "must be two whole numbers >= 1", block)
    each = grouped(8, size, scale_bytes=1 if scale == "ue8m0" else 4)
    skipped, key = section.names("modules_to_not_convert", "ignored_layers")
    return _Said(format=replace(FORMATS["fp8"], bytes_each=each), skipped=skipped, skipped_key=key)


def _fbgemm(section: _Section) -> _Said:
    skipped, key = section.names("modules_to_not_convert")
    return _Said(format=FORMATS["fp8"], skipped=skipped, skipped_key=key)


def _mxfp4(section: _Section) -> _Said:
    """As gpt-oss is published: experts alone. Patterns of whole parts, as transformers has them, skip all else."""
    skipped, key = section.names("modules_to_not_convert")
    return _Said(format=FORMATS["mxfp4"], skipped=tuple(f"re:(?:{each})(?=[.]|$)" for each in skipped), skipped_key=key)


def _gptq(section: _Section) -> _Said:
    """Whole numbers with a scale and a zero point for each group."""
    section.absent("dynamic", "modules_in_block_to_quantize", why=_SEVERAL)
    bits = section.one_of("bits", (2, 3, 4, 8))
    each = grouped(bits, section.group("group_size"), scale_bytes=2, zero=True)
    tables = (OUTPUT,) if section.one_of("lm_head", (True, False, None)) else ()
    return _Said(format=WeightFormat(name=f"int{bits}", bytes_each=each), tables=tables)


def _awq(section: _Section) -> _Said:
    bits = section.one_of("w_bit" if "w_bit" in section.keys else "bits", (4, 8))
    size = section.group("q_group_size" if "q_group_size" in section.keys else "group_size")
    skipped, key = section.names("modules_to_not_convert")
    each = grouped(bits, size, scale_bytes=2, zero=True)
    return _Said(format=WeightFormat(name=f"int{bits}", bytes_each=each), skipped=skipped, skipped_key=key)


def _bitsandbytes(section: _Section) -> _Said:
    """Eight bits, multiplied as such (Dettmers et al. 2022, arXiv:2208.07339), or four in blocks of 64."""
    eight, four = (section.one_of(f"load_in_{bits}bit", (True, False, None)) for bits in (8, 4))
    if bool(eight) == bool(four):
        beside = "must not be true beside load_in_8bit" if four else "must be true, or else load_in_8bit"
        raise section.error("load_in_4bit", beside, four)
    skipped, key = section.names("llm_int8_skip_modules")
    # As in transformers: a list replaces the default, which has the output; and fused experts are no linear layer
    tables = () if section.keys.get(key) is None else (OUTPUT,)
    said = _Said(format=FORMATS["int8"], skipped=skipped, skipped_key=key, tables=tables, dense=True)
    if eight:
        return said
    name = section.one_of("bnb_4bit_quant_type", ("nf4", "fp4"))
    # Scales of blocks of 64 in four bytes; or in one, and a scale of 256 of these in four.
    scale = 1 + 4 / 256 if section.one_of("bnb_4bit_use_double_quant", (True, False, None)) else 4
    return replace(said, format=WeightFormat(name=name, bytes_each=grouped(4, 64, scale_bytes=scale)))


def _mlx(section: _Section) -> _Said:
    """All matrices, embedding and output too, with a scale and a bias of two bytes for each group."""
    section.one_of("mode", ("affine", None))
    for key in section.keys:
        if key not in ("bits", "group_size", "mode"):  # a module with other bits or, by false, not quantised
            raise section.error(key, f"must be absent, {_SEVERAL}", section.keys[key])
    bits = section.one_of("bits", (2, 3, 4, 5, 6, 8))
    each = grouped(bits, section.group("group_size"), scale_bytes=4)
    return _Said(format=WeightFormat(name=f"int{bits}", bytes_each=each), tables=(OUTPUT, TABLE))


def _compressed_tensors(section: _Section) -> _Said:
    groups = _object(section.path, f"{section.name}.config_groups", section.keys.get("config_groups"))
    if not groups:
        raise section.error("config_groups", "must hold a group, which says how weights are quantised", "none")
    if len(groups) > 1:
        raise section.error("config_groups", f"must hold one group, {_SEVERAL}", len(groups))
    group = section.part("config_groups").part(next(iter(groups)))
    if group.keys.get("targets") != ["Linear"]:
        raise group.error("targets", "must be Linear alone", group.keys.get("targets"))
    (group if group.keys.get("format") is not None else section).one_of("format", (*_PACKED, "mxfp4-pack-quantized"))
    if section.keys.get("sparsity_config"):
        sparse = section.part("sparsity_config")
        if sparse.keys.get("format") != "dense":
            raise sparse.error("format", "must be dense, sparse weights are not known", sparse.keys.get("format"))
    skipped, key = section.names("ignore")
    return _Said(format=_scheme(group), skipped=skipped, skipped_key=key, tables=(OUTPUT,), kv_dtype=_cache(section))


def _scheme(group: _Section) -> WeightFormat:
    weights = group.part("weights")
    bits, kind = weights.one_of("num_bits", (4, 8)), weights.one_of("type", ("float", "int"))
    strategy = weights.one_of("strategy", ("tensor", "channel", "group", "tensor_group", "block"))
    size = weights.group("group_size") if "group" in strategy else None
    if "group" in strategy and size is None:
        raise weights.error("group_size", f"must be there, the strategy is {strategy}", None)
    arithmetic: Arithmetic | None = None
    if group.keys.get("input_activations") is not None:
        arithmetic = _UNITS[_width(group.part("input_activations"))]
    if kind == "int":
        zero = weights.one_of("symmetric", (True, False, None)) is False
        each = grouped(bits, size, scale_bytes=2, zero=zero)
        return WeightFormat(name=f"int{bits}", bytes_each=each, arithmetic=arithmetic)
    if bits == 8:
        return WeightFormat(name="fp8", bytes_each=grouped(8, size, scale_bytes=2), arithmetic=arithmetic)
    known = {16: "nvfp4", 32: "mxfp4"}
    if size not in known:
        raise weights.error("group_size", "must be 16 or 32, of floats of 4 bits", size)
    return replace(FORMATS[known[size]], arithmetic=arithmetic)


def _cache(section: _Section) -> str:
    """The dtype of keys and values, "" if not given."""
    if section.keys.get("kv_cache_scheme") is None:
        return ""
    return _CACHES[_width(section.part("kv_cache_scheme"))]


def _width(section: _Section) -> tuple[int, str]:
    found = section.one_of("num_bits", (4, 8)), section.one_of("type", ("float", "int"))
    if found == (4, "int"):
        raise section.error("type", "must be float, of 4 bits", "int")
    return found


def _modelopt(section: _Section) -> _Said:
    algorithms = {
        "FP8": FORMATS["fp8"],
        "FP8_PER_CHANNEL_PER_TOKEN": FORMATS["fp8"],
        "NVFP4": FORMATS["nvfp4"],
        "W8A8_SQ_PER_CHANNEL": FORMATS["int8"],
        "W4A16_AWQ": WeightFormat(name="int4", bytes_each=grouped(4, 128, scale_bytes=2)),
        "W4A8_AWQ": WeightFormat(name="int4", bytes_each=grouped(4, 128, scale_bytes=2), arithmetic="fp8"),
    }
    found = algorithms[section.one_of("quant_algo", tuple(algorithms))]
    size = section.group("group_size")
    if found.name == "int4" and size is not None:
        found = replace(found, bytes_each=grouped(4, size, scale_bytes=2))
    elif found.name == "nvfp4" and size not in (None, 16):
        raise section.error("group_size", "must be 16, of NVFP4", size)
    skipped, key = section.names("exclude_modules", "ignore")
    if section.keys.get(key) is None:
        raise section.error(key, "must be there, or it is not known whether the output is quantised", None)
    caches = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4", None: ""}
    cache = caches[section.one_of("kv_cache_quant_algo", tuple(caches))] or _cache(section)
    return _Said(format=found, skipped=skipped, skipped_key=key, tables=(OUTPUT,), kv_dtype=cache)


_METHODS: dict[str, Callable[[_Section], _Said]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mlx": _mlx,
}
