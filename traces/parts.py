"""The products of a model's forward: matrices, attention and experts, which a `ModelInfo` only counts.

A recording holds counts. Their parts are known of a preset, of a head for one, of a submodel of one, and of a given
config; these are recognised by their counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from .meta import ModelInfo
from .quantisation import quantised_weights
from .shapes import (
    EAGLE3_FEATURES,
    EAGLE3_VOCABULARY,
    FORMATS,
    HEADS,
    KV_WIDTHS,
    DecoderShape,
    Mixture,
    head_of,
    presets,
)


class Matrix(NamedTuple):
    """One product of a forward, `[tokens, inputs]` by `[inputs, outputs]`."""

    outputs: int
    inputs: int
    times: int  # in a forward, >= 1
    # what devices divide: its "outputs" or "inputs", or nothing, so that each of them has all
    split: Literal["outputs", "inputs", ""]
    in_layers: bool = True  # then in the format of quantised weights, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """All that a forward multiplies."""

    hidden: int  # width of the residual stream
    layers: int  # with attention; 0 of Medusa heads
    heads: int  # of queries
    kv_heads: int  # of keys and values
    head_size: int
    kv_dtype: str  # of keys and values, of `KV_WIDTHS`
    matrices: tuple[Matrix, ...]  # without those of routed experts
    mixture: Mixture | None = None  # of experts
    expert_layers: int = 0  # that have them

    @property
    def parameters(self) -> int:
        """Of all matrices and experts, without norms, biases and embedding."""
        mixture, own = self.mixture, sum(each.outputs * each.inputs * each.times for each in self.matrices)
        routed = 0 if mixture is None else mixture.experts * 3 * self.hidden * mixture.intermediate
        return own + self.expert_layers * routed


def parts_of(shape: ModelInfo, given: Iterable[DecoderShape] = ()) -> ModelParts | None:
    """The parts of a shape; None where no known model has its counts, or attention is of a kind of its own.

    Args:
        shape: of a whole model, of a submodel, which keeps some layers of one, or of a head.
        given: decoders that may be it, or its model, or its target, before the presets.
    """
    plain = shape.model_copy(update={"quantised": None, "submodel_of": None})
    for decoder in (*given, *presets().values()):
        if decoder.hidden != shape.hidden_size or decoder.latent is not None or decoder.sinks:
            continue
        for cache in ("", *KV_WIDTHS):
            served = replace(decoder, dtype=shape.dtype, kv_dtype=cache, quantised=None)
            for kind in HEADS:
                head = head_of(kind, served, shape.name)
                if head is not None and head.experts is None and head.as_said_by(plain) == plain:
                    return _of_head(kind, served)
            served = replace(served, layers=shape.layers)
            # A draft model that writes a whole draft at once has the same parts.
            if served.info(shape.name).as_said_by(plain) == plain.model_copy(update={"draft_block": None}):
                return _of_decoder(served) if _is_even(served, shape) else None
    return None


def _is_even(decoder: DecoderShape, shape: ModelInfo) -> bool:
    """Whether what is quantised is all matrices of layers and experts, or all experts alone, or nothing."""
    said, experts = shape.quantised, decoder.experts
    if said is None or (said.experts and experts is not None and said.parameters == experts.all_parameters):
        return True
    # Only the covered matrices matter here, not the format's bytes.
    whole = quantised_weights(decoder, FORMATS["fp8"]).quantised(decoder.layers, experts)
    assert whole is not None
    return (said.parameters, said.experts) == (whole.parameters, whole.experts)


def _of_decoder(decoder: DecoderShape) -> ModelParts:
    mixture = decoder.mixture
    mixed = 0 if mixture is None else decoder.layers - mixture.dense_layers
    matrices = [*_attention(decoder, decoder.hidden, decoder.layers)]
    matrices += _feed_forward(decoder.hidden, decoder.intermediate, decoder.layers - mixed)
    if mixture is not None:
        matrices.append(Matrix(mixture.experts, decoder.hidden, mixed, "", in_layers=False))  # the router
        matrices += _feed_forward(decoder.hidden, mixture.shared, mixed) if mixture.shared else ()
    matrices.append(_output(decoder.vocabulary, decoder.hidden))
    return _parts(decoder, matrices, decoder.layers, mixed)


def _of_head(kind: str, target: DecoderShape) -> ModelParts:
    """Of a head as `head_of` makes it."""
    hidden = target.hidden
    if kind == "medusa":
        found = head_of(kind, target, kind)
        assert found is not None
        assert found.draft_block is not None
        heads = found.draft_block.tokens
        residual = Matrix(hidden, hidden, heads * found.layers, "", in_layers=False)
        return _parts(target, [residual, _output(target.vocabulary, hidden)._replace(times=heads)], 0, 0)
    joined, width, vocabulary = 2 * hidden, hidden, target.vocabulary
    if kind == "eagle3":
        joined, width, vocabulary = EAGLE3_FEATURES * hidden, 2 * hidden, min(EAGLE3_VOCABULARY, vocabulary)
    matrices = [
        Matrix(hidden, joined, 1, "", in_layers=False),
        *_attention(target, width, 1),
        *_feed_forward(hidden, target.intermediate, 1),
        _output(vocabulary, hidden),
    ]
    return _parts(target, matrices, 1, 0)


def _attention(decoder: DecoderShape, width: int, layers: int) -> Iterator[Matrix]:
    """Queries, keys and values at once, from an input of `width`, and attention's output."""
    own = decoder.heads * decoder.head_size
    yield Matrix(own + 2 * decoder.kv_heads * decoder.head_size, width, layers, "outputs")
    yield Matrix(decoder.hidden, own, layers, "inputs")


def _feed_forward(hidden: int, width: int, layers: int) -> tuple[Matrix, ...]:
    """Gate and up at once, and down."""
    return (Matrix(2 * width, hidden, layers, "outputs"), Matrix(hidden, width, layers, "inputs")) if layers else ()


def _output(vocabulary: int, hidden: int) -> Matrix:
    return Matrix(vocabulary, hidden, 1, "outputs", in_layers=False)


def _parts(decoder: DecoderShape, matrices: Iterable[Matrix], layers: int, mixed: int) -> ModelParts:
    return ModelParts(
        hidden=decoder.hidden,
        layers=layers,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_size=decoder.head_size,
        kv_dtype=decoder.kv_dtype or decoder.dtype,
        matrices=tuple(matrices),
        mixture=decoder.mixture if mixed else None,
        expert_layers=mixed,
    )
