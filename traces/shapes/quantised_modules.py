"""Which weights of a decoder are quantised: matrices by their modules' names, less those that a config skips.

Letters: L layers.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

from .decoder import Decoder
from .weights import QuantisedWeights, WeightFormat

# What configs call output and embedding, and how they may call the part that is the decoder.
OUTPUT, TABLE = "lm_head", "model.embed_tokens"
_PREFIXES = ("", "language_model.", "model.language_model.")
# Parts of multimodal models, of prediction modules and of layers that are no matrix: none is counted as quantised.
_ELSEWHERE = re.compile(r"vis(?:ion|ual)|vit\b|audio|projector|image|patch|rotary|norm|mtp|embed")
_GATED = ("gate_proj", "up_proj", "down_proj")


class UnknownModuleError(ValueError):
    """A name or pattern that means no part of the decoder, or some of its experts only.

    Args:
        rule: that it breaks.
        pattern: the offender.
    """

    def __init__(self, rule: str, pattern: str) -> None:
        super().__init__(rule)
        self.pattern = pattern


def quantised_weights(
    decoder: Decoder, weight: WeightFormat, *, skipped: Sequence[str] = (), tables: Iterable[str] = ()
) -> QuantisedWeights:
    """Which weights of a decoder are quantised: the matrices of its layers, but for routers.

    Args:
        decoder: in its own dtype.
        weight: format of the quantised ones.
        skipped: names and patterns of modules that are not, as configs list them: `lm_head`, `model.layers.0.mlp`,
            `re:.*self_attn.*`, `model.layers.*.mlp.gate`.
        tables: of `OUTPUT` and `TABLE`, those that are quantised unless they are skipped.

    Raises:
        UnknownModuleError: a pattern that matches no module, or some experts and not all.
    """
    modules = _modules(decoder)
    skips = _skipped(skipped, modules)
    by_layer = [
        sum(size for name, size in layer.items() if name not in skips and ".experts." not in name)
        for layer in modules.layers
    ]
    routed = [name not in skips for layer in modules.layers for name in layer if ".experts." in name]
    if len(set(routed)) > 1:
        raise UnknownModuleError("must skip all experts of a mixture or none", ", ".join(skipped))
    return QuantisedWeights(
        format=weight,
        in_layers=sum(by_layer),
        of_layers=decoder.layers,
        is_even=len(set(by_layer)) == 1,
        experts=bool(routed) and routed[0],
        in_tables=sum(modules.tables[name] for name in tables if name not in skips),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Modules:
    """Parameters of matrices by their modules' names: of each layer, and of embedding and output.

    One expert stands for all of its layer. Routers and other parts that stay as they are have 0.
    """

    layers: tuple[dict[str, int], ...]
    tables: dict[str, int]


def _modules(decoder: Decoder) -> _Modules:
    table = decoder.table_parameters
    # One table stands for both where output and embedding share it.
    tables = {TABLE: table, OUTPUT: 0 if decoder.tied else table}
    return _Modules(layers=tuple(_layer(decoder, index) for index in range(decoder.layers)), tables=tables)


def _layer(decoder: Decoder, index: int) -> dict[str, int]:
    hidden, own = decoder.hidden, decoder.heads * decoder.head_size
    shared = decoder.kv_heads * decoder.head_size
    start, mixture = f"model.layers.{index}", decoder.mixture
    found = {
        f"{start}.self_attn.{name}": hidden * width
        for name, width in (("q_proj", own), ("k_proj", shared), ("v_proj", shared), ("o_proj", own))
    }
    if mixture is None or index < mixture.dense_layers:
        return found | {f"{start}.mlp.{name}": hidden * decoder.intermediate for name in _GATED}
    found |= {f"{start}.mlp.experts.0.{name}": hidden * mixture.intermediate for name in _GATED}
    found |= {f"{start}.mlp.gate": 0, f"{start}.block_sparse_moe.gate": 0, f"{start}.mlp.shared_expert_gate": 0}
    if mixture.shared:
        found |= {f"{start}.mlp.shared_expert.{name}": hidden * mixture.shared for name in _GATED}
    return found


def _skipped(patterns: Sequence[str], modules: _Modules) -> set[str]:
    """Names of modules that patterns match; raises UnknownModuleError for one that matches none."""
    names = [name for layer in modules.layers for name in layer] + list(modules.tables)
    found = set[str]()
    for pattern in patterns:
        matched = {name for name in names if _matches(pattern, name)}
        if not matched and not _ELSEWHERE.search(pattern.lower()):
            raise UnknownModuleError(f"must name modules of a decoder, as {OUTPUT} or model.layers.0.mlp", pattern)
        found |= matched
    return found


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern means a module, or all within one that it names."""
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
