"""Names of models and drafters as hubs and engines write them: what says a shape, and what says none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.shapes import head_called, model_called, named_shapes, presets
from paceline.traces.shapes_given import given_shapes

QWEN_8B, LLAMA_8B, LLAMA_70B = "Qwen3-8B", "Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"

# (drafter, target, what it is taken for)
KNOWN = [
    ("Qwen3-0.6B", QWEN_8B, "qwen-3-0.6b"),
    ("Qwen/Qwen3-1.7B", QWEN_8B, "qwen-3-1.7b"),
    ("Qwen3-4B-Instruct-2507", QWEN_8B, "qwen-3-4b"),
    ("Qwen2.5-Coder-0.5B-Instruct", "Qwen2.5-Coder-32B-Instruct", "qwen-2.5-0.5b"),
    ("Qwen2.5-0.5B-Instruct", "Qwen2.5-72B-Instruct", "qwen-2.5-0.5b"),
    ("Llama-3.2-1B-Instruct", LLAMA_8B, "llama-3.2-1b"),
    ("meta-llama/Llama-3.2-3B", LLAMA_70B, "llama-3.2-3b"),
    ("Meta-Llama-3.1-8B-Instruct", LLAMA_70B, "llama-3.1-8b"),
    ("llama3.2:1b", LLAMA_8B, "llama-3.2-1b"),
    ("JackFram/llama-68m", "vicuna-7b-v1.3", "llama-68m"),
    ("double7/vicuna-68m", "vicuna-7b-v1.3", "vicuna-68m"),
    ("TinyLlama-1.1B-Chat-v1.0", "Llama-2-7b-chat-hf", "tinyllama-1.1b"),
    ("google/gemma-3-1b-it", "gemma-3-27b-it", "gemma-3-1b"),
    ("gemma-3-270m", "gemma-3-4b-pt", "gemma-3-270m"),
    ("Qwen3-8B", "Qwen3-30B-A3B-Instruct-2507", "qwen-3-8b"),
    ("eagle", QWEN_8B, "eagle"),
    ("eagle3", QWEN_8B, "eagle3"),
    ("EAGLE-3", QWEN_8B, "eagle3"),
    ("mtp", LLAMA_8B, "mtp"),
    ("nextn", LLAMA_8B, "mtp"),
    ("medusa", LLAMA_8B, "medusa"),
    ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", LLAMA_8B, "eagle3"),
    ("yuhuili/EAGLE-LLaMA3-Instruct-8B", "Meta-Llama-3-8B-Instruct", "eagle"),
    ("yuhuili/EAGLE-Vicuna-7B-v1.3", "vicuna-7b-v1.3", "eagle"),
    ("yuhuili/EAGLE-llama2-chat-7B", "Llama-2-7b-chat-hf", "eagle"),
    ("yuhuili/EAGLE3-Vicuna1.3-13B", "vicuna-13b-v1.3", "eagle3"),
    ("AngelSlim/Qwen3-8B_eagle3", QWEN_8B, "eagle3"),
    ("Tengyunw/qwen3_8b_eagle3", QWEN_8B, "eagle3"),
    ("RedHatAI/Qwen3-8B-speculator.eagle3", QWEN_8B, "eagle3"),
    ("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", LLAMA_8B, "eagle3"),
    ("sglang-EAGLE3-LLaMA3.1-Instruct-8B", LLAMA_8B, "eagle3"),
    ("FasterDecoding/medusa-vicuna-7b-v1.3", "vicuna-7b-v1.3", "medusa"),
]
COPIES = [
    "ngram",
    "ngram_gpu",
    "ngram-simple",
    "ngram-map-k4v",
    "ngram-cache",
    "prompt-lookup",
    "suffix",
    "pld",
    "n-gram",
]
# A target's name and more, other methods, and names near to known ones.
UNKNOWN = [
    ("z-lab/Qwen3-8B-DFlash-b16", QWEN_8B),
    ("Qwen3-8B-DFlash", QWEN_8B),
    ("Qwen3-4B-DFlash-b16", QWEN_8B),
    ("dflash", QWEN_8B),
    ("deepseek-ai/dspark_qwen3_8b_block7", QWEN_8B),
    ("Qwen3-8B-Domino", QWEN_8B),
    ("HASS-LLaMA3-Instruct-8B", "Meta-Llama-3-8B-Instruct"),
    ("ibm-ai-platform/llama3-8b-accelerator", "Meta-Llama-3-8B-Instruct"),
    ("llama-13b-accelerator", "Llama-2-13b-chat-hf"),
    ("peagle", QWEN_8B),
    ("P-EAGLE", QWEN_8B),
    ("Qwen3-8B-P-EAGLE", QWEN_8B),
    ("p-eagle3-llama-3.1-8b", LLAMA_8B),
    ("eagle3.1", QWEN_8B),
    ("eagle-3.5-qwen3-8b", QWEN_8B),
    ("eagle4", QWEN_8B),
    ("Qwen3-8B-eagle3-hass", QWEN_8B),
    ("hydra-vicuna-7b", "vicuna-7b-v1.3"),
    ("medusa-2-vicuna-7b", "vicuna-7b-v1.3"),
    ("deepseek_mtp", QWEN_8B),
    ("qwen3_next_mtp", QWEN_8B),
    ("amd/PARD-Llama-3.2-1B", LLAMA_8B),
    ("PARD-Qwen3-0.6B", QWEN_8B),
    ("Qwen3-0.6B-FP8", QWEN_8B),
    ("Qwen2.5-VL-3B-Instruct", "Qwen2.5-72B-Instruct"),
    ("Qwen3-Embedding-0.6B", QWEN_8B),
    ("Llama-3.2-1B-pruned", LLAMA_8B),
    ("CodeLlama-7b-hf", "Llama-2-70b"),
    ("gemma-3n-E2B-it", "gemma-3-27b-it"),
    ("Qwen3-8B-ngram-embedding", QWEN_8B),
    ("suffix-llama", QWEN_8B),
    # Of their target's size, or larger.
    ("Qwen3-8B", "Qwen3-8B-Base"),
    ("Qwen3-8B-Instruct", QWEN_8B),
    ("Llama-3.3-70B-Instruct", LLAMA_8B),
    ("Qwen3-4B", "Qwen3-4B-Instruct-2507"),
    # Heads of other models, whose states are of another width.
    ("EAGLE3-LLaMA3.3-Instruct-70B", LLAMA_8B),
    ("AngelSlim/Qwen3-4B_eagle3", QWEN_8B),
]


def member(text):
    """As a member of a pool can be called."""
    return text.rpartition("/")[2].replace(":", "-")


@pytest.mark.parametrize(("drafter", "target", "shape"), KNOWN)
def test_names_that_say_a_shape(drafter, target, shape):
    drafter, target = member(drafter), member(target)
    found = named_shapes([drafter, target], target)
    whole = f"{shape}-{model_called(target)}" if shape in ("eagle", "eagle3", "mtp", "medusa") else shape
    assert (found[drafter].shape,) == given_shapes([f"{drafter}={whole}"], target)
    assert found[target].shape == presets()[model_called(target)].info(target)


@pytest.mark.parametrize("name", COPIES)
def test_names_of_what_copies_text(name):
    assert named_shapes([name], QWEN_8B)[name] == (None, f"{name} copies text")


@pytest.mark.parametrize(("drafter", "target"), UNKNOWN)
def test_names_that_say_no_shape(drafter, target):
    drafter, target = member(drafter), member(target)
    assert set(named_shapes([drafter, target], target)) == {target}


@pytest.mark.parametrize("drafter", ["Qwen3-0.6B", "Llama-3.2-1B-Instruct"])
def test_sizes_that_nobody_knows_confirm_nothing(drafter):
    assert named_shapes([drafter, "target"], "target") == {}
    known = presets()["qwen-3-8b"].info("target").model_copy(update={"layers": 7})
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
