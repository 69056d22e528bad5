"""SpecRouter against every fixed chain by tag: speed-up over the target alone on a recording.

python benchmarks/regret.py [--orders 7] [--trace other.trace] [--costs-of recordings/pico.trace]
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
from paceline.base.files import shipped
from paceline.decoding.pool import Pool
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.simulate import Scenario
from paceline.traces import TrieRecording
from paceline.traces.contexts.on_disk import read_trace
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import ALL, chain, replayed, speed_of, three_levels, two_levels
from shared.report import parser_of, show

GOAL = 0.98
WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
LOWER, UPPER = (1, 2, 3, 4, 5, 6, 8), (2, 4, 6, 8, 10, 12)
RUNS = ("specrouter", "specrouter,stop=window")
Speeds = dict[str, float]  # tokens per second by tag


def fixed_chains(pool: Pool) -> list[str]:
    """Chains of two and three levels with windows to 12, and prompt lookup below three levels."""
    *below, target = pool.names
    members = (*below[:3], target)
    deep = [chain(members, windows) for windows in product((2, 4, 6), (1, 2, 3, 4), (4, 6, 8))]
    return two_levels(below, target, WINDOWS) + three_levels(pool, lower=LOWER, upper=UPPER) + deep


def speeds(scenario: Scenario, name: str) -> Speeds:
    """Tokens per second by tag, and of all."""
    log = replayed(scenario, name)
    return {str(tag): speed_of(log, tag=tag) for tag in (*np.unique(log.requests["tag"]), ALL)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--orders", type=int, default=7, help="further orders of the requests")
    parser.add_argument(
        "--trace", type=Path, default=shipped("recordings", "pico.trace"), help="a recording of the same pool"
    )
    parser.add_argument("--costs-of", type=Path, help="whose measured seconds to charge; default: its own")
    options = parser.parse_args()
    trace = read_trace(options.trace)
    if options.costs_of is not None:
        costs = read_trace(options.costs_of).meta.costs
        trace = TrieRecording(meta=trace.meta.model_copy(update={"costs": costs}), requests=trace.requests)
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost(default_cost(trace), trace))
    plain = speeds(scenario, "plain")
    fixed = {name: speeds(scenario, name) for name in fixed_chains(scenario.tables.pool)}
    shuffled = []
    for seed in range(options.orders):
        requests = list(trace.requests)
        Random(seed).shuffle(requests)
        tables = TrieTables(TrieRecording(meta=trace.meta, requests=tuple(requests)))
        shuffled.append(speeds(replace(scenario, tables=tables), RUNS[0]))
    ours = {name: speeds(scenario, name) for name in RUNS}
    recorded = f"{len(trace.requests)} requests of {trace.meta.name}, batch 1"
    show(
        f"{recorded}; {len(fixed)} fixed chains, best in hindsight",
        [row(tag, speed, fixed, ours, shuffled) for tag, speed in plain.items()],
    )


def row(
    tag: str, alone: float, fixed: dict[str, Speeds], ours: dict[str, Speeds], shuffled: Sequence[Speeds]
) -> list[Cell]:
    best = max(fixed, key=lambda name: fixed[name][tag])
    ratio = ours[RUNS[0]][tag] / fixed[best][tag]
    others = [run[tag] / fixed[best][tag] for run in shuffled]
    return [
        table_cell("tag", tag),
        table_cell("best fixed chain", best),
        table_cell("speed-up", fixed[best][tag] / alone, digits=2),
        *(table_cell(name, ours[name][tag] / alone, digits=2) for name in RUNS),
        table_cell("specrouter / best", ratio, digits=3),
        table_cell(f"at least {GOAL}", "yes" if ratio >= GOAL else "no"),
        table_cell(
            f"in {len(shuffled)} other orders: least, mean",
            f"{min(others):.3f}, {np.mean(others):.3f}" if others else "",
        ),
    ]


if __name__ == "__main__":
    main()
