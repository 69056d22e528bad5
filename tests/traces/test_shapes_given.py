"""Shapes from configs, of models and drafters, quantised or not, and from what `--models` takes; and refusals."""

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.errors import TraceFormatError
from paceline.traces.meta import DraftBlock
from paceline.traces.shapes import FORMATS, presets
from paceline.traces.shapes_given import asked_shapes, given_shapes
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "glm4", "granite", "smollm3",
         "ministral3", "exaone4", "olmo2", "olmo3")  # fmt: skip
MIXED = ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "minimax_m2", "gpt_oss", "deepseek_v3")
MODEL_TYPES = (*GATED, *MIXED)
KNOWN_AS = {kind: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in MODEL_TYPES}
MOST = 2**31 - 1


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
         "vocab_size")  # fmt: skip


def config(architecture, model_type, *sizes, **more):
    said = {"architectures": [architecture], "model_type": model_type} | dict(zip(SIZES, sizes, strict=True))
    return said | {"tie_word_embeddings": False, "torch_dtype": "bfloat16"} | more


LLAMA = config("LlamaForCausalLM", "llama", 4096, 32, 32, 8, 14_336, 128_256)
GEMMA_TEXT = config("", "gemma3_text", 5376, 62, 32, 16, 21_504, 262_208, head_dim=128, sliding_window=1024)
SAID_OUTSIDE = {"architectures", "tie_word_embeddings", "torch_dtype"}
GEMMA = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "dtype": "bfloat16",
         "text_config": {key: value for key, value in GEMMA_TEXT.items() if key not in SAID_OUTSIDE}}  # fmt: skip
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
           "mlp_only_layers": []}  # fmt: skip
QWEN_MOE = config("Qwen3MoeForCausalLM", "qwen3_moe", 2048, 48, 32, 4, 6144, 151_936, head_dim=128, **EXPERTS)
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32_000,
           "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
SHARED = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
          "shared_expert_intermediate_size": 20_480}  # fmt: skip
QWEN_2_MOE = config("Qwen2MoeForCausalLM", "qwen2_moe", 3584, 28, 28, 4, 18_944, 151_936, **SHARED)
QWEN = config("Qwen3ForCausalLM", "qwen3", 4096, 36, 32, 8, 12_288, 151_936, head_dim=128)
DRAWN = {"target_layer_ids": [1, 9, 17, 25, 33]}
DFLASH = QWEN | {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 5, "num_target_layers": 36,
                 "block_size": 16, "dflash_config": DRAWN}  # fmt: skip
EAGLE3 = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}
EAGLE = LLAMA | {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}
ROUTED = {"num_experts_per_tok": 8, "n_shared_experts": 1}
LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK = config("DeepseekV3ForCausalLM", "deepseek_v3", 7168, 61, 128, 128, 18_432, 129_280, n_routed_experts=256,
                  moe_intermediate_size=2048, first_k_dense_replace=3, moe_layer_freq=1,
                  **ROUTED, **LATENT)  # fmt: skip
GLM = config("Glm4MoeForCausalLM", "glm4_moe", 4096, 46, 96, 8, 10_944, 151_552, head_dim=128, attention_bias=True,
             n_routed_experts=128, moe_intermediate_size=1408, first_k_dense_replace=1, num_nextn_predict_layers=1,
             use_qk_norm=False, **ROUTED)  # fmt: skip
WHOLE = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
GPT_OSS = config("GptOssForCausalLM", "gpt_oss", 2880, 36, 64, 8, 2880, 201_088, head_dim=64, attention_bias=True,
                 num_local_experts=128, num_experts_per_tok=4, layer_types=["sliding_attention", "full_attention"] * 18,
                 quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": WHOLE})  # fmt: skip
MEDUSA = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 4096, "vocab_size": 32_000,
          "num_heads": 4, "num_hidden_layers": 1, "torch_dtype": "float16"}  # fmt: skip


