"""Which layers a submodel leaves out.

A mask is the ascending tuple of them. Letters: n layers of the target, k of them skipped.
"""

from collections.abc import Collection, Sequence

Mask = tuple[int, ...]


def num_skipped(share: float, num_layers: int) -> int:
    """k: the share of n layers, rounded.

    Raises:
        ValueError: a share outside (0, 1), or one that rounds to no layer or to all of them.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be in (0, 1), got {share:g}")
    skipped = round(share * num_layers)
    if not 0 < skipped < num_layers:
        raise ValueError(
            f"share must leave out at least one of {num_layers} layers and keep one, got {share:g}, which rounds to "
            f"{skipped}"
        )
    return skipped


def slim_name(share: float) -> str:
    """What a slim verifier without a share of the layers is called: `slim45` for 0.45."""
    return f"slim{100 * share:g}"


def skipped_of(shares: Sequence[float], num_layers: int) -> dict[str, int]:
    """How many layers each share leaves out, by the name of its slim verifier.

    Raises:
        ValueError: no shares, one that `num_skipped` refuses, or two that leave out equally many layers.
    """
    if not shares:
        raise ValueError("shares must hold at least one, got 0")
    names: dict[int, str] = {}
    for share in shares:
        skipped = num_skipped(share, num_layers)
        if skipped in names:
            rule = f"must leave out another number of layers than {names[skipped]}"
            raise ValueError(f"share {rule} ({skipped} of {num_layers}), got {share:g}")
        names[skipped] = slim_name(share)
    return {name: skipped for skipped, name in names.items()}


def mask_of(keys: Sequence[float], skipped: int) -> Mask:
    """The k layers of the largest keys `[n]`, the first among equals.

    So every point of a box is a mask, and one drawn evenly from the box is a mask drawn evenly (random keys: Bean 1994,
    ORSA Journal on Computing 6).
    """
    order = sorted(range(len(keys)), key=lambda layer: (-keys[layer], layer))
    return tuple(sorted(order[:skipped]))


def nearest_unseen(keys: Sequence[float], mask: Mask, seen: Collection[Mask]) -> tuple[list[float], Mask] | None:
    """A mask not in `seen` that differs from `mask` in one layer, the one that `keys` would soonest have exchanged.

    Args:
        keys: `[n]` whose mask `mask` is.
        mask: that mask.
        seen: those to avoid.

    Returns:
        The keys with those of the two layers exchanged, and the mask; None if every such mask was seen.
    """
    pairs = [(left_out, kept) for left_out in mask for kept in range(len(keys)) if kept not in mask]
    for left_out, kept in sorted(pairs, key=lambda pair: keys[pair[0]] - keys[pair[1]]):
        other = tuple(sorted({*mask, kept} - {left_out}))
        if other not in seen:
            exchanged = list(keys)
            exchanged[left_out], exchanged[kept] = keys[kept], keys[left_out]
            return exchanged, other
    return None
