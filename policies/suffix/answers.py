"""Texts of earlier answers, of which the oldest half is forgotten at a time."""

from collections.abc import Sequence

from .automaton import ROOT, SuffixAutomaton
from .speculation import NOTHING, Speculation, SpeculationRule


class Match:
    """Where the newest tokens of a request stand in what is kept. Mutated by `EarlierAnswers.follow`."""

    __slots__ = ("places", "serial")

    def __init__(self) -> None:
        self.serial = -1
        self.places: list[tuple[int, int]] = []


class EarlierAnswers:
    """An index of the newest answers, in two generations. Mutated by `add`.

    When the younger one is full it becomes the older one, and what that held is forgotten: so between half of `most`
    tokens and all of them are kept, once there were as many.

    Args:
        most: tokens kept, >= 2.
        rule: of what is looked up.
    """

    def __init__(self, most: int, rule: SpeculationRule) -> None:
        self._half = most // 2
        self._rule = rule
        self._generations = [SuffixAutomaton()]
        self._serial = 0  # of the younger one

    @property
    def num_tokens(self) -> int:
        """Tokens kept."""
        return sum(index.num_tokens for index in self._generations)

    def add(self, answer: Sequence[int]) -> None:
        """Take in an answer, up to half of what is kept."""
        answer = answer[: self._half]
        if self._generations[-1].num_tokens + len(answer) > self._half:
            self._generations = [self._generations[-1], SuffixAutomaton()]
            self._serial += 1
        index = self._generations[-1]
        index.begin()
        for token in answer:
            index.extend(token)

    def follow(self, match: Match, tokens: Sequence[int]) -> None:
        """A request's text goes on by these tokens. A new generation is followed from here on."""
        if match.serial != self._serial:
            # Of an older generation the place is known if it was the younger one when it was looked at last.
            known = match.places[-1:] if match.serial == self._serial - 1 else []
            match.places = [*known, *[(ROOT, 0)] * (len(self._generations) - len(known))]
            match.serial = self._serial
        for generation, index in enumerate(self._generations):
            state, length = match.places[generation]
            for token in tokens:
                state, length = index.step(state, length, token)
            match.places[generation] = state, length

    def speculate(self, match: Match) -> Speculation:
        """The best candidate after what a request's text ends in, as it was followed last."""
        found = [
            self._rule.best_of(index, *index.at(state, length))
            for index, (state, length) in zip(self._generations, match.places, strict=True)
        ]
        return max(found, key=lambda each: each.score, default=NOTHING)
