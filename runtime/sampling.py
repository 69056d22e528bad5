"""Chance: coupled noise, rejection sampling, and the distributions both draw from.

Coupled: one Gumbel vector per request and position, the same bits on every machine and device. A position is the number
of emitted tokens before the one drawn; token = argmax(logits / temperature + noise) is a draw from softmax(logits /
temperature). All models of a pool share the noise of a position, so the text a target samples does not depend on who
drafted for it (Daliri et al. 2024, arXiv:2408.07978).

Rejection: a token that follows draft_probs is kept with probability min(1, target_prob / draft_prob); the first refused
one is replaced by a draw from norm(max(0, target_probs - draft_probs)) (Leviathan et al. 2023, arXiv:2211.17192,
Alg. 1). What comes out follows target_probs, in a chain level by level: the kept tokens and the verifier's own follow
the verifier's distribution, which is the draft_probs of the next level. What stands before a token may choose who
judges it, not the token itself or a later one.

Letters: K drafted tokens, Q positions, V vocabulary. Probabilities are float64.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, float64, inf

from ..traces.meta import Sampling


class Chance(Protocol):
    """Answers what was left to chance; one per request, asked in the order of its steps."""

    def accepts(self, prob: float) -> bool:
        """True with probability `prob`, 0 to 1; always at 1, never at 0."""
        ...

    def draw(self, probs: Tensor) -> int:
        """A token from the distribution `[V]` float64; never one of probability 0."""
        ...


class SeededChance:
    """The Philox stream of (seed, request): the same answers to the same questions on every machine and device.

    The stream has nothing in common with the coupled noise of the same seed and request.
    """

    __slots__ = ("_generator",)

    def __init__(self, *, seed: int, request_id: str) -> None:
        digest = hashlib.sha256(f"rejection\0{seed}\0{request_id}".encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def accepts(self, prob: float) -> bool:
        """True with probability `prob`; consumes one number."""
        return self._uniform() < prob

    def draw(self, probs: Tensor) -> int:
        """A token from the distribution `[V]`; consumes one number.

        Raises:
            ValueError: `probs` hold NaN, infinity or nothing above 0.
        """
        # Summed in order and on the CPU: a parallel sum may fall by a rounding error and point at a token that has
        # probability 0, and would not give the same bits on every device.
        heights = np.cumsum(probs.cpu().numpy(), dtype=np.float64)
        total = float(heights[-1])
        if not 0 < total < float("inf"):
            raise ValueError(f"probs must add up to a positive number, got {total}")
        return int(np.searchsorted(heights, self._uniform() * total, side="right"))

    def _uniform(self) -> float:
        """A multiple of 2^-53 in [0, 1); a positive float times it stays below that float."""
        return float(int(self._generator.random_raw()) >> 11) * 2.0**-53


_LN2 = 0.6931471805599453
# ln(m) = 2 s (1 + s^2/3 + s^4/5 + ...), s = (m - 1) / (m + 1); |s| < 0.1716, so eleven terms reach float64.
_LOG_SERIES = tuple(2.0 / (2 * term + 1) for term in range(11))

_MANTISSA_BITS = 52
# As integers, the bits of 1.0 and of the float64 that mantissas begin at, the root of 1/2.
_ONE, _ROOT_HALF = (int(np.float64(value).view(np.int64)) for value in (1.0, 0.7071067811865476))

# Numbers that are worked out at a time, so that all that is in between stays in the processor's nearest caches, and the
# most positions of a small vocabulary that are drawn together.
_TILE, _MOST_POSITIONS = 16384, 16


def _portable_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive normal numbers by additions, products and quotients alone.

    IEEE 754 fixes the bits of those; the log of a maths library may differ in the last bit between machines.
    """
    bits = values.view(np.int64)
    exponent = (bits - _ROOT_HALF) >> _MANTISSA_BITS
    mantissa = (bits - (exponent << _MANTISSA_BITS)).view(np.float64)
    ratio = mantissa - 1.0
    mantissa += 1.0
    ratio /= mantissa
    square = np.multiply(ratio, ratio, out=mantissa)
    series = square * _LOG_SERIES[-1]
    for coefficient in _LOG_SERIES[-2:0:-1]:
        series += coefficient
        series *= square
    series += _LOG_SERIES[0]
    series *= ratio
    series += exponent * _LN2
    return series


