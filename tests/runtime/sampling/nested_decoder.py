"""Chains by the book: nested speculative decoding over tables, as exact distributions over its states.

Every level but the first verifies the tokens of the level below until its own window is full, then hands them up; the
last level, the target, commits. What happens next depends on the state alone (committed text and pending tokens), so
equal states are merged: every draft and every verdict is enumerated, and their probabilities are multiplied and added.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from paceline.runtime.rejection_sampling import Chance, judge
from paceline.runtime.sampling import probabilities, truncated
from paceline.traces.meta import Sampling
from torch import Tensor

from .enumerating_chance import outcomes

VOCABULARY = 4
Text = tuple[int, ...]
Judge = Callable[[list[int], list[Tensor | None], Tensor, Chance], tuple[int, int]]


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


@dataclass(frozen=True)
class Lookup:
    """A drafter without a distribution: its token is a function of the text."""

    def token(self, text: Text) -> int:
        return (sum(text) + len(text) + 1) % VOCABULARY


@dataclass(frozen=True)
class State:
    """Committed text, pending tokens, and the level that each pending token follows the distribution of."""

    text: Text = ()
    pending: Text = ()
    levels: tuple[int, ...] = ()

    def context(self, place: int) -> Text:
        """The text before the pending token at `place`."""
        return self.text + self.pending[:place]


Spread = dict[State, float]


def mixed(parts: Iterable[tuple[float, Mapping[State, float]]]) -> Spread:
    """The weighted sum of distributions."""
    total: Spread = {}
    for weight, part in parts:
        for state, prob in part.items():
            total[state] = total.get(state, 0.0) + weight * prob
    return total


@dataclass
class NestedDecoder:
    """A chain of drafter, verifiers and target.

    Attributes:
        models: smallest first.
        windows: one per model but the last: tokens it hands up.
        judges: by level; `judge` where none is named.
        forgetful: a defect: verifiers take every token for the drafter's, whoever judged it since.
    """

    models: tuple[TableModel | Lookup, ...]
    windows: tuple[int, ...]
    judges: Mapping[int, Judge] = field(default_factory=dict)
    forgetful: bool = False
    _known: dict[tuple[object, ...], Spread] = field(default_factory=dict, init=False)

    def texts(self, num_tokens: int) -> dict[Text, float]:
        """The exact distribution of the first `num_tokens` committed tokens."""
        top = len(self.models) - 1
        found: dict[Text, float] = {}
        running: Spread = {State(): 1.0}
        while running:
            ahead = []
            for state, weight in running.items():
                if len(state.text) >= num_tokens:
                    found[state.text[:num_tokens]] = found.get(state.text[:num_tokens], 0.0) + weight
                else:
                    drafted = self._extend(top - 1, state, num_tokens - len(state.text))
                    ahead += [(weight * prob, self._verify(top, reached, 0)) for reached, prob in drafted.items()]
            running = mixed(
                (weight, {State(state.text + state.pending): 1.0}) for state, weight in mixed(ahead).items()
            )
        return found

    def _extend(self, level: int, state: State, room: int) -> Spread:
        """The level hands up its window, or less where `room` tokens are pending; its own token may come on top."""
        wanted = min(len(state.pending) + self.windows[level], room)
        key = ("extend", level, state, wanted)
        if key not in self._known:
            done: list[tuple[float, Spread]] = []
            running: Spread = {state: 1.0}
            while running:
                done += [(weight, {full: 1.0}) for full, weight in running.items() if len(full.pending) >= wanted]
                short = [(weight, item) for item, weight in running.items() if len(item.pending) < wanted]
                running = mixed((weight, self._handed_up(level, item, wanted)) for weight, item in short)
            self._known[key] = mixed(done)
        return self._known[key]

    def _handed_up(self, level: int, state: State, wanted: int) -> Spread:
        """One draft, or what the level below hands up and the verdict on it."""
        first = len(state.pending)
        if level == 0:
            return self._draft(state)
        below = self._extend(level - 1, state, wanted)
        return mixed((weight, self._verify(level, item, first)) for item, weight in below.items())

    def _draft(self, state: State) -> Spread:
        context = state.context(len(state.pending))
        drafter = self.models[0]

        def run(chance: Chance) -> State:
            table = isinstance(drafter, TableModel)
            token = chance.draw(drafter.probs(context)) if table else drafter.token(context)
            return State(state.text, (*state.pending, token), (*state.levels, 0))

        return outcomes(run)

    def _verify(self, level: int, state: State, first: int) -> Spread:
        """Judge the pending tokens from `first` on; what remains there follows this level's distributions."""
        key = ("verify", level, state, first)
        if key not in self._known:
            places = range(first, len(state.pending))
            tokens = list(state.pending[first:])
            drafts = [self._followed(state, place) for place in places]
            probs = [self.models[level].probs(state.context(place)) for place in (*places, len(state.pending))]

            def run(chance: Chance) -> State:
                kept, own = self.judges.get(level, judge)(tokens, drafts, torch.stack(probs), chance)
                pending = (*state.pending[: first + kept], own)
                return State(state.text, pending, (*state.levels[:first], *[level] * (kept + 1)))

            self._known[key] = outcomes(run)
        return self._known[key]

    def _followed(self, state: State, place: int) -> Tensor | None:
        model = self.models[0 if self.forgetful else state.levels[place]]
        return None if isinstance(model, Lookup) else model.probs(state.context(place))
