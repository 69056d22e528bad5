"""Shapes of submodels whose model has another shape than was recorded: they keep the same share of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...arguments import ArgumentError
from ..meta import ModelInfo
from .decoder import Decoder, presets
from .named import preset_like


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The shape of a submodel that follows from the shape given to its model.

    Attributes:
        shape: as many of the model's layers, to the nearest, as the share of them that was recorded; at least one.
        words: how it follows.
    """

    shape: ModelInfo
    words: str


def derived_submodels(
    recorded: Sequence[ModelInfo], given: Sequence[ModelInfo], decoders: Mapping[str, Decoder]
) -> tuple[Derived, ...]:
    """Shapes of those recorded submodels whose models are given others and that are given none themselves.

    A submodel keeps layers of its model whole, and all that is not in layers (embedding, last norm, output).

    Args:
        recorded: shapes that members have without those given.
        given: shapes that take their place.
        decoders: what given shapes are made of, by member, where that is known; presets are known by their shape.

    Raises:
        ArgumentError: a submodel given more layers or parameters than its model has, or one whose shape does not
            follow from its model's and is not given.
    """
    known, found = {shape.name: shape for shape in recorded}, {shape.name: shape for shape in given}
    made = dict(decoders)
    derived: dict[str, Derived] = {}
    while left := [shape for shape in recorded if _is_left_behind(shape, known, found)]:
        own = left[0]
        assert own.submodel_of is not None
        whole = found[own.submodel_of]
        decoder = _submodel(own, known.get(whole.name), whole, made.get(whole.name))
        shape = decoder.info(own.name).model_copy(update={"submodel_of": whole.name})
        was = known[whole.name].layers
        words = (
            f"{own.name} counts as {shape.layers} of the {whole.layers} layers of {whole.name}, as it was {own.layers} "
            f"of {was}, with embedding and output whole"
        )
        found[own.name], made[own.name], derived[own.name] = shape, decoder, Derived(shape=shape, words=words)
    for shape in given:
        _check_fits(shape, known, {**known, **found})
    return tuple(derived.values())


def _is_left_behind(shape: ModelInfo, known: Mapping[str, ModelInfo], found: Mapping[str, ModelInfo]) -> bool:
    """Whether a recorded submodel has no shape yet, and its model another than was recorded."""
    model = shape.submodel_of
    return model is not None and model in found and shape.name not in found and found[model] != known.get(model)


def _submodel(own: ModelInfo, was: ModelInfo | None, whole: ModelInfo, decoder: Decoder | None) -> Decoder:
    """What is left of `whole` in the submodel that kept `own` of `was`."""
    like = preset_like(whole)
    decoder = decoder or (None if like is None else presets()[like])
    why = ""
    if was is None or own.layers > was.layers:
        why = f"what share of the layers of {whole.name} it keeps is not recorded"
    elif decoder is None:
        why = f"what one layer of {whole.name} weighs does not follow from its shape"
    elif decoder.mixture is not None and decoder.mixture.dense_layers:
        why = f"some layers of {whole.name} have experts and others none"
    elif decoder.quantised is not None and not decoder.quantised.is_even:
        why = f"some layers of {whole.name} are quantised and others less"
    if why or was is None or decoder is None:
        raise ArgumentError(
            f"`models` must give {own.name} a shape too, a submodel of {whole.name}, which gets another: {why}"
        )
    layers = (2 * own.layers * whole.layers + was.layers) // (2 * was.layers)
    return replace(decoder, layers=max(1, layers))


def _check_fits(shape: ModelInfo, known: Mapping[str, ModelInfo], shapes: Mapping[str, ModelInfo]) -> None:
    """Refuse a given shape of a recorded submodel that is larger than its model."""
    model = known[shape.name].submodel_of if shape.name in known else None
    whole = None if model is None else shapes.get(model)
    if whole is not None and (shape.layers > whole.layers or shape.parameters > whole.parameters):
        raise ArgumentError(
            f"`models` must give {shape.name}, a submodel of {model}, no more layers and parameters than {model} has "
            f"({whole.layers} and {whole.parameters:,}), got {shape.layers} and {shape.parameters:,}"
        )
