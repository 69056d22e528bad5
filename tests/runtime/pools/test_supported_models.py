"""A member whose config is broken, or of a model that cannot be done, is refused before its weights are touched."""

import json

import pytest
import torch
from paceline.runtime.pools.configs import check_supported
from paceline.runtime.pools.members import live_pool, num_parameters_of
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ..conftest import random_llama
from .making import NGRAM, at, change_json, slim, write

MEMBERS = NGRAM + slim("draft", 1) + at("target")


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_pool):
    """The config of a pool of a Llama, without its weights' content: nothing may look at them."""
    folder = write(tmp_path_factory.mktemp("supported"), tiny_pool.tokenizer, MEMBERS, target=random_llama(11))
    (folder / "target" / "model.safetensors").write_bytes(b"no weights")
    return folder / "target" / "config.json"


@pytest.fixture
def sound(written):
    """The config as it was saved, but for the width of a head, which follows; put back after the test."""
    before = written.read_text(encoding="utf-8")
    yield {key: each for key, each in json.loads(before).items() if key != "head_dim"}
    written.write_text(before, encoding="utf-8")


def refused(config, values: object) -> tuple[str, str]:
    """Field, and what else stands in the one line about the target's config.json."""
    config.write_bytes(values if isinstance(values, bytes) else json.dumps(values).encode())
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(config.parents[1])
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{config}: ")
    return caught.value.field, message


BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}
WRONG = {
    "num_hidden_layers": ["4", 0, -1, 10_000_000, 3.0, True, None],
    "hidden_size": [17, 0, "32"],
    "num_attention_heads": [0, None],
    "num_key_value_heads": [3, 0],
    "head_dim": [0],
    "intermediate_size": [[64]],
    "vocab_size": [0, 10**12],
    "rms_norm_eps": ["x", 0, None],
    "max_position_embeddings": [None, 0],
    "tie_word_embeddings": ["yes"],
    "layer_types": ["full_attention", ["full_attention"]],
    "model_type": ["no such model", None, 7],
    "quantization_config": [BITS, {"quant_method": "no such method"}],
    "quantization": [{"bits": 4, "group_size": 64}],
    "compression_config": [{"format": "pack-quantized"}],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_value_that_could_not_be_a_models(written, sound, field):
    for value in WRONG[field]:
        found, message = refused(written, sound | {field: value})
        assert found == field
        assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("beside", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_a_file_beside_it_that_says_the_weights_are_quantised(written, sound, beside):
    file = written.with_name(beside)
    file.write_text("{}")
    try:
        field, message = refused(written, sound)
    finally:
        file.unlink()  # the folder is the module's
    assert field == beside
    assert "quantised weights are not supported" in message


def test_three_heads_do_not_share_a_width_of_32(written, sound):
    assert refused(written, sound | {"num_attention_heads": 3})[0] == "hidden_size"


@pytest.mark.parametrize("content", [b"", b"[]", b'"llama"', b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_a_file_that_is_no_config(written, sound, content):
    assert "config.json: content must be" in refused(written, content)[1]


@pytest.mark.parametrize("name", ["dtype", "rope_parameters", "hidden_act", "initializer_range"])
def test_what_only_transformers_can_judge_is_one_line_too(written, sound, name):
    assert refused(written, sound | {name: [1]})[0] == "content"


STATE = "not a running state that cannot be rolled back"
ALIBI = "without biases by distance (ALiBi)"


@pytest.mark.parametrize(
    ("model_type", "changes", "field", "reason"),
    [
        ("t5", {}, "model_type", ""),
        ("bart", {}, "is_encoder_decoder", ""),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention", ""),
        ("mamba", {}, "model_type", STATE),
        ("jamba", {}, "model_type", ""),
        ("qwen3_next", {}, "model_type", ""),
        ("qwen3_5", {}, None, STATE),
        ("rwkv", {}, "model_type", STATE),
        ("bloom", {}, "model_type", ALIBI),
        ("mpt", {}, "model_type", ALIBI),
        ("falcon", {"alibi": True}, "alibi", ""),
        ("mimo_v2_flash", {}, "model_type", ""),
        ("gpt_neo", {}, "model_type", "not by local attention of their own"),
        ("granitemoehybrid", {}, "model_type", STATE),
        ("gemma4_text", {}, "per_layer_config", "heads, windows or widths of their own, got 'head_dim'"),
        ("dots3_note_text", {}, "per_layer_config", ""),
        ("llama4_text", {}, "layer_types", ""),
        ("lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, "layer_types", ""),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "sliding_window", ""),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping", ""),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention", ""),
        ("gemma3n_text", {}, "num_kv_shared_layers", ""),
        ("gemma3n_text", {"intermediate_size": [64] * 35}, None, "layers that share keys and values"),
        ("deepseek_v3", {}, "kv_lora_rank", ""),
        ("gemma3", {"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_layers", ""),
        ("gemma4", {}, "per_layer_config", ""),
        ("emu3", {}, "model_type", ""),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config", ""),
        ("vit", {}, "model_type", ""),
    ],
)
def test_models_that_cannot_be_recorded(written, sound, model_type, changes, field, reason):
    found, message = refused(written, {"model_type": model_type, **changes})
    assert found == (field or found), message
    assert reason in message


def supported(config, context_tokens=64):
    check_supported(config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], context_tokens=context_tokens)


def test_families_that_can():
    for model_type in ("llama", "mistral", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "gpt2"):
        supported(CONFIG_MAPPING[model_type]())
    # A hybrid of attention alone is none.
    supported(CONFIG_MAPPING["granitemoehybrid"](num_hidden_layers=2, layer_types=["attention", "attention"]))


def test_a_rotation_that_changes_with_the_length_of_the_text():
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 1e4, "factor": 4.0}
    rope |= {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    config = LlamaConfig(rope_parameters=rope, max_position_embeddings=256)
    supported(config)
    with pytest.raises(ValueError, match="must not be longrope for contexts beyond 64 tokens"):
        supported(config, 65)


def test_a_forward_that_ignores_positions():
    class Deaf(LlamaForCausalLM):
        def forward(self, input_ids, attention_mask=None, past_key_values=None, logits_to_keep=0, **kwargs):
            raise AssertionError("never run")

    with pytest.raises(ValueError, match=r"model_type must be .* \(position_ids is missing\), got 'llama'"):
        check_supported(LlamaConfig(), Deaf, context_tokens=64)


def test_a_model_that_looks_ahead_is_found_when_it_is_loaded(tiny_pool, tmp_path):
    """Nothing in the config of BERT says that it is no decoder."""
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        eos_token_id=3, initializer_range=0.25, max_position_embeddings=128,
    )  # fmt: skip
    write(tmp_path, tiny_pool.tokenizer, MEMBERS, target=BertLMHeadModel(config))
    with pytest.raises(PoolFileError, match="must be a model that looks where its mask says, model_type bert does not"):
        ModelPool.load(tmp_path)


def test_weights_of_more_layers_than_the_config_names(tiny_pool, tmp_path):
    model = random_llama(11)
    write(tmp_path, tiny_pool.tokenizer, MEMBERS, target=model)
    change_json(tmp_path / "target" / "config.json", num_hidden_layers=2)
    told = r"whose config names all layers, 2 and not more \(model.layers.2.+ is there\)"
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(tmp_path)
    model.config.num_hidden_layers = 2
    with pytest.raises(ValueError, match="must be a model whose config names its 3 layers, got 2"):
        live_pool(model, context_tokens=32, eos_token_ids=(3,))


class Packed(torch.nn.Linear):
    """Two 4-bit weights in a byte: of a parameter, as bitsandbytes has them, or of a buffer, as GPTQ and AWQ."""

    def __init__(self, of, *, in_buffer):
        super().__init__(of.in_features, of.out_features, bias=False, device="meta")
        halves = torch.zeros(of.weight.numel() // 2, dtype=torch.uint8)
        self.weight = None if in_buffer else torch.nn.Parameter(halves, requires_grad=False)
        if in_buffer:
            self.register_buffer("qweight", halves)

    def forward(self, inputs):
        return inputs.new_zeros(*inputs.shape[:-1], self.out_features)


@pytest.mark.parametrize("in_buffer", [False, True])
def test_packed_weights_count_as_what_they_stand_for(in_buffer):
    target, large, small = (random_llama(layers, num_layers=layers) for layers in (4, 3, 2))
    whole = num_parameters_of(large)
    for name, module in [*large.model.named_modules()]:
        if isinstance(module, torch.nn.Linear):
            large.model.set_submodule(name, Packed(module, in_buffer=in_buffer))
    assert num_parameters_of(large) == whole > num_parameters_of(small) > sum(map(torch.numel, large.parameters()))
    pool = live_pool(target, [large, small], context_tokens=32, eos_token_ids=(3,))
    assert [(one.name, one.model) for one in pool.members] == [
        ("assistant0", small),
        ("assistant1", large),
        ("target", target),
    ]
