"""Chooses, by measuring on this machine, how each weight is multiplied with so many tokens.

Letters: I inputs, O outputs, T tokens.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ....progress import tell
from ..given_back import trim
from ..known_choices import KnownChoices, choices_of_this_machine
from .product_timing import TOKEN_COUNTS, time_products
from .products import PLAIN, PRODUCT_NAMES, Layout, Product, named_products, right, stored, usable_products

# Weights of so many bytes take seconds to time, which is told.
_LARGE_BYTES = 16 * 2**20

# What timing may take beside the weights of a pool: this share of them, and so many bytes of a small one.
_TIMING_SHARE, LEAST_TIMING_BYTES = 0.12, 64 * 2**20

# What the libraries that multiply keep of a timing, kernels and buffers, as `benchmarks/memory.py` shows: 50 to 140 MB.
LIBRARY_BYTES = 140 * 10**6


def timing_bytes(weight_bytes: int) -> int:
    """Memory, in bytes, that timing products takes at most beside so many bytes of weights."""
    return max(LEAST_TIMING_BYTES, int(_TIMING_SHARE * weight_bytes))


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


class ProductChooser:
    """Chooses products for the weights of a pool, and keeps the copies that they need.

    Mutated by `multiplier`.

    Args:
        known: choices made before, which new ones are added to; None takes those of this machine.
        only: the product to use for everything, by name; None chooses.
        copy_all: copy weights, where that pays, even of models whose own layout is to stay.
        room_bytes: that timing takes at most: a larger weight is timed by some of its outputs.

    Attributes:
        known, copy_all: as given.

    Raises:
        ValueError: `only` is no product.
    """

    def __init__(
        self,
        known: KnownChoices | None = None,
        *,
        only: str | None = None,
        copy_all: bool = False,
        room_bytes: int = LEAST_TIMING_BYTES,
    ) -> None:
        if only is not None and only not in PRODUCT_NAMES:
            raise ValueError(f"product must be one of {', '.join(PRODUCT_NAMES)}, got {only!r}")
        self.known = choices_of_this_machine() if known is None else known
        self.copy_all = copy_all
        self._only, self._room_bytes = only, room_bytes
        self._usable: dict[tuple[torch.device, torch.dtype], tuple[Product, ...]] = {}
        # Those that a multiplier uses: it holds the weight, too, so that nothing else comes to lie at its address.
        self._copies: WeakValueDictionary[tuple[int, tuple[int, ...], Layout], Tensor] = WeakValueDictionary()
        self._chosen: dict[str, tuple[Product, ...]] = {}

    def multiplier(self, weight: Tensor, *, may_copy: bool) -> Multiplier:
        """How to multiply by `weight` `[I, O]`.

        Args:
            weight: of a model, which stays as it is.
            may_copy: whether copies in other layouts may be made; without, and without `copy_all`, only products of
                `columns` are used.

        Raises:
            ValueError: the product to use for everything does not work here.
        """
        usable = self._usable_for(weight)
        may_copy = may_copy or self.copy_all
        if not may_copy:
            usable = tuple(product for product in usable if product.layout == "columns")
        if self._only is not None:
            chosen = named_products([self._only] * len(TOKEN_COUNTS), usable, TOKEN_COUNTS)
            if chosen is None:
                names = ", ".join(product.name for product in usable)
                raise ValueError(f"product {self._only} does not work for this model here; these do: {names}")
        elif len(usable) == 1:
            chosen = [PLAIN] * len(TOKEN_COUNTS)
        else:
            how = "" if weight.is_contiguous() else " as it stands"
            chosen = list(self._choice(weight, usable, how if may_copy else f"{how}, not copied"))
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
            known = self.known.get(f"products of {shape}", len(TOKEN_COUNTS))
            found = named_products(known, usable, TOKEN_COUNTS) if known else None
            if found is None:
                if weight.nbytes >= _LARGE_BYTES:
                    tell(f"timing matrix products for weights of {shape}, which is remembered")
                found = list(time_products(self._timed_part(weight), usable).products)
                trim()
                self.known.note(f"products of {shape}", [product.name for product in found])
            self._chosen[shape] = tuple(found)
        return self._chosen[shape]

    def _timed_part(self, weight: Tensor) -> Tensor:
        """`[I, O']` of a weight, whose copies in three layouts and one in between have room."""
        outputs = self._room_bytes // 4 // (len(weight) * weight.itemsize)
        return weight[:, : max(1, outputs)]

    def _copy(self, weight: Tensor, product: Product) -> Tensor:
        """The weight in the product's layout, made and checked once, however many members share it."""
        key = (weight.data_ptr(), tuple(weight.shape), product.layout)
        made = self._copies.get(key)
        if made is None:
            made = stored(weight, product.layout)
            inputs = torch.ones(2, len(weight), dtype=weight.dtype)
            if not right(product, inputs, weight, made):
                raise ValueError(f"product {product.name} is wrong for a weight of {tuple(weight.shape)}")
            trim()
            self._copies[key] = made
        return made


def _runs(products: Sequence[Product]) -> str:
    words = []
    for place, product in enumerate(products):
        if not place or product.name != products[place - 1].name:
            words.append(f"{product.name} from {TOKEN_COUNTS[place - 1] + 1 if place else 1}")
    return ", ".join(words)
