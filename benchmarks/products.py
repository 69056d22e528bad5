"""Whether the matrix product chosen for a weight is the fastest one, measured again after the choice.

Shapes are those of the shipped pool, of decoders with 20, 150 and 600 million parameters, and a head of 49,152 words.
The goal is a chosen product within 5% of the fastest one.

python benchmarks/products.py [--of pico 20M 150M 600M head] [--tokens 1 2 4 8 16 64]
"""

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from paceline.base.files import shipped
from paceline.base.terminal import tracked
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.products import TOKEN_COUNTS, time_products, usable_products
from paceline_laboratory.findings import Cell, table_cell
from shared.report import parser_of, show

# Hidden and intermediate width, width of keys and values, words.
DECODERS = {"20M": (384, 1152, 384, 32000), "150M": (768, 2048, 768, 32000), "600M": (1536, 3968, 1536, 32000)}
HEAD = (576, 49152)
SIZES = ("pico", *DECODERS, "head")
MOST_BEHIND = 0.05  # as a share of the fastest


def shapes_of(size: str) -> list[tuple[int, int]]:
    """Inputs and outputs of the weights of a size in the fused forward."""
    if size == "head":
        return [HEAD]
    decoders = shipped_decoders() if size == "pico" else [DECODERS[size]]
    return sorted(set().union(*(shapes_of_decoder(*decoder) for decoder in decoders)))


def shipped_decoders() -> list[tuple[int, int, int, int]]:
    pool = ModelPool.load(shipped("pools", "pico"))
    configs = [member.model.config for member in pool.members if member.model is not None]
    return [
        (one.hidden_size, one.intermediate_size, one.num_key_value_heads * one.head_dim, one.vocab_size)
        for one in configs
    ]


def shapes_of_decoder(width: int, inner: int, keys: int, words: int) -> set[tuple[int, int]]:
    return {(width, width + 2 * keys), (width, width), (width, 2 * inner), (inner, width), (width, words)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--of", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--tokens", type=int, nargs="+", choices=TOKEN_COUNTS, default=[1, 2, 4, 8, 16, 64])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows, lost, to_choose_s = [], [], {}
    shapes = [(size, shape) for size in asked.of for shape in shapes_of(size)]
    for size, shape in tracked(shapes, "timing products", total=len(shapes), unit="weights"):
        choice_s, found = measured(shape, asked.tokens)
        to_choose_s[shape] = choice_s
        for row, behind in found:
            rows.append([table_cell("size", size), *row])
            lost.append(behind)
    show("microseconds of a product, the one that was chosen and the quickest of all, measured again", rows)
    within = sum(behind <= MOST_BEHIND for behind in lost)
    slowest = max(to_choose_s, key=to_choose_s.__getitem__)
    print(
        f"{within} of {len(lost)} choices are within {MOST_BEHIND:.0%} of the quickest, {max(lost):.0%} behind at "
        f"worst; choosing took {median(to_choose_s.values()):.2f} s a weight in the median, "
        f"{to_choose_s[slowest]:.1f} s for {slowest[0]} x {slowest[1]}"
    )


def measured(shape: tuple[int, int], tokens: Sequence[int]) -> tuple[float, list[tuple[list[Cell], float]]]:
    """Seconds to choose, and by number of tokens a row and how far the choice is behind the fastest."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    usable = usable_products(weight.device, weight.dtype)
    start_s = perf_counter()
    chosen = time_products(weight, usable).products
    kept = {"columns", *(product.layout for product in chosen)}
    choice_s = perf_counter() - start_s
    found = []
    for count in tokens:
        product = chosen[TOKEN_COUNTS.index(count)]
        among = usable if product in usable else (*usable, product)  # absent if inputs are padded
        layouts = {one.name: one.layout for one in among}
        again = [time_products(weight, among, token_counts=(count,)).seconds for _ in range(3)]
        seconds = {name: median(one[name][0] for one in again) for name in layouts}
        quickest = min(seconds, key=seconds.__getitem__)
        name = product.name
        behind = seconds[name] / seconds[quickest] - 1
        row = [
            table_cell("weight", f"{shape[0]} x {shape[1]}"),
            table_cell("tokens", count),
            table_cell("chosen", name),
            table_cell("us", seconds[name] * 1e6, digits=1),
            table_cell("quickest", quickest),
            table_cell("us of it", seconds[quickest] * 1e6, digits=1),
            table_cell("plain us", seconds["plain"] * 1e6, digits=1),
            table_cell("behind", f"{behind:.0%}"),
            table_cell(
                "within 5%", "yes" if behind <= MOST_BEHIND else "NO" if layouts[quickest] in kept else "NO: a 2nd copy"
            ),
        ]
        found.append((row, behind))
    return choice_s, found


if __name__ == "__main__":
    main()
