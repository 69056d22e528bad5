"""Search for the mask of least distance: every one if they are few, else random ones and then Bayesian optimisation.

The order of the VIA-SD paper (arXiv:2606.12243), which does not publish its settings. Ours: a mask is a point of a box
(`masks.mask_of`), no mask is tried twice, and the value is the mean total variation distance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from .bayesian import BayesianProposals
from .distance import Distance
from .frontier import How
from .masks import Mask, mask_of, nearest_unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimTrial:
    """One mask that was tried.

    Attributes:
        skip_layers: the mask.
        distance: to the target without a mask.
        how: what proposed it.
    """

    skip_layers: Mask
    distance: Distance
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long to search.

    Attributes:
        trials: masks tried, >= 1; if there are no more than that, all of them are.
        random_trials: of these the first ones, drawn evenly, 1 to `trials`.
        seed: of the draws, >= 0.
    """

    trials: int
    random_trials: int
    seed: int

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be >= 1, got {self.trials}")
        if not 1 <= self.random_trials <= self.trials:
            raise ValueError(f"random_trials must be 1 to trials ({self.trials}), got {self.random_trials}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def num_trials(self, masks: int) -> int:
        """How many of so many masks will be tried."""
        return min(self.trials, masks)

    def is_bayesian(self, masks: int) -> bool:
        """Whether a search among so many masks comes to the Bayesian part."""
        return self.random_trials < self.trials < masks


def search_masks(
    evaluate: Callable[[Mask], Distance], num_layers: int, skipped: int, budget: Budget
) -> tuple[SlimTrial, ...]:
    """Try masks in turn, each once; `best_trial` takes the best.

    Args:
        evaluate: the distance of a mask.
        num_layers: n, of the target.
        skipped: k, 1 to n - 1.
        budget: how long.

    Raises:
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    if comb(num_layers, skipped) <= budget.trials:
        return tuple(
            SlimTrial(skip_layers=mask, distance=evaluate(mask), how="exhaustive")
            for mask in combinations(range(num_layers), skipped)
        )
    return _Sampled(evaluate, num_layers, skipped, budget).run()


def best_trial(trials: tuple[SlimTrial, ...]) -> SlimTrial:
    """Of least total variation distance, then of least disagreement, then the first layers."""
    return min(trials, key=lambda trial: (trial.distance.tvd, trial.distance.disagreement, trial.skip_layers))


class _Sampled:
    """A search among more masks than can be tried."""

    def __init__(self, evaluate: Callable[[Mask], Distance], num_layers: int, skipped: int, budget: Budget) -> None:
        self._evaluate = evaluate
        self._num_layers = num_layers
        self._skipped = skipped
        self._budget = budget
        self._rng = np.random.default_rng([budget.seed, num_layers, skipped])
        self._tried: dict[Mask, tuple[list[float], SlimTrial]] = {}

    def run(self) -> tuple[SlimTrial, ...]:
        """All trials, in order."""
        while len(self._tried) < self._budget.random_trials:
            self._try(*self._unseen_at_random(), how="random")
        if self._budget.is_bayesian(comb(self._num_layers, self._skipped)):
            self._run_bayesian()
        return tuple(trial for _, trial in self._tried.values())

    def _run_bayesian(self) -> None:
        proposals = BayesianProposals(self._num_layers, seed=int(self._rng.integers(2**31)))
        for keys, trial in self._tried.values():
            proposals.learn(keys, trial.distance.tvd)
        while len(self._tried) < self._budget.trials:
            keys = proposals.propose()
            mask = mask_of(keys, self._skipped)
            if mask in self._tried:
                proposals.learn(keys, self._tried[mask][1].distance.tvd)
                keys, mask = nearest_unseen(keys, mask, self._tried) or self._unseen_at_random()
            proposals.learn(keys, self._try(keys, mask, how="bayesian").distance.tvd)

    def _unseen_at_random(self) -> tuple[list[float], Mask]:
        while True:
            keys = self._rng.random(self._num_layers).tolist()
            mask = mask_of(keys, self._skipped)
            if mask not in self._tried:
                return keys, mask

    def _try(self, keys: list[float], mask: Mask, *, how: How) -> SlimTrial:
        trial = SlimTrial(skip_layers=mask, distance=self._evaluate(mask), how=how)
        self._tried[mask] = keys, trial
        return trial
