"""Whether the matrix product that is chosen for a weight is the quickest one, measured again after it was chosen.

Shapes are those of the shipped pool, of decoders with 20, 150 and 600 million parameters, and a head of 49,152 words.

python benchmarks/products.py [--tokens 1 4 16 64] [--least-gain 0.05]
"""

from collections.abc import Sequence
from statistics import median

import torch
from paceline.laboratory.findings.table import Cell, cell
from paceline.runtime.forward.product_choice import TOKEN_COUNTS, time_products
from paceline.runtime.forward.products import usable_products
from paceline.runtime.pools.pool import ModelPool
from paceline.shipped import shipped
from shared.report import parser_of, show

# Hidden and intermediate width, width of keys and values, words: of 20M, 150M and 600M parameters.
FORCED = ((384, 1024, 384, 8192), (768, 2048, 256, 16384), (1536, 4096, 512, 32768))
HEAD = (576, 49152)


def shapes_of_pico() -> list[tuple[int, int]]:
    pool = ModelPool.load(shipped("pools", "pico"))
    found = set()
    for member in pool.members:
        if member.model is not None:
            config = member.model.config
            width = config.hidden_size
            found |= shapes_of(
                width, config.intermediate_size, config.num_key_value_heads * config.head_dim, config.vocab_size
            )
    return sorted(found)


def shapes_of(width: int, inner: int, keys: int, words: int) -> set[tuple[int, int]]:
    return {(width, width + 2 * keys), (width, width), (width, 2 * inner), (inner, width), (width, words)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--least-gain", type=float, default=0.05)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [*shapes_of_pico(), *sorted(set().union(*(shapes_of(*one) for one in FORCED))), HEAD]
    rows, lost = [], []
    for shape in shapes:
        for row, behind in measured(shape, asked.tokens):
            rows.append(row)
            lost.append(behind)
    show("microseconds of a product, the one that was chosen and the quickest of all, measured again", rows)
    within = sum(behind <= asked.least_gain for behind in lost)
    print(
        f"{within} of {len(lost)} choices are within {asked.least_gain:.0%} of the quickest, {max(lost):.0%} at worst"
    )


def measured(shape: tuple[int, int], tokens: Sequence[int]) -> list[tuple[list[Cell], float]]:
    """A row for each number of tokens, and how far the chosen product is behind the quickest."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    usable = usable_products(weight.device, weight.dtype)
    chosen = time_products(weight, usable).products
    again = [time_products(weight, usable).seconds for _ in range(3)]
    found = []
    for count in tokens:
        place = TOKEN_COUNTS.index(count)
        seconds = {product.name: median(one[product.name][place] for one in again) for product in usable}
        quickest = min(seconds, key=seconds.__getitem__)
        name = chosen[place].name
        behind = seconds[name] / seconds[quickest] - 1
        row = [
            cell("weight", f"{shape[0]} x {shape[1]}"),
            cell("tokens", count),
            cell("chosen", name),
            cell("us", seconds[name] * 1e6, digits=1),
            cell("quickest", quickest),
            cell("us of it", seconds[quickest] * 1e6, digits=1),
            cell("plain us", seconds["plain"] * 1e6, digits=1),
            cell("behind", f"{behind:.0%}"),
        ]
        found.append((row, behind))
    return found


if __name__ == "__main__":
    main()
