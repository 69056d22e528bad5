"""How much a text repeats itself: degenerate text makes every model confident, and agreement worthless."""

from collections.abc import Sequence


def repeated_share(tokens: Sequence[int], order: int) -> float:
    """Share of the n-grams of `tokens` that stood there before, 0 to 1; 0 where fewer than two fit.

    Args:
        tokens: token ids.
        order: n, >= 1.
    """
    count = len(tokens) - order + 1
    if count < 2:
        return 0.0
    distinct = len(set(zip(*[tokens[start : start + count] for start in range(order)], strict=True)))
    return 1.0 - distinct / count
