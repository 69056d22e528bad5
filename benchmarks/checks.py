"""Published numbers and closed forms, beside results computed and simulated here.

python benchmarks/checks.py [--requests 20] [--tokens 5000]
"""

import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from paceline_laboratory.findings import Cell, table_cell
from shared.closed_forms import chain_speed, speedup
from shared.independent import recording, simulated
from shared.report import parser_of, show

NUMBERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def published(row: tuple[str, float, float, int, str]) -> list[Cell]:
    name, rate, ratio, window, wanted = row
    digits = len(wanted.partition(".")[2])
    return [
        table_cell("row", name),
        table_cell("acceptance", rate, digits=2),
        table_cell("cost ratio", ratio, digits=3),
        table_cell("window", window),
        table_cell("published", wanted),
        table_cell("speedup()", f"{speedup(rate, window, ratio):.{digits}f}"),
    ]


def against_the_simulator(grid: Mapping[str, list[list]], requests: int, tokens: int) -> None:
    rows, off = [], []
    for rates in grid["rates"]:
        reach, run = (11, 4) if len(rates) > 1 else (8, 8)
        tables = recording(rates, requests=requests, tokens=tokens, reach=reach, run=run)
        for windows, ratios in product(grid["windows"], grid["ratios"]):
            forward_s = (*ratios, 1.0)
            form = chain_speed(rates, windows, forward_s)
            name, per_round, per_token = simulated(tables, windows, forward_s)
            off.append(max(abs(per_round / form.tokens - 1.0), abs(per_token / form.seconds_per_token - 1.0)))
            rows.append(
                [
                    table_cell("chain", name),
                    table_cell("acceptance", " ".join(map(str, rates))),
                    table_cell("forward s", " ".join(map(str, forward_s))),
                    table_cell("tokens/round", form.tokens, digits=3),
                    table_cell("simulated", per_round, digits=3),
                    table_cell("s/token", form.seconds_per_token, digits=4),
                    table_cell("simulated", per_token, digits=4),
                    table_cell("worst", f"{off[-1]:.2%}"),
                ]
            )
    title = f"Closed form and simulator, {requests * tokens:,} tokens a row"
    show(title, rows, f"largest difference {max(off):.2%}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=5000)
    options = parser.parse_args()
    show("Published rows", map(published, NUMBERS["published"]))
    for grid in NUMBERS["grids"]:
        against_the_simulator(grid, options.requests, options.tokens)


if __name__ == "__main__":
    main()
