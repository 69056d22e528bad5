"""A generator of recordings of given acceptance, to study policies where the truth is known.

Members agree with the target along the trunk as specified, perhaps in runs: with a first rate on the first token after
a miss, and on each later one with a rate that is by a share, the decay, less than that of the token before. Off the
trunk the closure is complete, as in a recording. Every stored number is computed from one explicit distribution. A
context offers M candidate tokens; a model writes one of them (its choice, a number below M) and models that agree share
a choice. A model's distribution holds its own choice, the choices of the others, and a tail that all models share up to
its mass.

Letters: R requests, T trunk tokens, M models (smallest first), S = M - 1 members below the target, P pairs of models, K
lengths of runs, F contexts of one level, N all contexts.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.options import opt
from .contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from .contexts.meta import TrieMeta
from .contexts.recording import TrieRecording
from .contexts.trie import Floats, Ints, NextLevel, Trie, TrieRequest, grow, split
from .meta import MOST, Closure, CostTable, ModelInfo, Sampling

_USUAL_RATE = 0.8  # of acceptance; a target alone is as sure as a model with this rate
_OF_MEMBERS = ("depth_decay", "run_decay", "autocorrelation", "shared_difficulty", "reach", "run")
_NEGLIGIBLE = 1e-12  # share of runs too rare to occur
_HALVINGS = 50


def surviving(first: float, decay: float) -> NDArray[np.float64]:
    """`[K]` share of runs that hold at least k = 0, 1, ... tokens; `first` in [0, 1], `decay` in (0, 1)."""
    lengths = np.arange(np.ceil(np.sqrt(-2.0 * np.log(_NEGLIGIBLE) / decay)) + 2)
    shares: NDArray[np.float64] = first**lengths * np.exp(np.log1p(-decay) * lengths * (lengths - 1) / 2)
    return shares


def rate_over_all(shares: NDArray[np.float64]) -> float:
    """Rate of agreement, given the shares of `surviving`: a cycle is a run, R tokens in the mean, and one miss."""
    return float(1.0 - 1.0 / shares.sum())


def first_rate(rate: float, decay: float) -> float:
    """The rate of first tokens for an overall rate of `rate`, by halving, as one rises with the other."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_over_all(surviving(middle, decay)) < rate else (low, middle)
    return high


