"""A model's shape is one fact: its config alone, its loaded weights and transformers say the same."""

from itertools import product

import pytest
import torch
from paceline.runtime.forward.layer_masks import attention_of
from paceline.runtime.pools.loaded_members import describe_model
from paceline.runtime.recording.recorded_members import model_info
from paceline.traces.shapes.hub_config import read_hub_config
from transformers import AutoModelForCausalLM

from .model_types import tiny_config

# What configs of these types may say beside their sizes.
VARIANTS = {
    "llama": {"attention_bias": (False, True), "mlp_bias": (False, True), "tie_word_embeddings": (False, True)},
    "mistral": {"tie_word_embeddings": (False, True), "sliding_window": (None, 7)},
    "qwen2": {"tie_word_embeddings": (False, True), "use_sliding_window": (False, True)},
    "qwen3": {"attention_bias": (False, True), "head_dim": (8, 16)},
    "gemma": {"attention_bias": (False, True), "tie_word_embeddings": (False, True)},
    "gemma2": {"attention_bias": (False, True), "head_dim": (8, 16)},
    "gemma3_text": {"attention_bias": (False, True), "tie_word_embeddings": (False, True)},
    "mixtral": {"num_local_experts": (2, 4), "tie_word_embeddings": (False, True)},
    "qwen2_moe": {"qkv_bias": (False, True), "decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [1])},
    "qwen3_moe": {"attention_bias": (False, True), "decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [1])},
}
CASES = [
    (model_type, dict(zip(changes, values, strict=True)))
    for model_type, changes in VARIANTS.items()
    for values in product(*changes.values())
]


@pytest.mark.parametrize(("model_type", "changes"), CASES)
def test_a_config_that_transformers_saved_says_what_the_loaded_model_says(tmp_path, model_type, changes):
    config = tiny_config(model_type, **changes)
    config._attn_implementation = attention_of(config)
    config.dtype = torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    own = model_info(describe_model("target", "model", model, None))
    said = read_hub_config(tmp_path, "target")
    assert said == own
    with torch.device("meta"):
        counted = AutoModelForCausalLM.from_config(config)
    assert said.parameters == sum(weight.numel() for weight in counted.parameters())
    assert (
        describe_model("target", "model", counted.to(torch.bfloat16).eval(), None).kv_bytes_per_token
        == said.kv_bytes_per_token
    )
