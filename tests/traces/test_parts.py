"""What models multiply, told by their counts: presets, heads, submodels, and configs that were given."""

from dataclasses import replace

import pytest
from paceline.traces.meta import Quantised
from paceline.traces.parts import parts_of
from paceline.traces.shapes import HEADS, DecoderShape, Latent, Mixture, head_of, presets
from paceline.traces.shapes_given import given_shapes

NEITHER = 2e-3  # of parameters: norms and biases, at most


@pytest.mark.parametrize("name", sorted(name for name, decoder in presets().items() if not decoder.sinks))
def test_all_that_multiplies_is_all_but_embedding_norms_and_biases(name):
    decoder = presets()[name]
    shape = decoder.info("x")
    rest = shape.parameters - parts_of(shape).parameters - (0 if decoder.tied else decoder.table_parameters)
    assert 0 <= rest < NEITHER * shape.parameters
    assert parts_of(shape).matrices[-1][:2] == (decoder.vocabulary, decoder.hidden)  # tokens from what a layer writes
    for kind in HEADS:
        head = head_of(kind, decoder, "h")
        if head is not None:
            assert 0 <= head.parameters - parts_of(head).parameters < NEITHER * head.parameters
            assert parts_of(head).matrices[-1].inputs == decoder.hidden


def test_submodels_and_what_is_served_otherwise():
    llama = presets()["llama-3.1-8b"]
    whole = parts_of(llama.info("t"))
    some = parts_of(replace(llama, layers=17).info("s").model_copy(update={"submodel_of": "t"}))
    assert (whole.layers, some.layers) == (32, 17)
    layer = (whole.parameters - some.parameters) / 15
    assert layer == sum(each.outputs * each.inputs for each in whole.matrices if each.in_layers)
    forms = {"fp8,kv=fp8": "t", "block=4": "another", "int4": "t"}  # a target has no block
    for form, target in forms.items():
        (shape,) = given_shapes([f"t=llama-3.1-8b@{form}"], target)
        assert parts_of(shape).matrices == whole.matrices
    assert parts_of(given_shapes(["t=llama-3.1-8b@kv=fp8"], "t")[0]).kv_dtype == "fp8"


def test_a_config_that_was_given_and_what_nobody_knows():
    decoder = DecoderShape(
        hidden=512, layers=4, heads=8, kv_heads=2, head_size=64, intermediate=1000, vocabulary=5000, dtype="float16"
    )
    assert parts_of(decoder.info("x")) is None
    known = parts_of(decoder.info("x"), [decoder])
    assert (known.hidden, known.heads, known.kv_heads, known.head_size, known.kv_dtype) == (512, 8, 2, 64, "float16")
    assert parts_of(head_of("eagle", decoder, "h"), [decoder]).layers == 1
    wide = replace(decoder, head_size=128)
    for shape in (wide.info("x"), head_of("eagle", wide, "h")):
        assert shape.attention_size == 1024
        unsaid = shape.model_copy(update={"attention_size": None, "kv_heads": None})  # as recordings of before have it
        assert parts_of(unsaid, [wide]) == parts_of(shape, [wide])
        assert parts_of(shape.model_copy(update={"attention_size": 512}), [wide]) is None
    some = Quantised(format="fp8", parameters=512, bytes_per_parameter=1, arithmetic="fp8")
    assert parts_of(decoder.info("x").model_copy(update={"quantised": some}), [decoder]) is None


def test_what_is_of_a_kind_of_its_own_has_no_parts():
    mixed = DecoderShape(
        hidden=512, layers=4, heads=8, kv_heads=2, head_size=64, intermediate=1000, vocabulary=5000,
        mixture=Mixture(experts=8, per_token=2, intermediate=64, predicts=True),
    )  # fmt: skip
    assert parts_of(mixed.info("x"), [mixed]) is not None
    latent = Latent(queries=0, state=64, plain=64, turned=32, values=64)
    for decoder in (replace(mixed, sinks=True), replace(mixed, latent=latent)):
        assert parts_of(decoder.info("x"), [decoder]) is None
    assert parts_of(head_of("mtp", mixed, "h"), [mixed]) is None
