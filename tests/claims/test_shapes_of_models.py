"""A model's shape is one fact: its config alone, its loaded weights and transformers say the same."""

from itertools import product

import pytest
import torch
from paceline.runtime.forward import attention_of
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.members import describe_model
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.model_info import experts_of, model_info
from paceline.runtime.recording.recorder import record
from paceline.traces.meta import Closure, Sampling
from paceline.traces.shapes_given import given_shapes
from transformers import AutoModelForCausalLM, DynamicCache

from .model_types import HEADS, tiny_config, write_models, write_pool

TIED = {"tie_word_embeddings": (False, True)}
SPARSE = {"decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [1])}
# Of the types whose config gives a shape, what it may say beside sizes.
VARIANTS = {
    "llama": {"attention_bias": (False, True), "mlp_bias": (False, True), **TIED},
    "mistral": {"sliding_window": (None, 7), **TIED},
    "qwen2": {"use_sliding_window": (False, True), **TIED},
    "qwen3": {"attention_bias": (False, True), "head_dim": (8, 16)},
    "gemma": {"attention_bias": (False, True), **TIED},
    "gemma2": {"attention_bias": (False, True), "head_dim": (8, 16)},
    "gemma3_text": {"attention_bias": (False, True), **TIED},
    "mixtral": {"num_local_experts": (2, 4), **TIED},
    "qwen2_moe": {"qkv_bias": (False, True), **SPARSE},
    "qwen3_moe": {"attention_bias": (False, True), **SPARSE},
    "phi3": {"sliding_window": (None, 7), **TIED},
    "glm4": {"attention_bias": (False, True), **TIED},
    "granite": {"attention_bias": (False, True), "mlp_bias": (False, True), **TIED},
    "smollm3": {"attention_bias": (False, True), "use_sliding_window": (False, True), "sliding_window": (7,)},
    "ministral3": {**TIED},
    "exaone4": {"sliding_window": (7,), **TIED},
    "olmo2": {"attention_bias": (False, True), **TIED},
    "olmo3": {"attention_bias": (False, True), **TIED},
    "glm4_moe": {"attention_bias": (False, True), "use_qk_norm": (False, True), "first_k_dense_replace": (1, 3)},
    "minimax_m2": {"head_dim": (8, 16), **TIED},
    "gpt_oss": {"attention_bias": (False, True), **TIED},
}
CASES = [
    (model_type, dict(zip(changes, values, strict=True)))
    for model_type, changes in VARIANTS.items()
    for values in product(*changes.values())
]
# Mixtures of other types, and how many of their three layers have experts where some are dense.
MIXTURES = {
    "afmoe": 2,
    "aria_text": 3,
    "dbrx": 3,
    "dots1": 3,
    "ernie4_5_moe": 2,
    "exaone_moe": 2,
    "flex_olmo": 3,
    "flint": 1,
    "glm4_moe": 2,
    "gpt_oss": 3,
    "granitemoe": 3,
    "granitemoehybrid": 3,
    "hunyuan_v1_moe": 3,
    "jetmoe": 3,
    "kolibri1": 3,
    "laguna": 2,
    "minimax_m2": 3,
    "olmoe": 3,
    "phimoe": 3,
    "solar_open": 3,
}


def on_meta(config):
    """A model without values, as far as sizes need one."""
    config._attn_implementation = attention_of(config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize(("model_type", "changes"), CASES)
@pytest.mark.one_in(3)
def test_a_config_that_transformers_saved_says_what_the_model_says(tmp_path, model_type, changes):
    config = tiny_config(model_type, **changes)
    config._attn_implementation = attention_of(config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.config.architectures = [type(model).__name__]  # as `model.save_pretrained` writes it
    model.config.save_pretrained(tmp_path)
    said = given_shapes([f"target={tmp_path}"], "target")[0]
    assert said == model_info(describe_model("target", "model", model, None))
    assert said == model_info(describe_model("target", "model", on_meta(config), None))
    assert said.parameters == sum(weight.numel() for weight in on_meta(config).parameters())


@pytest.mark.parametrize("model_type", MIXTURES)
def test_the_experts_of_every_mixture_are_counted(model_type):
    model = on_meta(tiny_config(model_type))
    found = experts_of(model, "target")
    assert found is not None
    assert (found.number, found.layers) == (4, MIXTURES[model_type])
    weights = {
        name: weight
        for name, weight in model.named_parameters()
        if "experts" in name.split(".") or (model_type == "jetmoe" and weight.dim() == 3)
    }
    # Biases of the choice among experts, and a router, are nobody's.
    held = [weight.numel() for name, weight in weights.items() if weight.dim() > 1 and "router" not in name]
    assert found.all_parameters == sum(held)


@pytest.mark.parametrize("model_type", ["doge", "beam", "llama", "gemma4_text"])
def test_a_dense_model_of_a_family_with_mixtures_has_no_experts(model_type):
    assert experts_of(on_meta(tiny_config(model_type)), "target") is None


def test_experts_of_unknown_weights_are_refused():
    model = on_meta(tiny_config("doge", is_moe=True, num_experts=16, num_experts_per_tok=2))
    with pytest.raises(ValueError, match="must have experts of one known size in target"):
        experts_of(model, "target")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("falcon", {"multi_query": True}),
        ("falcon", {"multi_query": False, "num_kv_heads": HEADS}),
        ("falcon", {"new_decoder_architecture": True}),
        ("gpt_bigcode", {"multi_query": True}),
        ("hrm_text", {}),
        ("gemma3", {}),
        ("gpt_oss", {}),
        ("llama", {}),
    ],
)
def test_keys_and_values_are_as_many_bytes_as_a_text_leaves_in_its_cache(tmp_path, model_type, changes):
    write_models(tmp_path, tiny_config(model_type, **changes))
    file = write_pool(tmp_path, ("target",))
    (checked,) = check_pool(file).members
    target = ModelPool.load(file).target
    cache, ids = DynamicCache(config=target.model.config), torch.tensor([[5, 6, 7]])
    target.model(input_ids=ids, cache=cache, use_cache=True)
    held = sum(state.nbytes for layer in cache.layers for state in (layer.keys, layer.values))
    assert target.kv_bytes_per_token * ids.shape[1] == held
    assert checked.kv_bytes_per_token == target.kv_bytes_per_token


def test_a_recorded_mixture_has_the_experts_of_its_config(tmp_path):
    write_models(tmp_path, tiny_config("qwen3_moe"))
    pool = ModelPool.load(write_pool(tmp_path, ("slim", "draft", "target")))
    recording = record(
        pool,
        [Prompt(request_id="r", text="t5 t6 t7")],
        sampling=Sampling(mode="greedy"),
        closure=Closure(kind="monotone", reach=2, run=2),
        max_new_tokens=4,
        out=tmp_path / "x.trace",
    )
    slim, draft, target = recording.meta.models
    said = given_shapes([f"target={tmp_path / 'target'}"], "target")[0].model_copy(update={"dtype": "float32"})
    assert target.experts == draft.experts == said.experts
    assert (target.parameters, target.layers) == (said.parameters, said.layers)
    assert (slim.experts.layers, slim.experts.parameters) == (said.experts.layers - 1, said.experts.parameters)
