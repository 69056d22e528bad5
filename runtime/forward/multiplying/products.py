"""Ways to take one matrix product, told apart so that each machine can use its quickest.

Which of them is quickest differs between makers of processors by factors of two to three, in both directions, and on
one processor with the shape of the weight and the number of tokens. Letters: I inputs, O outputs, T tokens.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..rounding import apart_by_more_than_rounding

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
