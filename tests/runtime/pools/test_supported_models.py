"""A member whose config is broken, or of a model that cannot be done, is refused before its weights are touched."""

import json
from pathlib import Path

import pytest
from paceline.runtime.pools.configs import check_supported
from paceline.runtime.pools.members import live_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ..conftest import random_llama
from .window_pools import POOL


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_pool) -> Path:
    """A pool of a Llama, without its weights' content: nothing may look at them."""
    folder = tmp_path_factory.mktemp("supported")
    tiny_pool.tokenizer.save(str(folder / "tokenizer.json"))
    random_llama(11).save_pretrained(folder / "target")
    (folder / "target" / "model.safetensors").write_bytes(b"no weights")
    (folder / "pool.toml").write_text(POOL.format(dtype="float32"), encoding="utf-8")
    return folder


def refused(folder: Path, values: object) -> tuple[str, str]:
    """Field, and what else stands in the one line about the target's config.json."""
    config = folder / "target" / "config.json"
    config.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{config}: ")
    return caught.value.field, message


@pytest.fixture
def sound(written):
    """The config as it was saved; put back after the test."""
    config = written / "target" / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    yield values
    config.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", "4"),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 10_000_000),
        ("num_hidden_layers", 3.0),
        ("num_hidden_layers", True),
        ("num_hidden_layers", None),
        ("hidden_size", 17),
        ("hidden_size", 0),
        ("hidden_size", "32"),
        ("num_attention_heads", 0),
        ("num_attention_heads", None),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 0),
        ("head_dim", 0),
        ("intermediate_size", [64]),
        ("vocab_size", 0),
        ("vocab_size", 10**12),
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", None),
        ("max_position_embeddings", None),
        ("max_position_embeddings", 0),
        ("tie_word_embeddings", "yes"),
        ("layer_types", "full_attention"),
        ("layer_types", ["full_attention"]),
        ("model_type", "no such model"),
        ("model_type", None),
        ("model_type", 7),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("quantization_config", {"quant_method": "no such method"}),
        ("quantization", {"bits": 4, "group_size": 64}),
        ("compression_config", {"format": "pack-quantized"}),
    ],
)
def test_a_value_that_could_not_be_a_models(written, sound, field, value):
    # Where the width of a head is not given, it follows from the two others.
    values = {key: each for key, each in sound.items() if key != "head_dim"} | {field: value}
    found, message = refused(written, values)
    assert found == field
    assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("beside", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_a_file_beside_it_that_says_the_weights_are_quantised(written, sound, beside):
    file = written / "target" / beside
    file.write_text("{}")
    try:
        field, message = refused(written, sound)
    finally:
        file.unlink()  # the folder is the module's
    assert field == beside
    assert "quantised weights are not supported" in message


def test_three_heads_do_not_share_a_width_of_32(written, sound):
    values = {key: each for key, each in sound.items() if key != "head_dim"} | {"num_attention_heads": 3}
    assert refused(written, values)[0] == "hidden_size"


@pytest.mark.parametrize("content", [b"", b"[]", b'"llama"', b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_a_file_that_is_no_config(written, sound, content):
    (written / "target" / "config.json").write_bytes(content)
    with pytest.raises(PoolFileError, match=r"config\.json: content must be") as caught:
        ModelPool.load(written)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["dtype", "rope_parameters", "hidden_act", "initializer_range"])
def test_what_only_transformers_can_judge_is_one_line_too(written, sound, name):
    field, _ = refused(written, sound | {name: [1]})
    assert field == "content"


@pytest.mark.parametrize(
    ("model_type", "changes", "field"),
    [
        ("t5", {}, "model_type"),
        ("bart", {}, "is_encoder_decoder"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("mamba", {}, "model_type"),
        ("jamba", {}, "model_type"),
        ("qwen3_next", {}, "model_type"),
        ("rwkv", {}, "model_type"),
        ("bloom", {}, "model_type"),
        ("mpt", {}, "model_type"),
        ("falcon", {"alibi": True}, "alibi"),
        ("mimo_v2_flash", {}, "model_type"),
        ("gpt_neo", {}, "model_type"),
        ("granitemoehybrid", {}, "model_type"),
        ("gemma4_text", {}, "per_layer_config"),
        ("dots3_note_text", {}, "per_layer_config"),
        ("llama4_text", {}, "layer_types"),
        ("lfm2", {}, "layer_types"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "sliding_window"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3n_text", {}, "num_kv_shared_layers"),
        ("deepseek_v3", {}, "kv_lora_rank"),
        ("gemma3", {"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_layers"),
        ("gemma4", {}, "per_layer_config"),
        ("emu3", {}, "model_type"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("vit", {}, "model_type"),
    ],
)
def test_models_that_cannot_be_recorded(written, sound, model_type, changes, field):
    if model_type == "lfm2":
        changes = {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}
    found, message = refused(written, {"model_type": model_type, **changes})
    assert found == field, message


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "gpt2"])
def test_families_that_can(model_type):
    config = CONFIG_MAPPING[model_type]()
    check_supported(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], context_tokens=64)


def test_a_rotation_that_changes_with_the_length_of_the_text():
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 1e4, "factor": 4.0}
    rope |= {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    config = LlamaConfig(rope_parameters=rope, max_position_embeddings=256)
    check_supported(config, LlamaForCausalLM, context_tokens=64)
    with pytest.raises(ValueError, match="must not be longrope for contexts beyond 64 tokens"):
        check_supported(config, LlamaForCausalLM, context_tokens=65)


def test_a_forward_that_ignores_positions():
    class Deaf(LlamaForCausalLM):
        def forward(self, input_ids, attention_mask=None, past_key_values=None, logits_to_keep=0, **kwargs):
            raise AssertionError("never run")

    with pytest.raises(ValueError, match=r"model_type must be .* \(position_ids is missing\), got 'llama'"):
        check_supported(LlamaConfig(), Deaf, context_tokens=64)


def test_a_model_that_looks_ahead_is_found_when_it_is_loaded(written, tiny_pool, tmp_path):
    """Nothing in the config of BERT says that it is no decoder."""
    config = BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        eos_token_id=3,
        initializer_range=0.25,
        max_position_embeddings=128,
    )
    BertLMHeadModel(config).save_pretrained(tmp_path / "target")
    tiny_pool.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "pool.toml").write_text(POOL.format(dtype="float32"), encoding="utf-8")
    with pytest.raises(PoolFileError, match="must be a model that looks where its mask says, model_type bert does not"):
        ModelPool.load(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("bloom", {}, "without biases by distance (ALiBi)"),
        ("mpt", {}, "without biases by distance (ALiBi)"),
        ("gpt_neo", {}, "not by local attention of their own"),
        ("mamba", {}, "not a running state that cannot be rolled back"),
        ("rwkv", {}, "not a running state that cannot be rolled back"),
        ("granitemoehybrid", {}, "not a running state that cannot be rolled back"),
        ("gemma3n_text", {"intermediate_size": [64] * 35}, "layers that share keys and values"),
        ("gemma4_text", {}, "heads, windows or widths of their own, got 'head_dim'"),
        ("qwen3_5", {}, "not a running state that cannot be rolled back"),
    ],
)
def test_the_reason_is_the_one_that_counts(written, sound, model_type, changes, reason):
    assert reason in refused(written, {"model_type": model_type, **changes})[1]


def test_a_hybrid_of_attention_alone_is_none():
    config = CONFIG_MAPPING["granitemoehybrid"](num_hidden_layers=2, layer_types=["attention", "attention"])
    check_supported(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], context_tokens=64)


def test_weights_of_more_layers_than_the_config_names(written, sound, tiny_pool, tmp_path):
    random_llama(11).save_pretrained(tmp_path / "target")
    values = sound | {"num_hidden_layers": sound["num_hidden_layers"] - 1}
    (tmp_path / "target" / "config.json").write_text(json.dumps(values), encoding="utf-8")
    tiny_pool.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "pool.toml").write_text(POOL.format(dtype="float32"), encoding="utf-8")
    with pytest.raises(
        PoolFileError, match=r"whose config names all layers, 2 and not more \(model.layers.2.+ is there\)"
    ):
        ModelPool.load(tmp_path)


def test_a_model_whose_config_names_fewer_layers_than_it_has():
    model = random_llama(11)
    model.config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="must be a model whose config names its 3 layers, got 2"):
        live_pool(model, context_tokens=32, eos_token_ids=(3,))