def gumbel(seed: int, request_id: str, position: int, vocab_size: int) -> NDArray[np.float32]:
    """`[V]` standard Gumbel noise of one position; see `gumbel_rows`."""
    return gumbel_rows(seed, request_id, [position], vocab_size).reshape(vocab_size)


def gumbel_rows(seed: int, request_id: str, positions: Sequence[int], vocab_size: int) -> NDArray[np.float32]:
    """`[Q, V]` standard Gumbel noise: of each position the Philox stream of (seed, request) at that counter.

    Raises:
        ValueError: a negative position.
    """
    if min(positions) < 0:
        raise ValueError(f"position must be >= 0, got {min(positions)}")
    key = int.from_bytes(hashlib.sha256(f"{seed}\0{request_id}".encode()).digest()[:16], "little")
    raw = np.concatenate(
        [np.random.Philox(key=key, counter=position << 64).random_raw(vocab_size) for position in positions]
    )
    noise = np.empty(len(raw), dtype=np.float32)
    for start in range(0, len(raw), _TILE):
        # 52 bits and a half: exact in float64, never 0 and never 1.
        uniform = ((raw[start : start + _TILE] >> np.uint64(12)).view(np.int64) | _ONE).view(np.float64)
        uniform -= 1.0
        uniform += 2.0**-53
        for _ in range(2):
            uniform = _portable_log(uniform)
            np.negative(uniform, out=uniform)
        noise[start : start + _TILE] = uniform
    return noise.reshape(len(positions), vocab_size)


