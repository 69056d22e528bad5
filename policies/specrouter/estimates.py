"""Estimates by which SpecRouter (arXiv:2505.07680) selects: agreement of members, survival of drafts and of copies.

*Agreement.* SimScore(i, j) = 1 - E[TVD(i, j)], a running average, is the acceptance of rejection sampling. In greedy
decoding what counts is how often both have their largest probability at the same token. Both are kept, by tag and for
all. A pair of one tag is estimated from its own tokens and, while these are few, from those of all tags, moved by how
hard the text of the tag is for all pairs (one step in the log-odds). A pair without tokens is guessed as the mean of
two: both err at the same tokens, or independently of each other.

*Evidence.* Where the target commits, all that any member wrote in that context is right or wrong at once (full
information, as in HedgeSpec, arXiv:2510.20064), whether it was passed on or rejected by a level between. So a chain in
use also scores those that leave out a level. A kept token is scored for every level that kept it: a level scored only
by its corrections, its hardest tokens, would look worse than it is.

*Survival.* Of a run of unjudged tokens all survive with probability exp(-x), x the sum of (h + g d) over them: d = -ln
p the doubt of a token's drafter, g the weight of a nat of doubt, h the risk of every token (`SurvivalBelow`). Both are
fitted for every drafter, judge and verifier, by one Gauss-Newton step of the log-likelihood in (ln h, ln g) a token.
Tokens after the first rejected one count: a drafter is often sure of what follows its own wrong token.

*Copies.* By the length of the match and how regularly a token followed; every answer shows which copies would have been
right, so no round is spent on learning this. Letter: L members.
"""

from collections.abc import Sequence
from math import exp, expm1, log, nan
from operator import add
from typing import NamedTuple

import numpy as np

from ...decoding.pool import Pool
from ...decoding.results import made
from ...decoding.seen import Observation, PendingToken
from ...decoding.steps import Outcome
from ..about import Floats
from ..estimates import PerformanceProfiler
from .options import CONSTANTS, RouterOptions
from .search import SearchFigures

# None of these was tuned: bounds of h and g (a window of 500 tokens, or none), and of floats.
LEAST, MOST = 0.002, 8.0
NO_CHANCE = 700.0  # -ln of a survival of 0
# The doubt for a drafter without probabilities: as of probability one half.
NO_PROB = log(2.0)

Trio = tuple[int, int, int]  # drafter, the highest member that endorses the token, verifier
Hazard = tuple[float, float]  # h and g


def doubt(prob: float) -> float:
    """-ln p of a drafted token, at least 0; that of one half where p is unknown."""
    if prob != prob:
        return NO_PROB
    return -log(prob) if 0.0 < prob < 1.0 else (0.0 if prob >= 1.0 else NO_CHANCE)


# h, g, and the curvature in (ln h, ln g): of h, of both, of g.
_Fit = tuple[float, float, float, float, float]
# Of a run of tokens: the sum of the doubts of those that share the trio of its last one, how many these are, x of the
# others, and whether all were kept. Plain tuples: each judged token makes one.
_Judged = tuple[float, int, float, bool]


