"""How each weight is multiplied, by number of tokens: with the product that is fastest here, as measured.

Seconds of products differ between makers of processors by factors of two to three, in both directions, and the fastest
one on a processor depends on the shape of the weight and the number of tokens. Letters: I inputs, O outputs, T tokens.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from ..base.errors import counted
from ..base.files import kept_folder, processor, read_json, write_whole
from ..base.terminal import tell
from .caches import trim
from .forward import apart_by_more_than_rounding

Layout = Literal["columns", "rows", "packed"]


class Product(NamedTuple):
    """One way to multiply."""

    name: str  # in options, files and output
    # of the weight: `columns` `[I, O]` as in the model, `rows` `[O, I]` without gaps, `packed` oneDNN's own
    layout: Layout
    times: Callable[[Tensor, Tensor], Tensor]  # `[T, O]` from inputs `[T, I]` and the weight in that layout


def _onednn(inputs: Tensor, weight: Tensor) -> Tensor:
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
    return outputs


PLAIN = Product("plain", "columns", torch.mm)
PRODUCTS = (
    PLAIN,
    Product("plain-rows", "rows", functional.linear),
    Product("onednn", "columns", lambda inputs, weight: _onednn(inputs, weight.t())),
    Product("onednn-rows", "rows", _onednn),
    Product("onednn-packed", "packed", _onednn),
)
PRODUCT_NAMES = tuple(product.name for product in PRODUCTS)
# Tokens that products are timed with: each number that one request's verification has, then further apart. A number in
# between uses the next larger one's choice, larger ones the last.
TOKEN_COUNTS = (*range(1, 10), 16, 32, 64, 128, 256)

# Shares of seconds. A product may be slower than the fastest by the first before a copy of the weight is worth its
# memory: two layouts in turn evict each other's weights from the caches. The plain product is replaced by one that
# saves the second: less is noise, and only the plain one adds in place. Padding must save the third; products closer
# than the fourth are raced again, since noise would decide.
_WORTH_A_COPY, _WORTH_LEAVING, _WORTH_PADDING, _NEAR = 0.15, 0.02, 0.1, 0.15
# Seconds of timing per product, weight and token count, and repeats: most, least, least of calls longer than
# `_LONG_CALL_S`. A product whose first call takes `_GIVE_UP` times as long as the fastest is not timed further.
_SECONDS_EACH, _MOST_REPEATS, _LEAST_REPEATS, _LEAST_LONG_REPEATS, _LONG_CALL_S, _GIVE_UP = 0.005, 24, 6, 2, 0.01, 3
# Most bytes of copies in one layout that a timing uses in turn, as a model uses its layers: with weights in the
# processor's caches, products limited by memory would look too fast. Also the largest number of copies, and the sets of
# copies: one for each layout, and a temporary one.
_TURN_BYTES, _MOST_TURNS, _SETS = 64 * 2**20, 32, 4
# Timing weights larger than the first takes seconds, so progress is shown. Of a pool's weights timing may take the
# second, a share of them, if that is more than turns need; libraries keep kernels and buffers as well, the third
# (`benchmarks/memory.py`).
_LARGE_BYTES, _TIMING_SHARE, LIBRARY_BYTES = 16 * 2**20, 0.12, 140 * 10**6


def timing_bytes(weight_bytes: int) -> int:
    """Most memory, bytes, for timing products beside `weight_bytes` of weights, all of which a pass may use."""
    return max(_SETS * min(weight_bytes, _TURN_BYTES), int(_TIMING_SHARE * weight_bytes))


class Multiplier:
    """One weight `[I, O]`, as laid out in the model, and the product for each number of tokens.

    `products` has one for each of `TOKEN_COUNTS`, `copies` the weight in the layouts they need.
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
        """Whether `num_tokens` tokens use the plain product, which can add to a sum in place."""
        return self.products[_place_of(num_tokens)] is PLAIN


def _place_of(num_tokens: int) -> int:
    return bisect_left(TOKEN_COUNTS, num_tokens, hi=len(TOKEN_COUNTS) - 1)


