"""From shares of layers to slim verifiers: the search of each share, and what a verification by each one costs."""

from collections.abc import Mapping, Sequence
from math import comb

from transformers import PreTrainedModel

from ...progress import Progress
from ..pools.pool import ModelPool
from ..pools.submodel import make_submodel
from ..prompts import Prompt
from .bayesian import load_optuna
from .calibration import Calibration, calibrate
from .distance import Distance, measure_distance
from .frontier import Frontier, SlimFound, mark_dominated
from .mask_search import Budget, SlimTrial, best_trial, search_masks
from .masks import Mask, skipped_of
from .timing import verify_seconds


def find_slims(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    shares: Sequence[float],
    budget: Budget,
    *,
    max_new_tokens: int,
    baselines: Mapping[str, Mask] | None = None,
) -> Frontier:
    """Search the best mask of each share, and time a verification by each.

    Args:
        pool: its last member is the target.
        prompts: the target's continuations of them are what distances are measured on.
        shares: of the layers to leave out, each in (0, 1).
        budget: of each share's search.
        max_new_tokens: longest continuation, >= 1.
        baselines: masks of other submodels of the target to compare with, by name.

    Raises:
        ValueError: shares out of range or that leave out equally many layers, a target without layers to leave out, or
            what `calibrate` refuses.
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    model = target_with_layers(pool)
    num_layers = int(model.config.num_hidden_layers)
    skipped = skipped_of(shares, num_layers)
    if any(budget.is_bayesian(comb(num_layers, count)) for count in skipped.values()):
        load_optuna()  # refused before any work where it is not installed
    calibration = calibrate(pool, prompts, max_new_tokens=max_new_tokens)
    found, num_trials = _search(model, skipped, calibration, budget)
    known = [
        (
            name,
            SlimTrial(skip_layers=mask, distance=measure_distance(make_submodel(model, mask), calibration), how="pool"),
        )
        for name, mask in (baselines or {}).items()
    ]
    candidates = [*found, *known]
    seconds = verify_seconds(pool, [trial.skip_layers for _, trial in candidates])
    rows = mark_dominated([_timed(name, trial, seconds, model) for name, trial in candidates])
    return Frontier(
        found=rows[: len(found)],
        baselines=rows[len(found) :],
        target_s=seconds[0],
        num_layers=num_layers,
        num_tokens=calibration.num_tokens,
        num_trials=num_trials,
    )


def target_with_layers(pool: ModelPool) -> PreTrainedModel:
    """The network of the target; raises ValueError if no layers can be left out of it."""
    model = pool.target.model
    if model is None:
        raise ValueError(f"target must be a model with layers, got {pool.target.name} without any")
    try:
        make_submodel(model, ())
    except ValueError as error:
        raise ValueError(f"target {pool.target.name}: {error}") from error
    return model


def _search(
    model: PreTrainedModel,
    skipped: Mapping[str, int],
    calibration: Calibration,
    budget: Budget,
) -> tuple[list[tuple[str, SlimTrial]], int]:
    """The best mask of each share by its name, and how many were tried."""
    num_layers = int(model.config.num_hidden_layers)
    total = sum(budget.num_trials(comb(num_layers, count)) for count in skipped.values())
    found = []
    with Progress("trying masks", total) as progress:

        def evaluate(mask: Mask) -> Distance:
            distance = measure_distance(make_submodel(model, mask), calibration)
            progress.advance()
            return distance

        for name, count in skipped.items():
            found.append((name, best_trial(search_masks(evaluate, num_layers, count, budget))))
    return found, total


def _timed(name: str, trial: SlimTrial, seconds: Mapping[int, float], model: PreTrainedModel) -> SlimFound:
    skipped = len(trial.skip_layers)
    submodel = make_submodel(model, trial.skip_layers)
    return SlimFound(
        name=name,
        share=skipped / int(model.config.num_hidden_layers),
        skip_layers=trial.skip_layers,
        num_parameters=sum(parameter.numel() for parameter in submodel.parameters()),
        tvd=trial.distance.tvd,
        disagreement=trial.distance.disagreement,
        seconds=seconds[skipped],
        seconds_share=seconds[skipped] / seconds[0],
        how=trial.how,
    )
