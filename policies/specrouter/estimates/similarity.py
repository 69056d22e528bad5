"""How far members agree, pair by pair: SimScore, the rate of equal tokens, and how much is known of either.

SimScore(i, j) = 1 - E[TVD(i, j)], a running average (SpecRouter, arXiv:2505.07680). For rejection sampling it is the
acceptance itself; with greedy decoding what counts is how often the largest probability of both is at the same token,
for which the paper gives no formula. Both are kept, for every tag of requests and for all together.

A pair of one tag is known from its own tokens and, for as long as these are few, from those of all tags, moved by what
all pairs of the tag say of how hard its text is (one step in the log-odds, the same for every pair); a pair that never
met is guessed from what the target thinks of either: as if they erred at the same tokens and as if they erred
independently of each other, and the mean of the two.

Letters: L members.
"""

from math import exp

import numpy as np

from ...speed import Floats
from ..constants import CONSTANTS, RouterConstants

# None was tuned: the first keeps log-odds finite, the second says what most means, the third is the level of a test.
LEAST_RATE = 1e-3  # of a pair, and of what it misses, where log-odds are taken
MOSTLY = 0.5  # of a pair's tokens that have a SimScore, from which on it is taken
ALIKE = 2.0  # standard errors within which SimScores say how many tokens are accepted


class _Counts:
    """Tokens of every pair, one list element a pair: a verdict changes single elements, which arrays are slow at.

    Attributes:
        tokens: `[L * L]` that count, at most `pair_memory`.
        sums: `[L * L]` of what they said.
        fresh: `[L * L]` that count against looking again; of all tags.
        ease: `[L * L]` sum of how easy the text of their tags was, log-odds.
    """

    __slots__ = ("ease", "fresh", "sums", "tokens")

    def __init__(self, size: int) -> None:
        self.tokens = [0.0] * size * size
        self.sums = [0.0] * size * size
        self.fresh = [0.0] * size * size
        self.ease = [0.0] * size * size


def _note(of_tag: _Counts, of_all: _Counts, pair: int, value: float, memory: float, ease: float) -> None:
    """A mean of all values until they number `memory`, an exponential moving average from then on."""
    for counts in (of_tag, of_all):  # no method of theirs: a call for each takes as long as the rest
        tokens = counts.tokens[pair]
        if tokens > memory - 1.0:
            kept = 1.0 - 1.0 / memory
            counts.tokens[pair] = tokens * kept + 1.0
            counts.sums[pair] = counts.sums[pair] * kept + value
            counts.ease[pair] = counts.ease[pair] * kept + ease
        else:
            counts.tokens[pair] = tokens + 1.0
            counts.sums[pair] += value
            counts.ease[pair] += ease
    of_all.fresh[pair] += 1.0


class _Compared:
    """Tokens of which both are known: whether they were kept, and their SimScore. Mutated by `note`.

    SimScores say how many tokens are accepted if they do so pair by pair: that those of one pair promise too much and
    those of another too little says that they do not. With P pairs the sum of (kept - promised)^2 over the variance
    that the promises have is P in the mean if they hold, and its own variance 2 P.

    Attributes:
        tokens: how many.
    """

    __slots__ = ("_alike", "_off", "_spread", "tokens")

    def __init__(self, num_members: int) -> None:
        self._off = [0.0] * num_members * num_members
        self._spread = [0.0] * num_members * num_members
        self._alike: bool | None = None  # None: to be found anew
        self.tokens = 0

    def note(self, pair: int, *, kept: bool, similar: float) -> None:
        self._off[pair] += kept - similar
        self._spread[pair] += similar * (1.0 - similar)
        self._alike = None
        self.tokens += 1

    @property
    def alike(self) -> bool:
        """Whether SimScores say how many tokens are accepted, as far as these tell."""
        if self._alike is None:
            # A token's worth of variance more: promises that are all but certain have next to none.
            off = [off * off / (spread + 1.0) for off, spread in zip(self._off, self._spread, strict=True) if spread]
            self._alike = sum(off) <= len(off) + ALIKE * (2.0 * len(off)) ** 0.5
        return self._alike


