"""Rejection sampling: which drafted tokens a verifier accepts, and what it writes in place of a rejected one.

A token that follows draft_probs is accepted with probability min(1, target_prob / draft_prob); the first rejected one
is replaced by a draw from norm(max(0, target_probs - draft_probs)) (Leviathan et al. 2023, arXiv:2211.17192, Alg. 1).
The output follows target_probs, in a chain level by level: the accepted tokens and the verifier's own follow the
verifier's distribution, which is the draft_probs of the next level. Text before a token may determine its verifier, but
not the token itself or a later one.

Letters: K drafted tokens, V vocabulary. Probabilities are float64.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Chance(Protocol):
    """The source of randomness of one request; called in the order of its steps."""

    def accepts(self, prob: float) -> bool:
        """True with probability `prob`, 0 to 1; always at 1, never at 0."""
        ...

    def draw(self, probs: Tensor) -> int:
        """A token from the distribution `[V]` float64; never one of probability 0."""
        ...


class SeededChance:
    """The Philox stream of (seed, request): the same results for the same calls on every machine and device.

    The stream is independent of the coupled noise of the same seed and request.
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
        # Summed in order and on the CPU: a parallel sum may decrease by a rounding error and select a token of
        # probability 0, and would not give the same bits on every device.
        heights = np.cumsum(probs.cpu().numpy(), dtype=np.float64)
        total = float(heights[-1])
        if not 0 < total < float("inf"):
            raise ValueError(f"probs must add up to a positive number, got {total}")
        return int(np.searchsorted(heights, self._uniform() * total, side="right"))

    def _uniform(self) -> float:
        """A multiple of 2^-53 in [0, 1); a positive float times it stays below that float."""
        return float(int(self._generator.random_raw()) >> 11) * 2.0**-53


def acceptance(target_prob: float, draft_prob: float) -> float:
    """Probability that a drafted token is accepted: min(1, target_prob / draft_prob).

    `target_prob` is the verifier's of the token, 0 to 1; `draft_prob` is of the distribution the token follows, above 0
    since it was drawn, 1 where the drafter has none.

    Raises:
        ValueError: a draft_prob of 0, or NaN.
    """
    if not draft_prob > 0:
        raise ValueError(f"draft_prob must be > 0 for a token that was drafted, got {draft_prob}")
    return min(1.0, target_prob / draft_prob)


def residual(target_probs: Tensor, draft_probs: Tensor | None, token: int) -> Tensor:
    """`[V]` the distribution that replaces a rejected `token`: norm(max(0, target_probs - draft_probs)).

    Where nothing is left the two are equal except for rounding, and a rejection had a probability of about 1e-16: the
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
    """(how many of K drafted tokens a verifier accepts, 0 to K, the token it adds after them itself).

    Draws once per token up to the first rejected one, then for the verifier's own token.

    Args:
        tokens: `[K]` not judged by this verifier yet, in order; K may be 0.
        draft_probs: `[K]` of `[V]`, the distribution each token follows now: of the highest member that judged it, else
            of its drafter; None where that is a drafter without a distribution.
        target_probs: `[K + 1, V]` of the verifier, before each token and after the last.
        chance: of the request.

    Raises:
        ValueError: lengths that do not fit, or a token its drafter cannot have drawn.
    """
    if not len(tokens) == len(draft_probs) == len(target_probs) - 1:
        raise ValueError(
            f"K tokens must come with K draft_probs and K + 1 target_probs, got {len(tokens)}, {len(draft_probs)} and "
            f"{len(target_probs)}"
        )
    # One transfer from the device.
    columns = torch.tensor(tokens, dtype=torch.long, device=target_probs.device)[:, None]
    of_target: list[float] = target_probs[:-1].gather(-1, columns)[:, 0].tolist()
    pairs = zip(of_target, _draft_values(tokens, draft_probs), strict=True)
    for index, (target_prob, draft_prob) in enumerate(pairs):
        if not chance.accepts(acceptance(target_prob, draft_prob)):
            replacement = residual(target_probs[index], draft_probs[index], tokens[index])
            return index, chance.draw(replacement)
    return len(tokens), chance.draw(target_probs[-1])


def _draft_values(tokens: Sequence[int], draft_probs: Sequence[Tensor | None]) -> list[float]:
    """`[K]` the probability each token was drawn with, 1 for a point mass; one transfer if all are on one device."""
    known = [(probs, token) for probs, token in zip(draft_probs, tokens, strict=True) if probs is not None]
    if not known:
        return [1.0] * len(tokens)
    device = known[-1][0].device
    values = iter(torch.stack([probs[token].to(device) for probs, token in known]).tolist())
    return [1.0 if probs is None else next(values) for probs in draft_probs]
