"""The card of a pool of the arena: what was asked of its members and what came out, the same from run to run."""

from collections.abc import Callable, Mapping
from functools import partial

from transformers import PreTrainedModel

from .....reports.tables import grid
from ....findings.table import markdown_table
from ....training.loop import TrainingRun
from ....training.trained_models import layers_kept, slim_layers
from .agreement import TargetTexts, joined
from .recipe import SLIM, TARGET, PoolRecipe

SAID = "Share of the target's greedy tokens that a member chooses too, on texts that no member learned from."

Trained = Mapping[str, tuple[PreTrainedModel, TrainingRun]]  # by member; submodels and lookups have none
Checked = Mapping[str, TargetTexts]  # by domain


def make_card(recipe: PoolRecipe, trained: Trained, checked: Checked) -> str:
    """Markdown.

    Args:
        recipe: of the pool.
        trained: the models.
        checked: texts of the target.
    """
    goals = {student.name: f"{student.agreement:.0%}" for student in recipe.students}
    rows = [
        {
            "member": entry.name,
            **_training(*trained.get(entry.name, (None, None))),
            "goal": goals.get(entry.name, "-"),
            **_shares(_measure(recipe, entry.name, trained), checked),
        }
        for entry in recipe.members
        if entry.name != TARGET
    ]
    model, run = trained[TARGET]
    target = f"The target: {model.config.model_type}, {model.num_parameters():,} parameters, {run.num_tokens:,} tokens."
    return f"# {recipe.name}\n\n{recipe.what}\n\n{target} {SAID}\n\n{markdown_table(grid.table(rows))}\n"


def _training(model: PreTrainedModel | None, run: TrainingRun | None) -> dict[str, str]:
    if model is None or run is None:
        return {"architecture": "-", "parameters": "-", "tokens seen": "-"}
    sizes = {"parameters": f"{model.num_parameters():,}", "tokens seen": f"{run.num_tokens:,}"}
    return {"architecture": model.config.model_type, **sizes}


def _measure(recipe: PoolRecipe, name: str, trained: Trained) -> Callable[[TargetTexts], float]:
    """What measures a member's share of a text."""
    if name in trained:
        return lambda texts: texts.agreement(trained[name][0])
    if name == SLIM:
        return partial(_slim_agreement, trained[TARGET][0], slim_layers(recipe.training))
    assert recipe.lookup is not None
    rule = recipe.lookup.rule
    return lambda texts: texts.lookup_agreement(rule)


def _slim_agreement(target: PreTrainedModel, kept: tuple[int, ...], texts: TargetTexts) -> float:
    with layers_kept(target, kept):
        return texts.agreement(target)


def _shares(measure: Callable[[TargetTexts], float], checked: Checked) -> dict[str, str]:
    every = {**checked, "all": joined(list(checked.values()))}
    return {tag: f"{measure(texts):.1%}" for tag, texts in every.items()}
