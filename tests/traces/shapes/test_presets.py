"""Shapes by name: counts are those of the published weights, and names are told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces import ModelInfo
from paceline.traces.meta import DraftBlock
from paceline.traces.shapes import HEADS, head_called, head_of, model_called, named_shapes, preset_names, presets

# Parameters as the safetensors index or the model card counts them.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen-2.5-0.5b": 494_032_768,
    "qwen-2.5-1.5b": 1_543_714_304,
    "qwen-2.5-3b": 3_085_938_688,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-14b": 14_770_033_664,
    "qwen-2.5-32b": 32_763_876_352,
    "qwen-2.5-72b": 72_706_203_648,
    "qwen-3-1.7b": 1_720_574_976,
    "qwen-3-4b": 4_022_468_096,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-14b": 14_768_307_200,
    "qwen-3-32b": 32_762_123_264,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "tinyllama-1.1b": 1_100_048_384,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen-2-57b-a14b": 57_408_658_944,
    "qwen-3-30b-a3b": 30_532_122_624,
    "qwen-3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_count_what_was_published(name):
    assert presets()[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),  # that a token goes through, as their cards say: 13B, 39B, 14B, 3.3B, 22B
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39.2),
        ("qwen-2-57b-a14b", 14.2),
        ("qwen-3-30b-a3b", 3.4),
        ("qwen-3-235b-a22b", 22.2),
    ],
)
def test_mixtures_say_what_a_token_goes_through(name, billions):
    assert presets()[name].info("t").active_parameters == pytest.approx(billions * 1e9, abs=5e7)


def test_heads_of_mixtures_do_not_follow_from_them():
    for name in ("mixtral-8x7b", "qwen-3-30b-a3b"):
        target = presets()[name]
        assert {kind for kind in HEADS if head_of(kind, target, "h") is not None} == {"medusa"}
        assert named_shapes(["eagle3", "medusa"], "t", known=target.info("t"))["medusa"].shape is not None
        assert "eagle3" not in named_shapes(["eagle3"], "t", known=target.info("t"))


def test_keys_and_values_by_hand():
    assert presets()["llama-3.1-8b"].info("target") == ModelInfo(
        name="target",
        parameters=8_030_261_248,
        layers=32,
        hidden_size=4096,
        kv_bytes_per_token=32 * 2 * 8 * 128 * 2,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("text", "model", "head"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", None),
        ("Meta-Llama-3-8B-Instruct", "llama-3-8b", None),
        ("Llama-2-7b-chat-hf", "llama-2-7b", None),
        ("llama3.1:8b", "llama-3.1-8b", None),
        ("Qwen2.5-7B-Instruct", "qwen-2.5-7b", None),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen-3-4b", None),
        ("google/gemma-3-27b-it", "gemma-3-27b", None),
        ("vicuna-7b-v1.3-vanilla-float16-temp-0.0", "vicuna-7b", None),
        ("JackFram/llama-68m", "llama-68m", None),
        ("TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b", None),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "llama-3.1-8b", "eagle3"),
        ("yuhuili/EAGLE-Vicuna-7B-v1.3", "vicuna-7b", "eagle"),
        ("Qwen3-8B_eagle3", "qwen-3-8b", "eagle3"),
        ("eagle3-llama-3.1-8b", "llama-3.1-8b", "eagle3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", None),
        ("Mixtral-8x22B-v0.1", "mixtral-8x22b", None),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen-3-30b-a3b", None),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen-3-30b-a3b", None),
        ("Qwen3-30B-A3B-FP8", None, None),
        ("Qwen3-30B", None, None),
        ("Qwen3-Next-80B-A3B-Instruct", None, None),
        ("mtp", None, "mtp"),
        ("medusa-vicuna-7b", "vicuna-7b", "medusa"),
        ("target", None, None),
        ("llama-7b", None, None),
        ("Llama-3.1-9B", None, None),
        ("Qwen2.5-7B-Instruct-AWQ", None, None),
        ("Llama-3.1-8B-Instruct-FP8", None, None),
        ("llama-3.1-8b-Q4_K_M", None, None),
        ("", None, None),
    ],
)
def test_names_that_people_write(text, model, head):
    assert (model_called(text), head_called(text)) == (model, head)


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


@pytest.mark.parametrize("name", ["ngram", "pld", "prompt-lookup", "suffix"])
def test_what_copies_text_has_no_weights(name):
    assert named_shapes([name], "target")[name] == (None, f"{name} copies text")