class Survival:
    """Hazards by tag. Mutated by `note` and `note_run`."""

    def __init__(self) -> None:
        self._weight = CONSTANTS.hazard_weight
        self._kept = 1.0 - 1.0 / CONSTANTS.hazard_memory
        self._longest = CONSTANTS.hazard_step
        self._start: _Fit = (CONSTANTS.hazard, CONSTANTS.hazard_of_doubt, self._weight, 0.0, self._weight)
        self._all: dict[Trio, _Fit] = {}
        self._by_tag: dict[tuple[str, Trio], _Fit] = {}

    def hazard(self, tag: str, trio: Trio) -> Hazard:
        """(h, g), each `LEAST` to `MOST`."""
        fit = self._by_tag.get((tag, trio)) or self._all.get(trio) or self._start
        return fit[0], fit[1]

    def note(self, tag: str, trio: Trio, doubted: float, *, kept: bool) -> None:
        """Note whether a token of doubt `doubted` was kept."""
        self._take(tag, trio, [(doubted, 1, 0.0, kept)])

    def note_run(self, tag: str, tokens: Sequence[tuple[Trio, float]], num_kept: int) -> None:
        """Note a judged run: trio and doubt of each token, and how many were kept."""
        first = tokens[0][0]
        if not [trio for trio, _ in tokens if trio != first]:  # as most are
            total, runs = 0.0, list[_Judged]()
            for index, (_, doubted) in enumerate(tokens):
                total += doubted
                runs.append((total, index + 1, 0.0, index < num_kept))
            self._take(tag, first, runs)
            return
        sums: dict[Trio, tuple[int, float]] = {}
        for index, (trio, doubted) in enumerate(tokens):
            count, total = sums.get(trio, (0, 0.0))
            sums[trio] = count, total = count + 1, total + doubted
            others = 0.0
            for other, (tokens_of, doubts_of) in sums.items():
                if other != trio:
                    hazard, of_doubt = self.hazard(tag, other)
                    others += tokens_of * hazard + doubts_of * of_doubt
            self._take(tag, trio, [(total, count, others, index < num_kept)])

    def _take(self, tag: str, trio: Trio, runs: Sequence[_Judged]) -> None:
        key, overall = (tag, trio), self._all.get(trio, self._start)
        own = self._by_tag.get(key)
        if own is None:
            own = overall if overall is self._start else (overall[0], overall[1], self._weight, 0.0, self._weight)
        found = self._all[trio] = _fitted(overall, self._kept, self._longest, runs)
        # While there is only one tag, both are the same.
        self._by_tag[key] = found if own is overall else _fitted(own, self._kept, self._longest, runs)


def _fitted(fit: _Fit, forgets: float, longest: float, runs: Sequence[_Judged]) -> _Fit:
    """The fit after some runs; each moves ln h and ln g by `longest` at most; h and g stay from `LEAST` to `MOST`."""
    hazard, of_doubt, by_hazard, by_both, by_doubt = fit
    for doubted, count, others, kept in runs:
        fixed, doubts = hazard * count, of_doubt * doubted
        x = fixed + doubts + others
        odds = 1.0 / expm1(x) if x < NO_CHANCE else 0.0  # s / (1 - s) at survival s = exp(-x)
        by_hazard = forgets * by_hazard + odds * fixed * fixed
        by_both = forgets * by_both + odds * fixed * doubts
        by_doubt = forgets * by_doubt + odds * doubts * doubts
        slope = (-1.0 if kept else odds) / (by_hazard * by_doubt - by_both * by_both)
        # Inlined: calls would take as long as the rest.
        step = slope * (by_doubt * fixed - by_both * doubts)
        hazard *= exp(longest if step > longest else -longest if step < -longest else step)
        step = slope * (by_hazard * doubts - by_both * fixed)
        of_doubt *= exp(longest if step > longest else -longest if step < -longest else step)
        hazard = LEAST if hazard < LEAST else MOST if hazard > MOST else hazard
        of_doubt = LEAST if of_doubt < LEAST else MOST if of_doubt > MOST else of_doubt
    return hazard, of_doubt, by_hazard, by_both, by_doubt


LENGTHS = 6  # classes of matches by powers of two: 1, 2 to 3, 4 to 7, ...; the last one has all longer ones
SHARES = 5  # kinds of continuations: always and once; always; for the most part; mostly; sometimes
MOSTLY_COPIED, MOST_COPIED = 0.5, 0.75
OWN, EARLIER = 0, 1  # text of the request itself, or answers of others

Rates = list[list[float]]  # `[2 * LENGTHS * SHARES]` rate, and number of tokens behind it


