"""Shapes of submodels of a model that is given another shape."""

import json

import pytest
from paceline.base.errors import ArgumentError
from paceline.traces.meta import ModelInfo
from paceline.traces.shapes import derived_submodels, presets
from paceline.traces.shapes_given import given_decoders, given_shapes


def shape(name, layers, submodel_of=None):
    return ModelInfo(
        name=name,
        parameters=400 + 100 * layers,
        layers=layers,
        hidden_size=8,
        kv_bytes_per_token=4 * layers,
        dtype="float32",
        submodel_of=submodel_of,
    )


POOL = (shape("thin", 1, "slim"), shape("slim", 6, "target"), shape("mid", 3), shape("target", 11))


def derived(*texts, recorded=POOL):
    return {
        each.shape.name: each
        for each in derived_submodels(recorded, given_shapes(texts, "target"), given_decoders(texts, "target"))
    }


def file_of(tmp_path, *shapes):
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps([each.model_dump() for each in shapes]))
    return str(file)


def test_a_submodel_keeps_its_share_of_the_layers():
    """Of Llama-3.1-8B, 8,030,261,248 parameters and 218,112,000 in a layer, 17 of 32 layers: 15 fewer."""
    found = derived("llama-3.1-8b")
    slim = found["slim"].shape
    assert (slim.layers, slim.parameters) == (17, 8_030_261_248 - 15 * 218_112_000)
    assert slim.kv_bytes_per_token == 17 * 2 * 8 * 128 * 2
    assert (slim.hidden_size, slim.dtype, slim.submodel_of) == (4096, "bfloat16", "target")
    assert found["slim"].words.startswith("slim counts as 17 of the 32 layers of target, as it was 6 of 11")
    assert found["thin"].shape.layers == 3, "a submodel of a submodel follows too"
    assert set(found) == {"slim", "thin"}


def test_a_config_says_what_a_layer_weighs(tmp_path):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 22, "num_attention_heads": 32}
    config["architectures"] = ["LlamaForCausalLM"]
    sizes = {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    whole = presets()["llama-3.1-8b"]
    slim = derived(f"target={tmp_path}")["slim"].shape
    assert (slim.layers, slim.parameters) == (12, whole.parameters - 20 * whole.layer_parameters)


def test_a_mixture_has_experts_in_the_layers_that_are_kept():
    slim = derived("mixtral-8x7b")["slim"].shape
    assert (slim.layers, slim.experts.layers) == (17, 17)


def test_nothing_follows_where_the_model_stays_or_the_submodel_is_given(tmp_path):
    assert derived("mid=llama-3.2-1b") == {}
    assert derived(file_of(tmp_path, POOL[-1])) == {}
    assert set(derived("llama-3.1-8b", "slim=llama-3.2-1b")) == {"thin"}
    assert derived(file_of(tmp_path, shape("target", 22), shape("slim", 9), shape("thin", 2))) == {}


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (POOL[1:], "what one layer of target weighs does not follow from its shape"),
        ((shape("slim", 12, "target"), POOL[-1]), "what share of the layers of target it keeps is not recorded"),
        ((POOL[1],), "what share of the layers of target it keeps is not recorded"),
    ],
)
def test_what_cannot_be_derived_is_refused(tmp_path, recorded, why):
    told = f"^`models` must give slim a shape too, a submodel of target, which gets another: {why}$"
    with pytest.raises(ArgumentError, match=told):
        derived(file_of(tmp_path, shape("target", 22)), recorded=recorded)


def test_layers_some_of_which_have_experts(tmp_path):
    config = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    config["architectures"] = ["Qwen3MoeForCausalLM"]
    sizes = {"intermediate_size": 96, "vocab_size": 512, "torch_dtype": "bfloat16", "mlp_only_layers": [0]}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config | sizes | experts))
    with pytest.raises(ArgumentError, match=r"some layers of target have experts and others none$"):
        derived(f"target={tmp_path}")


@pytest.mark.parametrize("texts", [["slim=llama-3.2-1b"], ["llama-3.2-1b", "slim=llama-3.1-8b"]])
def test_a_submodel_larger_than_its_model_is_refused(texts):
    with pytest.raises(ArgumentError, match=r"^`models` must give slim, a submodel of target, no more layers and "):
        derived(*texts)
