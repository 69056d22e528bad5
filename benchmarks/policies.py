"""Microseconds of every policy's decide and learn in the simulator, and of SpecRouter's search over chains.

python benchmarks/policies.py [--runs 3]
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns

import numpy as np
from measuring import interleaved
from paceline.decoding.contract import Outcome, Policy, Step
from paceline.decoding.observation import Observation
from paceline.policies.registry import own_policies
from paceline.policies.spec import make_policy
from paceline.policies.specrouter.search import Floats, best_chain
from paceline.sim.cost.make import default_cost, make_cost
from paceline.sim.foresight import grant_foresight
from paceline.sim.simulate import Scenario, simulate
from paceline.sim.tries.tables import TrieTables
from paceline.traces.tries.store import read_trace
from rich.console import Console
from rich.table import Table

TRACE = Path(__file__).parent.parent / "recordings" / "pico.trace"
GOAL_US = 20.0
COLD_GOAL_US, AMORTISED_GOAL_US = 1000.0, 50.0
EVERY = 8  # rounds between two selections, SpecRouter's default
WINDOW = 16
SIZES = (2, 4, 8, 10, 16, 32, 64)
# Policies that do not work without options, and one more form of SpecRouter.
OPTIONS = {
    "chain": "chain,spec=draft:3/mid:6/target",
    "per-tag": "per-tag,default=draft:4/target",
    "guarded": "guarded,policy=draft:4/target",
}
FURTHER = ("specrouter,stop=window", "specrouter,form=filter")


class Timed:
    """Passes on to a policy and keeps the nanoseconds of every step, decide and learn, and of this thread in all."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._deciding: dict[str, int] = {}
        self.steps_ns: list[int] = []
        self.thread_ns = 0

    def decide(self, seen: Observation) -> Step:
        """What the policy says."""
        thread, start = thread_time_ns(), perf_counter_ns()
        step = self._policy.decide(seen)
        self._deciding[seen.request_id] = perf_counter_ns() - start
        self.thread_ns += thread_time_ns() - thread
        return step

    def learn(self, outcome: Outcome) -> None:
        """Tell the policy."""
        thread, start = thread_time_ns(), perf_counter_ns()
        self._policy.learn(outcome)
        taken = perf_counter_ns() - start
        self.thread_ns += thread_time_ns() - thread
        self.steps_ns.append(taken + self._deciding.pop(outcome.request_id))


def steps_us(scenario: Scenario, name: str, runs: int) -> tuple[float, float, float, float]:
    """Of a step, medians over runs: median, mean and 99th percentile, microseconds; and percent of decoding seconds."""
    rows = []
    for _ in range(runs + 1):  # the first one warms up
        policy = make_policy(name, scenario.tables.pool)
        grant_foresight(policy, name, scenario.tables, scenario.cost)  # of oracles; their planning is not a step
        timed = Timed(policy)
        log = simulate(scenario, timed, name)
        taken = np.array(timed.steps_ns) / 1e3
        share = 1e-7 * timed.thread_ns / log.requests["finished_at_s"].max()
        rows.append((float(np.median(taken)), float(taken.mean()), float(np.quantile(taken, 0.99)), float(share)))
    columns = list(zip(*rows[1:], strict=True))
    return median(columns[0]), median(columns[1]), median(columns[2]), median(columns[3])


def policies_table(scenario: Scenario, runs: int) -> Table:
    title = (
        f"decide + learn in the simulator, {scenario.tables.num_requests} requests of {scenario.tables.name}, batch 1"
    )
    table = Table(*_steps_headings(), title=title, title_justify="left")
    for name in (*(OPTIONS.get(name, name) for name in own_policies()), *FURTHER):
        middle, mean, late, share = steps_us(scenario, name, runs)
        met = "yes" if middle < GOAL_US else "no"
        table.add_row(name, f"{middle:.1f}", f"{mean:.1f}", f"{late:.1f}", f"{share:.2f}", met)
    return table


def _steps_headings() -> Sequence[str]:
    return ("policy", "median us", "mean us", "99% us", "% of decoding", f"median < {GOAL_US:.0f} us")


def figures(size: int) -> tuple[Floats, Floats]:
    """A pool of `size` members: random agreement, seconds that grow with size."""
    rng = np.random.default_rng(size)
    agreement = np.triu(rng.uniform(0.3, 0.95, (size, size)), 1)
    first_s = np.sort(rng.uniform(0.01, 1.0, size))
    return agreement, first_s[:, None] * (1.0 + 0.02 * np.arange(WINDOW + 1))


def search_table() -> Table:
    jobs = {
        f"{form} {size}": partial(best_chain, *figures(size), form=form)
        for size in SIZES
        for form in ("nested", "filter")
    }
    timings = interleaved(jobs)
    headings = ("members", "nested us", f"a round of {EVERY}", "over the half", "filter us", f"a round of {EVERY}")
    table = Table(*headings, title=f"search over all chains and windows to {WINDOW}", title_justify="left")
    for size in SIZES:
        nested, filtered = (timings[f"{form} {size}"].wall_s * 1e6 for form in ("nested", "filter"))
        half = timings.get(f"nested {size // 2}")
        growth = "" if half is None else f"{nested / half.wall_s / 1e6:.1f}x"
        table.add_row(
            str(size), f"{nested:.0f}", f"{nested / EVERY:.0f}", growth, f"{filtered:.0f}", f"{filtered / EVERY:.0f}"
        )
    table.caption = f"goal at 10 members: under {COLD_GOAL_US:.0f} us, and under {AMORTISED_GOAL_US:.0f} us a round"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    trace = read_trace(TRACE)
    cost = make_cost(default_cost(trace), trace)
    scenario = Scenario(tables=TrieTables(trace), cost=cost)
    console = Console(width=110)
    console.print(policies_table(scenario, options.runs))
    console.print(search_table())


if __name__ == "__main__":
    main()
