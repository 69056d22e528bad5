"""Rounds that fit what a log counted of a request: how many tokens each drafted and kept, and in which order they came.

The assumption where only a sum is known: every drafted token whose predecessors were kept is kept with one and the same
probability h, so that a round that drafts c tokens keeps a < c of them with probability h^a (1 - h), and all c with
h^c. Given the sum, that distribution is drawn from by exchanges: two rounds at a time divide what they keep together
anew, as likely as the distribution has it, which leaves the sum as it is.

Letters: R rounds.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_SWEEPS = 24  # each round meets as many others: rounds start level, and few exchanges make them forget it
_HALVINGS = 45  # to 3e-14, where 1 - h can still be divided by


def spread(total: int, least: Ints, most: Ints, generator: np.random.Generator) -> Ints:
    """`[R]` counts between `least` and `most` that add up to `total`, as even as they can be.

    Args:
        total: at least the sum of `least`, at most that of `most`.
        least: `[R]` lower bounds.
        most: `[R]` upper bounds, at least the lower ones.
        generator: draws which of equal rounds get one more.
    """
    low, high = 0, int(most.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.clip(middle, least, most).sum() <= total else (low, middle - 1)
    counts: Ints = np.clip(low, least, most).astype(np.int64)
    more = np.flatnonzero((counts == low) & (counts < most))
    counts[generator.permutation(more)[: total - int(counts.sum())]] += 1
    return counts


def draw_accepted(total: int, drafted: Ints, generator: np.random.Generator, *, one_keeps: int = 0) -> Ints:
    """`[R]` accepted tokens of rounds that drafted so many and kept `total` together, see the module.

    Args:
        total: 0 to the sum of `drafted`.
        drafted: `[R]` of each round.
        generator: draws them.
        one_keeps: tokens that at least one round has to keep, for the end of the answer to cut them; where no drawn
            round does, the longest draft keeps just so many, if there are as many.
    """
    accepted = _draw_accepted(total, drafted, generator)
    if one_keeps <= accepted.max(initial=0) or one_keeps > min(total, drafted.max(initial=0)):
        return accepted
    cut = int(np.argmax(drafted))
    others = np.delete(drafted, cut)
    if total - one_keeps > others.sum():
        return accepted
    return np.insert(_draw_accepted(total - one_keeps, others, generator), cut, one_keeps)


def _draw_accepted(total: int, drafted: Ints, generator: np.random.Generator) -> Ints:
    accepted = spread(total, np.zeros_like(drafted), drafted, generator)
    if not 0 < total < drafted.sum() or len(drafted) < 2:
        return accepted
    refused_prob = 1.0 - constant_hazard(total / len(drafted), drafted)
    for _ in range(_SWEEPS):
        order = generator.permutation(len(drafted))
        half = len(order) // 2
        _exchange(accepted, drafted, order[:half], order[half : 2 * half], refused_prob, generator)
    return accepted


def pair(accepted: Ints, drafted: Ints, generator: np.random.Generator) -> Ints:
    """`[R]` the drafts in an order in which each is at least what its round kept, every such order equally likely.

    Args:
        accepted: `[R]` tokens that each round kept.
        drafted: `[R]` tokens of drafts, of which some order fits.
        generator: draws it.
    """
    longest_first = np.sort(drafted)[::-1]
    most_first = np.argsort(accepted)[::-1]
    # Rounds that kept more can take only the first of these drafts: each takes one that no round before it took.
    fitting = np.searchsorted(-longest_first, -accepted[most_first], side="right")
    order = np.arange(len(drafted))
    for place, many in enumerate(fitting):
        chosen = int(generator.integers(place, many))
        order[place], order[chosen] = order[chosen], order[place]
    paired = np.empty_like(drafted)
    paired[most_first] = longest_first[order]
    return paired


def constant_hazard(mean: float, drafted: Ints) -> float:
    """The probability h, the same for every drafted token, with which rounds keep `mean` tokens on average.

    Args:
        mean: between 0 and the mean of `drafted`.
        drafted: `[R]` tokens that each round drafts.
    """
    lengths, counts = np.unique(drafted, return_counts=True)
    return hazard_of_lengths(mean, lengths, counts / counts.sum())


def hazard_of_lengths(mean: float, lengths: Ints, shares: NDArray[np.float64]) -> float:
    """The same for `[L]` lengths of drafts and the shares of the rounds that have each."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        # A draft keeps h^1 to h^length together on average.
        kept = float(shares @ (middle * (1.0 - np.power(middle, lengths.astype(np.float64))) / (1.0 - middle)))
        low, high = (middle, high) if kept < mean else (low, middle)
    return (low + high) / 2.0


def place(
    accepted: Ints, drafted: Ints, *, num_tokens: int, generator: np.random.Generator
) -> tuple[Ints, Ints] | None:
    """Rounds (tokens accepted, tokens drafted) in a drawn order, with plain steps where they do not explain all tokens.

    Args:
        accepted: `[R]` of each round, in any order.
        drafted: `[R]` of each round.
        num_tokens: that the rounds emit together. Fewer than they add up to: the last one is cut, by at most the
            tokens that it kept. More: the rest are plain steps.
        generator: draws the order.

    Returns:
        Both `[R]`; None if no round keeps enough to have been cut so far.
    """
    surplus = int(accepted.sum()) + len(accepted) - num_tokens
    plain = np.zeros(max(-surplus, 0), np.int64)
    accepted, drafted = np.concatenate((accepted, plain)), np.concatenate((drafted, plain))
    order = generator.permutation(len(accepted))
    if surplus > 0:
        enough = np.flatnonzero(accepted[order] >= surplus)
        if not len(enough):
            return None
        last = enough[-1]
        order = np.concatenate((np.delete(order, last), order[last : last + 1]))
    return accepted[order], drafted[order]


def _exchange(
    accepted: Ints, drafted: Ints, one: Ints, other: Ints, refused_prob: float, generator: np.random.Generator
) -> None:
    """Divide anew what each pair of rounds keeps; changes `accepted`."""
    together = accepted[one] + accepted[other]
    kept = np.arange(int(min(drafted.max(), together.max())) + 1)[None, :]
    rest = together[:, None] - kept
    possible = (kept <= drafted[one][:, None]) & (rest >= 0) & (rest <= drafted[other][:, None])
    # h to the power of what both keep is the same however it is divided; what differs is who was refused.
    weights = np.where(kept < drafted[one][:, None], refused_prob, 1.0)
    weights = weights * np.where(rest < drafted[other][:, None], refused_prob, 1.0) * possible
    ends = np.cumsum(weights, axis=1)
    chosen = (ends <= (generator.random(len(one)) * ends[:, -1])[:, None]).sum(axis=1)
    accepted[one], accepted[other] = chosen, together - chosen