class PairAgreement:
    """Running agreement of every pair. Mutated by `note` and `fade`.

    Args:
        num_members: L.
        constants: of the policy.
        similarity: what `rates` are made of: "simscore", "argmax" (the rate of equal or accepted tokens), or "auto":
            SimScore as long as it says how many tokens are accepted (sampling), else equal tokens (greedy).
        eased: whether what is known of all tags is moved by how hard the text of a tag is.
    """

    def __init__(
        self, num_members: int, constants: RouterConstants = CONSTANTS, *, similarity: str = "auto", eased: bool = True
    ) -> None:
        self._constants = constants
        self._memory = constants.pair_memory
        self._eased = eased
        self._similarity = similarity
        self._size = num_members
        self._all = _Counts(num_members), _Counts(num_members)  # of equal tokens, and of SimScores
        self._by_tag: dict[str, tuple[_Counts, _Counts]] = {}
        self._ease: dict[str | None, float] = {}  # by tag, log-odds
        self._shared: Floats | None = None  # rates of all tags, until a token is taken in
        self._compared = _Compared(num_members)

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
        pair, ease = lower * self._size + higher, self._ease.get(tag, 0.0)
        _note(own[0], self._all[0], pair, kept, self._memory, ease)
        if similar == similar:
            _note(own[1], self._all[1], pair, similar, self._memory, ease)
            self._compared.note(pair, kept=kept, similar=similar)

    @property
    def uses_simscore(self) -> bool:
        """Whether `rates` are SimScores."""
        if self._similarity != "auto":
            return self._similarity == "simscore"
        return self._compared.tokens >= self._constants.simscore_tokens and self._compared.alike

    def fade(self) -> None:
        """Time passed: evidence says half as much against looking again."""
        for counts in self._all:
            counts.fresh = [fresh * 0.5 for fresh in counts.fresh]

    def freshness(self) -> Floats:
        """`[L, L]` tokens of every pair, of all tags, older ones for less (`fade`)."""
        return self._read(self._all, "fresh")

    def weight(self, tag: str | None) -> Floats:
        """`[L, L]` tokens that the rate of every pair rests on; None for those of all tags."""
        tokens = self._read(self._all, "tokens")
        if tag is None:
            return tokens
        shared: Floats = np.minimum(tokens, self._constants.tag_tokens)
        own = self._by_tag.get(tag)
        return shared if own is None else shared + self._read(own, "tokens")

    def rates(self, tag: str | None) -> Floats:
        """`[L, L]` acceptance of row's tokens by column's member, 0 to 1, above the diagonal; None for all tags."""
        own = None if tag is None else self._by_tag.get(tag)
        if self._shared is None:
            known, guessed = self._read(self._all, "tokens"), self._constants.guess_tokens
            right = self._read(self._all, "sums")
            guess = _guess(known[:, -1], right[:, -1], self._constants)
            self._shared = (right + guessed * guess) / (known + guessed)
        if own is None:
            return self._shared
        counts, sums = self._read(own, "tokens"), self._read(own, "sums")
        shared = self._for_tag(tag, self._shared, counts, sums) if self._eased else self._shared
        rates: Floats = (sums + self._constants.tag_tokens * shared) / (counts + self._constants.tag_tokens)
        return rates

    def _for_tag(self, tag: str | None, shared: Floats, counts: Floats, sums: Floats) -> Floats:
        """Rates of all tags for the text of one: log-odds moved by how easy it is against where they were seen."""
        known = self._read(self._all, "tokens") + self._constants.guess_tokens
        bounded = np.clip(shared, LEAST_RATE, 1.0 - LEAST_RATE)
        odds = np.exp(-self._read(self._all, "ease") / known) * bounded / (1.0 - bounded)
        weight, before = self._constants.ease_tokens, self._ease.get(tag, 0.0)
        expected = odds / (odds + exp(-before))
        missing = float((sums - counts * expected).sum()) - weight * before
        ease = before + missing / (float((counts * expected * (1.0 - expected)).sum()) + weight)
        most = self._constants.most_ease
        self._ease[tag] = ease = min(max(ease, -most), most)
        moved: Floats = odds / (odds + exp(-ease))
        return moved

    def _read(self, counts: tuple[_Counts, _Counts], what: str) -> Floats:
        """`[L, L]` of equal tokens, or of SimScores where rates are these and most tokens of the pair have one.

        Nobody knows that of a member that copies, nor of a token that a level between refused.
        """
        equal = np.array(getattr(counts[0], what))
        if self.uses_simscore:
            overall, similar = self._all
            known = np.array(similar.tokens) >= MOSTLY * np.array(overall.tokens)
            equal = np.where(known, np.array(getattr(counts[1], what)), equal)
        return equal.reshape(self._size, self._size)


def _guess(counts: Floats, sums: Floats, constants: RouterConstants) -> Floats:
    """`[L, L]` rates before a pair met, from the tokens of every member that the target judged and kept, `[L]` each.

    A larger member is guessed to miss the fewer of the target's tokens.
    """
    by_target = np.ones(len(counts))
    guess = constants.first_rate
    guesses = np.empty(len(counts))
    for level in range(len(counts) - 1):
        guesses[level] = guess
        by_target[level] = (sums[level] + constants.guess_tokens * guess) / (counts[level] + constants.guess_tokens)
        guess = 1.0 - constants.fewer_misses * (1.0 - by_target[level])
    ratio = np.minimum(1.0, by_target[:, None] / by_target[None, :])
    pairs: Floats = 0.5 * (ratio + by_target[:, None] * by_target[None, :])
    pairs[:-1, -1] = guesses[:-1]
    return pairs
