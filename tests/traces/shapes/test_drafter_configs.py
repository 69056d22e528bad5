"""Configs of drafters: `architectures` says which one it is, whatever `model_type` its layers are of."""

import pytest
from paceline.traces.errors import TraceFormatError
from paceline.traces.meta import DraftBlock
from paceline.traces.shapes import presets
from paceline.traces.shapes_given import given_shapes, read_hub_config, read_hub_decoder

from .test_hub_config import LLAMA, QWEN_MOE, written

QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
DFLASH = QWEN | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "block_size": 16,
    "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151_669},
}
EAGLE3 = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}
MEDUSA = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": 4096,
    "vocab_size": 32_000,
    "num_heads": 4,
    "num_hidden_layers": 1,
    "torch_dtype": "float16",
}


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


@pytest.mark.parametrize("way", ["fp8", "kv=fp8", "block=4"])
@pytest.mark.parametrize("config", [DFLASH, EAGLE3, MEDUSA])
def test_a_drafter_of_its_own_kind_is_not_served_otherwise(tmp_path, config, way):
    with pytest.raises(ValueError, match="must be without @: it is a drafter of its own kind"):
        given_shapes([f"d={written(tmp_path, config)}@{way}"], "target")


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


@pytest.mark.parametrize("base", [QWEN, DFLASH, EAGLE3, QWEN_MOE], ids=["qwen3", "dflash", "eagle3", "moe"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_architectures_that_are_not_known_are_refused_by_name(tmp_path, base, name):
    file = written(tmp_path, base | {"architectures": [name]})
    for read in (lambda: read_hub_config(file, "d"), lambda: read_hub_decoder(file)):
        with pytest.raises(TraceFormatError, match="architectures: must be a known one ") as told:
            read()
        assert str(told.value).endswith(f"got {name!r}" if name else "got ['']")
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("config", "told"),
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
def test_what_is_near_to_a_known_one_is_refused(tmp_path, config, told):
    with pytest.raises(TraceFormatError, match=told) as caught:
        read_hub_config(written(tmp_path, config), "d")
    assert "\n" not in str(caught.value)