class CopiedTokens:
    """Rates by tag. Mutated by `note`."""

    def __init__(self) -> None:
        self._memory, self._shared = CONSTANTS.copy_memory, CONSTANTS.copy_tokens
        of_shares = (1.0, 1.0, 0.875, 0.5, 0.25)
        rates = [
            share * (1.0 - CONSTANTS.copy_risk / 2.0**length)
            for _ in (OWN, EARLIER)
            for length in range(LENGTHS)
            for share in of_shares
        ]
        self._all = [rates, [CONSTANTS.copy_tokens] * len(rates)]
        self._by_tag: dict[str, Rates] = {}

    def rates(self, tag: str) -> list[float]:
        """By cell, 0 to 1; those of a tag start from those of all."""
        return self._of(tag)[0]

    def note(self, tag: str, cells: Sequence[int], written: Sequence[int], right: Sequence[int]) -> None:
        """Note what was `written` for `cells`, up to the first token that is not the `right` one."""
        for rates, tokens in (self._of(tag), self._all):
            for cell, token, other in zip(cells, written, right, strict=False):
                weight = tokens[cell] + 1.0
                rates[cell] += ((token == other) - rates[cell]) / weight
                if weight <= self._memory:
                    tokens[cell] = weight
                if token != other:
                    break

    def _of(self, tag: str) -> Rates:
        own = self._by_tag.get(tag)
        if own is None:
            rates = self._all[0]
            own = self._by_tag[tag] = [rates.copy(), [self._shared] * len(rates)]
        return own


def cell_of(source: int, length: int, share: float, count: int) -> int:
    """The cell of a token after a match of `length` >= 1 tokens in `source` (`OWN` or `EARLIER`).

    `share` is the token's part of all that followed, above 0 to 1; `count` >= 1 how often it followed.
    """
    if share == 1.0:
        kind = 0 if count == 1 else 1
    else:
        kind = 2 if share >= MOST_COPIED else 3 if share >= MOSTLY_COPIED else 4
    bits = length.bit_length()
    return (source * LENGTHS + (bits if bits < LENGTHS else LENGTHS) - 1) * SHARES + kind


class JudgedRun(NamedTuple):
    """The tokens of one verification, or one that a lower level had rejected. Letters: J of them, K of these known."""

    tag: str  # of the request
    tokens: tuple[PendingToken, ...]  # `[J]`, oldest first
    endorsers: Sequence[tuple[str, ...]]  # `[J]` of each its drafter, then every verifier that kept it before
    verifier: str  # that judged them, or would have
    num_kept: int  # how many of them were right, from the first on
    num_known: int  # K: those, and the first wrong one
    tvd: Sequence[float]  # of verifier and last endorser, of the first tokens; shorter than K where unknown
    together: bool  # whether they were drafted as a run, whose tokens after the first rejected one were dropped


class _Refused(NamedTuple):
    """A token that a level below the target rejected; `at` is the index of its place among the pending ones."""

    at: int
    written: PendingToken
    endorsers: tuple[str, ...]