def written(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def read(file, name="t"):
    """The shape of a member by its config."""
    return given_shapes([f"{name}={file}"], "other")[0]


def shape(tmp_path, content, name="t"):
    return read(written(tmp_path, content), name)


def refused(tmp_path, content, told):
    file = written(tmp_path, content)
    with pytest.raises(TraceFormatError, match=told) as caught:
        read(file, "t")
    assert "\n" not in str(caught.value)
    return file


SAVED_AGAIN = {key: value for key, value in QWEN_MOE.items() if key != "num_experts"} | {"num_local_experts": 128}


@pytest.mark.parametrize(
    ("said", "preset"),
    [
        (LLAMA, "llama-3.1-8b"),
        (GEMMA, "gemma-3-27b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN_MOE, "qwen-3-30b-a3b"),
        (SAVED_AGAIN, "qwen-3-30b-a3b"),  # as transformers 5 does
        (QWEN_2_MOE, "qwen-2-57b-a14b"),
        (GPT_OSS, "gpt-oss-120b"),
    ],
)
def test_a_config_gives_what_the_preset_gives(tmp_path, said, preset):
    file = written(tmp_path, said)
    assert read(file, "target") == presets()[preset].info("target")
    assert read(tmp_path, "target") == read(file, "target")


def test_biases_that_a_config_gives_and_what_it_leaves_out(tmp_path):
    plain, rows = shape(tmp_path, LLAMA), (32 + 2 * 8) * 128 + 4096
    assert shape(tmp_path, {**LLAMA, "attention_bias": True}).parameters - plain.parameters == 32 * rows
    feed_forward = shape(tmp_path, {**LLAMA, "mlp_bias": True})
    assert feed_forward.parameters - plain.parameters == 32 * (2 * 14_336 + 4096)
    # Mistral has none, whatever its config says.
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_bias": True}
    assert shape(tmp_path, mistral | {"sliding_window": None}) == plain
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert shape(tmp_path, without).kv_bytes_per_token == 32 * 2 * 32 * 128 * 2
    tied = shape(tmp_path, {**LLAMA, "tie_word_embeddings": True})
    assert plain.parameters - tied.parameters == 128_256 * 4096


def test_a_dtype_may_be_called_as_torch_prints_it(tmp_path):
    for more in ({"torch_dtype": "torch.bfloat16"}, {"dtype": "bfloat16", "torch_dtype": "torch.bfloat16"}):
        assert shape(tmp_path, LLAMA | more).dtype == "bfloat16"
    differing = LLAMA | {"dtype": "float32", "torch_dtype": "torch.bfloat16"}
    refused(tmp_path, differing, "torch_dtype: must be dtype, float32, got 'torch.bfloat16'")


@pytest.mark.parametrize("said", [{}, {"q_lora_rank": None}, {"first_k_dense_replace": 4}, {"n_shared_experts": 2}])
def test_parameters_beside_compressed_keys_and_values_are_those_that_transformers_builds(tmp_path, said):
    sizes = dict(zip(SIZES, (256, 4, 8, 8, 512, 1000), strict=True)) | {"pad_token_id": 0}
    built = CONFIG_MAPPING["deepseek_v3"](**sizes, **said)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(built)
    found = shape(tmp_path, built.to_dict() | {"architectures": ["DeepseekV3ForCausalLM"], "dtype": "bfloat16"})
    assert found.parameters == sum(weights.numel() for weights in model.parameters())


@pytest.mark.parametrize("kind", MODEL_TYPES)
@pytest.mark.parametrize("asked", [{}, {"sliding_window": None}, {"sliding_window": 512, "use_sliding_window": True}])
def test_windows_are_those_that_transformers_takes(tmp_path, kind, asked):
    if kind == "exaone4" and asked == {"sliding_window": None}:
        asked = asked | {"layer_types": ["full_attention"] * 9}  # else its pattern is of no layers
    sizes = dict(zip(SIZES, (256, 9, 8, 8, 512, 1000), strict=True)) | {"max_window_layers": 5}
    built = CONFIG_MAPPING[kind](**sizes, **asked)
    said = built.to_dict() | {"architectures": [KNOWN_AS[kind]], "dtype": "bfloat16"}
    window = built.sliding_window if hasattr(CONFIG_MAPPING[kind](), "sliding_window") else None
    kinds = getattr(built, "layer_types", None)
    if kind == "qwen3_moe" and window:  # of all layers, which its config does not list
        refused(tmp_path, said, "layer_types: must be there, with use_sliding_window")
        return
    layers = 9 if kinds is None else kinds.count("sliding_attention")
    known = {"layers": layers, "tokens": window} if window and layers else None
    found = shape(tmp_path, said).windowed
    assert (found and found.model_dump()) == known
    if known and kinds and not said.get("use_sliding_window"):  # older configs do not list layers
        assert shape(tmp_path, {key: one for key, one in said.items() if key != "layer_types"}).windowed == found


@pytest.mark.parametrize(
    ("said", "billions", "kv_bytes"),
    [(DEEPSEEK, 671.03, 70_272), (GLM, 106.85, 188_416)],
)
def test_published_mixtures(tmp_path, said, billions, kv_bytes):
    found = shape(tmp_path, said)
    assert (round(found.parameters / 1e9, 2), found.kv_bytes_per_token) == (billions, kv_bytes)


def test_compressed_keys_and_values_are_on_every_device(tmp_path):
    found = shape(tmp_path, DEEPSEEK)
    assert (found.kv_heads, found.attention_size) == (1, 128 * (128 + 64 + 128) // 2)
    assert found.kv_bytes_on(8) == 8 * 61 * (512 + 64) * 2


def test_gpt_oss_has_its_experts_in_four_bits(tmp_path):
    quantised = shape(tmp_path, GPT_OSS).quantised
    assert (quantised.format, quantised.experts, quantised.embedding) == ("mxfp4", True, False)
    assert quantised.parameters == 36 * 128 * (3 * 2880 * 2880 + 2 * 2880 + 2880)
    refused(tmp_path, GPT_OSS | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["head"]}},
            "modules_to_not_convert: must name modules of a decoder")  # fmt: skip


def test_the_prediction_module_of_a_mixture_has_a_layer_with_experts(tmp_path):
    target = f"t={written(tmp_path, GLM)}"
    _, head = given_shapes([target, "m=mtp"], "t")
    experts, attention = 128 * (3 * 1408 * 4096 + 4096), 4096 * 128 * (96 + 16 + 96) + 128 * (96 + 16)
    own = experts + 3 * 1408 * 4096 + attention + 2 * 4096
    assert head.parameters == own + 2 * 4096 * 4096 + 151_552 * 4096
    assert (head.experts.layers, head.kv_bytes_per_token) == (1, 4 * 8 * 128)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    _, narrow = given_shapes([f"t={written(tmp_path, GLM | {'quantization_config': fp8})}", "m=mtp"], "t")
    matrices = 128 * 3 * 1408 * 4096 + 3 * 1408 * 4096 + 4096 * 128 * (96 + 16 + 96)
    assert (narrow.quantised.parameters, narrow.quantised.experts) == (matrices, True)
    assert narrow.quantised.bytes_per_parameter == 1 + 4 / 128**2
    assert narrow.model_copy(update={"quantised": None}) == head
    some = fp8 | {"modules_to_not_convert": ["self_attn"]}
    for unlike in (GLM | {"num_nextn_predict_layers": 0}, GLM | {"quantization_config": some}):
        with pytest.raises(ValueError, match=r"m=mtp must be a config\.json or FILE\.json: what heads of a mixture"):
            given_shapes([f"t={written(tmp_path, unlike)}", "m=mtp"], "t")


@pytest.mark.parametrize("said", [EAGLE3, EAGLE])
def test_later_layers_of_a_head_are_like_the_targets(tmp_path, said):
    one, two = (shape(tmp_path, said | {"num_hidden_layers": layers}) for layers in (1, 2))
    like = presets()["llama-3.1-8b"]
    assert two.parameters - one.parameters == like.layer_parameters
    assert two.kv_bytes_per_token == 2 * one.kv_bytes_per_token == 2 * like.kv_bytes


@pytest.mark.parametrize("kind", MODEL_TYPES)
@pytest.mark.parametrize("named", ["num_key_value_heads", "head_dim"])
def test_a_size_that_a_config_leaves_out_is_what_transformers_takes(tmp_path, kind, named):
    """Or it is refused: no other size stands in for it."""
    sizes = {"hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 128}
    sizes |= {"num_hidden_layers": 4, "intermediate_size": 64}
    whole = CONFIG_MAPPING[kind](**{key: value for key, value in sizes.items() if key != named})
    said = whole.to_dict() | sizes | {"architectures": [KNOWN_AS[kind]], "dtype": "bfloat16"}
    del said[named]
    if named == "num_key_value_heads" and kind not in ("llama", "gemma3_text"):
        refused(tmp_path, said, f"num_key_value_heads: must be there, of model_type {kind}, got 'nothing'")
        return
    if kind == "deepseek_v3":  # whose cache does not depend on it
        assert shape(tmp_path, said) == shape(tmp_path, said | {"head_dim": 64})
        return
    size = getattr(whole, "head_dim", None) or 512 // 16
    assert shape(tmp_path, said).kv_bytes_per_token == 4 * 2 * whole.num_key_value_heads * size * 2


@pytest.mark.parametrize(
    ("preset", "left_out"),
    [
        ("gemma-3-4b", ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")),
        ("gemma-3-27b", ("vocab_size",)),
    ],
)
def test_gemma_3_is_published_without_the_sizes_that_transformers_takes(tmp_path, preset, left_out):
    like = presets()[preset]
    sizes = (like.hidden, like.layers, like.heads, like.kv_heads, like.intermediate, like.vocabulary)
    text = config("", "gemma3_text", *sizes, head_dim=like.head_size, sliding_window=1024)
    kept = {key: value for key, value in text.items() if key not in {*SAID_OUTSIDE, *left_out}}
    assert shape(tmp_path, GEMMA | {"text_config": kept}, "target") == like.info("target")
    usual = CONFIG_MAPPING["gemma3_text"]()
    assert {key: getattr(usual, key) for key in left_out} == {key: text[key] for key in left_out}
    near = {**kept, "vocabsize": 8} if preset == "gemma-3-27b" else {**kept, "num_attention_head": 16}
    refused(tmp_path, GEMMA | {"text_config": near}, "must be (num_attention_heads|vocab_size), which is left out")


def test_layers_without_experts(tmp_path):
    """Six layers, of which the second and the fourth have experts, as transformers counts the model's parameters."""
    some = {**QWEN_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1, 1, 7]}
    found = shape(tmp_path, some)
    assert (found.parameters, found.experts.layers) == (2_095_083_008, 2)
    none = shape(tmp_path, {**some, "mlp_only_layers": [1, 3, 5]})
    assert (none.experts, none.active_parameters) == (None, none.parameters)


@pytest.mark.parametrize(
    ("base", "change", "told"),
    [
        (LLAMA, {"model_type": "gpt_neox"}, "model_type: must be a known one .known are llama, .*got 'gpt_neox'"),
        (LLAMA, {"model_type": None}, "model_type: must be a known one .*got 'nothing'"),
        (LLAMA, {"num_hidden_layers": "32"}, "num_hidden_layers: must be a whole number .*got '32'"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number .*got 0"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers: must be a whole number .*got True"),
        (LLAMA, {"hidden_size": 10000000000}, "hidden_size: must be a whole number .*got 10000000000"),
        (LLAMA, {"hidden_size": 4097}, "hidden_size: must be a multiple of num_attention_heads, 32, got 4097"),
        (LLAMA, {"vocab_size": None}, "vocab_size: must be a whole number .*got 'nothing'"),
        (LLAMA, {"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false, got 'no'"),
        (LLAMA, {"torch_dtype": "float8"}, "torch_dtype: must be one of float32, .*got 'float8'"),
        (LLAMA, {"torch_dtype": None}, "torch_dtype: must be one of .*got 'nothing'"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quant_method: must be a known one .known are fp8, .*got"),
        (LLAMA, {"num_local_experts": 8}, "num_local_experts: must be absent, mixtures of experts are mixtral, "),
        (LLAMA, {"num_hidden_layers": MOST, "vocab_size": MOST, "hidden_size": 2**30}, "config: must be of at most"),
        (LLAMA, {"architectures": "Llama"}, "architectures: must be a list, got 'Llama'"),
        (LLAMA, {"torch_dtype": "bfloat16", "dtype": "float32"}, "torch_dtype: must be dtype, float32, got 'bfloat16'"),
        (LLAMA, {"num_key_value_heads": 7}, "num_key_value_heads: must divide num_attention_heads, 32, got 7"),
        (LLAMA, {"num_key_value_heads": None, "num_kv_heads": 8}, "num_kv_heads: must be num_key_value_heads, which"),
        (LLAMA, {"num_key_value_heads": None, "num_key_value_head": 8}, "value_head: must be num_key_value_heads"),
        (LLAMA, {"tie_word_embeddings": None, "tie_word_embedding": True}, "embedding: must be tie_word_embeddings"),
        (QWEN, {"head_dim": None, "hidden_size": 4097}, "hidden_size: must be a multiple of num_attention_heads, 32"),
        (LLAMA, {"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config: must be absent, layers that differ"),
        (LLAMA, {"block_configs": [{"attention": {"no_op": True}}]}, "block_configs: must be absent, layers that"),
        (LLAMA, {"kv_lora_rank": 512}, "kv_lora_rank: must be absent, layers that differ have no shape in common"),
        (DFLASH, {"linear_attn_config": {"num_heads": 16}}, "linear_attn_config: must be absent, layers that differ"),
        (QWEN, {"layer_types": ["full_attention", "linear_attention"]}, "layer_types: must hold .*got 'linear_att"),
        (QWEN_MOE, {"num_experts": None}, "num_experts: must be a whole number .*got 'nothing'"),
        (QWEN_MOE, {"num_local_experts": 64}, "num_local_experts: must be num_experts, 128, got 64"),
        (QWEN_MOE, {"num_experts": 1, "num_experts_per_tok": 1}, r"per_tok: must be .*two at least \(1\), got 1"),
        (QWEN_MOE, {"num_experts_per_tok": 129}, r"per_tok: must be at most the experts, .*\(128\), got 129"),
        (QWEN_MOE, {"mlp_only_layers": [0.5]}, "mlp_only_layers: must hold numbers of layers"),
        (QWEN_MOE, {"mlp_only_layers": 3}, "mlp_only_layers: must be a list, got 3"),
        (QWEN_MOE, {"moe_intermediate_size": MOST, "hidden_size": MOST}, "config: must be of at most"),
        (QWEN_MOE, {"architectures": ["Eagle3Qwen3MoE"]}, "must be a known one .*LlamaForCausalLM, .*'Eagle3Qwen3MoE'"),
        (QWEN_MOE, {"architectures": [], "model_type": "dots1"}, "num_experts: must be absent, mixtures of"),
        (DEEPSEEK, {"attention_bias": True}, "attention_bias: must be false, of compressed keys and values"),
        (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq: must be 1, got 2"),
        (DEEPSEEK, {"qk_rope_head_dim": None}, "qk_rope_head_dim: must be a whole number"),
        (GLM, {"use_qk_norm": None, "use_qk_norms": True}, "use_qk_norms: must be use_qk_norm, which is left out"),
        (GPT_OSS, {"model_type": "minimax_m2", "architectures": ["MiniMaxM2ForCausalLM"],
                   "shared_intermediate_size": 8}, "shared_intermediate_size: must be 0, got 8"),
        *((LLAMA, {"architectures": named}, "architectures: must be a list, got") for named in ("", {}, 0, False)),
        # Drafters.
        (QWEN, {"architectures": ["LlamaForCausalLM"]}, "must be Qwen3ForCausalLM, of model_type qwen3, got 'Llama"),
        (QWEN, {"architectures": ["Qwen3ForCausalLM", "Qwen2ForCausalLM"]}, "architectures: must be a known one"),
        (QWEN, {"architectures": [3]}, "architectures: must be a known one .*got 3"),
        (QWEN, {"architectures": None, "dflash_config": {}}, "architectures: must be a known one .*got 'nothing'"),
        (QWEN, {"draft_vocab_size": 32_000}, "draft_vocab_size: must be absent, of Qwen3ForCausalLM, got 32000"),
        (LLAMA, {"num_hidden_layers": 1}, "num_hidden_layers: must be 2 or more: of one layer are EAGLE heads"),
        (LLAMA, {"parallel_drafting": True}, "parallel_drafting: must be absent: it drafts in parallel"),
        (EAGLE3, {"draft_vocab_size": None, "draft_vocabulary_size": 8}, "vocabulary_size: must be draft_vocab_size"),
        (EAGLE3, {"eagle_config": {"eagle_aux_hidden_state_layers": [1]}}, "layers: must be eagle_aux_hidden_state_"),
        (EAGLE3, {"aux_hidden_state_layer_ids": [1]}, "aux_hidden_state_layer_ids: must be eagle_aux_hidden"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": [1], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2]}},
         r"eagle_aux_hidden_state_layer_ids: must be that of eagle_config, \[2\], got \[1\]"),
        (EAGLE3, {"eagle_config": {"use_aux_hidden_state": "no"}}, "use_aux_hidden_state: must be true or false"),
        (EAGLE3, {"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step: must be 1: heads that draft"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": [1], "num_aux_hidden_states": 3}, "states: must be 1, .*got 3"),
        (EAGLE3, {"ptd_token_id": 5}, "ptd_token_id: must be absent: heads that draft in parallel are not known"),
        (EAGLE3, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: must be absent of drafters"),
        (QWEN_MOE, {"architectures": ["LlamaForCausalLMEagle3"]}, "model_type: must be that of a dense decoder"),
        (DEEPSEEK, {"architectures": ["LlamaForCausalLMEagle3"], "first_k_dense_replace": 61},
         "model_type: must be that of a dense decoder with keys and values of heads, got 'deepseek_v3'"),
        (DFLASH, {"dflash_config": {}}, "dflash_config.target_layer_ids: must be a list of the target's layers"),
        (DFLASH, {"dflash_config": DRAWN | {"projector_type": "domino"}}, "projector_type: must be absent.*'domino'"),
        (DFLASH, {"dflash_config": DRAWN | {"projector_type": "dspark"}}, "projector_type: must be absent.*'dspark'"),
        (DFLASH, {"projector_type": "domino"}, "projector_type: must be absent: a DFlash drafter with more parts"),
        (DFLASH, {"dflash_config": DRAWN | {"selector_rank": 256}}, "selector_rank: must be absent.*got 256"),
        (DFLASH, {"dflash_config": DRAWN | {"block_size": 8}}, "config.block_size: must be block_size, 16, got 8"),
        (DFLASH, {"target_hidden_size": 2048}, "target_hidden_size: must be hidden_size, 4096: it uses .*got 2048"),
        (DFLASH, {"block_size": None}, "block_size: must be a whole number .*got 'nothing'"),
        (DFLASH, {"block_size": 1}, "block_size: must be 2 or more, the last token and those drafted after it, got 1"),
        (DFLASH, {"draft_vocab_size": 32_000}, "draft_vocab_size: must be absent, of DFlash, got 32000"),
        (MEDUSA, {"num_heads": None}, "num_heads: must be a whole number"),
        (MEDUSA, {"truncated_vocab_size": 8000}, "truncated_vocab_size: must be absent"),
        (MEDUSA, {"hidden_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "config: must be of at most"),
    ],
)  # fmt: skip
def test_a_config_that_says_too_little_or_what_is_not_known(tmp_path, base, change, told):
    refused(tmp_path, {**base, **change}, told)


@pytest.mark.parametrize("said", [MEDUSA, EAGLE3, DFLASH])
def test_a_drafter_made_for_a_target_of_another_width_is_refused(tmp_path, said):
    file = written(tmp_path, said)
    for models in ([f"d={file}"], ["llama-3.1-8b", f"d={file}"]):
        assert given_shapes(models, "target")[0].name == "d"
    with pytest.raises(
        TraceFormatError,
        match="hidden_size: must be the 3072 of target: a head reads the target's states, no other's, got",
    ):
        given_shapes(["llama-3.2-3b", f"d={file}"], "target")
    with pytest.raises(TraceFormatError, match="hidden_size: must be the 5120 of Qwen3-14B: a head reads"):
        given_shapes([f"d={file}"], "Qwen3-14B")
    with pytest.raises(TraceFormatError, match="hidden_size: must be the 8192 of target: a head reads"):
        given_shapes(["llama-3.1-70b", "mid=llama-3.1-8b", f"d={file}"], "target")


def test_a_file_that_is_no_config(tmp_path):
    refused(tmp_path, "{", "must be JSON")
    refused(tmp_path, "[]", "must be an object, got 'a list'")
    with pytest.raises(TraceFormatError, match="must be a readable file"):
        read(tmp_path / "nowhere.json", "target")


# -- configs that do not say what they are of


@pytest.mark.parametrize("kind", MODEL_TYPES)
@pytest.mark.parametrize(("layers", "named"), [(1, {}), (4, {"architectures": []})])
def test_a_config_without_architectures_may_be_a_drafters(tmp_path, kind, named, layers):
    """As `save_pretrained` of transformers' config writes it, without a model."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    saved = CONFIG_MAPPING[kind](num_hidden_layers=layers, hidden_size=512, **heads).to_dict()
    saved = {key: value for key, value in saved.items() if key != "architectures"} | {"dtype": "bfloat16"}
    with pytest.raises(TraceFormatError, match="architectures: must be there, or it is not known whether") as told:
        read(written(tmp_path, saved | named), "target")
    assert len(str(told.value)) <= 300
    added = json.loads(re.findall(r"\[.*?\]", str(told.value))[0])
    found = read(written(tmp_path, saved | {"architectures": added}), "target")
    assert found.layers == layers


# -- drafters: `architectures` says which one it is, whatever `model_type` its layers are of


def test_dflash_reads_its_layers_a_projection_and_the_targets_output(tmp_path):
    file = written(tmp_path, DFLASH)
    found = read(file, "d")
    layer = presets()["qwen-3-8b"].layer_parameters
    by_hand = 5 * layer + 5 * 4096 * 4096 + 2 * 4096 + 151_936 * 4096
    assert found.parameters == by_hand == pytest.approx(1.67e9, rel=0.01)
    assert (found.layers, found.kv_bytes_per_token) == (5, 5 * 2 * 8 * 128 * 2)
    assert found.draft_block == DraftBlock(tokens=15, fed="block")
    assert asked_shapes([f"d={file}"], "t", ["d", "t"], [])[2] == ()  # no decoder of a whole model


def test_medusa_reads_all_of_its_heads(tmp_path):
    found = read(written(tmp_path, MEDUSA), "m")
    assert found.parameters == 4 * (4096**2 + 4096 + 32_000 * 4096)
    assert found.draft_block == DraftBlock(tokens=4, fed="last")
    assert (found.layers, found.kv_bytes_per_token, found.dtype) == (1, 0, "float16")
    five = written(tmp_path, MEDUSA | {"num_heads": 5})
    assert read(five, "m") == given_shapes(["m=medusa-vicuna-7b"], "t")[0]


def test_pard_says_how_many_tokens_by_hand(tmp_path):
    rule = "pard_token: must be absent: it drafts in parallel, how many tokens you"
    file = refused(tmp_path, LLAMA | {"pard_token": 128_256}, rule)
    (found,) = given_shapes([f"draft={file}@block=8"], "target")
    assert found == presets()["llama-3.1-8b"].info("draft").model_copy(update={"draft_block": DraftBlock(tokens=8)})


@pytest.mark.parametrize(("said", "way"), [(DFLASH, "fp8"), (EAGLE3, "kv=fp8"), (MEDUSA, "block=4")])
def test_a_drafter_of_its_own_kind_is_not_served_otherwise(tmp_path, said, way):
    with pytest.raises(ValueError, match="must be without @: it is a drafter of its own kind"):
        given_shapes([f"d={written(tmp_path, said)}@{way}"], "target")


@pytest.mark.parametrize("features", [2, 3, 5])
def test_eagle_3_joins_as_many_states_as_it_says(tmp_path, features):
    said = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(range(features))}, "target_hidden_size": 8192}
    found = read(written(tmp_path, EAGLE3 | said), "e").parameters
    (plain,) = given_shapes(["e=eagle3-llama-3.1-8b"], "t")
    assert found == plain.parameters + (features * 8192 - 3 * 4096) * 4096


@pytest.mark.parametrize("features", [2, 5])
def test_the_states_may_be_named_beside_eagle_config(tmp_path, features):
    plain, listed = shape(tmp_path, EAGLE3), {"eagle_aux_hidden_state_layer_ids": list(range(features))}
    found = shape(tmp_path, EAGLE3 | listed).parameters
    assert found == plain.parameters + (features - 3) * 4096**2
    assert shape(tmp_path, EAGLE3 | listed | {"eagle_config": listed}).parameters == found
    counted = {"num_aux_hidden_states": features}
    assert (
        shape(tmp_path, EAGLE3 | counted).parameters == shape(tmp_path, EAGLE3 | listed | counted).parameters == found
    )


@pytest.mark.parametrize("listed", [[], [1, 2, 3]])
def test_eagle_3_of_the_last_state_alone_joins_none(tmp_path, listed):
    said = {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": listed}
    plain = shape(tmp_path, EAGLE3).parameters
    assert shape(tmp_path, EAGLE3 | {"eagle_config": said}).parameters == plain - 3 * 4096**2
    assert shape(tmp_path, EAGLE3 | {"eagle_config": said | {"use_aux_hidden_state": True}}).parameters == plain


def test_speculators_write_the_layer_apart(tmp_path):
    layer = {key: value for key, value in LLAMA.items() if key not in SAID_OUTSIDE} | {"num_hidden_layers": 1}
    whole = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 32_000,
             "torch_dtype": "bfloat16", "transformer_layer_config": layer}  # fmt: skip
    found = read(written(tmp_path, whole), "e")
    assert (found,) == given_shapes(["e=eagle3-llama-3.1-8b"], "t")


UNKNOWN = ["PEagleDraftModel", "DSparkDraftModel", "DominoForCausalLM", "Qwen3DSparkModel", "DFlashSpeculator2",
           "HassLlamaForCausalLM", "MLPSpeculatorPreTrainedModel", "LlamaForCausalLMEagle4", "EagleMiniCPMForCausalLM",
           "Eagle3Qwen3MoeForCausalLM", "Qwen3MTP", "DeepSeekMTPModel", "Qwen3ForSequenceClassification", "Qwen3Model",
           "Qwen3VLForConditionalGeneration", "GPTNeoXForCausalLM", "MambaForCausalLM", "qwen3", ""]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "base"), [(name, [QWEN, DFLASH, EAGLE3, QWEN_MOE][place % 4]) for place, name in enumerate(UNKNOWN)]
)
def test_architectures_that_are_not_known_are_refused_by_name(tmp_path, name, base):
    refused(tmp_path, base | {"architectures": [name]}, f"architectures: must be a known one .*got .*{name}.*'")


# -- what --models takes


def test_shapes_are_given_in_several_forms(tmp_path):
    config = written(tmp_path, LLAMA)
    listed = tmp_path / "list.json"
    shape = presets()["llama-68m"].info("draft")
    listed.write_text(json.dumps([shape.model_dump()]))
    found = given_shapes([f"target={config}", "eagle3=eagle3-llama-3.1-8b", str(listed), "mid=qwen2.5-7b"], "target")
    assert [each.name for each in found] == ["target", "draft", "eagle3", "mid"]
    assert given_shapes(["llama-3.1-8b"], "target") == (presets()["llama-3.1-8b"].info("target"),)
    one, other = (given_shapes(texts, "t") for texts in (["e=eagle3", "llama-3.1-8b"], ["t=llama-3.1-8b", "e=eagle3"]))
    assert one[1] == other[0]
    with pytest.raises(TraceFormatError, match="of a config say whose, NAME=FILE, got 'a config'"):
        given_shapes([str(config)], "target")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["target="], "`models` must be FILE.json, NAME=PRESET or NAME=CONFIG, got 'target='"),
        (["=llama-3.1-8b"], "`models` must be FILE.json, NAME=PRESET"),
        (["llama-9-8b"], r"`models` must be a config.json or a preset \(did you mean llama-.*got 'llama-9-8b'"),
        (
            ["target=mixtral-8x7b", "draft=eagle3"],
            "`models` draft=eagle3 must be a config.json or FILE.json: what heads of a",
        ),
        (["draft=mtp-qwen-3-30b-a3b"], "`models` draft=mtp-qwen-3-30b-a3b must be a config.json or FILE.json"),
        (["draft=eagle3"], "`models` draft=eagle3 must name the model it is a head of, as in eagle3-llama-3.1-8b"),
        (["llama-3.1-8b@block=4"], "`models` must give target no block: it is the target, and drafts nothing"),
        (["llama-3.1-8b", "target=qwen-3-8b"], "`models` must give each member one shape, got 'target' twice"),
    ],
)
def test_what_gives_no_shape_is_told_in_one_line(texts, told):
    with pytest.raises(ValueError, match=told) as caught:
        given_shapes(texts, "target")
    assert "\n" not in str(caught.value)


# -- what configs say of quantised weights and caches: bytes by hand


HIDDEN, LAYERS, TABLE = 4096, 32, 128_256 * 4096
ATTENTION, FEED_FORWARD = HIDDEN * (2 * 4096 + 2 * 1024), 3 * HIDDEN * 14_336
MATRICES = LAYERS * (ATTENTION + FEED_FORWARD)
ALL = presets()["llama-3.1-8b"].parameters
KV = LAYERS * 2 * 8 * 128

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}


def tensors(weights, fed=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": fed}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}} | more  # fmt: skip


FLOAT_8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
FLOAT_4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT_4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
INT_8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


@pytest.mark.parametrize(
    ("said", "form", "parameters", "bits", "arithmetic"),
    [
        (FP8, "fp8", MATRICES, 8 + 32 / 128**2, "fp8"),
        (FP8 | {"scale_fmt": "ue8m0"}, "fp8", MATRICES, 8 + 8 / 128**2, "fp8"),
        (FP8 | {"weight_block_size": None, "modules_to_not_convert": ["lm_head"]}, "fp8", MATRICES, 8, "fp8"),
        (FP8 | {"weight_block_size": None, "modules_to_not_convert": ["lm_head"], "ignored_layers": ["lm_head"]}, "fp8",
         MATRICES, 8, "fp8"),
        (FP8 | {"ignored_layers": ["model.layers.0", "model.layers.31.mlp"]}, "fp8",
         MATRICES - ATTENTION - 2 * FEED_FORWARD, 8 + 32 / 128**2, "fp8"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}, "fp8",
         LAYERS * FEED_FORWARD, 8, "fp8"),
        (GPTQ, "int4", MATRICES, 4 + 20 / 128, None),
        (GPTQ | {"bits": 8, "group_size": -1}, "int8", MATRICES, 8, None),
        (GPTQ | {"bits": 3, "group_size": 64, "lm_head": True}, "int3", MATRICES + TABLE, 3 + 19 / 64, None),
        (AWQ, "int4", MATRICES, 4 + 20 / 128, None),
        (BNB, "nf4", MATRICES, 4 + 32 / 64, None),
        (BNB | {"llm_int8_skip_modules": []}, "nf4", MATRICES + TABLE, 4 + 32 / 64, None),
        (BNB | {"llm_int8_skip_modules": ["lm_head"]}, "nf4", MATRICES, 4 + 32 / 64, None),
        (BNB | {"llm_int8_skip_modules": ["lm_head", "multi_modal_projector", "merger", "modality_projection"]}, "nf4",
         MATRICES, 4 + 32 / 64, None),
        (BNB | {"bnb_4bit_use_double_quant": True}, "nf4", MATRICES, 4 + (8 + 32 / 256) / 64, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", MATRICES, 8, "int8"),
        (tensors(FLOAT_8, FLOAT_8), "fp8", MATRICES, 8, "fp8"),
        (tensors(FLOAT_8), "fp8", MATRICES, 8, None),
        (tensors(INT_8, INT_8, format="int-quantized"), "int8", MATRICES, 8, "int8"),
        (tensors(INT_4), "int4", MATRICES, 4 + 16 / 128, None),
        (tensors(INT_4 | {"symmetric": False}), "int4", MATRICES, 4 + 20 / 128, None),
        (tensors(INT_4, FLOAT_8), "int4", MATRICES, 4 + 16 / 128, "fp8"),
        (tensors(FLOAT_4, FLOAT_4, format="nvfp4-pack-quantized"), "nvfp4", MATRICES, 4.5, "fp4"),
        (tensors(FLOAT_4 | {"group_size": 32, "strategy": "group"}), "mxfp4", MATRICES, 4.25, None),
        (tensors(FLOAT_8, FLOAT_8, ignore=[]), "fp8", MATRICES + TABLE, 8, "fp8"),
        (tensors(FLOAT_8, FLOAT_8, ignore=["re:.*self_attn.*", "re:vision_tower.*", "lm_head"]), "fp8",
         LAYERS * FEED_FORWARD, 8, "fp8"),
        (MODELOPT, "nvfp4", MATRICES, 4.5, "fp4"),
        (MODELOPT | {"quant_algo": "FP8", "group_size": None, "exclude_modules": ["lm_head", "model.layers.0*"]}, "fp8",
         31 * (ATTENTION + FEED_FORWARD), 8, "fp8"),
        (MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4", MATRICES, 4 + 16 / 64, None),
    ],
)  # fmt: skip
def test_what_a_config_says_of_its_weights(tmp_path, said, form, parameters, bits, arithmetic):
    found = shape(tmp_path, {**LLAMA, "quantization_config": said})
    assert (found.parameters, found.kv_bytes_per_token) == (ALL, 2 * KV)
    assert (found.quantised.format, found.quantised.parameters) == (form, parameters)
    assert found.quantised.bytes_per_parameter == pytest.approx(bits / 8)
    assert found.quantised.arithmetic == arithmetic
    assert found.weights_bytes == pytest.approx(2 * (ALL - parameters) + parameters * bits / 8, abs=1)


def test_mlx_packs_the_tables_too(tmp_path):
    said = {"group_size": 64, "bits": 4}
    once = shape(tmp_path, {**LLAMA, "quantization": said})
    assert once.quantised.parameters == MATRICES + 2 * TABLE
    assert once.quantised.bytes_per_parameter == pytest.approx(0.5 + 4 / 64)
    assert shape(tmp_path, {**LLAMA, "quantization": said, "quantization_config": said}) == once
    tied = {**LLAMA, "quantization": said, "tie_word_embeddings": True}
    assert shape(tmp_path, tied).quantised.parameters == MATRICES + TABLE


@pytest.mark.parametrize(
    ("said", "kv"),
    [
        (tensors(FLOAT_8, FLOAT_8, kv_cache_scheme={"num_bits": 8, "type": "float"}), KV),
        (tensors(FLOAT_8, FLOAT_8, kv_cache_scheme=None), 2 * KV),
        (MODELOPT | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, KV),
        (MODELOPT | {"kv_cache_quant_algo": "FP8"}, KV),
        (MODELOPT | {"kv_cache_quant_algo": "NVFP4"}, KV * 9 // 16),
    ],
)
def test_the_cache_has_a_dtype_of_its_own(tmp_path, said, kv):
    found = shape(tmp_path, {**LLAMA, "quantization_config": said})
    assert found.kv_bytes_per_token == kv


@pytest.mark.parametrize("module", [False, {"bits": 8, "group_size": 64}, None])
def test_a_module_that_mlx_writes_otherwise_is_refused(tmp_path, module):
    """By false it is left as it was, so that its weights would be priced as if they had four bits."""
    said = {"bits": 4, "group_size": 64, "lm_head": module}
    refused(
        tmp_path, {**LLAMA, "quantization": said}, r"quantization\.lm_head: must be absent, weights of several kinds"
    )


def test_what_is_said_under_another_key(tmp_path):
    for key in ("quant_config", "quantize_config", "quantisation_config"):
        refused(tmp_path, {**LLAMA, key: {"bits": 4}}, f"{key}: must be one of quantization_config, quantization, ")
    assert shape(tmp_path, {**LLAMA, "use_cache_quantization": False}) == shape(tmp_path, LLAMA)


@pytest.mark.parametrize(
    ("beside", "said", "form"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "int4"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, "int4"),
        ("compression_config", tensors(FLOAT_8, FLOAT_8), "fp8"),
        ("quantization", {"bits": 8, "group_size": 64}, "int8"),
    ],
)
def test_what_is_not_said_under_quantization_config(tmp_path, beside, said, form):
    """Llama 8B, as engines leave it: in a file beside the config, or under a key of its own."""
    inside = {} if beside.endswith(".json") else {beside: said}
    file = written(tmp_path, {**LLAMA, **inside})
    if not inside:
        (tmp_path / beside).write_text(json.dumps(said))
    assert read(file, "t").quantised.format == form
    assert read(tmp_path, "t") == read(file, "t")
    whole = tensors(INT_8, INT_8)
    both = written(tmp_path, {**LLAMA, **inside, "quantization_config": whole})
    with pytest.raises(TraceFormatError, match="must say of quantised weights what quantization_config of"):
        read(both, "t")
    if not inside:
        (tmp_path / beside).write_text("[")
        with pytest.raises(TraceFormatError, match=f"{beside}: content: must be JSON"):
            read(file, "t")


def test_a_mixture_has_all_experts_in_it_or_none(tmp_path):
    ignored = ["lm_head", "re:.*mlp.gate$"]
    said = tensors(FLOAT_8, FLOAT_8, ignore=ignored)
    found = shape(tmp_path, {**QWEN_MOE, "quantization_config": said})
    routers = 48 * 128 * 2048
    tables, norms = 2 * 151_936 * 2048, 48 * (2 * 2048 + 2 * 128) + 2048
    assert found.quantised.experts
    assert found.quantised.parameters == found.parameters - routers - tables - norms
    dense = tensors(FLOAT_8, FLOAT_8, ignore=[*ignored, "re:.*mlp.experts.*"])
    left = shape(tmp_path, {**QWEN_MOE, "quantization_config": dense}).quantised
    assert (left.experts, left.parameters) == (False, found.quantised.parameters - found.experts.all_parameters)
    some = tensors(FLOAT_8, FLOAT_8, ignore=["model.layers.3.mlp.experts"])
    refused(tmp_path, {**QWEN_MOE, "quantization_config": some}, "ignore: must skip all experts of a mixture or none")
    # Checkpoints of Mixtral call them otherwise; without experts it has the attention quantised.
    by_name = tensors(
        FLOAT_8, FLOAT_8, ignore=["lm_head", *(f"model.layers.{one}.block_sparse_moe" for one in range(32))]
    )
    for ignored in (by_name, tensors(FLOAT_8, FLOAT_8, ignore=["lm_head", "re:.*block_sparse_moe.*"])):
        left = shape(tmp_path, {**MIXTRAL, "quantization_config": ignored}).quantised
        assert (left.experts, left.parameters) == (False, LAYERS * ATTENTION)
    routers = tensors(FLOAT_8, FLOAT_8, ignore=["lm_head", "re:.*block_sparse_moe.gate"])
    assert shape(tmp_path, {**MIXTRAL, "quantization_config": routers}).quantised.experts
    for one in ("model.layers.0.block_sparse_moe", "re:.*w2$"):
        some = {**MIXTRAL, "quantization_config": tensors(FLOAT_8, FLOAT_8, ignore=[one])}
        refused(tmp_path, some, "ignore: must skip all experts of a mixture or none")
    rule = "quant_method: must be another for a mixture: what it does to experts is not known"
    refused(tmp_path, {**QWEN_MOE, "quantization_config": BNB}, rule)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"quant_method": "aqlm"}, "quant_method: must be a known one .known are fp8, .*got 'aqlm'"),
        ({"quant_method": ["fp8"]}, r"quant_method: must be a known one .known are fp8, .*got \['fp8'\]"),
        ({"quant_method": "quark"}, "quant_method: must be a known one .*got 'quark'"),
        ([], "quantization_config: must be an object, got 'a list'"),
        (FP8 | {"ignore": ["lm_head"]}, "ignore: must be modules_to_not_convert or ignored_layers, got .'lm_head'"),
        (
            FP8 | {"modules_to_not_convert": ["lm_head"], "ignored_layers": ["lm_head", "model.layers.0.mlp"]},
            "quantization_config.ignored_layers: must hold the names of modules_to_not_convert, got .'lm_head', 'model",
        ),
        (FP8 | {"modules_to_not_convert": [], "ignored_layers": ["lm_head"]}, "ignored_layers: must hold the names of"),
        (MODELOPT | {"ignore": ["lm_head", "model.layers.0*"]}, "ignore: must hold the names of exclude_modules, got"),
        (MODELOPT | {"ignore": "lm_head"}, "ignore: must be a list of names, got 'lm_head'"),
        (GPTQ | {"modules_to_not_convert": ["lm_head"]}, "must be absent, it is not known what it leaves out"),
        (AWQ | {"modules_to_not_convrt": ["x"]}, "modules_to_not_convrt: must be modules_to_not_convert, got"),
        (FP8 | {"fmt": "e5m2"}, "quantization_config.fmt: must be one of e4m3, float8_e4m3fn, got 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size: must be two whole numbers"),
        (FP8 | {"expert_dtype": "fp4"}, "expert_dtype: must be one of fp8, got 'fp4'"),
        (FP8 | {"modules_to_not_convert": ["w_o_hat"]}, "modules_to_not_convert: must name modules .*got 'w_o_hat'"),
        (FP8 | {"modules_to_not_convert": ["re:(("]}, "modules_to_not_convert: must be names or patterns"),
        (FP8 | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert: must be a list of names"),
        (GPTQ | {"bits": 5}, "bits: must be one of 2, 3, 4, 8, got 5"),
        (GPTQ | {"bits": True}, "bits: must be one of 2, 3, 4, 8, got True"),
        (GPTQ | {"bits": 4.0}, "bits: must be one of 2, 3, 4, 8, got 4.0"),
        (GPTQ | {"group_size": 0}, "group_size: must be a whole number >= 1, or -1, got 0"),
        (GPTQ | {"dynamic": {"x": {"bits": 8}}}, "dynamic: must be absent, weights of several kinds"),
        (BNB | {"load_in_8bit": True}, "load_in_4bit: must not be true beside load_in_8bit, got True"),
        (tensors(FLOAT_8) | {"config_groups": {}}, "config_groups: must hold a group, which says .*got 'none'"),
        (tensors(FLOAT_8) | {"config_groups": {"a": {}, "b": {}}}, "must hold one group, weights of .*got 2"),
        (tensors(FLOAT_8) | {"config_groups": None}, "config_groups: must be an object, got 'nothing'"),
        (tensors(FLOAT_8, ignore=""), "ignore: must be a list of names, got ''"),
        (FP8 | {"dequantize": True}, "dequantize: must be absent, it is not known whether .*got True"),
        (BNB | {"load_in_4bit": None}, "load_in_4bit: must be true, or else load_in_8bit, got 'nothing'"),
        (tensors(FLOAT_8) | {"config_groups": {"a": 1}}, "config_groups.a: must be an object, got 'a number'"),
        (tensors(FLOAT_8, format="marlin-24"), "format: must be one of float-quantized, .*got 'marlin-24'"),
        (tensors(FLOAT_8, sparsity_config={"format": "sparse-24"}), "sparsity_config.format: must be dense, .*24'"),
        (tensors(FLOAT_8, sparsity_config={"a": 1}), "sparsity_config.format: must be dense, .*got 'nothing'"),
        (tensors(FLOAT_8, {"num_bits": 4, "type": "int"}), "input_activations.type: must be float, of 4 bits"),
        (tensors(FLOAT_4 | {"group_size": 64}), "weights.group_size: must be 16 or 32, of floats of 4 bits, got 64"),
        (tensors(INT_4, kv_cache_scheme={"num_bits": 3}), "kv_cache_scheme.num_bits: must be one of 4, 8, got 3"),
        (MODELOPT | {"quant_algo": "MIXED_PRECISION"}, "quant_algo: must be one of FP8, .*got 'MIXED_PRECISION'"),
        (MODELOPT | {"exclude_modules": None}, "exclude_modules: must be there, or it is not known"),
        (MODELOPT | {"kv_cache_quant_algo": "FP6"}, "kv_cache_quant_algo: must be one of FP8, INT8, NVFP4, got 'FP6'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(tmp_path, said, told):
    refused(tmp_path, {**LLAMA, "quantization_config": said}, told)


PARTS = {
    "config": ([LLAMA, QWEN_MOE], sorted({*LLAMA, *QWEN_MOE, "text_config", "dtype"})),
    "weights": (
        WAYS := [FP8, GPTQ, AWQ, BNB, MODELOPT, tensors(FLOAT_8, FLOAT_8)],
        sorted({key for said in WAYS for key in said} | set(FLOAT_8)),
    ),
}
WORDS = ("float", "int", "group", "fp8", "Linear", "lm_head")


def values(keys):
    """Any JSON, of such keys and words."""
    plain = st.none() | st.booleans() | st.integers() | st.integers(-1, 300) | st.floats(allow_nan=False)
    return st.recursive(
        plain | st.text(max_size=4) | st.sampled_from(WORDS),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(keys), inner, max_size=3),
        max_leaves=6,
    )


@pytest.mark.parametrize("part", PARTS)
@given(data=st.data())
def test_any_config_has_a_shape_or_is_refused_in_one_line(tmp_path_factory, part, data):
    bases, keys = PARTS[part]
    said = data.draw(st.sampled_from(bases)) | data.draw(
        st.dictionaries(st.sampled_from(keys), values(keys), max_size=3)
    )
    if part == "weights":
        key = data.draw(st.sampled_from(["quantization_config", "quantization", "compression_config"]))
        said = {**LLAMA, "num_hidden_layers": 2, key: said}
    told = ""
    try:
        found = read(written(tmp_path_factory.mktemp("config"), said), "target")
        taken = min(found.parameters, found.weights_bytes)
    except TraceFormatError as error:
        taken, told = 1, str(error)
    assert taken > 0
    assert "\n" not in told


# -- what --models says after @


@pytest.mark.parametrize("form", FORMATS)
def test_a_preset_in_a_format(form):
    (plain, ours) = given_shapes(["a=llama-3.1-8b", f"b=llama-3.1-8b@{form}"], "t")
    assert ours.parameters == plain.parameters
    assert ours.quantised.parameters == MATRICES
    assert ours.weights_bytes == pytest.approx(2 * (ALL - MATRICES) + MATRICES * FORMATS[form].bytes_each, abs=1)
    assert ours.kv_bytes_per_token == plain.kv_bytes_per_token


def test_the_ways_that_a_model_is_served(tmp_path):
    file = written(tmp_path, LLAMA)
    asked = ["t=llama-3.1-8b@fp8,kv=fp8", f"c={file}@kv=fp8,fp8", f"d={tmp_path}@int4", "p=llama-3.2-1b@block=12"]
    config, folder, target, draft = given_shapes([*asked[1:3], asked[0], asked[3]], "t")
    assert config == target.model_copy(update={"name": "c"})
    assert (target.kv_bytes_per_token, target.quantised.arithmetic) == (KV, "fp8")
    assert (folder.quantised.format, folder.kv_bytes_per_token) == ("int4", 2 * KV)
    assert (draft.draft_block.tokens, draft.quantised) == (12, None)
    assert draft.parameters == presets()["llama-3.2-1b"].parameters
    assert given_shapes(["llama-3.1-8b@fp8,kv=fp8"], "t") == (target,)
    assert all(asked_shapes(asked, "t", "tcdp", [])[2][place].quantised is not None for place in (0, 1, 2))


def test_heads_are_in_the_targets_own_dtype_with_its_cache():
    plain, served = (
        given_shapes([f"t={target}", "eagle3=eagle3"], "t")[1] for target in ("llama-3.1-8b", "llama-3.1-8b@fp8,kv=fp8")
    )
    assert served == plain.model_copy(update={"kv_bytes_per_token": plain.kv_bytes_per_token // 2})


@pytest.mark.parametrize(
    "text",
    ["t=llama-3.1-8b@fp4", "t=llama-3.1-8b@FP8", "t=llama-3.1-8b@", "t=llama-3.1-8b@kv=fp9", "t=llama-3.1-8b@block=0",
     "t=llama-3.1-8b@fp8,int8", "t=qwen-3-8b@kv=fp8,kv=fp8", "t=@fp8", "llama-3.1-8b@fp8,", "t=llama-3.1-8b@block=²"],
)  # fmt: skip
def test_ways_that_are_none(text):
    rule = "`models` must say after @ one of fp8, int8, int4, nvfp4, mxfp4, kv= one"
    with pytest.raises(ValueError, match=rule) as caught:
        given_shapes([text], "t")
    assert "\n" not in str(caught.value)


def test_what_a_way_does_not_go_with(tmp_path):
    file = written(tmp_path, {**LLAMA, "quantization_config": FP8})
    with pytest.raises(ValueError, match="has fp8 weights, got int4"):
        given_shapes([f"t={file}@int4"], "t")
    with pytest.raises(ValueError, match="must be without @, but for its kv"):
        given_shapes(["t=llama-3.1-8b", "e=eagle3@fp8"], "t")
