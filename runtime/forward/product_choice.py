"""Chooses, by measuring on this machine, how each weight is multiplied with so many tokens.

Letters: I inputs, O outputs, T tokens.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from .known_choices import KnownChoices, choices_of_this_machine
from .products import PLAIN, PRODUCT_NAMES, Layout, Product, named_products, right, stored, usable_products

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

# Bytes of copies that a timing goes through in turn, as a model goes through its layers: weights that stay in the
# processor's nearest cache would flatter whoever waits for memory most.
_TURN_BYTES, _MOST_TURNS = 16 * 2**20, 8


class Multiplier:
    """One weight, and the product that each number of tokens is multiplied by.

    Args:
        weight: `[I, O]`, as it stands in the model.
        products: one for each of `TOKEN_COUNTS`.
        copies: of the weight, in the layouts that they want.
    """

    __slots__ = ("_by_count", "products", "weight")

    def __init__(self, weight: Tensor, products: Sequence[Product], copies: Mapping[Layout, Tensor]) -> None:
        self.weight = weight
        self.products = tuple(products)
        self._by_count = tuple((product.times, copies.get(product.layout, weight)) for product in products)

    def of(self, inputs: Tensor) -> Tensor:
        """`[T, O]` of `[T, I]`."""
        times, kept = self._by_count[_place_of(len(inputs))]
        return times(inputs, kept)

    def plainly(self, num_tokens: int) -> bool:
        """Whether so many tokens are multiplied by the plain product, which can add to a sum in place."""
        return self.products[_place_of(num_tokens)] is PLAIN


def _place_of(num_tokens: int) -> int:
    """Of the count that so many tokens go by, in `TOKEN_COUNTS`."""
    return bisect_left(TOKEN_COUNTS, num_tokens, hi=len(TOKEN_COUNTS) - 1)


class Timing(NamedTuple):
    """What a choice rests on.

    Attributes:
        seconds: by product, one for each number of tokens; infinite where it was given up as far too slow.
        products: what was chosen, one for each.
    """

    seconds: dict[str, list[float]]
    products: tuple[Product, ...]


class ProductChooser:
    """Chooses products for the weights of a pool, and keeps the copies that they need.

    Mutated by `multiplier`.

    Args:
        known: choices made before, which new ones are added to; None takes those of this machine.
        only: the product to use for everything, by name; None chooses.

    Attributes:
        known: as given.

    Raises:
        ValueError: `only` is no product.
    """

    def __init__(self, known: KnownChoices | None = None, *, only: str | None = None) -> None:
        if only is not None and only not in PRODUCT_NAMES:
            raise ValueError(f"product must be one of {', '.join(PRODUCT_NAMES)}, got {only!r}")
        self.known = choices_of_this_machine() if known is None else known
        self._only = only
        self._usable: dict[tuple[torch.device, torch.dtype], tuple[Product, ...]] = {}
        self._copies: dict[tuple[int, tuple[int, ...], Layout], Tensor] = {}
        self._chosen: dict[str, tuple[Product, ...]] = {}

    def multiplier(self, weight: Tensor, *, may_copy: bool) -> Multiplier:
        """How to multiply by `weight` `[I, O]`.

        Args:
            weight: of a model, which stays as it is.
            may_copy: whether copies in other layouts may be made; without, only products of `columns` are used.

        Raises:
            ValueError: the product to use for everything does not work here.
        """
        usable = self._usable_for(weight)
        if not may_copy:
            usable = tuple(product for product in usable if product.layout == "columns")
        if self._only is not None:
            chosen = named_products([self._only] * len(TOKEN_COUNTS), usable)
            if chosen is None:
                names = ", ".join(product.name for product in usable)
                raise ValueError(f"product {self._only} does not work for this model here; these do: {names}")
        elif len(usable) == 1:
            chosen = [PLAIN] * len(TOKEN_COUNTS)
        else:
            chosen = list(self._choice(weight, usable, "" if may_copy else " as it stands"))
        copies: dict[Layout, Tensor] = {
            product.layout: self._copy(weight, product) for product in chosen if product.layout != "columns"
        }
        return Multiplier(weight, chosen, copies)

    def lines(self) -> list[str]:
        """What was chosen so far, one line a weight shape: the product by the fewest tokens it is used for."""
        if self._only is not None:
            return [f"every weight: {self._only} from 1"]
        return [f"{shape}: {_runs(products)}" for shape, products in sorted(self._chosen.items())]

    def _usable_for(self, weight: Tensor) -> tuple[Product, ...]:
        key = (weight.device, weight.dtype)
        if key not in self._usable:
            self._usable[key] = usable_products(*key)
        return self._usable[key]

    def _choice(self, weight: Tensor, usable: Sequence[Product], how: str) -> tuple[Product, ...]:
        shape = f"{str(weight.dtype).removeprefix('torch.')} {weight.shape[0]}x{weight.shape[1]}{how}"
        if shape not in self._chosen:
            found = named_products(self.known.get(shape, len(TOKEN_COUNTS)), usable)
            if not found:
                found = list(time_products(weight, usable).products)
                self.known.note(shape, [product.name for product in found])
            self._chosen[shape] = tuple(found)
        return self._chosen[shape]

    def _copy(self, weight: Tensor, product: Product) -> Tensor:
        """The weight in the product's layout, made and checked once, however many members share it."""
        key = (weight.data_ptr(), tuple(weight.shape), product.layout)
        if key not in self._copies:
            made = stored(weight, product.layout)
            inputs = torch.ones(2, len(weight), dtype=weight.dtype)
            if not right(product, inputs, weight, made):
                raise ValueError(f"product {product.name} is wrong for a weight of {tuple(weight.shape)}")
            self._copies[key] = made
        return self._copies[key]


