"""Shapes from config.json files, and what cannot be told from one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.errors import TraceFormatError
from paceline.traces.shapes import presets
from paceline.traces.shapes_given import given_shapes, read_hub_config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MODEL_TYPES = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("mixtral", "qwen2_moe", "qwen3_moe"),
)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21_504,
        "vocab_size": 262_208,
    },
}

QWEN_MOE = {
    **{key: LLAMA[key] for key in ("tie_word_embeddings", "torch_dtype")},
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151_936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 32_000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN_2_MOE = {
    **{key: QWEN_MOE[key] for key in ("tie_word_embeddings", "torch_dtype", "vocab_size")},
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18_944,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20_480,
}


def written(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (LLAMA, "llama-3.1-8b"),
        (GEMMA, "gemma-3-27b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN_MOE, "qwen-3-30b-a3b"),
        (QWEN_2_MOE, "qwen-2-57b-a14b"),
    ],
)
def test_a_config_gives_what_the_preset_gives(tmp_path, config, preset):
    file = written(tmp_path, config)
    assert read_hub_config(file, "target") == presets()[preset].info("target")
    assert read_hub_config(tmp_path, "target") == read_hub_config(file, "target")


def test_a_mixture_that_transformers_saved_again_is_the_same(tmp_path):
    again = {key: value for key, value in QWEN_MOE.items() if key != "num_experts"} | {"num_local_experts": 128}
    assert read_hub_config(written(tmp_path, again), "t") == presets()["qwen-3-30b-a3b"].info("t")


def test_biases_that_a_config_gives(tmp_path):
    plain, rows = read_hub_config(written(tmp_path, LLAMA), "t"), (32 + 2 * 8) * 128 + 4096
    attention = read_hub_config(written(tmp_path, {**LLAMA, "attention_bias": True}), "t")
    assert attention.parameters - plain.parameters == 32 * rows
    feed_forward = read_hub_config(written(tmp_path, {**LLAMA, "mlp_bias": True}), "t")
    assert feed_forward.parameters - plain.parameters == 32 * (2 * 14_336 + 4096)
    # Mistral has none, whatever its config says.
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_bias": True}
    assert read_hub_config(written(tmp_path, mistral), "t") == plain


def test_what_a_config_leaves_out(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read_hub_config(written(tmp_path, config), "t").kv_bytes_per_token == 32 * 2 * 32 * 128 * 2
    tied = read_hub_config(written(tmp_path, {**LLAMA, "tie_word_embeddings": True}), "t")
    assert presets()["llama-3.1-8b"].parameters - tied.parameters == 128_256 * 4096


def test_a_config_of_a_head(tmp_path):
    head = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}
    (given_head,) = given_shapes(["eagle3=eagle3-llama-3.1-8b"], "target")
    assert read_hub_config(written(tmp_path, head), "eagle3") == given_head


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "gpt_neox"}, "model_type: must be a known one .known are llama, .*got 'gpt_neox'"),
        ({"model_type": None}, "model_type: must be a known one .*got 'nothing'"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: must be a whole number .*got '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number .*got 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers: must be a whole number .*got True"),
        ({"hidden_size": 10**10}, "hidden_size: must be a whole number .*got 10000000000"),
        ({"hidden_size": 4097}, "hidden_size: must be a multiple of num_attention_heads, 32, got 4097"),
        ({"vocab_size": None}, "vocab_size: must be a whole number .*got 'nothing'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false, got 'no'"),
        ({"torch_dtype": "float8"}, "torch_dtype: must be one of float32, .*got 'float8'"),
        ({"torch_dtype": None}, "torch_dtype: must be one of .*got 'nothing'"),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config.quant_method: must be a known one .known are fp8, .*got 'nothing'",
        ),
        ({"num_local_experts": 8}, "num_local_experts: must be absent, mixtures of experts are mixtral, "),
        ({"num_hidden_layers": 2**31 - 1, "vocab_size": 2**31 - 1, "hidden_size": 2**30}, "config: must be of at most"),
        ({"architectures": "Llama"}, "architectures: must be a list, got 'Llama'"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config: must be absent, layers that differ"),
    ],
)
def test_a_config_that_says_too_little(tmp_path, change, told):
    with pytest.raises(TraceFormatError, match=told) as caught:
        read_hub_config(written(tmp_path, {**LLAMA, **change}), "target")
    assert "\n" not in str(caught.value)


def test_layers_without_experts(tmp_path):
    """Six layers, of which the second and the fourth have experts, as transformers counts the model's parameters."""
    some = {**QWEN_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1, 1, 7]}
    found = read_hub_config(written(tmp_path, some), "t")
    assert found.parameters == 2_095_083_008
    assert found.experts.layers == 2
    none = read_hub_config(written(tmp_path, {**some, "mlp_only_layers": [1, 3, 5]}), "t")
    assert none.experts is None
    assert none.active_parameters == none.parameters


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_experts": None}, "num_experts: must be a whole number .*got 'nothing'"),
        ({"num_local_experts": 64}, "num_local_experts: must be num_experts, 128, got 64"),
        ({"num_experts": 1, "num_experts_per_tok": 1}, r"num_experts_per_tok: must be .*two at least \(1\), got 1"),
        (
            {"num_experts_per_tok": 129},
            r"num_experts_per_tok: must be at most the experts, two at least \(128\), got 129",
        ),
        ({"mlp_only_layers": [0.5]}, "mlp_only_layers: must hold numbers of layers"),
        ({"mlp_only_layers": 3}, "mlp_only_layers: must be a list, got 3"),
        ({"moe_intermediate_size": 2**31 - 1, "hidden_size": 2**31 - 1}, "config: must be of at most"),
        (
            {"architectures": ["Eagle3Qwen3MoE"]},
            "architectures: must be a known one .known are LlamaForCausalLM, .*got 'Eagle3Qwen3MoE'",
        ),
        ({"architectures": [], "model_type": "deepseek_v3"}, "num_experts: must be absent, mixtures of experts are"),
    ],
)
def test_a_mixture_that_says_too_little(tmp_path, change, told):
    with pytest.raises(TraceFormatError, match=told) as caught:
        read_hub_config(written(tmp_path, {**QWEN_MOE, **change}), "target")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "told"), [("{", "must be JSON"), ("[]", "must be an object, got 'a list'")])
