"""Every way chance can go: a program that asks a `Chance` is run once per branch, which makes outcomes exact.

    outcomes(lambda chance: chance.draw(torch.tensor([0.25, 0.75])))  # {0: 0.25, 1: 0.75}

The program must be deterministic but for the chance it is given: run again with the same answers, it asks the same
questions. Branches of probability 0 are not run.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from math import fsum
from typing import TypeVar

import torch
from paceline.runtime.sampling import probabilities, truncated
from paceline.traces.meta import Sampling
from torch import Tensor

T = TypeVar("T", bound=Hashable)


class EnumeratingChance:
    """Answers with a recorded prefix of choices, then always the first option; remembers the options passed by.

    Attributes:
        weight: probability of all answers given so far.
        untried: prefixes of the branches that were not taken.
    """

    def __init__(self, prefix: tuple[int, ...] = ()) -> None:
        self.weight = 1.0
        self.untried: list[tuple[int, ...]] = []
        self._prefix = prefix
        self._choices: list[int] = []

    @property
    def finished_prefix(self) -> bool:
        """Whether the program asked at least as many questions as the prefix answers."""
        return len(self._choices) >= len(self._prefix)

    def accepts(self, prob: float) -> bool:
        return bool(self._choose({1: prob, 0: 1.0 - prob}))

    def draw(self, probs: Tensor) -> int:
        return self._choose(dict(enumerate(probs.tolist())))

    def _choose(self, options: Mapping[int, float]) -> int:
        assert all(prob >= 0 for prob in options.values()), options
        assert abs(fsum(options.values()) - 1.0) < 1e-12, options
        possible = [choice for choice, prob in options.items() if prob > 0]
        asked = len(self._choices)
        if asked < len(self._prefix):
            chosen = self._prefix[asked]
            assert chosen in possible, "the program asked another question when it was run again"
        else:
            chosen, *others = possible
            self.untried += [(*self._choices, other) for other in others]
        self._choices.append(chosen)
        self.weight *= options[chosen]
        return chosen


def outcomes(run: Callable[[EnumeratingChance], T], *, most_branches: int = 200_000) -> dict[T, float]:
    """The exact probability of everything `run` can return; they add up to 1.

    Raises:
        ValueError: more than `most_branches` branches.
    """
    weights: dict[T, list[float]] = {}
    untried: list[tuple[int, ...]] = [()]
    num_branches = 0
    while untried:
        num_branches += 1
        if num_branches > most_branches:
            raise ValueError(f"run must have at most {most_branches} branches")
        chance = EnumeratingChance(untried.pop())
        outcome = run(chance)
        assert chance.finished_prefix, "the program asked fewer questions when it was run again"
        untried += chance.untried
        weights.setdefault(outcome, []).append(chance.weight)
    found = {outcome: fsum(parts) for outcome, parts in weights.items()}
    assert abs(fsum(found.values()) - 1.0) < 1e-9, fsum(found.values())
    return found


def total_variation(probs: Mapping[T, float], other_probs: Mapping[T, float]) -> float:
    """Half the L1 distance of two distributions over outcomes."""
    return fsum(abs(probs.get(key, 0.0) - other_probs.get(key, 0.0)) for key in {*probs, *other_probs}) / 2


VOCABULARY = 4
Text = tuple[int, ...]


@dataclass(frozen=True)
class TableModel:
    """A model whose logits are drawn from (seed, context)."""

    seed: int
    sampling: Sampling

    @cache  # noqa: B019
    def probs(self, text: Text) -> Tensor:
        """`[V]` float64."""
        code = sum((token + 1) * (VOCABULARY + 1) ** place for place, token in enumerate(text))
        generator = torch.Generator().manual_seed(self.seed * 100_003 + code)
        return probabilities(truncated(torch.randn(VOCABULARY, generator=generator) * 1.5, self.sampling))
