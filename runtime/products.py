"""Times products of a weight and says which is the quickest for each number of tokens.

Ways to take one matrix product, told apart so that each machine can use its quickest.

Which of them is quickest differs between makers of processors by factors of two to three, in both directions, and on
one processor with the shape of the weight and the number of tokens. Letters: I inputs, O outputs, T tokens.

Letters: I inputs, O outputs, T tokens.

Choices that were made on this machine before by measuring, kept in a file of its own.

Memory that the system gets back while weights are laid out anew, copied and timed.

What was read of a mapped file counts as memory of the process as long as anything of the file is in use: unless the
system is told, all old weights stay beside the new ones. And the C library may keep what is freed for itself.

Chooses, by measuring on this machine, how each weight is multiplied with so many tokens.

Letters: I inputs, O outputs, T tokens.
"""

import ctypes
import json
import sys
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
from .forward import apart_by_more_than_rounding

Layout = Literal["columns", "rows", "packed"]
Times = Callable[[Tensor, Tensor], Tensor]


class Product(NamedTuple):
    """One way to multiply.

    Attributes:
        name: in options, in files and in what is printed.
        layout: how it wants the weight stored: `columns` is `[I, O]` as it stands in the model, `rows` is `[O, I]`
            without gaps, `packed` is oneDNN's own.
        times: `[T, O]` from inputs `[T, I]` and the weight in that layout.
    """

    name: str
    layout: Layout
    times: Times


def _onednn(inputs: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN, from a weight `[O, I]` or packed."""
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


def stored(weight: Tensor, layout: Layout) -> Tensor:
    """A weight `[I, O]` in a layout; `columns` is the weight itself, the others are copies.

    Raises:
        RuntimeError, AttributeError or TypeError: this torch has no such layout for the weight.
    """
    if layout == "columns":
        return weight
    rows = weight.t().contiguous()
    return rows if layout == "rows" else _packed(rows)


def copied(weight: Tensor, layout: Layout) -> Tensor:
    """As `stored`, in memory of its own."""
    if layout == "columns":
        return weight.clone()
    rows = weight.t().clone(memory_format=torch.contiguous_format)
    return rows if layout == "rows" else _packed(rows)


def _packed(rows: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(rows, None)
    return packed


def usable_products(device: torch.device, dtype: torch.dtype) -> tuple[Product, ...]:
    """The products that work here, `PLAIN` first; on accelerators the library chooses by itself.

    oneDNN's operations are not public but what torch's own compiler calls, so they are tried before they are used.
    """
    if device.type != "cpu":
        return (PLAIN,)
    return tuple(product for product in PRODUCTS if product is PLAIN or _works(product, dtype))


def right(product: Product, inputs: Tensor, weight: Tensor, kept: Tensor) -> bool:
    """Whether a product gives what `PLAIN` gives but for rounding, from a weight `[I, O]` and its stored form."""
    return apart_by_more_than_rounding(product.times(inputs, kept), PLAIN.times(inputs, weight), weight.dtype) is None


def _works(product: Product, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, inputs = (torch.randn(shape, generator=generator).to(dtype) for shape in ((48, 32), (3, 48)))
    try:
        return right(product, inputs, weight, stored(weight, product.layout))
    except (AttributeError, RuntimeError, TypeError):  # absent, not built in, with other arguments or for other dtypes
        return False


def padded(product: Product, num_tokens: int) -> Product:
    """The product over inputs that are padded to so many tokens, named `NAME@TOKENS`.

    A library's kernels take their inputs by blocks of rows: two tokens can take longer than four or six.
    """

    def times(inputs: Tensor, weight: Tensor) -> Tensor:
        given = len(inputs)
        return product.times(functional.pad(inputs, (0, 0, 0, num_tokens - given)), weight)[:given]

    return Product(f"{product.name}@{num_tokens}", product.layout, times)


def named_products(names: Sequence[str], among: Sequence[Product], token_counts: Sequence[int]) -> list[Product] | None:
    """The products of these names for so many tokens each, padded ones too; None if one of them cannot be used."""
    by_name = {product.name: product for product in among}
    found = []
    for name, count in zip(names, token_counts, strict=True):
        base, padding, num_tokens = name.partition("@")
        if base not in by_name or (padding and not (num_tokens.isdecimal() and int(num_tokens) > count)):
            return None
        found.append(padded(by_name[base], int(num_tokens)) if padding else by_name[base])
    return found


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


class KnownChoices:
    """Names of what was quickest, by what was chosen for; mutated by `note`, which writes them down.

    It is a memory and no promise: a file that cannot be read is measured anew, and one that cannot be written is left.

    Args:
        path: of the file; None remembers in this object alone.
        machine: what the choices hold for: processor, threads, version of torch.
    """

    def __init__(self, path: Path | None, machine: str = "") -> None:
        self._path = path
        self._machine = machine
        self._known = {} if path is None else _read(path).get(machine, {})

    def get(self, what: str, count: int) -> list[str]:
        """The `count` names chosen for something; none if nobody chose so many."""
        known = self._known.get(what, [])
        return known if len(known) == count else []

    def note(self, what: str, names: Sequence[str]) -> None:
        """Remember the names chosen for something."""
        self._known[what] = list(names)
        if self._path is None:
            return
        # What others wrote meanwhile stays.
        found = _read(self._path)
        found[self._machine] = found.get(self._machine, {}) | self._known
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(found, indent=1, sort_keys=True))


def _read(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not all(_are_choices(choices) for choices in found.values()):
        return {}
    return found


def _are_choices(choices: object) -> bool:
    return isinstance(choices, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in choices.values()
    )


def choices_of_this_machine() -> KnownChoices:
    """What was chosen here before with as many threads and the same torch."""
    machine = f"{processor()}, {counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}"
    return KnownChoices(kept_folder() / "choices.json", machine)


_MAPS = Path("/proc/self/maps")
# `MADV_PAGEOUT` of Linux: the system may take pages away. It changes no value: they are read anew when asked for.
_PAGE_OUT, _PAGE_BYTES = 21, 4096


def let_go(values: Tensor) -> None:
    """Tell the system that values without gaps are not needed in memory; does nothing where they are in no file."""
    first = values.data_ptr()
    if values.device.type != "cpu" or not _in_a_file(first):
        return
    start, end = -(-first // _PAGE_BYTES) * _PAGE_BYTES, (first + values.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if start < end:  # a hint, so what comes of it is not asked
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGE_OUT)


def _in_a_file(address: int) -> bool:
    """Whether an address is one of a mapped file; False where the system does not say."""
    if not _MAPS.exists():
        return False
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        span, *_, path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return path.startswith("/")
    return False


def trim() -> None:
    """Let the C library give back what was freed, where it can."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


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
