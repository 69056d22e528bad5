"""A preset is the model that it is named for: it has as many parameters, and its cache takes as many bytes."""

import pytest
import torch
from paceline.runtime.forced import preset_config, preset_names, sized_shapes
from paceline.runtime.pools.members import describe_model
from paceline.traces.shapes import presets
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

SHAPES = {**sized_shapes(), **presets()}


@pytest.mark.parametrize("name", preset_names())
def test_the_config_of_a_preset_has_its_shape(name):
    config = preset_config(name, context_tokens=64)
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    member = describe_model(name, "model", model.to(getattr(torch, SHAPES[name].dtype)), None)
    expected = SHAPES[name].info(name)
    assert member.num_parameters == expected.parameters
    assert member.num_layers == expected.layers
    assert member.kv_bytes_per_token == expected.kv_bytes_per_token
    assert config.max_position_embeddings == 64


def test_sizes_are_what_they_are_called():
    for name, shape in sized_shapes().items():
        assert shape.parameters == pytest.approx(float(name.removesuffix("M")) * 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-68m", "llama-68m"),
        ("TinyLlama-1.1B", "tinyllama-1.1b"),
        ("Qwen3-0.6B", "qwen-3-0.6b"),
        ("Llama-3-70B", "llama-3-70b"),
        ("20m", "20M"),
    ],
)
def test_a_preset_is_found_by_what_people_call_it(text, name):
    assert preset_config(text, context_tokens=64).to_dict() == preset_config(name, context_tokens=64).to_dict()


@pytest.mark.parametrize("text", ["30M", "gemma-3-1b", "mixtral-8x7b", "eagle3", "", "config.json"])
def test_other_names_are_none(text):
    assert preset_config(text, context_tokens=64) is None
