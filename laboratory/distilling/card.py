"""The card of distilled drafters: what they can do, measured on dialogues that nothing was trained on."""

import platform
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ...counted import counted
from ...machine import processor
from ...progress import tracked
from ...reports.tables import grid
from ...runtime.pools.pool import ModelPool
from ...runtime.slim.masks import Mask
from ..findings.table import markdown_table
from ..slim_models import with_slims
from ..training.loop import TrainingRun
from ..training.members_table import members_table
from .learning.students import said_of
from .recipe import Recipe
from .shards import Text


def make_card(
    pool: ModelPool,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    runs: Mapping[str, TrainingRun],
    submodels: Mapping[str, Mask],
    *,
    recipe: Recipe,
    command: str,
) -> str:
    """Measure the drafters and write the card as Markdown.

    Args:
        pool: of the target and its drafters.
        texts: that they learned from.
        held_out: that they did not.
        runs: what the training of each drafter and submodel took.
        submodels: layers that submodels of the target leave out, by name.
        recipe: how they were trained.
        command: the command that did it.
    """
    both = with_slims(pool, {f"{name}, untrained": mask for name, mask in submodels.items()})
    names = [*runs, *(member.name for member in both.members if member.name.endswith(", untrained"))]
    depths = {name: student.num_depths for name, student in recipe.students.items()}
    measured: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name in tracked(names, "measuring", unit="members"):
        measured |= _measured(both, name, depths.get(name, 0), held_out)
    tags = [*recipe.tasks, "all"]
    sections = (
        f"# Drafters of {pool.name}",
        _origin(recipe, command, texts),
        *([_of_submodels(recipe, submodels)] if submodels else []),
        "## Members\n\n" + members_table(pool, runs, of_others="-"),
        "## Agreement with the target\n\nShare of equal greedy choices, teacher-forced on "
        f"{counted(len(held_out), 'held-out dialogue')} ({sum(map(_answer_tokens, held_out)):,} tokens of answers), "
        "over the whole vocabulary. At depth 1 a drafter from the target's states reads these alone, at depth d its "
        "own of the last d - 1 tokens.\n\n" + _table(measured, tags, 0, "{:.1%}"),
        "## Loss\n\nCross-entropy to the target's distribution over the tokens that the drafter can say, in nats per "
        "token, on the same dialogues.\n\n" + _table(measured, tags, 1, "{:.2f}"),
        "## Words\n\nShare of the target's greedy choices that the drafter can say at all.\n\n"
        + _table(measured, tags, 2, "{:.1%}"),
    )
    return "\n\n".join(sections) + "\n"


def _origin(recipe: Recipe, command: str, texts: Sequence[Text]) -> str:
    return (
        "Small Llama-like models that read and say tokens by the target's embeddings, begun as some of its layers and "
        "trained on its own answers to questions that it wrote itself, by\n\n"
        f"    {command}\n\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, {processor()}, seed {recipe.seed}: "
        f"{counted(len(texts), 'dialogue')}, {sum(map(_answer_tokens, texts)):,} tokens of answers. All numbers below "
        "were written by that command. Weights are stored in bfloat16, without embeddings."
    )


def _of_submodels(recipe: Recipe, submodels: Mapping[str, Mask]) -> str:
    named = "; ".join(f"`{name}` leaves out {list(mask)}" for name, mask in submodels.items())
    return (
        f"Submodels of the target ({named}) have its weights and, learned from the same texts, a product of rank "
        f"{recipe.restored.rank} beside each of them and norms of their own. `untrained` is without these."
    )


def _answer_tokens(text: Text) -> int:
    return len(text.tokens) - text.answer_at


def _table(
    measured: Mapping[str, Mapping[str, tuple[float, float, float]]], tags: Sequence[str], which: int, form: str
) -> str:
    rows = [
        {"member": name, **{tag: form.format(by_tag[tag][which]) for tag in tags if tag in by_tag}}
        for name, by_tag in measured.items()
    ]
    return markdown_table(grid.table(rows))


@torch.inference_mode()
def _measured(
    pool: ModelPool, name: str, num_depths: int, texts: Sequence[Text]
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """By row, then by tag and of all: equal choices, loss, and choices that can be said."""
    drafter, target = pool.member(name).model, pool.target.model
    assert drafter is not None
    assert target is not None
    sums: dict[str, dict[str, Tensor]] = {}
    for text in texts:
        first = text.answer_at - 1
        theirs = functional.linear(text.states[first:].float(), target.get_output_embeddings().weight)
        embedded = drafter.get_input_embeddings()(text.tokens[None, :-1])
        for row, states in zip(_rows(name, num_depths), said_of(drafter, num_depths, embedded, [text]), strict=True):
            found = _compared(drafter.get_output_embeddings()(states[0, first:]), theirs)
            by_tag = sums.setdefault(row, {})
            for tag in (text.tag, "all"):
                by_tag[tag] = by_tag.get(tag, torch.zeros(4, dtype=torch.float64)) + found
    return {
        row: {tag: (float(s[1] / s[0]), float(s[2] / s[0]), float(s[3] / s[0])) for tag, s in by_tag.items()}
        for row, by_tag in sums.items()
    }


def _rows(name: str, num_depths: int) -> list[str]:
    """A row of each depth, of a drafter that reads the target's states; else one."""
    return [name, *(f"{name}, depth {depth}" for depth in range(2, num_depths + 1))]


def _compared(logits: Tensor, theirs: Tensor) -> Tensor:
    """Sums over positions `[P]` of logits `[P, V]`: of one, of equal choices, losses and choices that can be said."""
    said, choices = logits[0].isfinite(), theirs.argmax(-1)
    losses = functional.cross_entropy(logits[:, said], theirs[:, said].softmax(-1), reduction="none")
    equal = (logits.argmax(-1) == choices).double()
    return torch.stack([torch.ones_like(equal), equal, losses.double(), said[choices].double()], dim=-1).sum(0)
