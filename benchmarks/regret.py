"""SpecRouter against every fixed chain, tag by tag: speed-up over the target alone on a recording.

python benchmarks/regret.py [--orders 7] [--trace other.trace] [--costs-of recordings/pico.trace]
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
from paceline.policies.spec import make_policy
from paceline.sim.cost.make import default_cost, make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.sim.tries.tables import TrieTables
from paceline.traces import TrieRecording
from paceline.traces.tries.store import read_trace
from rich.console import Console
from rich.table import Table

TRACE = Path(__file__).parent.parent / "recordings" / "pico.trace"
GOAL = 0.98
WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
LOWER, UPPER = (1, 2, 3, 4, 5, 6, 8), (2, 4, 6, 8, 10, 12)
RUNS = ("specrouter", "specrouter,stop=window")


def fixed_chains(names: Sequence[str]) -> list[str]:
    """Two and three levels with windows to 12, and prompt lookup below three levels."""
    *below, target = names
    chains = [f"{name}:{window}/{target}" for name in below for window in WINDOWS]
    for low, high in combinations(below, 2):
        chains += [f"{low}:{n}/{high}:{m}/{target}" for n in LOWER for m in UPPER]
    free, draft, mid = below[:3]
    return chains + [
        f"{free}:{k}/{draft}:{n}/{mid}:{m}/{target}" for k in (2, 4, 6) for n in (1, 2, 3, 4) for m in (4, 6, 8)
    ]


def speeds(scenario: Scenario, name: str) -> dict[str, float]:
    """Tokens per second by tag, and of all."""
    requests = simulate(scenario, make_policy(name, scenario.tables.pool), name).requests
    taken = requests["finished_at_s"] - requests["admitted_at_s"]
    tokens = requests["emitted_tokens"]
    tags = requests["tag"]
    by_tag = {str(tag): float(tokens[tags == tag].sum() / taken[tags == tag].sum()) for tag in np.unique(tags)}
    return {**by_tag, "all": float(tokens.sum() / taken.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=7, help="further orders of the requests")
    parser.add_argument("--trace", type=Path, default=TRACE, help="a recording of the same pool")
    parser.add_argument("--costs-of", type=Path, help="whose measured seconds to charge; default: its own")
    options = parser.parse_args()
    trace = read_trace(options.trace)
    if options.costs_of is not None:
        costs = read_trace(options.costs_of).meta.costs
        trace = TrieRecording(meta=trace.meta.model_copy(update={"costs": costs}), requests=trace.requests)
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost(default_cost(trace), trace))
    plain = speeds(scenario, "plain")
    fixed = {name: speeds(scenario, name) for name in fixed_chains(scenario.tables.pool.names)}
    shuffled = []
    for seed in range(options.orders):
        requests = list(trace.requests)
        Random(seed).shuffle(requests)
        tables = TrieTables(TrieRecording(meta=trace.meta, requests=tuple(requests)))
        shuffled.append(speeds(replace(scenario, tables=tables), RUNS[0]))
    ours = {name: speeds(scenario, name) for name in RUNS}
    headings = ("tag", "best fixed chain", "speed-up", *RUNS, "specrouter / best", f"at least {GOAL}")
    table = Table(*headings, f"in {options.orders} other orders: least, mean", title_justify="left")
    for tag, alone in plain.items():
        best = max(fixed, key=lambda name: fixed[name][tag])
        ratio = ours[RUNS[0]][tag] / fixed[best][tag]
        others = [run[tag] / fixed[best][tag] for run in shuffled]
        table.add_row(
            tag,
            best,
            f"{fixed[best][tag] / alone:.2f}",
            *(f"{ours[name][tag] / alone:.2f}" for name in RUNS),
            f"{ratio:.3f}",
            "yes" if ratio >= GOAL else "no",
            f"{min(others):.3f}, {np.mean(others):.3f}" if others else "",
        )
    title = (
        f"{len(trace.requests)} requests of {trace.meta.name}, batch 1; {len(fixed)} fixed chains, best in hindsight"
    )
    table.title = title
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
