"""Decisions that imported rounds do not hold, drawn from those that they do: acceptance by depth, request and place.

**Acceptance.** A round that reached depth d either agreed there or was rejected there; a censored round (its draft was
kept whole) only has agreements. With h_d the share that agreed at depth d among rounds that reached it, the share of
rounds that keep at least k tokens is the product-limit S(k) = h_0 h_1 ... h_(k-1) (Kaplan & Meier 1958, JASA
53:457-481), which needs no assumption about tokens that censored rounds would have kept. Requests differ: logit h_(d,r)
= alpha_d + sigma x_r with x_r ~ N(0, 1). Alphas and sigma are those of most likelihood with x integrated out, by
expectation-maximisation (sigma has a standard normal prior, or two requests with nothing in common would make it
infinite). Alphas of the pooled counts plus offsets would make rounds too long, since the pooled counts of deep rounds
come from good requests already.

**Lengths.** A drafter that always drafted its window in the log always drafts its window. Any other stops by its own
rule; an unrecorded round then drafts as much as a recorded round, drawn with equal chances: of the same request with
probability n / (n + 8), for n rounds of its own, else of all. Lengths are drawn separately from acceptance, which is
fitted by depth among the rounds that drafted that far.

The correlation of rounds near each other is in `difficulty`. Draws are keyed by (seed, request, position, drafter), so
that two policies that reach the same unknown get the same draw (common random numbers).

Letters: R requests, D depths, the last of which represents all deeper ones, Q points of a grid for x, N rounds of all
requests with a known number of drafted tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ..traces.meta import MOST
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.rounds import DrafterInfo, RoundsRequest, StatedAcceptance
from ..traces.shifted import keyed_generator
from .difficulty import (
    MAX_DEPTHS,
    MOST_FITTED,
    NO_PERSISTENCE,
    Beside,
    DepthCounts,
    DifficultyFit,
    Floats,
    Neighbours,
    ToldRounds,
    count_depths,
    filter_positions,
    fit_difficulty,
    fit_persistence,
    neighbours,
    scores_by_kept,
    told_by,
    walk,
)

_STEPS = 300
_STEADY = 1e-4
_FIRST_SIGMA = 0.5
_GRID = np.linspace(-4.0, 4.0, 65)
_LOG_PRIOR = -0.5 * _GRID**2
_CERTAIN = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthFit:
    """Hazards and the spread of requests."""

    # `[D]` logit of agreement at each depth of a request with beta 0; the last holds for all deeper ones
    alpha: Floats
    sigma: float  # standard deviation of beta between requests, >= 0
    beta: Floats  # `[R]` each request's own offset, pulled towards 0 where it has few rounds
    spread: Floats  # `[R]` standard error of beta; sigma where the request has no rounds

    def hazards(self, beta: float) -> list[float]:
        """`[D]` probability of agreement at each depth of a request with offset `beta`."""
        rates: list[float] = _logistic(self.alpha + beta).tolist()
        return rates

    def survival(self, beta: Floats, window: int) -> Floats:
        """`[len(beta), window + 1]` share of rounds that keep at least 0, 1, ... tokens, the product-limit."""
        depth = np.minimum(np.arange(window), len(self.alpha) - 1)
        rates = _logistic(self.alpha[depth] + beta[:, None])
        return np.concatenate((np.ones((len(beta), 1)), np.cumprod(rates, axis=1)), axis=1)


def fit_depths(counts: DepthCounts) -> DepthFit:
    """Alphas and sigma of most likelihood (from at most 4,000 requests), and each request's beta by its own rounds."""
    total_agreed, total_refused = counts.agreed.sum(axis=0), counts.refused.sum(axis=0)
    alpha = _logit(total_agreed, total_refused)
    beta, spread = np.zeros(len(counts.agreed)), np.zeros(len(counts.agreed))
    # A depth that never rejected, or never agreed, does so for every request, and is no evidence about requests.
    mixed = (total_agreed > 0) & (total_refused > 0)
    agreed, refused = counts.agreed[:, mixed], counts.refused[:, mixed]
    seen = np.flatnonzero((agreed + refused).any(axis=1))
    if len(seen) < 2:  # one request shows no spread
        return DepthFit(alpha=alpha, sigma=0.0, beta=beta, spread=spread)
    fitted = seen[:: -(-len(seen) // MOST_FITTED)]
    some_agreed, some_refused, sigma = agreed[fitted], refused[fitted], _FIRST_SIGMA
    for _ in range(_STEPS):
        share, before = _shares(some_agreed, some_refused, alpha[mixed], sigma), sigma
        alpha[mixed], sigma = _step(some_agreed.T @ share, some_refused.T @ share, alpha[mixed], sigma)
        if abs(sigma - before) < _STEADY * before:
            break
    share = _shares(agreed, refused, alpha[mixed], sigma)
    mean = share @ _GRID
    beta, spread = sigma * mean, sigma * np.sqrt(np.maximum(share @ _GRID**2 - mean**2, 0.0))
    return DepthFit(alpha=alpha, sigma=sigma, beta=beta, spread=spread)


def _shares(agreed: Floats, refused: Floats, alpha: Floats, sigma: float) -> Floats:
    """`[R, Q]` probability of each x, given a request's counts."""
    logit = alpha[:, None] + sigma * _GRID
    log_share = -agreed @ np.logaddexp(0.0, -logit) - refused @ np.logaddexp(0.0, logit) + _LOG_PRIOR
    share: Floats = np.exp(log_share - log_share.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    return share


def _step(agreed: Floats, refused: Floats, alpha: Floats, sigma: float) -> tuple[Floats, float]:
    """One step of Newton towards the logistic regression of `[D, Q]` expected counts on depth and x."""
    judged = agreed + refused
    rates = _logistic(alpha[:, None] + sigma * _GRID)
    slopes, weights = agreed - judged * rates, judged * rates * (1.0 - rates)
    hessian = np.diag(np.append(weights.sum(axis=1), (weights @ _GRID**2).sum()))
    hessian[-1, :-1] = hessian[:-1, -1] = weights @ _GRID
    hessian[-1, -1] += 1.0
    slope = np.append(slopes.sum(axis=1), (slopes @ _GRID).sum() - sigma)
    step = np.clip(np.linalg.lstsq(hessian, slope, rcond=None)[0], -1.0, 1.0)
    return alpha + step[:-1], abs(sigma + float(step[-1]))


def _logit(agreed: Floats, refused: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logit: Floats = np.clip(np.log(agreed) - np.log(refused), -_CERTAIN, _CERTAIN)
    return logit


def _logistic(logit: Floats) -> Floats:
    """1 / (1 + e^-x), exactly 0 or 1 where a count left no doubt."""
    rates: Floats = 1.0 / (1.0 + np.exp(-np.clip(logit, -_CERTAIN, _CERTAIN)))
    certain: Floats = np.where(np.abs(logit) > _CERTAIN / 2, np.rint(rates), rates)
    return certain


_OTHERS = 8
_GRAIN = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLengths:
    """Recorded lengths of drafts."""

    # `[N]` tokens drafted, request by request; 2^31 - 1 for a draft of the whole window, which did not stop by itself
    drafted: NDArray[np.int32]
    first: NDArray[np.int64]  # `[R + 1]` index of each request's first round

    @property
    def fewest(self) -> int:
        """Tokens that every draft had: shorter drafts need no draw."""
        return int(self.drafted.min())

    def draw(self, request: int, whose: float, which: float) -> int:
        """Tokens after which a round of a request stops, by two numbers from [0, 1)."""
        low, high = int(self.first[request]), int(self.first[request + 1])
        own = high - low
        if not own or whose * (own + _OTHERS) >= own:
            low, high = 0, len(self.drafted)
        return int(self.drafted[low + int(which * (high - low))])


def fit_lengths(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> DraftLengths | None:
    """The lengths of a drafter's drafts; None if it is not known ever to draft less than its window.

    Rounds whose window would not have fitted into the text are left out, since the end may have cut them.
    """
    window = drafter.window or 1
    parts: list[NDArray[np.int32]] = []
    for request in requests:
        rounds = request.rounds.get(drafter.name)
        if rounds is None:
            parts.append(np.empty(0, np.int32))
            continue
        fits = (rounds.drafted >= 0) & (rounds.start + window < request.length(drafter.name))
        parts.append(rounds.drafted[fits])
    drafted = np.concatenate(parts) if parts else np.empty(0, np.int32)
    if not (drafted < window).any():
        return None
    drafted = np.where(drafted < window, drafted, np.int32(MOST))
    return DraftLengths(drafted=drafted, first=np.cumsum([0, *(len(part) for part in parts)]))


def stated_lengths(drafting: float, num_requests: int) -> DraftLengths:
    """Whole drafts, of any window, in a stated share of all requests' steps; none in the others.

    `drafting` is the share, above 0 and at most 1, kept to four decimals; `num_requests` is R.
    """
    drafted = np.zeros(_GRAIN, np.int32)
    drafted[: max(round(drafting * _GRAIN), 1)] = MOST
    return DraftLengths(drafted=drafted, first=np.zeros(num_requests + 1, np.int64))


LongInts = NDArray[np.int64]

MIN_ALIKE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Stand-ins for requests without rounds.

    They are those of the same tag, or all if fewer than 8 of it have rounds, each with a probability in proportion to
    its tokens: then rounds over many texts have the mean of the recording, since poor requests have many rounds and
    good ones few.
    """

    group: LongInts  # `[R]` index into `members`, -1 for a request with rounds of its own
    members: tuple[LongInts, ...]  # of each group, indices of requests
    shares: tuple[Floats, ...]  # of each group, the share of tokens up to and with each member

    def of(self, request: int, draw: float) -> int:
        """The request whose acceptance is used: itself, or by `draw` (0 to 1) one of its stand-ins."""
        group = int(self.group[request])
        if group < 0:
            return request
        return int(self.members[group][np.searchsorted(self.shares[group], draw, side="right")])


@dataclass(frozen=True, kw_only=True)  # without slots, for cached properties
class DrafterFit:
    """One drafter's estimate."""

    depths: DepthFit  # acceptance by depth and request
    decisions: Floats  # `[D]` number behind the rates by depth
    # of rounds along a text; without persistence for a drafter that reads tokens only
    difficulty: DifficultyFit
    window: int  # most tokens drafted in known rounds, up to 64
    found: Neighbours | None  # correlation of neighbouring rounds; None where there are none
    typical: Floats  # `[W + 1]` share of rounds of a typical request that keep at least 0, 1, ... W tokens.
    stand_ins: StandIns  # for requests without rounds
    lengths: DraftLengths | None  # of its drafts; None if it always drafts its window

    @cached_property
    def persistence(self) -> float:
        """Persistence of the difficulty of positions, see `difficulty`, 0 to 0.99; takes some milliseconds once."""
        if self.found is None or not self.found.chained:  # rounds that start everywhere are as correlated as positions
            return self.difficulty.persistence
        hazards = self.depths.hazards(0.0)
        return fit_persistence(hazards, self.decisions, scores_by_kept(self.typical), self.found.wanted)


def fit_drafter(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> DrafterFit:
    """Estimate a drafter; raises ValueError where its acceptance is unknown."""
    if drafter.stated is not None:
        return _stated_fit(drafter.stated, drafter.window or 1, len(requests))
    told = told_by(requests, drafter)
    if not told.num_decisions:
        raise ValueError(f"recording must hold decisions of drafter {drafter.name} to draw others from, got none")
    counts = count_depths(told, len(requests))
    depths, decisions = fit_depths(counts), np.maximum((counts.agreed + counts.refused).sum(axis=0), 1.0)
    window = min(int((told.accepted + told.refused).max()), MAX_DEPTHS)
    survival = depths.survival(np.append(depths.beta, 0.0), window)
    # The order of drawn rounds does not show which parts of a text are difficult.
    own = [one.rounds[drafter.name] for one in requests if drafter.name in one.rounds]
    in_place = drafter.by_start and any(not rounds.where_placed.all() for rounds in own)
    found = neighbours(told.thinned(MOST_FITTED), survival[:-1]) if in_place else None
    difficulty = fit_difficulty(found, survival[-1]) if in_place else NO_PERSISTENCE
    stand_ins = _stand_ins(told, [request.tag for request in requests])
    lengths = fit_lengths(requests, drafter)
    return DrafterFit(
        depths=depths,
        decisions=decisions,
        difficulty=difficulty,
        window=window,
        found=found,
        typical=survival[-1],
        stand_ins=stand_ins,
        lengths=lengths,
    )


def _stated_fit(stated: StatedAcceptance, window: int, num_requests: int) -> DrafterFit:
    """A fit from a log's statement, the same for every request and place."""
    nobody = StandIns(group=np.full(num_requests, -1, np.int64), members=(), shares=())
    lengths = None if stated.drafting == 1.0 else stated_lengths(stated.drafting, num_requests)
    hazards, alike = np.array(stated.hazards), np.zeros(num_requests)
    depths = DepthFit(alpha=_logit(hazards, 1.0 - hazards), sigma=0.0, beta=alike, spread=alike)
    window = min(window, MAX_DEPTHS)
    return DrafterFit(
        depths=depths,
        decisions=np.ones(len(stated.hazards)),
        difficulty=NO_PERSISTENCE,
        window=window,
        found=None,
        typical=depths.survival(np.zeros(1), window)[0],
        stand_ins=nobody,
        lengths=lengths,
    )


def _stand_ins(told: ToldRounds, tags: list[str]) -> StandIns:
    tokens = np.bincount(told.request, told.accepted + 1, minlength=len(tags))
    known = np.flatnonzero(tokens > 0)
    alike: dict[str, list[int]] = {}
    for index in known.tolist():
        alike.setdefault(tags[index], []).append(index)
    names = sorted({tags[index] for index in np.flatnonzero(tokens == 0).tolist()})
    enough = [np.array(alike.get(name, []), np.int64) for name in names]
    members = tuple(found if len(found) >= MIN_ALIKE else known for found in enough)
    number = {name: index for index, name in enumerate(names)}
    group = [-1 if own > 0 else number[tag] for own, tag in zip(tokens.tolist(), tags, strict=True)]
    shares = tuple(np.cumsum(tokens[found]) / tokens[found].sum() for found in members)
    return StandIns(group=np.array(group, np.int64), members=members, shares=shares)


# Cached `Positions.chance`: replay needs few of them, again and again.
Chances = Callable[[int, Beside], float]

_MOST_CACHED = 4096
_BLOCK = 128
_BETA_STEP = 0.1  # within which requests share `Positions`: rates differ by less than 0.03


class _Draws:
    __slots__ = ("_more", "_numbers")

    def __init__(self, more: Iterator[list[float]]) -> None:
        self._more = more
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        while position >= len(self._numbers):
            self._numbers += next(self._more)
        return self._numbers[position]


@dataclass(slots=True, kw_only=True)
class _RequestDraws:
    """One drafter's draws in one request, and its rates there."""

    beta: float  # the request's offset, see the module
    hazards: list[float]  # `[D]` probability of agreement by depth, the last for all deeper ones
    rounds: _Draws  # draws that decide a round, correlated for neighbouring positions
    tokens: _Draws  # draws that decide a token, independent
    lengths: _Draws  # two draws for each position, of the length of a draft there
    survival: list[float]  # by number of tokens, probability that at least as many are kept, as far as computed
    chances: Chances | None = None  # of tokens known from another round, made on demand

    def hazard(self, depth: int) -> float:
        return self.hazards[min(depth, len(self.hazards) - 1)]

    def survives(self, tokens: int) -> float:
        survival = self.survival
        while tokens >= len(survival):
            survival.append(survival[-1] * self.hazard(len(survival) - 1))
        return survival[tokens]


class Hazard:
    """Draws decisions that a recording of rounds does not hold.

    It is fitted on `trace` at the first draw: an exact run never needs that.
    """

    def __init__(self, trace: RoundsRecording, *, seed: int = 0) -> None:
        self._trace = trace
        self._seed = seed
        self._fits: dict[int, DrafterFit] = {}
        self._chances: dict[tuple[int, int], Chances] = {}
        self._draws: dict[tuple[str, int], _RequestDraws] = {}
        self._index = {request.request_id: index for index, request in enumerate(trace.requests)}

    def reseeded(self, seed: int) -> "Hazard":
        """Draws with another seed from the same estimate, which is shared, not made again."""
        other = Hazard(self._trace, seed=seed)
        other._fits, other._chances = self._fits, self._chances
        return other

    def agrees(
        self, request_id: str, drafter: int, *, start: int, depth: int, known: int, beside: Beside | None = None
    ) -> bool:
        """Whether a drafted token is the target's.

        Args:
            request_id: of the recording.
            drafter: index into `meta.drafters`.
            start: output position of the round's first token, >= 0.
            depth: of the token in its round, from 0.
            known: leading tokens of the round, <= depth, that agree by the record, or by other rounds; the rest before
                `depth` were drawn.
            beside: the outcome of rounds that started elsewhere at the token's position.

        Raises:
            ValueError: this drafter's acceptance is unknown in the recording.
        """
        own = self._draws.get((request_id, drafter)) or self._draw(request_id, drafter)
        if beside is not None:
            return own.tokens.at(start + depth) < self._chance(drafter, own, depth, beside)
        if self._trace.meta.drafters[drafter].by_start:
            return own.rounds.at(start) * own.survives(known) < own.survives(depth + 1)
        return own.tokens.at(start + depth) < own.hazard(depth)

    def reached(self, request_id: str, drafter: int, *, start: int, depth: int, last: int) -> int:
        """The first depth up to `last` whose token is not the target's, of a round of which nothing is known.

        All before `depth` are; other arguments and errors as of `agrees`.
        """
        own = self._draws.get((request_id, drafter)) or self._draw(request_id, drafter)
        if self._trace.meta.drafters[drafter].by_start:
            draw = own.rounds.at(start)
            while depth < last and draw < own.survives(depth + 1):
                depth += 1
        else:
            while depth < last and own.tokens.at(start + depth) < own.hazard(depth):
                depth += 1
        return depth

    def num_drafted(self, request_id: str, drafter: int, *, start: int, asked: int) -> int | None:
        """Tokens after which an unrecorded round stops; None if no draft ever stopped before `asked` >= 1.

        Other arguments and errors as of `agrees`.
        """
        lengths = self.fit(drafter).lengths
        if lengths is None or asked <= lengths.fewest:
            return None
        draws = (self._draws.get((request_id, drafter)) or self._draw(request_id, drafter)).lengths
        return lengths.draw(self._index[request_id], draws.at(2 * start), draws.at(2 * start + 1))

    def fit(self, drafter: int) -> DrafterFit:
        """The estimate for a drafter, made at first use; raises as `agrees`."""
        if drafter not in self._fits:
            self._fits[drafter] = fit_drafter(self._trace.requests, self._trace.meta.drafters[drafter])
        return self._fits[drafter]

    def _chance(self, drafter: int, own: _RequestDraws, depth: int, beside: Beside) -> float:
        """Probability that a token agrees, given another round's outcome at its position."""
        if not self._trace.meta.drafters[drafter].by_start:
            # Rounds that reached the token rejected nothing before it, and this one has at least as much true text.
            return max(own.hazard(depth), own.hazard(beside.depth))
        if own.chances is None:
            step = round(own.beta / _BETA_STEP)  # requests whose offset rounds to the same share chances
            if (drafter, step) not in self._chances:
                fit = self.fit(drafter)
                hazards = fit.depths.hazards(step * _BETA_STEP)
                found = filter_positions(hazards, fit.decisions, fit.window, fit.persistence)
                self._chances[drafter, step] = cache(found.chance)
            own.chances = self._chances[drafter, step]
        return own.chances(depth, beside)

    def _draw(self, request_id: str, drafter: int) -> _RequestDraws:
        if len(self._draws) >= _MOST_CACHED:
            del self._draws[next(iter(self._draws))]
        fit = self.fit(drafter)
        key = f"{self._seed}/{drafter}/{request_id}"
        generator = keyed_generator(key)
        like = fit.stand_ins.of(self._index[request_id], float(generator.random()))
        beta = float(fit.depths.beta[like] + fit.depths.spread[like] * generator.standard_normal())
        own = _RequestDraws(
            beta=beta,
            hazards=fit.depths.hazards(beta),
            rounds=_Draws(walk(generator, fit.difficulty)),
            tokens=_Draws(_blocks(f"{key}/tokens")),
            lengths=_Draws(_blocks(f"{key}/lengths")),
            survival=[1.0],
        )
        self._draws[request_id, drafter] = own
        return own


def _blocks(key: str) -> Iterator[list[float]]:
    """Independent numbers, without end; the generator is made at the first."""
    generator = keyed_generator(key)
    while True:
        block: list[float] = generator.random(_BLOCK).tolist()
        yield block