@torch.inference_mode()
def time_products(weight: Tensor, usable: Sequence[Product], token_counts: Sequence[int] = TOKEN_COUNTS) -> Timing:
    """Time products of a weight `[I, O]`, interleaved, and choose; at most one layout besides `columns` is chosen."""
    turns = max(1, min(_MOST_TURNS, _TURN_BYTES // weight.nbytes))
    layouts: set[Layout] = {product.layout for product in usable}
    kept = {layout: [stored(weight.clone(), layout) for _ in range(turns)] for layout in layouts}
    seconds: dict[str, list[float]] = {product.name: [] for product in usable}
    generator = torch.Generator().manual_seed(0)
    for count in token_counts:
        inputs = torch.randn(count, len(weight), generator=generator).to(weight.dtype)
        for name, value in _timed(usable, inputs, kept).items():
            seconds[name].append(value)
    return Timing(seconds, _chosen_of(seconds, usable))


def _timed(usable: Sequence[Product], inputs: Tensor, kept: Mapping[Layout, Sequence[Tensor]]) -> dict[str, float]:
    """Seconds by product, the lower quartile; infinite for those given up after their first calls."""

    def once(product: Product, turn: int) -> float:
        weights = kept[product.layout]
        start_s = perf_counter()
        product.times(inputs, weights[turn % len(weights)])
        return perf_counter() - start_s

    first = {product.name: once(product, 0) for product in usable}
    long = min(first.values()) > _LONG_CALL_S
    if not long:
        first = {product.name: once(product, 1) for product in usable}
    quickest = min(first.values())
    racing = [product for product in usable if product is PLAIN or first[product.name] <= _GIVE_UP * quickest]
    least = _LEAST_LONG_REPEATS if long else _LEAST_REPEATS
    repeats = max(least, min(_MOST_REPEATS, int(_SECONDS_EACH / quickest)))
    taken: dict[str, list[float]] = {product.name: [] for product in usable}

    def race(among: Sequence[Product], turns: int) -> dict[str, float]:
        for turn in range(turns):
            for product in among if turn % 2 else reversed(among):  # nobody always runs after the same
                taken[product.name].append(once(product, turn))
        return {name: _lower_quartile(seconds) if seconds else float("inf") for name, seconds in taken.items()}

    found = race(racing, repeats)
    near = [product for product in racing if found[product.name] <= (1 + _NEAR) * min(found.values())]
    return race(near, _AGAIN * repeats) if len(near) > 1 else found


def _lower_quartile(seconds: list[float]) -> float:
    """What a call takes when nothing else on the machine gets between."""
    return sorted(seconds)[len(seconds) // 4]


def _chosen_of(seconds: Mapping[str, Sequence[float]], usable: Sequence[Product]) -> tuple[Product, ...]:
    """The quickest for each token count, of the layout at hand and of the other one that loses least on the best.

    What counts is by how much more than `_WORTH_A_COPY` a choice is slower: none is made of a copy where the layout at
    hand does.
    """
    best = [min(of_count) for of_count in zip(*seconds.values(), strict=True)]
    layouts: list[tuple[Layout, ...]] = [("columns",), ("columns", "rows"), ("columns", "packed")]
    options = [_quickest([product for product in usable if product.layout in among], seconds) for among in layouts]
    losses = [_lost(option, seconds, best) for option in options]
    return tuple(options[losses.index(min(losses))])  # the first of equals, which needs no copy


def _lost(chosen: Sequence[Product], seconds: Mapping[str, Sequence[float]], best: Sequence[float]) -> float:
    """By how much more than a copy is worth products are slower than the best, summed over token counts."""
    behind = [seconds[product.name][place] / best[place] - 1 for place, product in enumerate(chosen)]
    return sum(max(0.0, share - _WORTH_A_COPY) for share in behind)


def _quickest(products: Sequence[Product], seconds: Mapping[str, Sequence[float]]) -> list[Product]:
    chosen = []
    for place, plain_s in enumerate(seconds[PLAIN.name]):
        first, best_s = min(
            ((product, seconds[product.name][place]) for product in products), key=lambda timed: timed[1]
        )
        chosen.append(first if best_s < plain_s * (1 - _WORTH_LEAVING) else PLAIN)
    return chosen


def _runs(products: Sequence[Product]) -> str:
    words = []
    for place, product in enumerate(products):
        if not place or product is not products[place - 1]:
            words.append(f"{product.name} from {TOKEN_COUNTS[place - 1] + 1 if place else 1}")
    return ", ".join(words)