class KnownChoices:
    """What was fastest on this machine, by the question; mutated by `note`, which writes the file.

    Only a cache: if the file cannot be read, choices are measured again, and a failed write is ignored. Without `path`
    choices are kept in this object only. `machine` is what they hold for: processor, threads, version of torch.
    """

    def __init__(self, path: Path | None, machine: str = "") -> None:
        self._path, self._machine = path, machine
        self._known = {} if path is None else _read(path).get(machine, {})

    def get(self, what: str, count: int) -> list[str]:
        """The `count` names chosen for `what`; empty if another number is known, or none."""
        known = self._known.get(what, [])
        return known if len(known) == count else []

    def note(self, what: str, names: Sequence[str]) -> None:
        """Note the names chosen for `what`."""
        self._known[what] = list(names)
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # What other processes chose since stays. Two that note at once may lose one: it is chosen again.
                found = _read(self._path)
                found[self._machine] = self._known | found.get(self._machine, {}) | {what: self._known[what]}
                write_whole(self._path, json.dumps(found, indent=1, sort_keys=True))


def _read(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = read_json(path)
        lists = [names for choices in found.values() for names in choices.values()]
    except (OSError, ValueError, AttributeError):
        return {}
    return found if all(isinstance(names, list) and all(type(name) is str for name in names) for names in lists) else {}


def choices_of_this_machine() -> KnownChoices:
    """Earlier choices on this machine with as many threads and the same torch."""
    machine = f"{processor()}, {counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}"
    return KnownChoices(kept_folder() / "choices.json", machine)


class ProductChooser:
    """Chooses products for the weights of a pool, and keeps the copies that they need. Mutated by `multiplier`.

    Args:
        known: earlier choices, to which new ones are added; None takes those of this machine.
        only: the product to use for everything, by name; None chooses.
        copy_all: copy weights, where that pays, even of models whose own layout is kept.
        room_bytes: most memory for timing: of a larger weight some outputs are timed.

    Raises:
        ValueError: `only` is no product.
    """

    def __init__(
        self,
        known: KnownChoices | None = None,
        *,
        only: str | None = None,
        copy_all: bool = False,
        room_bytes: int = _SETS * _TURN_BYTES,
    ) -> None:
        if only is not None and only not in PRODUCT_NAMES:
            raise ValueError(f"product must be one of {', '.join(PRODUCT_NAMES)}, got {only!r}")
        self.known = choices_of_this_machine() if known is None else known
        self.copy_all, self._only, self._room_bytes = copy_all, only, room_bytes
        # Those in use by a multiplier: it holds the weight too, so its address is not reused.
        self._copies: WeakValueDictionary[tuple[int, tuple[int, ...], Layout], Tensor] = WeakValueDictionary()
        self._chosen: dict[str, tuple[Product, ...]] = {}
        self._usable: dict[tuple[torch.device, torch.dtype], tuple[Product, ...]] = {}

    def multiplier(self, weight: Tensor, *, may_copy: bool) -> Multiplier:
        """How to multiply by `weight` `[I, O]` of a model, which is not changed.

        Without `may_copy` and `copy_all` only products of `columns` are used. Raises ValueError where the product to
        use for everything does not work here.
        """
        place = (weight.device, weight.dtype)
        usable = self._usable[place] = self._usable.get(place) or usable_products(*place)
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
            chosen = list(self._choice(weight, usable, may_copy=may_copy))
        copied = {product.layout: product for product in chosen if product.layout != "columns"}
        return Multiplier(weight, chosen, {layout: self._copy(weight, product) for layout, product in copied.items()})

    def lines(self) -> list[str]:
        """Choices so far, one line per weight shape: each product by its fewest tokens."""
        if self._only is not None:
            return [f"every weight: {self._only} from 1"]
        lines = []
        for shape, products in sorted(self._chosen.items()):
            firsts = [0, *(at for at in range(1, len(products)) if products[at].name != products[at - 1].name)]
            froms = [f"{products[at].name} from {TOKEN_COUNTS[at - 1] + 1 if at else 1}" for at in firsts]
            lines.append(f"{shape}: {', '.join(froms)}")
        return lines

    def _choice(self, weight: Tensor, usable: Sequence[Product], *, may_copy: bool) -> tuple[Product, ...]:
        how = ("" if weight.is_contiguous() else " as it stands") + ("" if may_copy else ", not copied")
        shape = f"{str(weight.dtype).removeprefix('torch.')} {weight.shape[0]}x{weight.shape[1]}{how}"
        if shape not in self._chosen:
            # Caches hold more of a smaller pool. To powers of two, so that pools of about one size share what is known.
            turn_bytes = 1 << max(0, min(_TURN_BYTES, self._room_bytes // _SETS).bit_length() - 1)
            what = f"products of {shape}, {turn_bytes:,} bytes in turn"
            known = self.known.get(what, len(TOKEN_COUNTS))
            found = named_products(known, usable, TOKEN_COUNTS) if known else None
            if found is None:
                if weight.nbytes >= _LARGE_BYTES:
                    tell(f"timing matrix products for weights of {shape}, which is remembered")
                found = list(time_products(self._timed_part(weight), usable, room_bytes=self._room_bytes).products)
                trim()
                self.known.note(what, [product.name for product in found])
            self._chosen[shape] = tuple(found)
        return self._chosen[shape]

    def _timed_part(self, weight: Tensor) -> Tensor:
        """`[I, O']` of a weight, as large as copies in three layouts and a temporary one have room."""
        return weight[:, : max(1, self._room_bytes // _SETS // (len(weight) * weight.itemsize))]

    def _copy(self, weight: Tensor, product: Product) -> Tensor:
        """The weight in the product's layout, made and checked once for all members that share it."""
        key = (weight.data_ptr(), tuple(weight.shape), product.layout)
        made = self._copies.get(key)
        if made is None:
            made = stored(weight, product.layout)
            if not right(product, torch.ones(2, len(weight), dtype=weight.dtype), weight, made):
                raise ValueError(f"product {product.name} is wrong for a weight of {tuple(weight.shape)}")
            trim()
            self._copies[key] = made
        return made


def stored(weight: Tensor, layout: Layout, *, copy: bool = False) -> Tensor:
    """A weight `[I, O]` in a layout; `columns` is the weight itself, the others are copies, and all are with `copy`.

    Raises:
        RuntimeError, AttributeError or TypeError: this torch has no such layout for the weight.
    """
    if layout == "columns":
        return weight.clone() if copy else weight
    rows = weight.t().clone(memory_format=torch.contiguous_format) if copy else weight.t().contiguous()
    if layout == "packed":
        rows = torch.ops.mkldnn._reorder_linear_weight(rows, None)
    return rows


def usable_products(device: torch.device, dtype: torch.dtype) -> tuple[Product, ...]:
    """The products that work here, `PLAIN` first; on accelerators the library chooses.

    oneDNN's operations are private, called by torch's own compiler, so they are tested before use.
    """
    if device.type != "cpu":
        return (PLAIN,)
    return tuple(product for product in PRODUCTS if product is PLAIN or _works(product, dtype))


def right(product: Product, inputs: Tensor, weight: Tensor, kept: Tensor) -> bool:
    """Whether a product equals `PLAIN` except for rounding, for a weight `[I, O]` and its stored form."""
    return apart_by_more_than_rounding(product.times(inputs, kept), PLAIN.times(inputs, weight), weight.dtype) is None


def _works(product: Product, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, inputs = (torch.randn(shape, generator=generator).to(dtype) for shape in ((48, 32), (3, 48)))
    try:
        return right(product, inputs, weight, stored(weight, product.layout))
    except (AttributeError, RuntimeError, TypeError):  # missing, not built in, with other arguments or for other dtypes
        return False


def padded(product: Product, num_tokens: int) -> Product:
    """The product over inputs padded to `num_tokens` tokens, named `NAME@TOKENS`.

    A library's kernels process inputs in blocks of rows: two tokens can take longer than four or six.
    """

    def times(inputs: Tensor, weight: Tensor) -> Tensor:
        given = len(inputs)
        return product.times(functional.pad(inputs, (0, 0, 0, num_tokens - given)), weight)[:given]

    return Product(f"{product.name}@{num_tokens}", product.layout, times)


def named_products(names: Sequence[str], among: Sequence[Product], token_counts: Sequence[int]) -> list[Product] | None:
    """The products of these names for these numbers of tokens, padded ones too; None if one cannot be used."""
    by_name = {product.name: product for product in among}
    found = []
    for name, count in zip(names, token_counts, strict=True):
        base, padding, num_tokens = name.partition("@")
        if base not in by_name or (padding and not (num_tokens.isdecimal() and int(num_tokens) > count)):
            return None
        found.append(padded(by_name[base], int(num_tokens)) if padding else by_name[base])
    return found


class Timing(NamedTuple):
    """A choice: seconds by product and number of tokens, infinite where given up, and the chosen products."""

    seconds: dict[str, list[float]]
    products: tuple[Product, ...]


@torch.inference_mode()
def time_products(
    weight: Tensor,
    usable: Sequence[Product],
    token_counts: Sequence[int] = TOKEN_COUNTS,
    *,
    room_bytes: int = _SETS * _TURN_BYTES,
) -> Timing:
    """Time products of a weight `[I, O]`, interleaved, and choose; choose at most one layout other than `columns`."""
    layouts = {product.layout for product in usable}
    turns = max(1, min(_MOST_TURNS, min(_TURN_BYTES, room_bytes // _SETS) // weight.nbytes))
    kept = {layout: [stored(weight, layout, copy=True) for _ in range(turns)] for layout in layouts}
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(max(token_counts), len(weight), generator=generator).to(weight.dtype)
    timed = [_timed(usable, inputs[:count], kept) for count in token_counts]
    seconds = {product.name: [of_count[product.name] for of_count in timed] for product in usable}

    def race(product: Product, count: int, wider: Product) -> tuple[float, float]:
        taken = _timed((product, wider), inputs[:count], kept)
        return taken[product.name], taken[wider.name]

    ways = {product.name: ways_of(product, seconds, token_counts, race) for product in usable}
    return Timing(seconds, chosen_of(ways, usable))


def _timed(usable: Sequence[Product], inputs: Tensor, kept: Mapping[Layout, Sequence[Tensor]]) -> dict[str, float]:
    """Seconds by product: the lower quartile, as of calls without interruptions."""
    # Each call takes the next copy: one that another product has just read would still be in the caches. A large weight
    # has one copy, which evicts its own beginning from most caches.
    coming = {layout: cycle(weights) for layout, weights in kept.items()}
    taken: dict[str, list[float]] = {product.name: [] for product in usable}

    def once(product: Product) -> float:
        weight = next(coming[product.layout])
        start_s = perf_counter()
        product.times(inputs, weight)
        return perf_counter() - start_s

    def race(among: Sequence[Product], turns: int) -> dict[str, float]:
        for turn in range(turns):
            for product in among if turn % 2 else reversed(among):  # so that none always runs after the same
                taken[product.name].append(once(product))
        return {name: sorted(each)[len(each) // 4] if each else float("inf") for name, each in taken.items()}

    first = {product.name: once(product) for product in usable}
    long = min(first.values()) > _LONG_CALL_S  # one-time work is a small part of such a first call
    if not long:  # two more, as one may be interrupted
        first = {product.name: min(once(product), once(product)) for product in usable}
    quickest = min(first.values())
    racing = [product for product in usable if product is PLAIN or first[product.name] <= _GIVE_UP * quickest]
    least = _LEAST_LONG_REPEATS if long else _LEAST_REPEATS
    repeats = max(least, min(_MOST_REPEATS, int(_SECONDS_EACH / quickest)))
    found = race(racing, repeats)
    near = [product for product in racing if found[product.name] <= (1 + _NEAR) * min(found.values())]
    return race(near, 2 * repeats) if len(near) > 1 else found


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
    """For each number of tokens the product as it is, or padded to the larger number at which it is fastest.

    The two are raced, as numbers of tokens were timed at different moments, but only where padding could make this
    product one of the fastest.
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
    """The fastest for each token count, of the layout `columns` and of the other one that loses least to the best.

    A loss counts only beyond `_WORTH_A_COPY`: no copy is used where `columns` is within that. `usable` begins with
    `PLAIN`.
    """
    best = [min(way.seconds for way in of_count) for of_count in zip(*ways.values(), strict=True)]
    layouts: list[tuple[Layout, ...]] = [("columns",), ("columns", "rows"), ("columns", "packed")]
    options, losses = [], []
    for among in layouts:
        of_layout = [ways[product.name] for product in usable if product.layout in among]
        chosen = []
        for plain, *others in zip(*of_layout, strict=True):
            first = min((plain, *others), key=lambda way: way.seconds)
            chosen.append(first if first.seconds < plain.seconds * (1 - _WORTH_LEAVING) else plain)
        options.append(chosen)
        behind = [way.seconds / best_s - 1 for way, best_s in zip(chosen, best, strict=True)]
        losses.append(sum(max(0.0, share - _WORTH_A_COPY) for share in behind))
    first_least = losses.index(min(losses))  # the first of equals needs no copy
    return tuple(way.product for way in options[first_least])