class RoundEvidence:
    """The tokens of one request's round. Mutated by its methods, which append verdicts to `runs`."""

    __slots__ = ("_endorsers", "_first", "_judged", "_open", "_refused", "_runs", "_tag", "_verifier")

    def __init__(self, tag: str, runs: list[JudgedRun]) -> None:
        self._tag = tag
        self._runs = runs
        self._verifier = ""
        self._first = 0
        self._judged: tuple[PendingToken, ...] = ()
        self._endorsers: list[tuple[str, ...]] = []  # of every pending token
        self._refused: list[_Refused] = []
        self._open: list[_Refused] = []

    @property
    def num_endorsed(self) -> int:
        """Pending tokens whose endorsers are known."""
        return len(self._endorsers)

    def restart(self) -> None:
        """Reset, as pending tokens were dropped without a commit."""
        self._refused.clear()
        self._endorsers.clear()

    def note_written(self, tokens: Sequence[PendingToken]) -> None:
        """Note pending tokens from `num_endorsed` on that `before` will not get, as their drafter judges later ones."""
        self._endorsers.extend((token.drafter,) for token in tokens)

    def before(self, verifier: str, judged: tuple[PendingToken, ...], first: int) -> None:
        """`verifier` is about to judge these tokens, the first of which has index `first` among the pending ones."""
        self._verifier, self._judged, self._first = verifier, judged, first
        endorsers = self._endorsers
        endorsers += [(written.drafter,) for written in judged[len(endorsers) - first :]]

    def after(self, outcome: Outcome, *, measured: bool = True) -> None:
        """Note the verdict, with its distances if they are `measured`."""
        kept, refused = outcome.num_accepted, outcome.refused_at is not None
        judged, first, verifier, endorsers = self._judged, self._first, self._verifier, self._endorsers
        if judged:
            of_these = endorsers[first : first + len(judged)]
            tvd = tuple(outcome.tvd) if measured else ()  # real models keep their distributions until it is read
            run = (self._tag, judged, of_these, verifier, kept, kept + refused, tvd, True)
            self._runs.append(made(JudgedRun, run))
        if self._refused:
            self._score_rejected(kept, commits=outcome.num_emitted > 0)
        if outcome.num_emitted:
            self._refused.clear()
            endorsers.clear()
            return
        end = first + kept
        if refused:
            self._refused = [claim for claim in self._refused if claim.at <= end]
            self._refused.append(_Refused(end, judged[kept], endorsers[end]))
        endorsers[first:] = [(*names, verifier) for names in endorsers[first:end]]
        if outcome.num_own:
            endorsers.append((verifier,))

    def settle(self, seen: Observation) -> None:
        """Score by the target's own token of the round before; call where nothing is pending."""
        if self._open:
            own = seen.emitted_from(seen.num_emitted - 1)[0]
            for claim in self._open:
                self._add(claim, seen.pool.target, kept=claim.written.token == own)
            self._open.clear()

    def _score_rejected(self, kept: int, *, commits: bool) -> None:
        """Score tokens that a level between rejected: wrong where this verifier kept another one in their place."""
        judged, verifier = self._judged, self._verifier
        for claim in self._refused:
            index = claim.at - self._first
            if 0 <= index < kept or (index == kept < len(judged) and claim.written.token == judged[index].token):
                self._add(claim, verifier, kept=False)
            elif commits and index == kept < len(judged):
                self._open.append(claim)

    def _add(self, claim: _Refused, verifier: str, *, kept: bool) -> None:
        run = (self._tag, (claim.written,), (claim.endorsers,), verifier, int(kept), 1, (), False)
        self._runs.append(made(JudgedRun, run))


# None was tuned: the first keeps log-odds finite, the second defines "most", the third is the level of a test.
LEAST_RATE = 1e-3  # bound of a pair's rate, and of 1 less it, for log-odds
MOSTLY = 0.5  # share of a pair's tokens with a SimScore, from which on it is used
ALIKE = 2.0  # standard errors within which SimScores predict acceptance


class _Counts:
    """Tokens of every pair, one list element a pair: a verdict changes single elements, which is slow in arrays.

    Attributes:
        tokens: `[L * L]` that count, at most `pair_memory` each.
        sums: `[L * L]` of their values.
        fresh: `[L * L]` that count against trying again; of all tags.
        ease: `[L * L]` sum of how easy the text of their tags was, log-odds.
    """

    __slots__ = ("ease", "fresh", "sums", "tokens")

    def __init__(self, size: int) -> None:
        self.tokens = [0.0] * size * size
        self.sums = [0.0] * size * size
        self.fresh = [0.0] * size * size
        self.ease = [0.0] * size * size


class _Compared:
    """Tokens with a verdict and a SimScore. Mutated by `note`.

    SimScores predict acceptance if they do so pair by pair. With P pairs the sum of (kept - predicted)^2 over the
    variance of the prediction is P in the mean if they do, and its own variance 2 P.
    """

    __slots__ = ("_alike", "_off", "_spread", "tokens")

    def __init__(self, num_members: int) -> None:
        self._off = [0.0] * num_members * num_members
        self._spread = [0.0] * num_members * num_members
        self._alike: bool | None = None  # None: to be computed
        self.tokens = 0

    def note(self, pair: int, *, kept: bool, similar: float) -> None:
        self._off[pair] += kept - similar
        self._spread[pair] += similar * (1.0 - similar)
        self._alike = None
        self.tokens += 1

    @property
    def alike(self) -> bool:
        """Whether SimScores predict acceptance, by these tokens."""
        if self._alike is None:
            # One more token's variance: predictions near certainty have next to none.
            off = [off * off / (spread + 1.0) for off, spread in zip(self._off, self._spread, strict=True) if spread]
            self._alike = sum(off) <= len(off) + ALIKE * (2.0 * len(off)) ** 0.5
        return self._alike


