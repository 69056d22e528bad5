"""Every causal language model of the installed transformers is decoded right, or refused in one line."""

import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from paceline.cli.bad_input import BAD
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from .model_types import MODEL_TYPES, tiny_config, write_models, write_pool

NUM_TOKENS = 10
# Two are longer than the windows of all models here.
PROMPTS = tuple(
    Prompt(request_id=f"r{row}", text=" ".join(f"t{token}" for token in tokens))
    for row, tokens in enumerate(((5, 9), (7, 8, 9, 10, 11, 12, 7, 8, 9, 20), (30, 4, 31, 4, 30, 4, 31, 4, 30)))
)
# By the members that a pool has; every chain writes the target's text.
POLICIES = {
    ("draft", "target"): ("plain", "draft:4/target"),
    ("slim", "draft", "target"): ("slim:3/target", "slim:2/draft:4/target"),
}
# What transformers raises where it should make one of these from its config; gemma3n needs another package. Layers that
# differ it makes of few types only.
UNBUILT = {"musicgen": AttributeError, "musicgen_melody": AttributeError, "gemma3n": ImportError}


RUN = {"llava, its text part", "falcon, heads of its own"}
PAGE = Path(__file__).parents[2] / "docs" / "runtime.md"


@dataclass
class Found:
    """What came of one model type: `right`, or what spoke against it; `slim` likewise of a submodel of it."""

    verdict: str
    slim: str = ""
    faults: list[str] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)


def generated(folder: Path) -> list[tuple[int, ...]]:
    """What `generate()` of the model as transformers loads it answers to the prompts."""
    known = AutoConfig.from_pretrained(str(folder / "target")).model_type in MODEL_TYPES
    auto = AutoModelForCausalLM if known else AutoModelForImageTextToText
    model = auto.from_pretrained(str(folder / "target"), dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([[int(word[1:]) for word in prompt.text.split()]])
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0
        )
        answers.append(tuple(said[0, ids.shape[1] :].tolist()))
    return answers


def one_line(error: Exception) -> str:
    """The refusal; raises what is none."""
    if not isinstance(error, BAD) or "\n" in str(error):
        raise error
    return str(error)


def swept(folder: Path, model_type: str, **changes) -> Found:
    """Tries one model type."""
    found, config = Found(""), tiny_config(model_type, **changes)
    try:
        write_models(folder, config)
    except UNBUILT.get(model_type, RuntimeError if "per_layer_config" in changes else ()):
        config.save_pretrained(folder / "target")
        (folder / "target" / "model.safetensors").write_bytes(b"none")
    for members, policies in POLICIES.items():
        file = write_pool(folder, members)
        try:
            said = tried(file, policies, found, folder)
        except Exception:  # noqa: BLE001 - a defect, told
            found.faults.append(f"{members}: {traceback.format_exc()}")
            said = "fault"
        if "slim" in members:
            found.slim = said
        elif not found.verdict or found.verdict == "right":
            found.verdict = said
        if said != "right":
            break
    return found


def tried(file: Path, policies, found: Found, folder: Path) -> str:
    """`right`, or the line that refuses; appends what is neither to `found.faults`."""
    check = check_pool(file)
    problems = [*check.problems, *(line for member in check.members for line in member.problems)]
    try:
        pool = ModelPool.load(file)
    except Exception as error:  # noqa: BLE001
        line = one_line(error)
        if not problems and not any(member.masks_tried_at_load for member in check.members):
            found.faults.append(f"pool check says nothing against it: {line}")
        return line
    if problems:
        found.faults.append(f"pool check says {problems}, and it loads")
    answers = found.answers = found.answers or generated(folder)
    if len({token for answer in answers for token in answer}) < 2:
        found.faults.append(f"its texts say nothing: {answers}")
    for policy in policies:
        made = make_policy(policy, loaded_pool(pool))
        try:
            outputs, _ = decode(
                pool, made, PROMPTS, sampling=Sampling(mode="greedy"), max_new_tokens=NUM_TOKENS, name=policy, batch=2
            )
        except Exception as error:  # noqa: BLE001
            line = one_line(error)
            found.faults.append(f"loads, but run says {line}")
            return line
        for output, answer in zip(outputs, answers, strict=True):
            if output.tokens != answer:
                found.faults.append(f"{policy} writes {output.tokens} {output.error}, not {answer}")
    try:
        same = agree(pool, PROMPTS[1:2], list(policies), max_new_tokens=NUM_TOKENS, reach=7, run=7)
    except Exception as error:  # noqa: BLE001
        line = one_line(error)
        found.faults.append(f"runs, but agree says {line}")
        return line
    if not same.agree:
        found.faults.append(f"worlds differ: {list(same.lines())}")
    return "right"


# Beside the types themselves: layers of other widths run, those of other heads or windows are refused.
VARIANTS = {
    "gemma4_text, feed-forward widths by layer": ("gemma4_text", {"per_layer_config": {1: {"intermediate_size": 24}}}),
    "llama, feed-forward widths by layer": ("llama", {"per_layer_config": {1: {"intermediate_size": 24}}}),
    "llava, its text part": ("llava", {"text_config": {"tie_word_embeddings": False}}),
    "paligemma, whose prompt is seen whole": ("paligemma", {}),
    "llama, heads by layer": ("llama", {"per_layer_config": {1: {"num_key_value_heads": 4}}}),
    "mistral, windows by layer": ("mistral", {"per_layer_config": {1: {"sliding_window": 3}}}),
    "gemma4_text, heads by kind of layer": ("gemma4_text", {"per_layer_config": {2: {"head_dim": 16}}}),
    "granitemoehybrid, one layer of state": ("granitemoehybrid", {"layer_types": ["attention", "mamba", "attention"]}),
    "falcon, heads of its own": ("falcon", {"multi_query": False, "num_kv_heads": 4}),
    "falcon, biases by distance": ("falcon", {"alibi": True}),
}


@pytest.fixture(scope="module")
def kinds() -> dict[str, str]:
    """What came of each model type that was tried: `slim`, `right` or `refused`."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_model_type_is_right_or_refused_in_one_line(model_type, tmp_path, kinds):
    found = swept(tmp_path, model_type)
    assert found.faults == []
    kinds[model_type] = "refused" if found.verdict != "right" else "slim" if found.slim == "right" else "right"


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_so_is_what_a_config_may_say_beside_sizes(name, tmp_path):
    model_type, changes = VARIANTS[name]
    found = swept(tmp_path, model_type, **changes)
    assert found.faults == []
    assert (found.verdict == "right") == (name in RUN), found.verdict


@pytest.mark.slow
def test_the_page_has_the_counts(kinds):
    if set(kinds) != set(MODEL_TYPES):
        pytest.skip("only some model types were tried")
    counts = Counter(kinds.values())
    row = f"| {len(kinds)} | {counts['slim'] + counts['right']} | {counts['slim']} | {counts['refused']} |"
    assert row in PAGE.read_text(encoding="utf-8"), row