# A recording is made in memory. Of all requests together:
MOST_TOKENS = 10_000_000  # on the trunk and in prompts
MOST_CONTEXTS = 20_000_000  # on the trunk and off it; their number is known only while they grow
MOST_MODELS = 16  # each pair of models keeps a distance per context
_COST_STEP = 0.2
LEAST_RUN_DECAY = 0.001  # below it runs of agreement are practically endless
_TARGET_LAYERS = 24
_TARGET_HIDDEN = 2048
_COST_NEW_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """Options of the generator. Letters: M models, S = M - 1 members below the target.

    On the trunk, member s writes the target's token with probability `acceptance[s]`. Off the trunk, at a context with
    `depth` >= 1 tokens since the trunk, member s writes the next larger model's token with probability
    `off_trunk[s] * (1 - depth_decay) ** (depth - 1)`, independently of everything else; members further apart agree
    with the product of the probabilities between them. The trunk itself is depth 0: agreement there depends neither on
    the drafter of the context nor on where a round began. It may depend on the member's run of agreement since its last
    miss, along which it falls by `run_decay` a token.
    """

    name: str = "synthetic"  # of the recording
    requests: int = opt(32, "Number of requests.")  # >= 1
    tokens: int = opt(128, "Output tokens per request.")  # >= 1; also its budget
    prompt_tokens: int = opt(32, "Prompt tokens per request.")  # >= 1
    models: tuple[str, ...] = opt(("draft", "target"), "Names, smallest first, the target last.")  # at least that one
    # S rates of equal next tokens with the target on the trunk, 0 to 1; None: 0.8 where S is 1, none where it is 0
    acceptance: tuple[float, ...] | None = opt(
        None, "Agreement with the target, one per model below it; default: 0.8 of one model, none of the target alone."
    )
    # S rates of equal next tokens with the next larger model at depth 1 off the trunk, 0 to 1; None takes
    # `acceptance[s] / acceptance[s + 1]` (at most 1), which reproduces the rates of the trunk where they rise with size
    off_trunk: tuple[float, ...] | None = opt(
        None, "Agreement with the next larger model off the trunk, one per model below it."
    )
    depth_decay: float = opt(0.05, "Share of off-trunk agreement lost per token.")  # 0 to 1
    # share of a member's agreement on the trunk lost with each token that it has agreed on since its last miss, 0 to 1.
    # The first token after a miss is agreed on the more often, so that the overall rate is `acceptance`; one that no
    # first rate gives is an error. A round begins after a miss, except after rounds kept whole, so later tokens of a
    # window are rejected more often than early ones.
    run_decay: float = opt(0.0, "Share of agreement lost per token that a model has agreed on since its last miss.")
    # lag-1 correlation of agreement along the trunk, in [0, 1). Agreement is then a two-state Markov chain with the
    # given rate; with 0 its runs are geometric and a round of window n emits (1 - a^(n+1)) / (1 - a) tokens (Leviathan
    # et al. 2023, arXiv:2211.17192, Thm 3.8). Must be 0 if `run_decay` is not.
    autocorrelation: float = opt(0.0, "Lag-1 correlation of agreement, in [0, 1).")
    # how much members agree at the same trunk contexts, 0 (independently) to 1 (a member agrees where one with a lower
    # rate does)
    shared_difficulty: float = 0.8
    # how little a model's probability says about agreement, > 0: where agreement has rate a, it is drawn from
    # Beta(confidence * a, confidence * (1 - a)). It is calibrated (where it is p the rate is p), and the more
    # informative the smaller this number. Gap and entropy follow from it and from chance, without further information.
    confidence: float = opt(2.0, "The smaller, the better a model's probability predicts agreement.")
    vocab_size: int = opt(32000, "Number of token ids.")  # >= 64
    reach: int = opt(16, "Most tokens off the trunk.")  # >= 0
    # most consecutive tokens of a member after a larger one's, >= 0
    run: int = opt(8, "Most tokens of a model after a larger one's.")
    # S seconds of a one-token forward, relative to the target's, > 0; None takes powers of 0.2
    cost_ratios: tuple[float, ...] | None = opt(
        None, "Seconds of a forward relative to the target's, one per model below it."
    )
    target_forward_s: float = opt(0.02, "Of one token, by the target.", flag="--target-forward-seconds")  # > 0
    cost_slope: float = 0.01  # share of a one-token forward that each further new token costs, >= 0
    tags: tuple[str, ...] = opt(("synthetic",), "Given to the requests in turn.")  # at least one
    seed: int = opt(0, "The same seed gives the same trace.")  # >= 0; the same spec gives the same recording

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_shares()
        for name in ("target_forward_s", "confidence"):
            _check(name, 0 < getattr(self, name) < float("inf"), "be positive and finite", getattr(self, name))
        _check("cost_slope", 0 <= self.cost_slope < float("inf"), "be finite and >= 0", self.cost_slope)
        positive = all(0 < ratio < float("inf") for ratio in self.cost_ratios or ())
        _check("cost_ratios", positive, "be positive and finite", self.cost_ratios)

    def _check_counts(self) -> None:
        lowest = {"requests": 1, "tokens": 1, "prompt_tokens": 1, "vocab_size": 64, "reach": 0, "run": 0, "seed": 0}
        for name, low in lowest.items():
            _check(name, getattr(self, name) >= low, f"be >= {low}", getattr(self, name))
        _check("vocab_size", self.vocab_size < 2**31, "be < 2**31", self.vocab_size)
        for name in ("reach", "run"):
            _check(name, getattr(self, name) <= MOST, f"be <= {MOST:,}", getattr(self, name))
        for name in ("tokens", "prompt_tokens"):
            total = self.requests * getattr(self, name)
            _check(f"requests x {name}", total <= MOST_TOKENS, f"be <= {MOST_TOKENS:,}", total)
        unique = len(set(self.models)) == len(self.models) >= 1
        _check("models", unique, "name different models, at least the target", self.models)
        _check("models", len(self.models) <= MOST_MODELS, f"be at most {MOST_MODELS}", len(self.models))
        _check("tags", len(self.tags) >= 1, "hold at least one tag", self.tags)
        size = len(self.models) - 1
        for name, given in {
            "acceptance": self.rates,
            "off_trunk": self.off_trunk,
            "cost_ratios": self.cost_ratios,
        }.items():
            _check(name, given is None or len(given) == size, f"have {size} entries (all models but the target)", given)
        # Options of members below the target, where there are none.
        for one in fields(self) if not size else ():
            if one.name in _OF_MEMBERS and (given := getattr(self, one.name)) != one.default:
                _check(one.name, holds=False, rule=f"be left out for one model, {self.models[0]}", value=given)

    def _check_shares(self) -> None:
        for name in ("depth_decay", "shared_difficulty"):
            _check(name, 0 <= getattr(self, name) <= 1, "lie in [0, 1]", getattr(self, name))
        _check("autocorrelation", 0 <= self.autocorrelation < 1, "lie in [0, 1)", self.autocorrelation)
        for name, rates in {"acceptance": self.rates, "off_trunk": self.off_trunk or ()}.items():
            _check(name, all(0 <= rate <= 1 for rate in rates), "lie in [0, 1]", rates)
        if self.run_decay == 0:
            return
        falls = LEAST_RUN_DECAY <= self.run_decay < 1
        _check("run_decay", falls, f"be 0 or lie in [{LEAST_RUN_DECAY}, 1)", self.run_decay)
        _check("autocorrelation", self.autocorrelation == 0, "be 0 where run_decay is not", self.autocorrelation)
        most, given = rate_over_all(surviving(1.0, self.run_decay)), max(self.rates)
        _check("acceptance", given <= most, f"be <= {most:.3f} with run_decay {self.run_decay}", given)

    @property
    def rates(self) -> tuple[float, ...]:
        """`[S]` the specified acceptance."""
        if self.acceptance is not None:
            return self.acceptance
        return () if len(self.models) == 1 else (_USUAL_RATE,)

    def off_trunk_rates(self, depth: int) -> NDArray[np.float64]:
        """`[S]` probability that a member writes the next larger model's token, `depth` >= 1 tokens off the trunk."""
        rates = self.off_trunk
        if rates is None:
            larger = (*self.rates, 1.0)[1:]
            pairs = zip(self.rates, larger, strict=True)
            rates = tuple(min(1.0, low / high) if high > 0 else 0.0 for low, high in pairs)
        return np.array(rates) * (1.0 - self.depth_decay) ** (depth - 1)

    def meta(self) -> TrieMeta:
        """The recording's meta; model sizes and seconds follow from the cost ratios."""
        distances = range(len(self.models) - 1, 0, -1)
        ratios = (*(self.cost_ratios or (_COST_STEP**distance for distance in distances)), 1.0)
        named = list(zip(self.models, ratios, strict=True))
        slopes = [1.0 + self.cost_slope * (new - 1) for new in _COST_NEW_TOKENS]
        seconds = {name: tuple(self.target_forward_s * ratio * slope for slope in slopes) for name, ratio in named}
        costs = {name: CostTable(new_tokens=_COST_NEW_TOKENS, seconds=own) for name, own in seconds.items()}
        return TrieMeta(
            name=self.name,
            kind="synthetic",
            models=tuple(_model_info(name, ratio) for name, ratio in named),
            vocab_size=self.vocab_size,
            sampling=Sampling(mode="greedy"),
            closure=Closure(kind="monotone", reach=self.reach, run=self.run),
            hardware="none (synthetic)",
            costs={"cpu": costs},
            origin=str(replace(self, acceptance=self.rates)),
        )


