"""The card of a pool: what its members can do, measured after the training."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import PreTrainedModel

from ...progress import tracked
from ...reports.tables import grid
from ...runtime.answer_check import is_right
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from ...runtime.slim.calibration import Calibration, calibrate
from ...runtime.slim.distance import measure_distance
from ..findings.table import markdown_table
from .loop import TrainingRun
from .members_table import members_table
from .recipe import TAGS, Recipe
from .text.item import Item
from .text.tokenizer import END_TOKEN

SAMPLE_CHARACTERS = 240
# Long enough for the whole answer of most prompts.
AGREEMENT_TOKENS = 128

Networks = Mapping[str, PreTrainedModel]  # by member; prompt lookup has none


def make_card(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    held_out: dict[str, list[Item]],
    runs: dict[str, TrainingRun],
    *,
    recipe: Recipe,
    command: str,
) -> str:
    """Measure the pool and write the card as Markdown.

    Args:
        pool: the trained pool.
        prompts: held-out prompts.
        held_out: held-out documents, by domain.
        runs: what the training of each trained member took.
        recipe: how it was trained.
        command: the command that trained it.
    """
    networks = {member.name: member.model for member in pool.members if member.model is not None}
    written = calibrate(pool, prompts, max_new_tokens=AGREEMENT_TOKENS)
    texts = [pool.decode(list(text.tokens)) for text in written.texts]
    sections = (
        f"# {pool.name}",
        _origin(recipe, command),
        "## Members\n\n" + members_table(pool, runs, of_others="with the target"),
        "## Agreement with the target\n\nShare of equal greedy choices, teacher-forced on the target's greedy text "
        f"of {len(prompts)} held-out prompts ({written.num_tokens} tokens), float32.\n\n"
        + _agreement_table(networks, prompts, written),
        "## Loss on held-out documents\n\nNats per token.\n\n" + _loss_table(networks, held_out, pool.tokenizer),
        "## Answers of the target\n\nGreedy text that holds the expected answer.\n\n" + _answer_table(prompts, texts),
        "## Samples\n\nThe target's greedy text of the first held-out prompt of each domain.\n\n"
        + _samples(prompts, texts),
    )
    return "\n\n".join(sections) + "\n"


def _origin(recipe: Recipe, command: str) -> str:
    return (
        "Small models for trying out chains on a CPU: Llama architecture, random initial weights, trained on "
        "generated texts and on the Python standard library of the machine that ran\n\n"
        f"    {command}\n\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"seed {recipe.seed}. `slim` is the target without its layers {list(recipe.skip_layers)} and shares its "
        "weights. All numbers below were written by that command. Weights are stored in bfloat16."
        f"{recipe.remark and ' ' + recipe.remark}"
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown_table(grid.table(rows))


def _agreement_table(networks: Networks, prompts: Sequence[Prompt], written: Calibration) -> str:
    """By domain and of all text; a domain without a prompt has no column."""
    tags = [prompt.tag for prompt in prompts]
    parts = {tag: tuple(text for text, its in zip(written.texts, tags, strict=True) if its == tag) for tag in TAGS}
    parts = {tag: texts for tag, texts in {**parts, "all": written.texts}.items() if texts}

    def row(name: str) -> dict[str, str]:
        apart = {tag: measure_distance(networks[name], replace(written, texts=texts)) for tag, texts in parts.items()}
        return {"member": name, **{tag: f"{1 - one.disagreement:.1%}" for tag, one in apart.items()}}

    return _table([row(name) for name in tracked(networks, "agreement", total=len(networks), unit="members")])


def _loss_table(networks: Networks, held_out: Mapping[str, Sequence[Item]], tokenizer: Tokenizer) -> str:
    def row(name: str) -> dict[str, str]:
        losses = {tag: _held_out_loss(networks[name], held_out[tag], tokenizer) for tag in TAGS}
        return {"member": name, **{tag: f"{loss:.2f}" for tag, loss in losses.items()}}

    return _table([row(name) for name in networks])


@torch.no_grad()
def _held_out_loss(model: PreTrainedModel, items: Sequence[Item], tokenizer: Tokenizer) -> float:
    """Mean cross-entropy in nats per token over whole documents, their end tokens included."""
    total, num_tokens = 0.0, 0
    for item in items:
        ids = torch.tensor([tokenizer.encode(item.text + END_TOKEN).ids])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        total += float(functional.cross_entropy(logits[0].float(), ids[0, 1:], reduction="sum"))
        num_tokens += ids.shape[1] - 1
    return total / max(1, num_tokens)


def _answer_table(prompts: Sequence[Prompt], texts: Sequence[str]) -> str:
    rows = []
    for tag in TAGS:
        pairs = [
            (prompt.answer, text)
            for prompt, text in zip(prompts, texts, strict=True)
            if prompt.tag == tag and prompt.answer is not None
        ]
        if pairs:
            num_right = sum(is_right(tag, answer, text) for answer, text in pairs)
            rows.append({"domain": tag, "right": f"{num_right} of {len(pairs)}"})
    return _table(rows)


def _samples(prompts: Sequence[Prompt], texts: Sequence[str]) -> str:
    first = {prompt.tag: (prompt, text) for prompt, text in zip(reversed(prompts), reversed(texts), strict=True)}
    parts = []
    for tag in (tag for tag in TAGS if tag in first):
        prompt, text = first[tag]
        sample = f"{prompt.text[-SAMPLE_CHARACTERS:]}▶{text[:SAMPLE_CHARACTERS]}"
        parts.append(f"{tag}:\n\n" + "\n".join(f"    {line}" for line in sample.splitlines()))
    return "\n\n".join(parts)