class PairAgreement:
    """Running agreement of every pair of L members. Mutated by `note` and `fade`.

    Args:
        num_members: L.
        similarity: what `rates` are made of: "simscore", "argmax" (the rate of equal or accepted tokens), or "auto":
            SimScore as long as it predicts acceptance (sampling), else equal tokens (greedy).
        eased: whether rates of all tags are moved by how hard the text of a tag is.
    """

    def __init__(self, num_members: int, *, similarity: str = "auto", eased: bool = True) -> None:
        self._memory = CONSTANTS.pair_memory
        self._eased = eased
        self._similarity = similarity
        self._size = num_members
        self._all = _Counts(num_members), _Counts(num_members)  # of equal tokens, and of SimScores
        self._by_tag: dict[str, tuple[_Counts, _Counts]] = {}
        self._ease: dict[str | None, float] = {}  # by tag, log-odds
        # `[L * L]` of all tags, weights and rates; None: to be computed. Lists: few elements are slow in arrays.
        self._shared: tuple[list[float], list[float]] | None = None
        self._compared = _Compared(num_members)

    def note(self, tag: str, lower: int, higher: int, *, kept: bool, similar: float) -> None:
        """Note one token, proposed by `lower`.

        `kept`: `higher` kept it, or would have; `similar`: 1 - TVD of the two there, NaN if unknown. Estimates are
        means of all tokens up to `pair_memory`, exponential moving averages from then on.
        """
        self._shared = None
        own = self._by_tag.get(tag)
        if own is None:
            own = self._by_tag[tag] = (_Counts(self._size), _Counts(self._size))
        pair, ease, memory, overall = lower * self._size + higher, self._ease.get(tag, 0.0), self._memory, self._all
        both: tuple[tuple[float, _Counts, _Counts], ...] = ((kept, own[0], overall[0]),)
        if similar == similar:
            both = (*both, (similar, own[1], overall[1]))
            self._compared.note(pair, kept=kept, similar=similar)
        for value, of_tag, of_all in both:
            for counts in (of_tag, of_all):  # inlined: a call for each would take as long as the rest
                tokens = counts.tokens[pair]
                if tokens > memory - 1.0:
                    faded = 1.0 - 1.0 / memory
                    counts.tokens[pair] = tokens * faded + 1.0
                    counts.sums[pair] = counts.sums[pair] * faded + value
                    counts.ease[pair] = counts.ease[pair] * faded + ease
                else:
                    counts.tokens[pair] = tokens + 1.0
                    counts.sums[pair] += value
                    counts.ease[pair] += ease
            of_all.fresh[pair] += 1.0

    @property
    def uses_simscore(self) -> bool:
        """Whether `rates` are SimScores."""
        if self._similarity != "auto":
            return self._similarity == "simscore"
        return self._compared.tokens >= CONSTANTS.simscore_tokens and self._compared.alike

    @property
    def reads_distances(self) -> bool:
        """Whether SimScores of further tokens may matter: real models compute a distance where it is read."""
        if self._similarity != "auto":
            return self._similarity == "simscore"
        return self._compared.tokens < CONSTANTS.simscore_trial or self._compared.alike

    def fade(self) -> None:
        """Halve the evidence against trying a pair again."""
        for counts in self._all:
            counts.fresh = [fresh * 0.5 for fresh in counts.fresh]

    def freshness(self) -> Floats:
        """`[L, L]` tokens of every pair, of all tags, older ones for less (`fade`)."""
        return self._square(self._read(self._all, "fresh"))

    def weight(self, tag: str) -> Floats:
        """`[L, L]` tokens behind the rate of every pair."""
        most, own = CONSTANTS.tag_tokens, self._by_tag.get(tag)
        shared = [min(tokens, most) for tokens in self._read(self._all, "tokens")]
        return self._square(shared if own is None else list(map(add, shared, self._read(own, "tokens"))))

    def rates(self, tag: str | None) -> Floats:
        """`[L, L]` acceptance of row's tokens by column's member, 0 to 1, above the diagonal; None for all tags."""
        own = None if tag is None else self._by_tag.get(tag)
        if self._shared is None:
            guessed, last = CONSTANTS.guess_tokens, slice(self._size - 1, None, self._size)
            known, right = self._read(self._all, "tokens"), self._read(self._all, "sums")
            guess = _guess(known[last], right[last])
            known = [tokens + guessed for tokens in known]
            self._shared = (
                known,
                [(kept + guessed * rate) / tokens for kept, rate, tokens in zip(right, guess, known, strict=True)],
            )
        known, shared = self._shared
        if own is None:
            return self._square(shared)
        counts, sums = self._read(own, "tokens"), self._read(own, "sums")
        if self._eased:
            shared = self._for_tag(tag, known, shared, counts, sums)
        weight = CONSTANTS.tag_tokens
        found = [
            (kept + weight * rate) / (tokens + weight) for kept, rate, tokens in zip(sums, shared, counts, strict=True)
        ]
        return self._square(found)

    def _for_tag(
        self, tag: str | None, known: list[float], shared: list[float], counts: list[float], sums: list[float]
    ) -> list[float]:
        """Rates of all tags for the text of one: log-odds moved by how much easier it is than the text behind them."""
        odds = []
        for ease, tokens, rate in zip(self._read(self._all, "ease"), known, shared, strict=True):
            bounded = min(max(rate, LEAST_RATE), 1.0 - LEAST_RATE)
            odds.append(exp(-ease / tokens) * bounded / (1.0 - bounded))
        weight, before = CONSTANTS.ease_tokens, self._ease.get(tag, 0.0)
        missing, information, against = -weight * before, weight, exp(-before)
        for odd, tokens, kept in zip(odds, counts, sums, strict=True):
            if tokens:
                expected = odd / (odd + against)
                missing += kept - tokens * expected
                information += tokens * expected * (1.0 - expected)
        most = CONSTANTS.most_ease
        self._ease[tag] = ease = min(max(before + missing / information, -most), most)
        against = exp(-ease)
        return [odd / (odd + against) for odd in odds]

    def _read(self, counts: tuple[_Counts, _Counts], what: str) -> list[float]:
        """`[L * L]` of equal tokens, or of SimScores where rates are these and most tokens of the pair have one."""
        equal: list[float] = getattr(counts[0], what)
        if not self.uses_simscore:
            return equal
        overall, similar = self._all
        return [
            scored if known >= MOSTLY * tokens else plain
            for plain, scored, known, tokens in zip(
                equal, getattr(counts[1], what), similar.tokens, overall.tokens, strict=True
            )
        ]

    def _square(self, pairs: list[float]) -> Floats:
        return np.array(pairs).reshape(self._size, self._size)


