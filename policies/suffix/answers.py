"""Texts of earlier answers, of which the oldest half is forgotten at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .automaton import ROOT, SuffixAutomaton


class Place(NamedTuple):
    """Where a piece of text stands in an index.

    Attributes:
        within: the index that it was found in.
        state: of it.
        length: tokens of it; 0 where nothing was found.
    """

    within: SuffixAutomaton
    state: int
    length: int

    def after(self, tokens: Sequence[int]) -> "Place":
        """Where it stands once these tokens follow."""
        state, length = self.state, self.length
        for token in tokens:
            state, length = self.within.step(state, length, token)
        return Place(self.within, state, length)


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
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
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

    def places(self, match: Match) -> Iterator[Place]:
        """Where a request's text ends in each generation, as it was followed last, the older one first."""
        for index, (state, length) in zip(self._generations, match.places, strict=True):
            yield Place(index, *index.at(state, length))
