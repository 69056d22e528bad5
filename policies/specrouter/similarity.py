"""How far members agree, pair by pair: SimScore, the rate of equal tokens, and how much is known of either.

SimScore(i, j) = 1 - E[TVD(i, j)], a running average (SpecRouter, arXiv:2505.07680). For rejection sampling it is the
acceptance itself; with greedy decoding what counts is how often the largest probability of both is at the same token,
for which the paper gives no formula. Both are kept, for every tag of requests and for all together.

A pair of one tag is known from its own tokens and, for as long as these are few, from those of all tags; a pair that
never met is guessed from what the target thinks of either: as if they erred at the same tokens and as if they erred
independently of each other, and the mean of the two.

Letters: L members.
"""

import numpy as np

from ..speed import Floats

MEMORY = 512.0  # tokens that an average reaches back
KEPT = 1.0 - 1.0 / MEMORY
GLOBAL_WEIGHT = 12.0  # tokens that what is known of all tags counts for in one of them
SHARED_FRESH = 4.0  # tokens that what is known of all tags counts for against looking for oneself
PRIOR_WEIGHT = 8.0  # tokens that a guess counts for
PRIOR_RATE = 0.5  # of the smallest member, before anything was seen at all
FEWER_MISSES = 0.5  # what a member is guessed to miss of the tokens that the next smaller one misses
ENOUGH = 64  # tokens before `auto` believes that SimScore says how many are accepted


class _Counts:
    """Tokens of every pair, one list element a pair: a verdict changes single elements, which arrays are slow at.

    Attributes:
        tokens: `[L * L]` that count, at most `MEMORY`.
        sums: `[L * L]` of what they said.
        fresh: `[L * L]` that count against looking again.
    """

    __slots__ = ("fresh", "sums", "tokens")

    def __init__(self, size: int) -> None:
        self.tokens = [0.0] * size * size
        self.sums = [0.0] * size * size
        self.fresh = [0.0] * size * size


def _note(of_tag: _Counts, of_all: _Counts, pair: int, value: float) -> None:
    """A mean of all values until they number `MEMORY`, an exponential moving average from then on."""
    for counts in (of_tag, of_all):  # no method of theirs: a call for each takes as long as the rest
        tokens = counts.tokens[pair]
        if tokens > MEMORY - 1.0:
            counts.tokens[pair] = tokens * KEPT + 1.0
            counts.sums[pair] = counts.sums[pair] * KEPT + value
        else:
            counts.tokens[pair] = tokens + 1.0
            counts.sums[pair] += value
        counts.fresh[pair] += 1.0


class PairAgreement:
    """Running agreement of every pair. Mutated by `note` and `fade`.

    Args:
        num_members: L.
        similarity: what `rates` are made of: "simscore", "argmax" (the rate of equal or accepted tokens), or "auto":
            SimScore as long as it says how many tokens are accepted (sampling), else equal tokens (greedy).
    """

    def __init__(self, num_members: int, similarity: str = "auto") -> None:
        self._similarity = similarity
        self._size = num_members
        self._equal, self._similar = _Counts(num_members), _Counts(num_members)
        self._by_tag: dict[str, tuple[_Counts, _Counts]] = {}
        self._shared: Floats | None = None  # rates of all tags, until a token is taken in
        # Of the tokens of which both are known: kept, SimScore, its variance if it were the chance to be kept, number.
        self._kept = self._predicted = self._spread = self._compared = 0.0

    def note(self, tag: str, lower: int, higher: int, *, kept: bool, similar: float) -> None:
        """Take in one token.

        Args:
            tag: of its request.
            lower: who proposed it.
            higher: who judged it.
            kept: whether `higher` kept it, or would have.
            similar: 1 - TVD of the two there; NaN if nobody knows.
        """
        self._shared = None
        own = self._by_tag.get(tag)
        if own is None:
            own = self._by_tag[tag] = (_Counts(self._size), _Counts(self._size))
        pair = lower * self._size + higher
        _note(own[0], self._equal, pair, kept)
        if similar == similar:
            _note(own[1], self._similar, pair, similar)
            self._compared += 1.0
            self._kept += kept
            self._predicted += similar
            self._spread += similar * (1.0 - similar)

    @property
    def uses_simscore(self) -> bool:
        """Whether `rates` are SimScores."""
        if self._similarity != "auto":
            return self._similarity == "simscore"
        return self._compared >= ENOUGH and abs(self._kept - self._predicted) <= 2.0 * self._spread**0.5

    def fade(self, tag: str | None) -> None:
        """Time passed in a tag, or in all together (None): evidence says half as much against looking again."""
        for counts in (self._equal, self._similar) if tag is None else self._by_tag.get(tag, ()):
            counts.fresh = [fresh * 0.5 for fresh in counts.fresh]

    def freshness(self, tag: str | None) -> Floats:
        """`[L, L]` tokens of every pair in a tag, older ones for less (`fade`), and a few for what all tags know.

        None for those of all tags.
        """
        overall, own = self._tables(tag)
        if tag is None:
            return self._square(overall.fresh)
        shared: Floats = np.minimum(self._square(overall.tokens), SHARED_FRESH)
        return shared if own is None else shared + self._square(own.fresh)

    def guess(self) -> Floats:
        """`[L, L]` rates before anything was seen."""
        nothing = np.zeros(self._size)
        return _guess(nothing, nothing)

    def rates(self, tag: str | None) -> Floats:
        """`[L, L]` acceptance of row's tokens by column's member, 0 to 1, above the diagonal; None for all tags."""
        overall, own = self._tables(tag)
        if self._shared is None:
            counts, sums = self._square(overall.tokens), self._square(overall.sums)
            self._shared = (sums + PRIOR_WEIGHT * _guess(counts[:, -1], sums[:, -1])) / (counts + PRIOR_WEIGHT)
        if own is None:
            return self._shared
        counts, sums = self._square(own.tokens), self._square(own.sums)
        rates: Floats = (sums + GLOBAL_WEIGHT * self._shared) / (counts + GLOBAL_WEIGHT)
        return rates

    def _tables(self, tag: str | None) -> tuple[_Counts, _Counts | None]:
        """Counts of all tags, and of this one."""
        own = None if tag is None else self._by_tag.get(tag)
        if self.uses_simscore:
            return self._similar, None if own is None else own[1]
        return self._equal, None if own is None else own[0]

    def _square(self, flat: list[float]) -> Floats:
        return np.array(flat).reshape(self._size, self._size)


def _guess(counts: Floats, sums: Floats) -> Floats:
    """`[L, L]` rates before a pair met, from the tokens of every member that the target judged and kept, `[L]` each.

    A larger member is guessed to miss the fewer of the target's tokens.
    """
    by_target = np.ones(len(counts))
    guess = PRIOR_RATE
    guesses = np.empty(len(counts))
    for level in range(len(counts) - 1):
        guesses[level] = guess
        by_target[level] = (sums[level] + PRIOR_WEIGHT * guess) / (counts[level] + PRIOR_WEIGHT)
        guess = 1.0 - FEWER_MISSES * (1.0 - by_target[level])
    ratio = np.minimum(1.0, by_target[:, None] / by_target[None, :])
    pairs: Floats = 0.5 * (ratio + by_target[:, None] * by_target[None, :])
    pairs[:-1, -1] = guesses[:-1]
    return pairs
