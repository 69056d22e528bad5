"""Shapes from configs, of models and drafters, and from what `--models` takes; what cannot be told is refused."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.errors import TraceFormatError
from paceline.traces.meta import DraftBlock
from paceline.traces.shapes import presets
from paceline.traces.shapes_given import given_shapes, read_hub_config, read_hub_decoder
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
MODEL_TYPES = (*GATED, "mixtral", "qwen2_moe", "qwen3_moe")
MOST = 2**31 - 1


def config(architecture, model_type, hidden, layers, heads, kv_heads, intermediate, vocabulary, **more):
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


LLAMA = config("LlamaForCausalLM", "llama", 4096, 32, 32, 8, 14_336, 128_256)
GEMMA_TEXT = config("", "gemma3_text", 5376, 62, 32, 16, 21_504, 262_208, head_dim=128)
for key in ("architectures", "tie_word_embeddings", "torch_dtype"):
    del GEMMA_TEXT[key]
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "dtype": "bfloat16",
    "text_config": GEMMA_TEXT,
}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
           "mlp_only_layers": []}  # fmt: skip
QWEN_MOE = config("Qwen3MoeForCausalLM", "qwen3_moe", 2048, 48, 32, 4, 6144, 151_936, head_dim=128, **EXPERTS)
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32_000,
           "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
SHARED = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
          "shared_expert_intermediate_size": 20_480}  # fmt: skip
QWEN_2_MOE = config("Qwen2MoeForCausalLM", "qwen2_moe", 3584, 28, 28, 4, 18_944, 151_936, **SHARED)
QWEN = config("Qwen3ForCausalLM", "qwen3", 4096, 36, 32, 8, 12_288, 151_936, head_dim=128)
DFLASH = QWEN | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "block_size": 16,
    "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151_669},
}
EAGLE3 = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}
MEDUSA = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 4096, "vocab_size": 32_000,
          "num_heads": 4, "num_hidden_layers": 1, "torch_dtype": "float16"}  # fmt: skip


def written(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def shape(tmp_path, content, name="t"):
    return read_hub_config(written(tmp_path, content), name)


def refused(tmp_path, content, told):
    with pytest.raises(TraceFormatError, match=told) as caught:
        read_hub_config(written(tmp_path, content), "t")
    assert "\n" not in str(caught.value)


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
    ],
)
def test_a_config_gives_what_the_preset_gives(tmp_path, said, preset):
    file = written(tmp_path, said)
    assert read_hub_config(file, "target") == presets()[preset].info("target")
    assert read_hub_config(tmp_path, "target") == read_hub_config(file, "target")


def test_biases_that_a_config_gives_and_what_it_leaves_out(tmp_path):
    plain, rows = shape(tmp_path, LLAMA), (32 + 2 * 8) * 128 + 4096
    assert shape(tmp_path, {**LLAMA, "attention_bias": True}).parameters - plain.parameters == 32 * rows
    feed_forward = shape(tmp_path, {**LLAMA, "mlp_bias": True})
    assert feed_forward.parameters - plain.parameters == 32 * (2 * 14_336 + 4096)
    # Mistral has none, whatever its config says.
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_bias": True}
    assert shape(tmp_path, mistral) == plain
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert shape(tmp_path, without).kv_bytes_per_token == 32 * 2 * 32 * 128 * 2
    tied = shape(tmp_path, {**LLAMA, "tie_word_embeddings": True})
    assert plain.parameters - tied.parameters == 128_256 * 4096


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
        (LLAMA, {"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config: must be absent, layers that differ"),
        (QWEN_MOE, {"num_experts": None}, "num_experts: must be a whole number .*got 'nothing'"),
        (QWEN_MOE, {"num_local_experts": 64}, "num_local_experts: must be num_experts, 128, got 64"),
        (QWEN_MOE, {"num_experts": 1, "num_experts_per_tok": 1}, r"per_tok: must be .*two at least \(1\), got 1"),
        (QWEN_MOE, {"num_experts_per_tok": 129}, r"per_tok: must be at most the experts, .*\(128\), got 129"),
        (QWEN_MOE, {"mlp_only_layers": [0.5]}, "mlp_only_layers: must hold numbers of layers"),
        (QWEN_MOE, {"mlp_only_layers": 3}, "mlp_only_layers: must be a list, got 3"),
        (QWEN_MOE, {"moe_intermediate_size": MOST, "hidden_size": MOST}, "config: must be of at most"),
        (QWEN_MOE, {"architectures": ["Eagle3Qwen3MoE"]}, "must be a known one .*LlamaForCausalLM, .*'Eagle3Qwen3MoE'"),
        (QWEN_MOE, {"architectures": [], "model_type": "deepseek_v3"}, "num_experts: must be absent, mixtures of"),
    ],
)  # fmt: skip
def test_a_config_that_says_too_little(tmp_path, base, change, told):
    refused(tmp_path, {**base, **change}, told)


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


# -- configs that do not say what they are of


@pytest.mark.parametrize("kind", MODEL_TYPES)
@pytest.mark.parametrize(("layers", "named"), [(1, {}), (4, {"architectures": None}), (4, {"architectures": []})])
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
    refused(tmp_path, LLAMA | {"architectures": named}, "architectures: must be a list, got")


# -- drafters: `architectures` says which one it is, whatever `model_type` its layers are of


def test_dflash_reads_its_layers_a_projection_and_the_targets_output(tmp_path):
    file = written(tmp_path, DFLASH)
    found = read_hub_config(file, "d")
    layer = presets()["qwen-3-8b"].layer_parameters
    by_hand = 5 * layer + 5 * 4096 * 4096 + 2 * 4096 + 151_936 * 4096
    assert found.parameters == by_hand == pytest.approx(1.67e9, rel=0.01)
    assert (found.draft_block, found.layers, found.kv_bytes_per_token) == (
        DraftBlock(tokens=15, fed="block"),
        5,
        5 * 2 * 8 * 128 * 2,
    )
    assert read_hub_decoder(file) is None


def test_medusa_reads_all_of_its_heads(tmp_path):
    found = read_hub_config(written(tmp_path, MEDUSA), "m")
    assert found.parameters == 4 * (4096**2 + 4096 + 32_000 * 4096)
    assert found.draft_block == DraftBlock(tokens=4, fed="last")
    assert (found.layers, found.kv_bytes_per_token, found.dtype) == (1, 0, "float16")
    five = written(tmp_path, MEDUSA | {"num_heads": 5})
    assert read_hub_config(five, "m") == given_shapes(["m=medusa-vicuna-7b"], "t")[0]


def test_pard_says_how_many_tokens_by_hand(tmp_path):
    file = written(tmp_path, LLAMA | {"pard_token": 128_256})
    with pytest.raises(
        TraceFormatError, match="pard_token: must be absent: it drafts in parallel, how many tokens you"
    ):
        read_hub_config(file, "draft")
    (found,) = given_shapes([f"draft={file}@block=8"], "target")
    assert found == presets()["llama-3.1-8b"].info("draft").model_copy(update={"draft_block": DraftBlock(tokens=8)})


@pytest.mark.parametrize(("said", "way"), [(DFLASH, "fp8"), (EAGLE3, "kv=fp8"), (MEDUSA, "block=4")])
def test_a_drafter_of_its_own_kind_is_not_served_otherwise(tmp_path, said, way):
    with pytest.raises(ValueError, match="must be without @: it is a drafter of its own kind"):
        given_shapes([f"d={written(tmp_path, said)}@{way}"], "target")


@pytest.mark.parametrize("features", [2, 3, 5])
def test_eagle_3_joins_as_many_states_as_it_says(tmp_path, features):
    said = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(range(features))}, "target_hidden_size": 8192}
    found = read_hub_config(written(tmp_path, EAGLE3 | said), "e").parameters
    (plain,) = given_shapes(["e=eagle3-llama-3.1-8b"], "t")
    assert found == plain.parameters + (features * 8192 - 3 * 4096) * 4096


def test_speculators_write_the_layer_apart(tmp_path):
    layer = {key: value for key, value in LLAMA.items() if key not in ("architectures", "torch_dtype")}
    whole = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32_000,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": layer | {"num_hidden_layers": 1},
    }
    found = read_hub_config(written(tmp_path, whole), "e")
    assert (found,) == given_shapes(["e=eagle3-llama-3.1-8b"], "t")


UNKNOWN = ["PEagleDraftModel", "DSparkDraftModel", "DominoForCausalLM", "Qwen3DSparkModel", "DFlashSpeculator2",
           "HassLlamaForCausalLM", "MLPSpeculatorPreTrainedModel", "LlamaForCausalLMEagle4", "EagleMiniCPMForCausalLM",
           "Eagle3Qwen3MoeForCausalLM", "Qwen3MTP", "DeepSeekMTPModel", "Qwen3ForSequenceClassification", "Qwen3Model",
           "Qwen3VLForConditionalGeneration", "GPTNeoXForCausalLM", "MambaForCausalLM", "qwen3", ""]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "base"), [(name, [QWEN, DFLASH, EAGLE3, QWEN_MOE][place % 4]) for place, name in enumerate(UNKNOWN)]
)
def test_architectures_that_are_not_known_are_refused_by_name(tmp_path, name, base):
    file = written(tmp_path, base | {"architectures": [name]})
    for read in (lambda: read_hub_config(file, "d"), lambda: read_hub_decoder(file)):
        with pytest.raises(TraceFormatError, match="architectures: must be a known one ") as told:
            read()
        assert str(told.value).endswith(f"got {name!r}" if name else "got ['']")
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (QWEN | {"architectures": ["LlamaForCausalLM"]}, "must be Qwen3ForCausalLM, of model_type qwen3, got 'Llama"),
        (QWEN | {"architectures": ["Qwen3ForCausalLM", "Qwen2ForCausalLM"]}, "architectures: must be a known one"),
        (QWEN | {"architectures": [3]}, "architectures: must be a known one .*got 3"),
        (QWEN | {"architectures": None, "dflash_config": {}}, "architectures: must be a known one .*got 'nothing'"),
        (QWEN | {"draft_vocab_size": 32_000}, "draft_vocab_size: must be absent, of Qwen3ForCausalLM, got 32000"),
        (LLAMA | {"num_hidden_layers": 1}, "num_hidden_layers: must be 2 or more: of one layer are EAGLE heads"),
        (LLAMA | {"parallel_drafting": True}, "parallel_drafting: must be absent: it drafts in parallel"),
        (EAGLE3 | {"num_hidden_layers": 4}, "num_hidden_layers: must be 1, of an EAGLE head, got 4"),
        (EAGLE3 | {"ptd_token_id": 5}, "ptd_token_id: must be absent: heads that draft in parallel are not known"),
        (EAGLE3 | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: must be absent of drafters"),
        (QWEN_MOE | {"architectures": ["LlamaForCausalLMEagle3"]}, "model_type: must be that of a dense decoder"),
        (DFLASH | {"dflash_config": {}}, "dflash_config.target_layer_ids: must be a list of the target's layers"),
        (DFLASH | {"block_size": None}, "block_size: must be a whole number .*got 'nothing'"),
        (DFLASH | {"block_size": 1}, "block_size: must be 2 or more, the last token and those drafted after it, got 1"),
        (DFLASH | {"draft_vocab_size": 32_000}, "draft_vocab_size: must be absent, of DFlash, got 32000"),
        (MEDUSA | {"num_heads": None}, "num_heads: must be a whole number"),
        (MEDUSA | {"truncated_vocab_size": 8000}, "truncated_vocab_size: must be absent"),
        (MEDUSA | {"hidden_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "config: must be of at most"),
    ],
)
def test_what_is_near_to_a_known_one_is_refused(tmp_path, said, told):
    refused(tmp_path, said, told)


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
