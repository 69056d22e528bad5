"""The card of a pool: what its members can do, measured after the training."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...runtime.answer_check import is_right
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from .agreement import Agreement, agreement
from .loop import TrainingRun
from .measure import held_out_loss, seconds_per_token
from .recipe import TAGS, Recipe
from .text.item import Item

SAMPLE_CHARACTERS = 240
# Long enough for the whole answer of most prompts.
AGREEMENT_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """Measurements of one member.

    Attributes:
        num_parameters: parameters it uses.
        seconds_per_token: time of one token after 128 cached ones.
        losses: nats per token on held-out documents, by domain.
    """

    num_parameters: int
    seconds_per_token: float
    losses: dict[str, float]


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
    agreed = agreement(pool, prompts, num_tokens=AGREEMENT_TOKENS)
    facts = _measure(pool, held_out)
    sections = (
        f"# {pool.name}",
        _origin(recipe, command),
        "## Members\n\n" + _members_table(facts, runs),
        "## Agreement with the target\n\nShare of equal greedy choices, teacher-forced on the target's greedy text "
        f"of {len(prompts)} held-out prompts ({sum(agreed.num_tokens.values())} tokens), float32.\n\n"
        + _agreement_table(agreed),
        "## Loss on held-out documents\n\nNats per token.\n\n" + _loss_table(facts),
        "## Answers of the target\n\nGreedy text that holds the expected answer.\n\n" + _answer_table(prompts, agreed),
        "## Samples\n\nThe target's greedy text of the first held-out prompt of each domain.\n\n"
        + _samples(prompts, agreed),
    )
    return "\n\n".join(sections) + "\n"


def _measure(pool: ModelPool, held_out: dict[str, list[Item]]) -> dict[str, MemberFacts]:
    """Facts of every member that has a network."""
    return {
        member.name: MemberFacts(
            num_parameters=member.num_parameters,
            seconds_per_token=seconds_per_token(member),
            losses={tag: held_out_loss(member, held_out[tag], pool.tokenizer) for tag in TAGS},
        )
        for member in pool.members
        if member.model is not None
    }


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


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _members_table(facts: dict[str, MemberFacts], runs: dict[str, TrainingRun]) -> str:
    rows = []
    for name, fact in facts.items():
        run = runs.get(name)
        taken = [f"{run.num_tokens:,}", f"{run.seconds:,.0f}"] if run else ["with the target", "-"]
        rows.append([name, f"{fact.num_parameters:,}", f"{1000 * fact.seconds_per_token:.2f}", *taken])
    return _table(["member", "parameters", "ms per token", "tokens seen", "seconds of training"], rows)


def _agreement_table(agreed: Agreement) -> str:
    rows = [
        [name, *(f"{100 * agreed.share(name, tag):.1f}%" for tag in TAGS), f"{100 * agreed.share(name):.1f}%"]
        for name in agreed.num_equal
    ]
    return _table(["member", *TAGS, "all"], rows)


def _loss_table(facts: dict[str, MemberFacts]) -> str:
    rows = [[name, *(f"{fact.losses[tag]:.2f}" for tag in TAGS)] for name, fact in facts.items()]
    return _table(["member", *TAGS], rows)


def _answer_table(prompts: Sequence[Prompt], agreed: Agreement) -> str:
    rows = []
    for tag in TAGS:
        pairs = [
            (prompt.answer, text)
            for prompt, text in zip(prompts, agreed.texts, strict=True)
            if prompt.tag == tag and prompt.answer is not None
        ]
        if pairs:
            num_right = sum(is_right(tag, answer, text) for answer, text in pairs)
            rows.append([tag, f"{num_right} of {len(pairs)}"])
    return _table(["domain", "right"], rows)


def _samples(prompts: Sequence[Prompt], agreed: Agreement) -> str:
    parts = []
    for tag in TAGS:
        for prompt, text in zip(prompts, agreed.texts, strict=True):
            if prompt.tag == tag:
                sample = f"{prompt.text[-SAMPLE_CHARACTERS:]}▶{text[:SAMPLE_CHARACTERS]}"
                parts.append(f"{tag}:\n\n" + "\n".join(f"    {line}" for line in sample.splitlines()))
                break
    return "\n\n".join(parts)
