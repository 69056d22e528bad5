"""Published numbers and closed forms, beside results computed and simulated here.

python benchmarks/checks.py [--requests 20] [--tokens 5000]
"""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.sim import Scenario, TrieTables, recorded_pool, simulate
from paceline.sim.cost.files import CostLine, FileCost
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import chain
from shared.closed_forms import chain_speed, speedup
from shared.report import parser_of, show

NUMBERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES = ("draft", "mid", "target")
REACH, RUN = 11, 8


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


def recording(rates: Sequence[float], requests: int, tokens: int) -> TrieTables:
    """A recording whose members agree with the next larger one at `rates`, independently of everything else."""
    acceptance = [1.0]
    for rate in reversed(rates):
        acceptance.insert(0, rate * acceptance[0])
    spec = SyntheticSpec(
        requests=requests,
        tokens=tokens,
        prompt_tokens=1,
        models=names_of(len(rates) + 1),
        acceptance=tuple(acceptance[:-1]),
        off_trunk=tuple(rates),
        depth_decay=0.0,
        shared_difficulty=1.0,
        reach=REACH if len(rates) > 1 else RUN,
        run=RUN if len(rates) == 1 else 4,
    )
    return TrieTables(make_trace(spec))


def names_of(levels: int) -> tuple[str, ...]:
    return NAMES if levels == len(NAMES) else (NAMES[0], NAMES[-1])


def simulated(tables: TrieTables, windows: Sequence[int], forward_s: Sequence[float]) -> tuple[str, float, float]:
    """(chain, tokens per round, seconds per token)."""
    names = names_of(len(forward_s))
    name = chain(names, windows)
    pairs = zip(names, forward_s, strict=True)
    flat = FileCost("flat", {name: CostLine(intercept_s=taken) for name, taken in pairs})
    scenario = Scenario(tables=tables, cost=flat, strict=True)
    summary = summarise_run(simulate(scenario, make_policy(name, recorded_pool(tables.trace)), name))
    return name, summary.acceptance_length, summary.duration_s / summary.output_tokens


def against_the_simulator(grid: Mapping[str, list[list]], requests: int, tokens: int) -> None:
    rows, off = [], []
    for rates in grid["rates"]:
        tables = recording(rates, requests, tokens)
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
