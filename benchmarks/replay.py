"""Simulated output tokens per second on one core, metrics included.

python benchmarks/replay.py [--requests 200] [--tokens 256] [--runs 7]
"""

import argparse
from collections.abc import Callable

from measuring import RUNS, interleaved, peak_bytes
from paceline.policies.registry import make_policy
from paceline.reports.summary import summarise_run
from paceline.sim.costs import make_cost
from paceline.sim.recorded_pool import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.sim.tables import TraceTables
from paceline.traces import SyntheticSpec, make_trace
from rich.console import Console
from rich.table import Table

GOALS = (200_000, 500_000)
CASES = (
    ("draft:4/target", 1),
    ("plain", 1),
    ("draft:3/mid:6/target", 1),
    ("adaptive", 1),
    ("confident", 1),
    ("draft:4/target", 16),
    ("draft:3/mid:6/target", 16),
)


def job(tables: TraceTables, policy: str, batch: int) -> Callable[[], object]:
    meta = tables.trace.meta
    scenario = Scenario(tables=tables, cost=make_cost("cpu", meta), batch=batch)
    pool = recorded_pool(meta)
    return lambda: summarise_run(simulate(scenario, make_policy(policy, pool), policy))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    spec = SyntheticSpec(
        requests=options.requests,
        tokens=options.tokens,
        prompt_tokens=16,
        models=("draft", "mid", "target"),
        acceptance=(0.8, 0.9),
        reach=11,
        run=3,
    )
    trace = make_trace(spec)
    tables = TraceTables(trace)
    timings = interleaved({f"{name} {batch}": job(tables, name, batch) for name, batch in CASES}, runs=options.runs)
    num_nodes = sum(record.trie.num_nodes for record in trace.requests)
    title = (
        f"{options.requests} requests of {options.tokens} tokens, {num_nodes:,} contexts; simulate and summarise, "
        f"medians of {options.runs} interleaved runs"
    )
    headings = ("policy", "batch", "seconds", "tokens/s", "tokens/CPU s", *(f"of {goal:,}" for goal in GOALS))
    table = Table(*headings, title=title, title_justify="left")
    tokens = options.requests * options.tokens
    for name, batch in CASES:
        wall_s, cpu_s = timings[f"{name} {batch}"]
        shares = [f"{tokens / wall_s / goal:.2f}" for goal in GOALS]
        table.add_row(name, str(batch), f"{wall_s:.3f}", f"{tokens / wall_s:,.0f}", f"{tokens / cpu_s:,.0f}", *shares)
    Console(width=110).print(table)
    print(f"peak memory {peak_bytes() / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
