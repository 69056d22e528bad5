"""Shapes by name: counts are those of published weights, names are told apart, and submodels keep their share."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.traces import ModelInfo
from paceline.traces.meta import DraftBlock
from paceline.traces.shapes import (
    HEADS,
    head_called,
    head_of,
    model_called,
    named_shapes,
    preset_like,
    preset_names,
    presets,
)
from paceline.traces.shapes_given import asked_shapes, given_shapes

from .test_shapes_given import LLAMA, QWEN_MOE, written

# Parameters as the safetensors index or the model card counts them.
PUBLISHED = """
llama-2-7b 6_738_415_616, llama-2-13b 13_015_864_320, llama-2-70b 68_976_648_192
llama-3-8b 8_030_261_248, llama-3.3-70b 70_553_706_496, llama-3.1-405b 405_853_388_800
llama-3.2-1b 1_235_814_400, llama-3.2-3b 3_212_749_824, qwen-2.5-0.5b 494_032_768
qwen-2.5-1.5b 1_543_714_304, qwen-2.5-3b 3_085_938_688, qwen-2.5-7b 7_615_616_512
qwen-2.5-14b 14_770_033_664, qwen-2.5-32b 32_763_876_352, qwen-2.5-72b 72_706_203_648
qwen-3-1.7b 1_720_574_976, qwen-3-4b 4_022_468_096, qwen-3-8b 8_190_735_360
qwen-3-14b 14_768_307_200, qwen-3-32b 32_762_123_264, gemma-3-270m 268_098_176
gemma-3-1b 999_885_952, tinyllama-1.1b 1_100_048_384, mixtral-8x7b 46_702_792_704
mixtral-8x22b 140_620_634_112, qwen-2-57b-a14b 57_408_658_944, qwen-3-30b-a3b 30_532_122_624
qwen-3-235b-a22b 235_093_634_560, gpt-oss-20b 20_914_757_184, gpt-oss-120b 116_829_156_672
"""


def test_presets_count_what_was_published():
    published = dict(row.split() for row in PUBLISHED.strip().replace("\n", ", ").split(", "))
    assert {name: presets()[name].parameters for name in published} == {k: int(v) for k, v in published.items()}
    # What a token goes through, as cards of mixtures say: 13B, 39B, 14B, 3.3B, 22B.
    names = ("mixtral-8x7b", "mixtral-8x22b", "qwen-2-57b-a14b", "qwen-3-30b-a3b", "qwen-3-235b-a22b")
    found = [presets()[name].info("t").active_parameters for name in names]
    assert found == pytest.approx([12.9e9, 39.2e9, 14.2e9, 3.4e9, 22.2e9], abs=5e7)


def test_heads_of_mixtures_do_not_follow_from_them():
    for name in ("mixtral-8x7b", "qwen-3-30b-a3b"):
        target = presets()[name]
        assert {kind for kind in HEADS if head_of(kind, target, "h") is not None} == {"medusa"}
        assert named_shapes(["eagle3", "medusa"], "t", known=target.info("t"))["medusa"].shape is not None
        assert "eagle3" not in named_shapes(["eagle3"], "t", known=target.info("t"))


def test_keys_and_values_by_hand():
    size = {"parameters": 8_030_261_248, "layers": 32, "hidden_size": 4096, "kv_bytes_per_token": 32 * 2 * 8 * 128 * 2}
    size |= {"kv_heads": 8, "embedding_parameters": 128_256 * 4096}
    assert presets()["llama-3.1-8b"].info("target") == ModelInfo(name="target", dtype="bfloat16", **size)


def test_a_preset_is_recognised_where_a_recording_of_before_says_less_of_it():
    for name in ("qwen-3-8b", "qwen-3-32b"):
        shape = presets()[name].info("t")
        unsaid = dict.fromkeys(("attention_size", "kv_heads", "embedding_parameters"))
        assert preset_like(shape.model_copy(update=unsaid)) == preset_like(shape) == name
        assert preset_like(shape.model_copy(update={"kv_heads": 7})) is None


# What people write, and the model and the kind of head that it says.
WRITTEN = [
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", None), ("Meta-Llama-3-8B-Instruct", "llama-3-8b", None),
    ("openai/gpt-oss-120b", "gpt-oss-120b", None),
    ("Llama-2-7b-chat-hf", "llama-2-7b", None), ("llama3.1:8b", "llama-3.1-8b", None),
    ("Qwen2.5-7B-Instruct", "qwen-2.5-7b", None), ("Qwen/Qwen3-4B-Instruct-2507", "qwen-3-4b", None),
    ("google/gemma-3-27b-it", "gemma-3-27b", None), ("vicuna-7b-v1.3-vanilla-float16-temp-0.0", "vicuna-7b", None),
    ("JackFram/llama-68m", "llama-68m", None), ("TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b", None),
    ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "llama-3.1-8b", "eagle3"),
    ("yuhuili/EAGLE-Vicuna-7B-v1.3", "vicuna-7b", "eagle"), ("Qwen3-8B_eagle3", "qwen-3-8b", "eagle3"),
    ("eagle3-llama-3.1-8b", "llama-3.1-8b", "eagle3"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", None), ("Mixtral-8x22B-v0.1", "mixtral-8x22b", None),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen-3-30b-a3b", None),
    ("Qwen3-Coder-30B-A3B-Instruct", "qwen-3-30b-a3b", None), ("Qwen3-30B-A3B-FP8", None, None),
    ("Qwen3-30B", None, None), ("Qwen3-Next-80B-A3B-Instruct", None, None), ("mtp", None, "mtp"),
    ("medusa-vicuna-7b", "vicuna-7b", "medusa"), ("target", None, None), ("llama-7b", None, None),
    ("Llama-3.1-9B", None, None), ("Qwen2.5-7B-Instruct-AWQ", None, None), ("Llama-3.1-8B-Instruct-FP8", None, None),
    ("llama-3.1-8b-Q4_K_M", None, None), ("", None, None),
]  # fmt: skip


def test_names_that_people_write():
    assert [(text, model_called(text), head_called(text)) for text, _, _ in WRITTEN] == WRITTEN


@given(st.sampled_from(sorted(presets())), st.sampled_from(sorted(HEADS)))
def test_a_preset_is_called_by_its_own_name(model, head):
    assert model_called(model) == model
    assert head_called(f"{head}-{model}") == head
    assert model_called(f"{head}-{model}") == model
    assert {model, head} <= set(preset_names())


@given(st.text())
def test_any_text_is_a_name_or_none(text):
    found = named_shapes([text], text)
    assert set(found) <= {text}
    assert model_called(text) is None or model_called(text) in presets()


def test_heads_by_hand():
    target = presets()["llama-3.1-8b"]
    hidden, kv, wide, outputs = 4096, 1024, 14_336, 128_256
    attention, feed_forward = hidden * (hidden + 2 * kv), 3 * hidden * wide
    layer = attention + hidden * hidden + feed_forward + 2 * hidden
    assert head_of("eagle", target, "e").parameters == layer + 2 * hidden**2 + outputs * hidden
    assert head_of("mtp", target, "e") == head_of("eagle", target, "e")
    assert {head_of(kind, target, "e").embedding_parameters for kind in HEADS} == {None}  # theirs are the target's
    eagle3 = 2 * attention + hidden * hidden + feed_forward + 3 * hidden + 3 * hidden**2 + hidden + 32_000 * hidden
    assert head_of("eagle3", target, "e").parameters == eagle3
    medusa = head_of("medusa", target, "m")
    assert (medusa.parameters, medusa.kv_bytes_per_token) == (5 * (hidden**2 + hidden + outputs * hidden), 0)
    assert (medusa.draft_block, medusa.layers) == (DraftBlock(tokens=5, fed="last"), 1)


def test_heads_without_a_model_are_the_targets():
    by_name = named_shapes(["Llama-3.1-8B", "eagle3"], "Llama-3.1-8B")
    known = presets()["llama-3.1-8b"].info("target")
    by_shape = named_shapes(["eagle3"], "target", known=known)
    assert by_name["eagle3"].shape == by_shape["eagle3"].shape
    assert by_shape["eagle3"].words == "eagle3 is the EAGLE-3 head of the target"
    assert by_name["Llama-3.1-8B"].words == "Llama-3.1-8B is llama-3.1-8b"
    assert named_shapes(["eagle3"], "target") == {}
    assert named_shapes(["eagle3"], "target", known=known.model_copy(update={"layers": 7})) == {}


QWEN_8B, LLAMA_8B, LLAMA_70B = "Qwen3-8B", "Llama-3.1-8B-Instruct", "Llama-3.3-70B-Instruct"
# By target, what drafters are taken for, as hubs and engines write them.
KNOWN = {
    QWEN_8B: {
        "qwen-3-0.6b": "Qwen3-0.6B",
        "qwen-3-1.7b": "Qwen/Qwen3-1.7B",
        "qwen-3-4b": "Qwen3-4B-Instruct-2507",
        "eagle": "eagle",
        "eagle3": "eagle3 EAGLE-3 AngelSlim/Qwen3-8B_eagle3 Tengyunw/qwen3_8b_eagle3 "
                  "RedHatAI/Qwen3-8B-speculator.eagle3",
    },
    "Qwen2.5-Coder-32B-Instruct": {"qwen-2.5-0.5b": "Qwen2.5-Coder-0.5B-Instruct"},
    "Qwen2.5-72B-Instruct": {"qwen-2.5-0.5b": "Qwen2.5-0.5B-Instruct"},
    LLAMA_8B: {
        "llama-3.2-1b": "Llama-3.2-1B-Instruct llama3.2:1b",
        "mtp": "mtp nextn",
        "medusa": "medusa",
        "eagle3": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3 "
                  "sglang-EAGLE3-LLaMA3.1-Instruct-8B",
    },
    LLAMA_70B: {"llama-3.2-3b": "meta-llama/Llama-3.2-3B", "llama-3.1-8b": "Meta-Llama-3.1-8B-Instruct"},
    "vicuna-7b-v1.3": {
        "llama-68m": "JackFram/llama-68m",
        "vicuna-68m": "double7/vicuna-68m",
        "eagle": "yuhuili/EAGLE-Vicuna-7B-v1.3",
        "medusa": "FasterDecoding/medusa-vicuna-7b-v1.3",
    },
    "Llama-2-7b-chat-hf": {"tinyllama-1.1b": "TinyLlama-1.1B-Chat-v1.0", "eagle": "yuhuili/EAGLE-llama2-chat-7B"},
    "gemma-3-27b-it": {"gemma-3-1b": "google/gemma-3-1b-it"},
    "gemma-3-4b-pt": {"gemma-3-270m": "gemma-3-270m"},
    "Qwen3-30B-A3B-Instruct-2507": {"qwen-3-8b": "Qwen3-8B"},
    "Meta-Llama-3-8B-Instruct": {"eagle": "yuhuili/EAGLE-LLaMA3-Instruct-8B"},
    "vicuna-13b-v1.3": {"eagle3": "yuhuili/EAGLE3-Vicuna1.3-13B"},
}  # fmt: skip
COPIES = "ngram ngram_gpu ngram-simple ngram-map-k4v ngram-cache prompt-lookup suffix pld n-gram"
# A target's name and more, other methods, names near to known ones, of the target's size or larger, and heads of other
# models, whose states are of another width.
UNKNOWN = {
    QWEN_8B: "z-lab/Qwen3-8B-DFlash-b16 Qwen3-8B-DFlash Qwen3-4B-DFlash-b16 dflash "
             "deepseek-ai/dspark_qwen3_8b_block7 Qwen3-8B-Domino peagle P-EAGLE Qwen3-8B-P-EAGLE eagle3.1 "
             "eagle-3.5-qwen3-8b eagle4 Qwen3-8B-eagle3-hass deepseek_mtp qwen3_next_mtp PARD-Qwen3-0.6B "
             "Qwen3-0.6B-FP8 Qwen3-Embedding-0.6B Qwen3-8B-ngram-embedding suffix-llama Qwen3-8B-Instruct "
             "AngelSlim/Qwen3-4B_eagle3 Qwen3-4B-speculator Qwen3-4B-head",
    "Meta-Llama-3-8B-Instruct": "HASS-LLaMA3-Instruct-8B ibm-ai-platform/llama3-8b-accelerator",
    "Llama-2-13b-chat-hf": "llama-13b-accelerator",
    LLAMA_8B: "p-eagle3-llama-3.1-8b amd/PARD-Llama-3.2-1B Llama-3.2-1B-pruned Llama-3.3-70B-Instruct "
              "EAGLE3-LLaMA3.3-Instruct-70B",
    "vicuna-7b-v1.3": "hydra-vicuna-7b medusa-2-vicuna-7b",
    "Qwen2.5-72B-Instruct": "Qwen2.5-VL-3B-Instruct",
    "Llama-2-70b": "CodeLlama-7b-hf",
    "gemma-3-27b-it": "gemma-3n-E2B-it",
    "Qwen3-8B-Base": "Qwen3-8B",
    "Qwen3-4B-Instruct-2507": "Qwen3-4B",
}  # fmt: skip


def member(text):
    """As a member of a pool can be called."""
    return text.rpartition("/")[2].replace(":", "-")


@pytest.mark.parametrize("target", KNOWN)
def test_names_that_say_a_shape(target):
    for shape, names in KNOWN[target].items():
        for drafter in map(member, names.split()):
            found = named_shapes([drafter, target], target)
            whole = f"{shape}-{model_called(target)}" if shape in HEADS else shape
            assert (found[drafter].shape,) == given_shapes([f"{drafter}={whole}"], target)
            assert found[target].shape == presets()[model_called(target)].info(target)


def test_names_of_what_copies_text():
    for name in COPIES.split():
        assert named_shapes([name], QWEN_8B)[name] == (None, f"{name} copies text")


@pytest.mark.parametrize("target", UNKNOWN)
def test_names_that_say_no_shape(target):
    for name in UNKNOWN[target].split():
        assert set(named_shapes([member(name), target], target)) == {target}, name


def test_sizes_that_nobody_knows_confirm_nothing():
    known = presets()["qwen-3-8b"].info("target").model_copy(update={"layers": 7})
    for drafter in ("Qwen3-0.6B", "Llama-3.2-1B-Instruct"):
        assert named_shapes([drafter, "target"], "target") == {}
        assert set(named_shapes([drafter], "target", known=known)) == {drafter}


WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9)


@given(st.sampled_from(sorted(presets())), WORDS, st.booleans())
def test_a_word_more_than_the_model_is_another_model(model, word, first):
    text = f"{word}-{model}" if first else f"{model}-{word}"
    assert model_called(text) in (None, model)
    if model_called(text) == model:
        assert head_called(text) is not None or word in KNOWN_WORDS


KNOWN_WORDS = {"instruct", "chat", "base", "thinking", "coder", "math", "meta", "sglang", "speculator", "head", "draft",
               "drafter", "target", "vanilla", "temp", "latest"}  # fmt: skip


# Submodels of a model that is given another shape.


def shape(name, layers, submodel_of=None):
    size = {"parameters": 400 + 100 * layers, "layers": layers, "hidden_size": 64, "kv_bytes_per_token": 4 * layers}
    return ModelInfo(name=name, dtype="float32", submodel_of=submodel_of, **size)


POOL = (shape("thin", 1, "slim"), shape("slim", 6, "target"), shape("mid", 3), shape("target", 11))


def derived(*texts, recorded=POOL):
    _, found, _ = asked_shapes(texts, "target", ["target", *(shape.name for shape in recorded)], recorded)
    return {each.shape.name: each for each in found}


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


def test_a_config_says_what_a_layer_weighs_and_a_mixture_has_experts_in_the_layers_that_are_kept(tmp_path):
    written(tmp_path, LLAMA | {"num_hidden_layers": 22})
    whole, slim = presets()["llama-3.1-8b"], derived(f"target={tmp_path}")["slim"].shape
    assert (slim.layers, slim.parameters) == (12, whole.parameters - 20 * whole.layer_parameters)
    slim = derived("mixtral-8x7b")["slim"].shape
    assert (slim.layers, slim.experts.layers) == (17, 17)
    written(tmp_path, QWEN_MOE | {"mlp_only_layers": [0]})
    with pytest.raises(ArgumentError, match=r"some layers of target have experts and others none$"):
        derived(f"target={tmp_path}")


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
    for texts in (["slim=llama-3.2-1b"], ["llama-3.2-1b", "slim=llama-3.1-8b"]):  # larger than its model
        with pytest.raises(ArgumentError, match=r"^`models` must give slim, a submodel of target, no more layers and "):
            derived(*texts)
