"""What a synthetic recording is asked to be: sizes, acceptance, its dependence on depth and on the past, seconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..meta import MOST, Closure, CostTable, ModelInfo, Sampling
from ..tries.meta import TrieMeta
from .runs import rate_over_all, surviving

# A recording is made in memory. Of all requests together:
MOST_TOKENS = 10_000_000  # on the trunk, and of prompts
MOST_CONTEXTS = 20_000_000  # of the trunk and off it; how many there will be shows only as they grow
MOST_MODELS = 16  # each pair of models keeps a distance per context
_COST_STEP = 0.2
LEAST_RUN_DECAY = 0.001  # below it runs of agreement have no end in sight
_TARGET_LAYERS = 24
_TARGET_HIDDEN = 2048
_COST_NEW_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """Options of the generator. Letters: M models, S = M - 1 members below the target.

    On the trunk, member s writes the target's token with probability `acceptance[s]`. Off the trunk, at a context with
    `depth` >= 1 tokens since the trunk, member s writes the next larger model's token with probability
    `off_trunk[s] * (1 - depth_decay) ** (depth - 1)`, independently of everything else; members further apart agree
    with the product of the probabilities between them. The trunk itself is depth 0: a context knows neither who drafted
    it nor where a round began. What it can know is how many tokens the member has agreed on since it last missed;
    along such a run agreement falls by `run_decay` a token.

    Attributes:
        name: of the recording.
        requests: number of requests, >= 1.
        tokens: trunk tokens per request, >= 1; also its budget.
        prompt_tokens: prompt tokens per request, >= 1.
        models: names, smallest first, the target last; at least two.
        acceptance: S rates of equal next tokens with the target on the trunk, 0 to 1.
        off_trunk: S rates of equal next tokens with the next larger model at depth 1 off the trunk, 0 to 1; None takes
            `acceptance[s] / acceptance[s + 1]` (at most 1), which gives the rates of the trunk back where they rise
            with size.
        depth_decay: share of the off-trunk rate lost with each token since the trunk, 0 to 1.
        run_decay: share of a member's agreement on the trunk lost with each token that it has agreed on since its last
            miss, 0 to 1. The first token after a miss is agreed on the more often, so that the rate over all is
            `acceptance`; one that no first rate gives is refused. A round begins after a miss, but for rounds kept
            whole, so later tokens of a window are refused more often than early ones.
        autocorrelation: lag-1 correlation of agreement along the trunk, in [0, 1). Agreement is then a two-state Markov
            chain with the asked rate; with 0 its runs are geometric and a round of window n emits
            (1 - a^(n+1)) / (1 - a) tokens (Leviathan et al. 2023, arXiv:2211.17192, Thm 3.8). 0 where `run_decay` is
            not.
        shared_difficulty: how much members agree at the same trunk contexts, 0 (independently) to 1 (a member agrees
            wherever one with a lower rate does).
        confidence: how much a model's probability tells of agreement, > 0: where agreement has rate a, it is drawn from
            Beta(confidence * a, confidence * (1 - a)). It is calibrated (where it says p it agrees with rate p), and
            the more telling the smaller this number. Gap and entropy follow from it and from chance, and say no more.
        vocab_size: >= 64.
        reach: most tokens off the trunk, >= 0.
        run: most consecutive tokens of a member after a larger one's, >= 0.
        cost_ratios: S seconds of a one-token forward, relative to the target's, > 0; None takes powers of 0.2.
        target_forward_s: seconds of a one-token forward of the target, > 0.
        cost_slope: share of a one-token forward that each further new token costs, >= 0.
        tags: given to the requests in turn, at least one.
        seed: >= 0; the same spec gives the same recording.
    """

    name: str = "synthetic"
    requests: int = 32
    tokens: int = 128
    prompt_tokens: int = 32
    models: tuple[str, ...] = ("draft", "target")
    acceptance: tuple[float, ...] = (0.8,)
    off_trunk: tuple[float, ...] | None = None
    depth_decay: float = 0.05
    run_decay: float = 0.0
    autocorrelation: float = 0.0
    shared_difficulty: float = 0.8
    confidence: float = 2.0
    vocab_size: int = 32000
    reach: int = 16
    run: int = 8
    cost_ratios: tuple[float, ...] | None = None
    target_forward_s: float = 0.02
    cost_slope: float = 0.01
    tags: tuple[str, ...] = ("synthetic",)
    seed: int = 0

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
        unique = len(set(self.models)) == len(self.models) >= 2
        _check("models", unique, "name at least two different models", self.models)
        _check("models", len(self.models) <= MOST_MODELS, f"be at most {MOST_MODELS}", len(self.models))
        _check("tags", len(self.tags) >= 1, "hold at least one tag", self.tags)
        for name in ("acceptance", "off_trunk", "cost_ratios"):
            given = getattr(self, name)
            size = len(self.models) - 1
            _check(name, given is None or len(given) == size, f"have {size} entries (all models but the target)", given)

    def _check_shares(self) -> None:
        for name in ("depth_decay", "shared_difficulty"):
            _check(name, 0 <= getattr(self, name) <= 1, "lie in [0, 1]", getattr(self, name))
        _check("autocorrelation", 0 <= self.autocorrelation < 1, "lie in [0, 1)", self.autocorrelation)
        for name in ("acceptance", "off_trunk"):
            rates = getattr(self, name) or ()
            _check(name, all(0 <= rate <= 1 for rate in rates), "lie in [0, 1]", rates)
        if self.run_decay != 0:
            self._check_runs()

    def _check_runs(self) -> None:
        falls = LEAST_RUN_DECAY <= self.run_decay < 1
        _check("run_decay", falls, f"be 0 or lie in [{LEAST_RUN_DECAY}, 1)", self.run_decay)
        _check("autocorrelation", self.autocorrelation == 0, "be 0 where run_decay is not", self.autocorrelation)
        most, given = rate_over_all(surviving(1.0, self.run_decay)), max(self.acceptance)
        _check("acceptance", given <= most, f"be <= {most:.3f} with run_decay {self.run_decay}", given)

    def off_trunk_rates(self, depth: int) -> NDArray[np.float64]:
        """`[S]` probability that a member writes the next larger model's token, `depth` >= 1 tokens off the trunk."""
        rates = self.off_trunk
        if rates is None:
            larger = (*self.acceptance[1:], 1.0)
            pairs = zip(self.acceptance, larger, strict=True)
            rates = tuple(min(1.0, low / high) if high > 0 else 0.0 for low, high in pairs)
        return np.array(rates) * (1.0 - self.depth_decay) ** (depth - 1)

    def meta(self) -> TrieMeta:
        """What the recording says of itself: model sizes and seconds follow from the cost ratios."""
        distances = range(len(self.models) - 1, 0, -1)
        ratios = (*(self.cost_ratios or (_COST_STEP**distance for distance in distances)), 1.0)
        named = list(zip(self.models, ratios, strict=True))
        return TrieMeta(
            name=self.name,
            kind="synthetic",
            models=tuple(_model_info(name, ratio) for name, ratio in named),
            vocab_size=self.vocab_size,
            sampling=Sampling(mode="greedy"),
            closure=Closure(kind="monotone", reach=self.reach, run=self.run),
            hardware="none (synthetic)",
            costs={"cpu": {name: self._cost_table(ratio) for name, ratio in named}},
            origin=str(self),
        )

    def _cost_table(self, ratio: float) -> CostTable:
        first_s = self.target_forward_s * ratio
        seconds = tuple(first_s * (1.0 + self.cost_slope * (new - 1)) for new in _COST_NEW_TOKENS)
        return CostTable(new_tokens=_COST_NEW_TOKENS, seconds=seconds)


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
