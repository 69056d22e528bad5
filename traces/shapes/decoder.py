"""What a decoder-only transformer is made of, and what it counts; models that people serve, by name.

Letters: H hidden size, D size of a head, V vocabulary, L layers.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any

from ..experts import Experts
from ..meta import ModelInfo
from .weights import KV_WIDTHS, QuantisedWeights

SHAPES_PAGE = "docs/costs.md"  # has all presets, architectures and methods of quantisation that are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Feed-forward parts that are mixtures of gated experts, as Mixtral and Qwen have them.

    Attributes:
        experts: of a layer.
        per_token: experts that a token is sent to.
        intermediate: width of an expert.
        shared: width of the expert that every token goes through, which Qwen 2 gates by itself; 0 without one.
        dense_layers: that have one feed-forward part and no experts.
    """

    experts: int
    per_token: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder with gated feed-forward parts, as Llama, Qwen and Gemma have them.

    Attributes:
        hidden: H.
        layers: L.
        heads: of queries.
        kv_heads: of keys and values.
        head_size: D.
        intermediate: width of the feed-forward part; of a mixture of experts, in layers without experts.
        vocabulary: V.
        tied: whether the output shares the embedding's weights.
        bias: whether queries, keys and values have one.
        output_bias: whether attention's output has one.
        feed_forward_bias: whether the three products of a dense feed-forward part have one.
        norms: of H, in a layer.
        head_norms: of D, in a layer.
        dtype: of activations, and of weights and cache unless the following say otherwise.
        mixture: of experts; None: every layer is dense.
        quantised: weights in a narrower format; None: none are.
        kv_dtype: of the cache, of `KV_WIDTHS`; "" is `dtype`.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    norms: int = 2
    head_norms: int = 0
    dtype: str = "bfloat16"
    mixture: Mixture | None = None
    quantised: QuantisedWeights | None = None
    kv_dtype: str = ""

    @property
    def layer_parameters(self) -> int:
        """Of one layer without experts."""
        return self.attention_parameters(self.hidden) + self.feed_forward_parameters + self.norms * self.hidden

    @property
    def feed_forward_parameters(self) -> int:
        """Of one layer's feed-forward part."""
        return self._gated(self.intermediate) + (2 * self.intermediate + self.hidden if self.feed_forward_bias else 0)

    @property
    def table_parameters(self) -> int:
        """Of the embedding, or of the output."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model, tied ones once."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return tables + self.layers * self.layer_parameters + self.hidden + self._beyond_dense

    @property
    def experts(self) -> Experts | None:
        """Of a mixture."""
        if self.mixture is None:
            return None
        return Experts(
            number=self.mixture.experts,
            per_token=self.mixture.per_token,
            layers=self.layers - self.mixture.dense_layers,
            parameters=self._gated(self.mixture.intermediate),
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token in one layer."""
        return ceil(2 * self.kv_heads * self.head_size * KV_WIDTHS[self.kv_dtype or self.dtype])

    def attention_parameters(self, width: int) -> int:
        """Of one layer's attention, if what queries, keys and values are made of is so wide."""
        outputs = (self.heads + 2 * self.kv_heads) * self.head_size
        own = self.heads * self.head_size * self.hidden + (self.hidden if self.output_bias else 0)
        return width * outputs + own + self.head_norms * self.head_size + (outputs if self.bias else 0)

    def info(self, name: str) -> ModelInfo:
        """The shape of a member of this name."""
        return ModelInfo(
            name=name,
            parameters=self.parameters,
            layers=self.layers,
            hidden_size=self.hidden,
            kv_bytes_per_token=self.layers * self.kv_bytes,
            dtype=self.dtype,
            experts=self.experts,
            quantised=None if self.quantised is None else self.quantised.quantised(self.layers, self.experts),
        )

    @property
    def _beyond_dense(self) -> int:
        """Parameters that layers with experts, their routers and shared experts have beyond those of dense layers."""
        if self.mixture is None:
            return 0
        shared = self._gated(self.mixture.shared) + (self.hidden if self.mixture.shared else 0)
        routed = self.mixture.experts * (self._gated(self.mixture.intermediate) + self.hidden)
        return (self.layers - self.mixture.dense_layers) * (routed + shared - self.feed_forward_parameters)

    def _gated(self, width: int) -> int:
        """Parameters of a gated feed-forward part of this width."""
        return 3 * self.hidden * width


@cache
def presets() -> Mapping[str, Decoder]:
    """Every known model by name, as published configs give it (`presets.toml`); vision towers are left out."""
    shapes = tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    return {name: _decoder(shape) for name, shape in shapes.items()}


def _decoder(shape: dict[str, Any]) -> Decoder:
    mixture = shape.pop("mixture", None)
    return Decoder(**shape, mixture=None if mixture is None else Mixture(**mixture))