def _guess(counts: list[float], sums: list[float]) -> list[float]:
    """`[L * L]` rates of pairs without tokens, from tokens of each member that the target judged, and kept, `[L]`."""
    guess, guesses, rates = CONSTANTS.first_rate, list[float](), list[float]()
    for judged, kept in zip(counts[:-1], sums[:-1], strict=True):
        guesses.append(guess)
        rates.append((kept + CONSTANTS.guess_tokens * guess) / (judged + CONSTANTS.guess_tokens))
        guess = 1.0 - CONSTANTS.fewer_misses * (1.0 - rates[-1])
    by_target = [*rates, 1.0]
    pairs = [0.5 * (min(1.0, row / column) + row * column) for row in by_target for column in by_target]
    pairs[len(counts) - 1 : -1 : len(counts)] = guesses
    return pairs


class Knowledge:
    """Running estimates of members and pairs. Mutated by `digest`, through `runs` and through its parts.

    Attributes:
        profiler, agreement, survival: of seconds, pairs and drafted tokens.
        runs: verdicts not yet counted, for `digest`.
    """

    def __init__(self, pool: Pool, options: RouterOptions) -> None:
        self.profiler = PerformanceProfiler(
            pool, options.costs, memory=CONSTANTS.seconds_memory, moved=CONSTANTS.seconds_moved
        )
        self.agreement = PairAgreement(len(pool.members), similarity=options.similarity, eased=options.takes("ease"))
        self.survival = Survival()
        self.runs: list[JudgedRun] = []
        self._all_endorsers = options.takes("evidence")
        self._widths = options.most + 1
        self._levels = {name: level for level, name in enumerate(pool.names)}
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]

    def models(self) -> list[int]:
        """Members with weights and known seconds."""
        return [level for level in self._models if self.profiler.known(level)]

    def figures(self, key: str | None, num_rows: int, seen: Observation | None = None) -> SearchFigures:
        """The present estimates for requests of one tag, or of all (None), in operations of `num_rows` requests.

        With `seen` members join that request, which some of them have read already.
        """
        entry_s = self.profiler.entry_s(num_rows=num_rows) if seen is None else self._joining_s(seen)
        seconds = self.profiler.table(self._widths, num_rows=num_rows)
        return SearchFigures(rates=self.agreement.rates(key), seconds=seconds, entry_s=entry_s)

    def _joining_s(self, seen: Observation) -> Floats:
        lacking = [0] * len(self._levels)
        for name, level in self._levels.items():
            if level in self._models[:-1]:  # the target reads every prompt anyway
                lacking[level] = seen.context_tokens - seen.cached(name)
        return self.profiler.joining_s(lacking, seen.remaining)

    def optimistic(self, tag: str, figures: SearchFigures) -> SearchFigures:
        """The same with the rates of a tag raised by `optimism` times (V ln N / n)^(1/2).

        V / n is the variance of a pair's rate by its n tokens, N the most tokens of any pair of the tag, after UCB1
        (Auer, Cesa-Bianchi & Fischer 2002), which has arms' plays for tokens and an upper bound for V. Tokens count up
        to `pair_memory`; from there on N is constant, and a pair that is not used remains so.
        """
        rates, tokens = figures.rates, self.agreement.weight(tag) + 1.0
        variances = (rates * (1.0 - rates) + CONSTANTS.least_variance) / tokens
        raised = rates + CONSTANTS.optimism * np.sqrt(variances * log(float(tokens.max())))
        return figures._replace(rates=np.minimum(raised, 1.0 - CONSTANTS.least_missed))

    def digest(self) -> None:
        """Count the runs since the last call: first each token for pairs, then the runs for survival."""
        levels, agreement, survival = self._levels, self.agreement.note, self.survival
        lowest = self._models[0]  # no chain has a level below it, and copies, which are judged at once, end their run
        for tag, tokens, endorsers, verifier, num_kept, num_known, tvd, _ in self.runs:
            above = levels[verifier]
            for index in range(num_known):
                kept, names = index < num_kept, endorsers[index]
                last = names[-1]
                for name in names if self._all_endorsers else names[-1:]:
                    judge = levels[name]
                    if judge >= above:  # chains go from small to large, so a larger member's token does not count
                        continue
                    similar = 1.0 - tvd[index] if name is last and index < len(tvd) else nan
                    agreement(tag, judge, above, kept=kept, similar=similar)
                    if name is not last and judge >= lowest:
                        drafter, doubted = levels[tokens[index].drafter], doubt(tokens[index].signal.prob)
                        survival.note(tag, (drafter, judge, above), doubted, kept=kept)
        for tag, tokens, endorsers, verifier, num_kept, _, _, together in self.runs:
            if together:
                above = levels[verifier]
                of_chains = [
                    ((levels[token.drafter], levels[names[-1]], above), doubt(token.signal.prob))
                    for token, names in zip(tokens, endorsers, strict=True)
                    if levels[names[-1]] >= lowest
                ]
                if of_chains:
                    survival.note_run(tag, of_chains, num_kept)
        self.runs.clear()