class RequestNoise:
    """The noise of one request; a position is drawn once and kept until nobody asks for it any more.

    Of a small vocabulary several positions are drawn at once, 64 KiB at most. So a request that decodes holds the noise
    of the tokens after its text that are drafted or pending, 4 V bytes each, and those 64 KiB.
    """

    __slots__ = ("_kept", "_together", "request_id", "seed", "vocab_size")

    def __init__(self, *, seed: int, request_id: str, vocab_size: int) -> None:
        self.seed = seed
        self.request_id = request_id
        self.vocab_size = vocab_size
        self._together = max(1, min(_TILE // vocab_size, _MOST_POSITIONS))
        self._kept: dict[int, NDArray[np.float32]] = {}

    @property
    def held_bytes(self) -> int:
        """Memory of what is kept."""
        return sum(row.nbytes for row in self._kept.values())

    def at(self, position: int) -> NDArray[np.float32]:
        """`[V]` noise of one position; do not write to it."""
        kept = self._kept.get(position)
        if kept is None:
            new = [ahead for ahead in range(position, position + self._together) if ahead not in self._kept]
            self._kept.update(zip(new, gumbel_rows(self.seed, self.request_id, new, self.vocab_size), strict=True))
            kept = self._kept[position]
        return kept

    def rows(self, positions: Sequence[int]) -> NDArray[np.float32]:
        """`[Q, V]` noise of many positions, repeats allowed."""
        return np.stack([self.at(int(position)) for position in positions])

    def drop_before(self, position: int) -> None:
        """Nobody asks for earlier positions any more; one that is asked for all the same is drawn again."""
        for past in [kept for kept in self._kept if kept < position]:
            del self._kept[past]


def noise_of(sampling: Sampling, request_id: str, vocab_size: int) -> RequestNoise | None:
    """The noise of a request under coupled sampling; None if greedy."""
    if sampling.seed is None:
        return None
    return RequestNoise(seed=sampling.seed, request_id=request_id, vocab_size=vocab_size)


def probabilities(logits: Tensor) -> Tensor:
    """`[..., V]` distributions of logits `[..., V]` that are truncated already."""
    return logits.double().softmax(dim=-1)


def acceptance(target_prob: float, draft_prob: float) -> float:
    """Probability that a drafted token stays: min(1, target_prob / draft_prob).

    `target_prob` is the verifier's of the token, 0 to 1; `draft_prob` is of the distribution the token follows, above 0
    as it was drawn, 1 where the drafter has none.

    Raises:
        ValueError: a draft_prob of 0, or NaN.
    """
    if not draft_prob > 0:
        raise ValueError(f"draft_prob must be > 0 for a token that was drafted, got {draft_prob}")
    return min(1.0, target_prob / draft_prob)


def residual(target_probs: Tensor, draft_probs: Tensor | None, token: int) -> Tensor:
    """`[V]` what replaces a refused `token`: norm(max(0, target_probs - draft_probs)).

    Where nothing is left the two are equal but for rounding, and a refusal had a probability of about 1e-16: the
    replacement then comes from `target_probs` `[V]`. `draft_probs` are `[V]`; None for a drafter without a distribution
    (prompt lookup, another tokenizer), which is a point mass: the target without `token` is left.
    """
    if draft_probs is None:
        left = target_probs.clone()
        left[token] = 0.0
    else:
        left = (target_probs - draft_probs.to(target_probs.device)).clamp_(min=0.0)
    total = left.sum()
    return torch.where(total > 0, left / total, target_probs)


def judge(
    tokens: Sequence[int], draft_probs: Sequence[Tensor | None], target_probs: Tensor, chance: Chance
) -> tuple[int, int]:
    """How many of K drafted tokens a verifier keeps, and the token it adds itself.

    Chance is asked once per token up to the first refusal, then for the verifier's own token.

    Args:
        tokens: `[K]` not judged by this verifier yet, in order; K may be 0.
        draft_probs: `[K]` of `[V]`, the distribution each token follows now: of the highest member that judged it,
            else of whoever wrote it; None where that is a drafter without a distribution.
        target_probs: `[K + 1, V]` of the verifier, before each token and after the last.
        chance: of the request.

    Returns:
        The number kept, 0 to K, and the token after them: the replacement of the refused one, or one more from
        `target_probs[K]`.

    Raises:
        ValueError: lengths that do not fit, or a token its drafter cannot have drawn.
    """
    if not len(tokens) == len(draft_probs) == len(target_probs) - 1:
        raise ValueError(
            f"K tokens must come with K draft_probs and K + 1 target_probs, got {len(tokens)}, {len(draft_probs)} and "
            f"{len(target_probs)}"
        )
    pairs = zip(_target_values(tokens, target_probs), _draft_values(tokens, draft_probs), strict=True)
    for index, (target_prob, draft_prob) in enumerate(pairs):
        if not chance.accepts(acceptance(target_prob, draft_prob)):
            replacement = residual(target_probs[index], draft_probs[index], tokens[index])
            return index, chance.draw(replacement)
    return len(tokens), chance.draw(target_probs[-1])


def _target_values(tokens: Sequence[int], target_probs: Tensor) -> list[float]:
    """`[K]` the verifier's probability of each token; one transfer from the device."""
    columns = torch.tensor(tokens, dtype=torch.long, device=target_probs.device)
    values: list[float] = target_probs[:-1].gather(-1, columns[:, None])[:, 0].tolist()
    return values


def _draft_values(tokens: Sequence[int], draft_probs: Sequence[Tensor | None]) -> list[float]:
    """`[K]` the probability each token was drawn with, 1 for a point mass; one transfer if all are on one device."""
    known = [(probs, token) for probs, token in zip(draft_probs, tokens, strict=True) if probs is not None]
    if not known:
        return [1.0] * len(tokens)
    device = known[-1][0].device
    values = iter(torch.stack([probs[token].to(device) for probs, token in known]).tolist())
    return [1.0 if probs is None else next(values) for probs in draft_probs]


def truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """`[..., V]` logits / temperature, -inf outside top-k and then top-p; greedy: the logits as they are.

    In float32, or float64 where the logits are; they must be finite. Tokens that tie with the last of the top k all
    stay. The most probable token always stays, so the softmax is a distribution. A top_p of 1 keeps everything, as
    `generate()` does. Without top_k and top_p nothing is sorted.
    """
    scaled = logits if logits.dtype == float64 else logits.float()
    if sampling.temperature is not None:
        scaled = scaled / sampling.temperature
    if sampling.top_k is not None:
        scaled = _top_k(scaled, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        scaled = _top_p(scaled, sampling.top_p)
    return scaled


def _top_k(scores: Tensor, top_k: int) -> Tensor:
    """Scores below the `top_k`-th largest become -inf."""
    if top_k >= scores.shape[-1]:
        return scores
    lowest_kept = scores.topk(top_k, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < lowest_kept, -inf)


def _top_p(scores: Tensor, top_p: float) -> Tensor:
    """The least probable tokens that add up to at most 1 - `top_p` become -inf, of equal scores the earlier first."""
    ordered, order = scores.sort(dim=-1, stable=True)
    leaves = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    leaves[..., -1] = False
    return scores.masked_fill(leaves.scatter(-1, order, leaves), -inf)
