"""Times products of a weight and says which is the quickest for each number of tokens.

Letters: I inputs, O outputs, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from .products import PLAIN, Layout, Product, copied, padded

# Tokens that products are timed with: each number that one request's verification has, then further apart. A number in
# between goes by the next larger one, and all beyond by the last.
TOKEN_COUNTS = (*range(1, 10), 16, 32, 64, 128, 256)

# Seconds that one product is timed for, per weight shape and token count; how often at most, and at least for calls
# that are short and long.
_SECONDS_EACH, _MOST_REPEATS, _LEAST_REPEATS, _LEAST_LONG_REPEATS = 0.005, 24, 6, 2

# A product that takes so many times as long as the quickest at its first call is timed no further.
_GIVE_UP = 3

# Products within this share of the quickest are timed so many times as often again: there noise would choose.
_NEAR, _AGAIN = 0.15, 2

# A long call, in seconds: what a first call does besides is little of it, and few repeats have to do.
_LONG_CALL_S = 0.01

# A product may be slower than the quickest by this share before a copy of the weight is worth its memory: numbers of
# tokens that take turns in two layouts push each other's weights out of the caches, which costs more than a little.
_WORTH_A_COPY = 0.15

# The plain product is left for one that saves this share of its seconds: less is noise, and it alone adds in place.
_WORTH_LEAVING = 0.02

# Inputs are padded to a larger number of tokens where that saves this share of the seconds.
_WORTH_PADDING = 0.1

# Bytes of copies, of all layouts together, that a timing goes through in turn, as a model goes through its layers:
# weights that stay in the processor's nearest cache would flatter whoever waits for memory most.
_TURN_BYTES, _MOST_TURNS = 64 * 2**20, 32


class Timing(NamedTuple):
    """What a choice rests on.

    Attributes:
        seconds: by product, one for each number of tokens; infinite where it was given up as far too slow.
        products: what was chosen, one for each.
    """

    seconds: dict[str, list[float]]
    products: tuple[Product, ...]


@torch.inference_mode()
def time_products(weight: Tensor, usable: Sequence[Product], token_counts: Sequence[int] = TOKEN_COUNTS) -> Timing:
    """Time products of a weight `[I, O]`, interleaved, and choose; at most one layout besides `columns` is chosen."""
    layouts: set[Layout] = {product.layout for product in usable}
    # One more than there are layouts: what packs a weight takes a copy meanwhile.
    turns = max(1, min(_MOST_TURNS, _TURN_BYTES // ((len(layouts) + 1) * weight.nbytes)))
    kept = {layout: [copied(weight, layout) for _ in range(turns)] for layout in layouts}
    seconds: dict[str, list[float]] = {product.name: [] for product in usable}
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(max(token_counts), len(weight), generator=generator).to(weight.dtype)
    for count in token_counts:
        for name, value in _timed(usable, inputs[:count], kept).items():
            seconds[name].append(value)

    def race(product: Product, count: int, wider: Product) -> tuple[float, float]:
        taken = _timed((product, wider), inputs[:count], kept)
        return taken[product.name], taken[wider.name]

    ways = {product.name: ways_of(product, seconds, token_counts, race) for product in usable}
    return Timing(seconds, chosen_of(ways, usable))


def _timed(usable: Sequence[Product], inputs: Tensor, kept: Mapping[Layout, Sequence[Tensor]]) -> dict[str, float]:
    """Seconds by product, the lower quartile; infinite for those given up after their first calls."""
    # Each call takes the next copy: one that another product has just read would be in the caches still. Of a large
    # weight there is one, which pushes its own beginning out of most caches.
    coming = {layout: cycle(weights) for layout, weights in kept.items()}

    def once(product: Product) -> float:
        weight = next(coming[product.layout])
        start_s = perf_counter()
        product.times(inputs, weight)
        return perf_counter() - start_s

    first = {product.name: once(product) for product in usable}
    long = min(first.values()) > _LONG_CALL_S
    if not long:
        first = {product.name: once(product) for product in usable}
    quickest = min(first.values())
    racing = [product for product in usable if product is PLAIN or first[product.name] <= _GIVE_UP * quickest]
    least = _LEAST_LONG_REPEATS if long else _LEAST_REPEATS
    repeats = max(least, min(_MOST_REPEATS, int(_SECONDS_EACH / quickest)))
    taken: dict[str, list[float]] = {product.name: [] for product in usable}

    def race(among: Sequence[Product], turns: int) -> dict[str, float]:
        for turn in range(turns):
            for product in among if turn % 2 else reversed(among):  # nobody always runs after the same
                taken[product.name].append(once(product))
        return {name: _lower_quartile(seconds) if seconds else float("inf") for name, seconds in taken.items()}

    found = race(racing, repeats)
    near = [product for product in racing if found[product.name] <= (1 + _NEAR) * min(found.values())]
    return race(near, _AGAIN * repeats) if len(near) > 1 else found


def _lower_quartile(seconds: list[float]) -> float:
    """What a call takes when nothing else on the machine gets between."""
    return sorted(seconds)[len(seconds) // 4]


class Way(NamedTuple):
    """A product, its inputs padded or not, and its seconds for one number of tokens."""

    seconds: float
    product: Product


def ways_of(
    product: Product,
    seconds: Mapping[str, Sequence[float]],
    token_counts: Sequence[int],
    race: Callable[[Product, int, Product], tuple[float, float]],
) -> list[Way]:
    """For each number of tokens the product as it is, or padded to the larger number that it is quickest with.

    The two are raced, as numbers of tokens were timed at different moments, but only where padding could make this
    product one of the quickest.
    """
    found = []
    for place, own_s in enumerate(seconds[product.name]):
        way = Way(own_s, product)
        later = seconds[product.name][place + 1 :]
        near_s = (1 + _NEAR) * min(of_product[place] for of_product in seconds.values())
        if later and min(later) <= min(near_s, (1 - _WORTH_PADDING) * own_s):
            wider = padded(product, token_counts[place + 1 + later.index(min(later))])
            own_s, padded_s = race(product, token_counts[place], wider)
            if padded_s <= (1 - _WORTH_PADDING) * own_s:
                way = Way(padded_s, wider)
        found.append(way)
    return found


def chosen_of(ways: Mapping[str, Sequence[Way]], usable: Sequence[Product]) -> tuple[Product, ...]:
    """The quickest for each token count, of the layout at hand and of the other one that loses least on the best.

    What counts is by how much more than `_WORTH_A_COPY` a choice is slower: none is made of a copy where the layout at
    hand does.
    """
    best = [min(way.seconds for way in of_count) for of_count in zip(*ways.values(), strict=True)]
    layouts: list[tuple[Layout, ...]] = [("columns",), ("columns", "rows"), ("columns", "packed")]
    options = [_quickest([ways[product.name] for product in usable if product.layout in among]) for among in layouts]
    losses = [_lost(option, best) for option in options]
    first = losses.index(min(losses))  # the first of equals, which needs no copy
    return tuple(way.product for way in options[first])


def _lost(chosen: Sequence[Way], best: Sequence[float]) -> float:
    """By how much more than a copy is worth choices are slower than the best, summed over token counts."""
    behind = [way.seconds / best_s - 1 for way, best_s in zip(chosen, best, strict=True)]
    return sum(max(0.0, share - _WORTH_A_COPY) for share in behind)


def _quickest(ways: Sequence[Sequence[Way]]) -> list[Way]:
    """Of ways whose first are those of `PLAIN`, for each number of tokens."""
    chosen = []
    for plain, *others in zip(*ways, strict=True):
        first = min((plain, *others), key=lambda way: way.seconds)
        chosen.append(first if first.seconds < plain.seconds * (1 - _WORTH_LEAVING) else plain)
    return chosen
