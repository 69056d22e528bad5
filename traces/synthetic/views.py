"""Invented distributions for synthetic contexts: every stored number is computed from one explicit distribution.

Letters: M models (smallest first), F contexts, P pairs of models. A context offers M candidate tokens; a model writes
one of them (its choice, a number below M) and models that agree share a choice. A model's distribution holds its own
choice, the choices of the others, and a tail that all models share up to its mass.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..tries.stored_resolution import ENTROPIES, LOG_PROBS, UNITS
from ..tries.trie import Floats

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
class Views:
    """What the models say at F contexts, on the grids of `stored_resolution`.

    Attributes:
        choice_log_prob: `[M, M, F]` log-probability, by model, of the token of each choice.
        next_log_prob: `[M, F]` of the model's own choice.
        gap: `[M, F]`.
        entropy: `[M, F]`.
        tvd: `[P, F]`.
    """

    choice_log_prob: Floats
    next_log_prob: Floats
    gap: Floats
    entropy: Floats
    tvd: Floats


def draw_top_prob(agrees: NDArray[np.bool_], rate: Floats, confidence: float, rng: np.random.Generator) -> Floats:
    """Probabilities of the models' own choices, calibrated: among those near p a share p agrees.

    With p from Beta(c a, c (1 - a)) and agreement with probability p, the rate of agreement is a; we know the
    agreement, so we draw p from the posterior.

    Args:
        agrees: whether the choice is the larger model's.
        rate: its probability a, same shape.
        confidence: c, > 0.
        rng: source of chance.
    """
    bounded = np.clip(rate, _RATE_MARGIN, 1.0 - _RATE_MARGIN)
    drawn = rng.beta(confidence * bounded + agrees, confidence * (1.0 - bounded) + ~agrees)
    return np.clip(drawn, _LEAST_CERTAIN, _MOST_CERTAIN)


def views(choice: NDArray[np.integer], top_prob: Floats, pairs: tuple[tuple[int, int], ...], share: Floats) -> Views:
    """Complete distributions around the models' choices.

    Args:
        choice: `[M, F]` which candidate each model writes.
        top_prob: `[M, F]` its probability.
        pairs: of models, for the distances.
        share: `[M, F]` part of the remaining mass that goes to the other choices, 0 to 1.
    """
    probs = _choice_probs(choice, top_prob, share)
    tail = 1.0 - probs.sum(axis=1)
    own = np.take_along_axis(probs, choice[:, None, :], axis=1)[:, 0]
    others = probs.copy()
    np.put_along_axis(others, choice[:, None, :], 0.0, axis=1)
    second = np.maximum(others.max(axis=1), tail * _TAIL_TOP)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    entropy = tail * (_TAIL_ENTROPY - np.log(tail)) - (probs * logs).sum(axis=1)
    low, high = (np.array(side, dtype=np.intp) for side in zip(*pairs, strict=True))
    distance = np.abs(probs[low] - probs[high]).sum(axis=1) + np.abs(tail[low] - tail[high])
    return Views(
        choice_log_prob=LOG_PROBS.round(logs),
        next_log_prob=LOG_PROBS.round(np.log(own)),
        gap=UNITS.round(own - second),
        entropy=ENTROPIES.round(entropy),
        tvd=UNITS.round(0.5 * distance),
    )


def _choice_probs(choice: NDArray[np.integer], top_prob: Floats, share: Floats) -> Floats:
    """`[M, M, F]` probability, by model, of each choice: its own, and parts of the rest for the others.

    The parts halve from one to the next. Choices that somebody made have the largest ones, and choices that nobody
    made have theirs all the same: else the second largest probability would tell whether models agree.
    """
    slots = np.arange(len(choice))
    made = (choice[:, None, :] == slots[None, :, None]).any(axis=0)
    is_own = choice[:, None, :] == slots[None, :, None]
    first_choices = np.argsort(np.argsort(np.where(is_own, 2, ~made[None]), axis=1, kind="stable"), axis=1)
    parts = 0.5 ** slots[:-1]
    mass = np.minimum((1.0 - top_prob) * share, _ALTERNATIVE_CAP * top_prob * parts.sum())
    others = mass[:, None, :] * np.append(parts / parts.sum(), 0.0)[first_choices]
    return np.where(is_own, top_prob[:, None, :], others)
