"""Every causal language model of the installed transformers is decoded right, or refused in one line."""

import copy
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch
from paceline.cli.bad_input import BAD
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.loaded_members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_check import check_pool
from paceline.runtime.prompts import Prompt
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from .model_types import VOCABULARY, tiny_config, whole_model

NUM_TOKENS = 12
# Two are longer than the windows of all models here.
PROMPTS = tuple(
    Prompt(request_id=f"r{row}", text=" ".join(f"t{token}" for token in tokens))
    for row, tokens in enumerate(((5, 9), (7, 8, 9, 10, 11, 12, 7, 8, 9, 20), (30, 4, 31, 4, 30, 4, 31, 4, 30)))
)
# By the members that a pool has; every chain writes the target's text.
POLICIES = {
    ("target",): ("plain",),
    ("draft", "target"): ("plain", "draft:4/target"),
    ("slim", "draft", "target"): ("slim:3/target", "slim:2/draft:4/target"),
}
# What transformers raises where it should make one of these from its config; gemma3n needs another package.
UNBUILT = {"musicgen": AttributeError, "musicgen_melody": AttributeError, "gemma3n": ImportError}


@dataclass
class Found:
    """What came of one model type: `right`, or what spoke against it; `slim` likewise of a submodel of it."""

    verdict: str
    slim: str = ""
    check: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)


def write_pool(folder: Path, members: tuple[str, ...]) -> Path:
    folder.mkdir(exist_ok=True)
    words = {f"t{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    lines = ['name = "swept"', 'tokenizer = "tokenizer.json"', "context_tokens = 64"]
    for name in members:
        lines += ["[[members]]", f'name = "{name}"']
        lines += ['submodel_of = "target"', "skip_layers = [1]"] if name == "slim" else [f'path = "{name}"']
    (folder / "-".join(members)).mkdir(exist_ok=True)
    file = folder / f"{'-'.join(members)}.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def write_models(folder: Path, model_type: str) -> None:
    """A target and a draft, which is the target with noise."""
    target = whole_model(tiny_config(model_type))
    target.save_pretrained(folder / "target")
    generator = torch.Generator().manual_seed(2)
    draft = copy.deepcopy(target)
    for weight in draft.parameters():
        if weight.dim() > 1:
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1 * weight.std())
    draft.save_pretrained(folder / "draft")


def generated(folder: Path) -> list[tuple[int, ...]]:
    """What `generate()` of the model as transformers loads it answers to the prompts."""
    model = AutoModelForCausalLM.from_pretrained(str(folder / "target"), dtype=torch.float32)
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


def swept(folder: Path, model_type: str) -> Found:
    """Tries one model type."""
    found = Found("")
    try:
        write_models(folder, model_type)
    except UNBUILT.get(model_type, ()):  # transformers cannot make it either
        tiny_config(model_type).save_pretrained(folder / "target")
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
    answers = generated(folder)
    if len({token for answer in answers for token in answer}) < 3:
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
        same = agree(pool, PROMPTS, list(policies), max_new_tokens=NUM_TOKENS)
    except Exception as error:  # noqa: BLE001
        line = one_line(error)
        found.faults.append(f"runs, but agree says {line}")
        return line
    if not same.agree:
        found.faults.append(f"worlds differ: {list(same.lines())}")
    return "right"
