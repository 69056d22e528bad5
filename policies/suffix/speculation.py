"""What most often followed the newest tokens: candidates of suffix decoding and their scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .automaton import ROOT, SuffixAutomaton

MOST_PATTERNS = 8  # suffixes of the newest tokens that are looked at, the longest first


class Speculation(NamedTuple):
    """A candidate.

    Attributes:
        score: tokens of it that are expected to be right, if what follows does so as often as it did before.
        tokens: of it.
    """

    score: float
    tokens: tuple[int, ...]


NOTHING = Speculation(0.0, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRule:
    """How far candidates go.

    Attributes:
        factor: alpha > 0; a match of p tokens is followed by alpha p tokens at most.
        least_prob: share of the continuations that a token and those before it must have, 0 to 1.
        most: tokens at most, >= 1.
    """

    factor: float
    least_prob: float
    most: int

    def best_of(self, index: SuffixAutomaton, state: int, length: int) -> Speculation:
        """The candidate of most score after a match of `length` tokens at `state`, or a suffix of it."""
        return max(self._candidates(index, state, length), key=lambda found: found.score, default=NOTHING)

    def _candidates(self, index: SuffixAutomaton, state: int, length: int) -> Iterator[Speculation]:
        for _ in range(MOST_PATTERNS):
            if state == ROOT:
                return
            yield self._after(index, state, min(int(self.factor * length), self.most))
            state = index.links[state]
            length = index.lengths[state]

    def _after(self, index: SuffixAutomaton, state: int, most: int) -> Speculation:
        """Most frequent tokens one after another; of equals the one that came first."""
        counts, prob, score = index.counts, 1.0, 0.0
        tokens: list[int] = []
        while len(tokens) < most:
            follows = index.follows[state]
            if not follows:
                break
            token = max(follows, key=lambda each: counts[follows[each]])
            prob *= counts[follows[token]] / sum(counts[after] for after in follows.values())
            if prob < self.least_prob or token < 0:  # logs have numbers below 0 for tokens that nobody knows
                break
            score += prob
            tokens.append(token)
            state = follows[token]
        return Speculation(score, tuple(tokens))