def test_a_file_that_is_no_config(tmp_path, content, told):
    with pytest.raises(TraceFormatError, match=told):
        read_hub_config(written(tmp_path, content), "target")
    with pytest.raises(TraceFormatError, match="must be a readable file"):
        read_hub_config(tmp_path / "nowhere.json", "target")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(LLAMA)), inner, max_size=3),
    max_leaves=4,
)


@given(
    base=st.sampled_from([LLAMA, QWEN_MOE]),
    change=st.dictionaries(st.sampled_from([*LLAMA, *QWEN_MOE, "text_config", "dtype"]), JSON, max_size=3),
)
def test_any_config_has_a_shape_or_is_refused_in_one_line(tmp_path_factory, base, change):
    file = written(tmp_path_factory.mktemp("config"), {**base, **change})
    told = ""
    try:
        parameters = read_hub_config(file, "target").parameters
    except TraceFormatError as error:
        parameters, told = 1, str(error)
    assert parameters > 0
    assert "\n" not in told


# -- what --models takes


def test_shapes_are_given_in_several_forms(tmp_path):
    config = written(tmp_path, LLAMA)
    listed = tmp_path / "list.json"
    shape = presets()["llama-68m"].info("draft")
    listed.write_text(json.dumps([shape.model_dump()]))
    found = given_shapes([f"target={config}", "eagle3=eagle3-llama-3.1-8b", str(listed), "mid=qwen2.5-7b"], "target")
    assert [each.name for each in found] == ["target", "draft", "eagle3", "mid"]
    assert given_shapes(["llama-3.1-8b"], "target") == (presets()["llama-3.1-8b"].info("target"),)
    assert (
        given_shapes(["eagle=eagle3", "llama-3.1-8b"], "t")[1]
        == given_shapes(["t=llama-3.1-8b", "eagle=eagle3"], "t")[0]
    )


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
        (["llama-3.1-8b", "target=qwen-3-8b"], "`models` must give each member one shape, got 'target' twice"),
    ],
)
def test_what_gives_no_shape_is_told_in_one_line(texts, told):
    with pytest.raises(ValueError, match=told) as caught:
        given_shapes(texts, "target")
    assert "\n" not in str(caught.value)


def test_a_config_without_a_name_is_told_how(tmp_path):
    with pytest.raises(TraceFormatError, match="of a config say whose, NAME=FILE, got 'a config'"):
        given_shapes([str(written(tmp_path, LLAMA))], "target")


# -- configs that do not say what they are of


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("named", [{"architectures": None}, {"architectures": []}, {}], ids=["null", "empty", "absent"])
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_config_without_architectures_may_be_a_drafters(tmp_path, kind, named, layers):
    """As `save_pretrained` of transformers' config writes it, without a model."""
    saved = CONFIG_MAPPING[kind](num_hidden_layers=layers, hidden_size=512, num_attention_heads=8).to_dict()
    saved = {key: value for key, value in saved.items() if key != "architectures"} | {"dtype": "bfloat16"}
    with pytest.raises(TraceFormatError, match="architectures: must be there, or it is not known whether") as told:
        read_hub_config(written(tmp_path, saved | named), "target")
    assert len(str(told.value)) <= 300
    added = json.loads(re.findall(r"\[.*?\]", str(told.value))[0])
    found = read_hub_config(written(tmp_path, saved | {"architectures": added}), "target")
    assert found.layers == layers


@pytest.mark.parametrize("named", ["", {}, 0, False])
def test_architectures_that_are_no_list(tmp_path, named):
    with pytest.raises(TraceFormatError, match="architectures: must be a list, got"):
        read_hub_config(written(tmp_path, LLAMA | {"architectures": named}), "target")