def _check(field: str, holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} must {rule}, got {value!r}")


def _model_info(name: str, ratio: float) -> ModelInfo:
    scale = ratio ** (1.0 / 3.0)  # parameters grow with layers x width x width
    layers = max(1, round(_TARGET_LAYERS * scale))
    hidden = 64 * max(1, round(_TARGET_HIDDEN * scale / 64))
    return ModelInfo(
        name=name,
        parameters=12 * layers * hidden**2,
        layers=layers,
        hidden_size=hidden,
        kv_bytes_per_token=2 * 2 * layers * hidden,
        dtype="bfloat16",
    )


def trunk_agreement(spec: SyntheticSpec, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`[S, R, T + 1]` whether each member writes the target's token.

    A context has a difficulty per member, uniform in [0, 1); a member agrees where it is below its rate. The
    difficulties stay from one context to the next with probability `autocorrelation`, else they are drawn again: one
    for all members with probability `shared_difficulty`, or the member's own. So each member's agreement is a two-state
    Markov chain with the given rate and lag-1 correlation. With `run_decay` the rate falls along a run.
    """
    shape = (spec.requests, spec.tokens + 1)
    members = (len(spec.models) - 1, *shape)
    shared = rng.random(shape)
    fresh = np.where(rng.random(members) < spec.shared_difficulty, shared, rng.random(members))
    renewed = rng.random(shape) >= spec.autocorrelation
    renewed[:, 0] = True
    latest = np.maximum.accumulate(np.where(renewed, np.arange(shape[1]), 0), axis=1)
    difficulty = np.take_along_axis(fresh, np.broadcast_to(latest, members), axis=2)
    if spec.run_decay:
        return _along_runs(spec, difficulty, rng)
    agrees: NDArray[np.bool_] = difficulty < np.array(spec.rates)[:, None, None]
    return agrees


def _along_runs(spec: SyntheticSpec, difficulty: Floats, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Agreement that falls with every token agreed on; requests begin in the middle of a run, as any context does."""
    firsts = np.array([first_rate(rate, spec.run_decay) for rate in spec.rates])
    # `[S, R]` tokens agreed on before a context taken at random: k with the share of runs that hold at least k.
    runs = [surviving(first, spec.run_decay) for first in firsts]
    shares = [np.cumsum(run / run.sum()) for run in runs]
    run = np.stack([np.searchsorted(share, rng.random(spec.requests), side="right") for share in shares])
    agrees = np.empty(difficulty.shape, dtype=np.bool_)
    for position in range(difficulty.shape[2]):
        rate = firsts[:, None] * (1.0 - spec.run_decay) ** run
        agrees[..., position] = difficulty[..., position] < rate
        run = np.where(agrees[..., position], run + 1, 0)
    return agrees


_TAIL_TOKENS = 64
_ALTERNATIVE_CAP = 0.9
_MOST_CERTAIN = 0.9995
_LEAST_CERTAIN = 0.15
_RATE_MARGIN = 0.02


def _tail() -> tuple[float, float]:
    weights = 1.0 / np.arange(3, 3 + _TAIL_TOKENS)
    weights /= weights.sum()
    return float(weights[0]), float(-(weights * np.log(weights)).sum())


_TAIL_TOP, _TAIL_ENTROPY = _tail()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedViews:
    """The models' views at F contexts, on the grids of `GRIDS`."""

    choice_log_prob: Floats  # [M, M, F] log-probability, by model, of the token of each choice
    next_log_prob: Floats  # [M, F] of the model's own choice
    gap: Floats  # [M, F]
    entropy: Floats  # [M, F]
    tvd: Floats  # [P, F]


def draw_top_prob(agrees: NDArray[np.bool_], rate: Floats, confidence: float, rng: np.random.Generator) -> Floats:
    """Probabilities of the models' own choices, calibrated: among those near p a share p agrees.

    With p from Beta(c a, c (1 - a)), c the confidence and a the rate, and agreement with probability p, the rate of
    agreement is a; the agreement is known, so p is drawn from the posterior.
    """
    bounded = np.clip(rate, _RATE_MARGIN, 1.0 - _RATE_MARGIN)
    drawn = rng.beta(confidence * bounded + agrees, confidence * (1.0 - bounded) + ~agrees)
    return np.clip(drawn, _LEAST_CERTAIN, _MOST_CERTAIN)


def views(
    choice: NDArray[np.integer], top_prob: Floats, pairs: tuple[tuple[int, int], ...], share: Floats
) -> InventedViews:
    """Complete distributions around the models' choices, with distances of `pairs` of models.

    `choice` is `[M, F]` which candidate each model writes, `top_prob` `[M, F]` its probability, and `share` `[M, F]`
    the part of the remaining mass that goes to the other choices, 0 to 1.
    """
    probs = _choice_probs(choice, top_prob, share)
    tail = 1.0 - probs.sum(axis=1)
    own = np.take_along_axis(probs, choice[:, None, :], axis=1)[:, 0]
    others = probs.copy()
    np.put_along_axis(others, choice[:, None, :], 0.0, axis=1)
    second = np.maximum(others.max(axis=1), tail * _TAIL_TOP)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    entropy = tail * (_TAIL_ENTROPY - np.log(tail)) - (probs * logs).sum(axis=1)
    low, high = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    distance = np.abs(probs[low] - probs[high]).sum(axis=1) + np.abs(tail[low] - tail[high])
    return InventedViews(
        choice_log_prob=LOG_PROBS.round(logs),
        next_log_prob=LOG_PROBS.round(np.log(own)),
        gap=UNITS.round(own - second),
        entropy=ENTROPIES.round(entropy),
        tvd=UNITS.round(0.5 * distance),
    )


def _choice_probs(choice: NDArray[np.integer], top_prob: Floats, share: Floats) -> Floats:
    """`[M, M, F]` probability, by model, of each choice: its own, and parts of the rest for the others.

    The parts halve from one to the next. Choices that a model made have the largest ones; unused choices have parts
    too, else the second largest probability would reveal whether models agree.
    """
    slots = np.arange(len(choice))
    made = (choice[:, None, :] == slots[None, :, None]).any(axis=0)
    is_own = choice[:, None, :] == slots[None, :, None]
    first_choices = np.argsort(np.argsort(np.where(is_own, 2, ~made[None]), axis=1, kind="stable"), axis=1)
    parts = 0.5 ** slots[:-1]
    mass = np.minimum((1.0 - top_prob) * share, _ALTERNATIVE_CAP * top_prob * parts.sum())
    others = mass[:, None, :] * np.append(parts / parts.sum(), 0.0)[first_choices]
    return np.where(is_own, top_prob[:, None, :], others)


_ALTERNATIVE_SHARES = (0.3, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Contexts of all requests with the same number of tokens off the trunk."""

    request: Ints  # [F]
    parent: Ints  # [F] index over all levels, -1 at a root
    depth: Ints  # [F]
    token: Ints  # [F]
    own_log_prob: Floats  # [M, F]
    choice: Ints  # [M, F] which candidate each model writes
    candidate: Ints  # [M, F] the candidates' tokens, all different
    views: InventedViews


def make_trace(spec: SyntheticSpec) -> TrieRecording:
    """The recording of a spec; the same spec gives the same one."""
    rng = np.random.default_rng(spec.seed)
    prompts = rng.integers(0, spec.vocab_size, size=(spec.requests, spec.prompt_tokens))
    tries = _tries(spec, _levels(spec, rng))
    records = (
        TrieRequest(
            request_id=f"{spec.name}-{number}",
            tag=spec.tags[number % len(spec.tags)],
            prompt=tuple(prompts[number].tolist()),
            max_new_tokens=spec.tokens,
            trie=trie,
        )
        for number, trie in enumerate(tries)
    )
    return TrieRecording(meta=spec.meta(), requests=tuple(records))


def _levels(spec: SyntheticSpec, rng: np.random.Generator) -> list[_Level]:
    """The trunk, then the contexts 1, 2, ... tokens off it; none holds more tokens than the budget."""
    level = _trunk(spec, rng)
    levels = [level]
    allowance = np.full((len(spec.models) - 1, len(level.depth)), spec.reach, dtype=np.int32)
    allowance[level.choice[:-1] == len(spec.models) - 1] = 0
    first = 0
    for depth in range(1, spec.reach + 1 if len(allowance) else 1):
        allowance[:, level.depth >= spec.tokens] = 0
        branches = grow(level.choice[:-1], allowance, spec.run)
        if not len(branches.parent):
            break
        level, first = _branch(spec, level, branches, first, depth, rng), first + len(level.depth)
        levels.append(level)
        allowance = branches.allowance
        # Before memory is exhausted: with three models contexts multiply with every token of reach.
        if (contexts := first + len(level.depth)) > MOST_CONTEXTS:
            rule = f"reach must give at most {MOST_CONTEXTS:,} contexts"
            raise ValueError(f"{rule}, got {spec.reach}: the first {depth} tokens off the trunk give {contexts:,}")
    return levels


def _trunk(spec: SyntheticSpec, rng: np.random.Generator) -> _Level:
    """R x (T + 1) contexts, the last of each request a leaf."""
    num_models, length = len(spec.models), spec.tokens + 1
    size = spec.requests * length
    agrees = trunk_agreement(spec, rng).reshape(num_models - 1, size)
    copies = rng.random((num_models - 1, size)) < spec.off_trunk_rates(1)[:, None]
    choice = np.full((num_models, size), num_models - 1, dtype=np.int32)
    for member in range(num_models - 2, -1, -1):
        larger = choice[member + 1]
        # Two members that both miss the target's token may still write the same one.
        missed = np.where(copies[member] & (larger != num_models - 1), larger, member)
        choice[member] = np.where(agrees[member], num_models - 1, missed)
    candidate = _candidates(spec, size, rng)
    seen = _draw_views(spec, choice, agrees, np.array(spec.rates), rng)
    depth = np.tile(np.arange(length, dtype=np.int32), spec.requests)
    is_root = depth == 0
    # Entry i of the target's choices leads from context i to context i + 1; a root overwrites the request before it.
    return _Level(
        request=np.repeat(np.arange(spec.requests, dtype=np.int32), length),
        parent=np.where(is_root, -1, np.arange(size) - 1).astype(np.int32),
        depth=depth,
        token=np.where(is_root, -1, np.roll(candidate[-1], 1)).astype(np.int32),
        own_log_prob=np.where(is_root, 0.0, np.roll(seen.choice_log_prob[:, -1], 1, axis=-1)),
        choice=choice,
        candidate=candidate,
        views=seen,
    )


def _branch(
    spec: SyntheticSpec, above: _Level, branches: NextLevel, first: int, depth: int, rng: np.random.Generator
) -> _Level:
    """The level below `above`, `depth` tokens off the trunk; `first` is the index of the first context of `above`."""
    parent, choice_made = branches.parent, branches.token
    num_models, size = len(spec.models), len(parent)
    rates = spec.off_trunk_rates(depth)
    copies = rng.random((num_models - 1, size)) < rates[:, None]
    choice = np.full((num_models, size), num_models - 1, dtype=np.int32)
    for member in range(num_models - 2, -1, -1):
        choice[member] = np.where(copies[member], choice[member + 1], member)
    return _Level(
        request=above.request[parent],
        parent=(first + parent).astype(np.int32),
        depth=above.depth[parent] + 1,
        token=above.candidate[choice_made, parent],
        own_log_prob=above.views.choice_log_prob[:, choice_made, parent],
        choice=choice,
        candidate=_candidates(spec, size, rng),
        views=_draw_views(spec, choice, copies, rates, rng),
    )


def _candidates(spec: SyntheticSpec, size: int, rng: np.random.Generator) -> Ints:
    """`[M, F]` different tokens for the choices at each context."""
    num_models = len(spec.models)
    start = rng.integers(0, spec.vocab_size, size=size)
    stride = rng.integers(1, spec.vocab_size // num_models + 1, size=size)
    return ((start + np.arange(num_models)[:, None] * stride) % spec.vocab_size).astype(np.int32)


def _draw_views(
    spec: SyntheticSpec, choice: Ints, agrees: NDArray[np.bool_], rates: Floats, rng: np.random.Generator
) -> InventedViews:
    """How sure models are depends on the members' agreement, for the target on the largest member's.

    A target alone is as sure as with a member of the usual rate.
    """
    if not len(rates):
        rates = np.array([_USUAL_RATE])
        flags = rng.random((1, choice.shape[1])) < _USUAL_RATE
    else:
        rates, flags = np.append(rates, rates[-1]), np.concatenate([agrees, agrees[-1:]])
    top_prob = draw_top_prob(flags, np.broadcast_to(rates[:, None], choice.shape), spec.confidence, rng)
    share = rng.uniform(*_ALTERNATIVE_SHARES, size=choice.shape)
    return views(choice, top_prob, spec.meta().pairs, share)


def _tries(spec: SyntheticSpec, levels: list[_Level]) -> tuple[Trie, ...]:
    """One trie per request: its trunk first, then its contexts off the trunk, parents before children."""
    request = np.concatenate([level.request for level in levels])
    order = np.argsort(request, kind="stable")
    ends = np.searchsorted(request[order], np.arange(spec.requests + 1))
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32) - ends[request[order]].astype(np.int32)
    parent = np.concatenate([level.parent for level in levels])
    facts = [
        {
            "token": level.token,
            "depth": level.depth,
            "next_token": np.take_along_axis(level.candidate, level.choice, axis=0),
            "own_log_prob": level.own_log_prob,
            "top_log_prob": level.views.next_log_prob,
            **{name: getattr(level.views, name) for name in ("next_log_prob", "gap", "entropy", "tvd")},
        }
        for level in levels
    ]
    arrays: dict[str, Any] = {
        "parent": np.where(parent < 0, -1, rank[parent])[order].astype(np.int32),
        "on_trunk": order < len(levels[0].depth),
    }
    arrays |= {name: np.concatenate([said[name] for said in facts], axis=-1)[..., order] for name in facts[0]}
    return split(Trie(**arrays), np.diff(ends).tolist())
