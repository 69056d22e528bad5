"""Compare chains and policies on a small synthetic trace, through the Python API: no command line, no files.

`examples/compare_policies.out` beside this file is what it prints.
"""

from paceline.policies import make_policy
from paceline.reports import Comparison, Summary, conclusion, summarise_run
from paceline.sim.cost.make import make_cost
from paceline.sim.recorded_pool import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.sim.tries.tables import TrieTables
from paceline.traces import SyntheticSpec, make_trace

POLICIES = ("plain", "draft:4/target", "mid:4/target", "draft:3/mid:6/target", "adaptive,start=4", "confident")
LINE = "{:22}{:>9}{:>18}{:>16}{:>14}{:>15}"
HEADINGS = ("policy", "speed-up", "mean of requests", "accept. length", "target calls", "wasted tokens")


def main() -> None:
    spec = SyntheticSpec(name="small", requests=8, tokens=64, models=("draft", "mid", "target"), acceptance=(0.6, 0.8))
    trace = make_trace(spec)
    pool = recorded_pool(trace)
    # Everything that stays the same while policies change: the recording, the cost of a forward, the batch.
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace), batch=2)
    rows = [summarise_run(simulate(scenario, make_policy(name, pool), name)) for name in POLICIES]
    comparison = Comparison(meta={}, baseline=rows[0], rows=tuple(rows))
    print(f"{trace.meta.kind} trace {trace.meta.name}, {rows[0].requests} requests, {rows[0].output_tokens} tokens")
    print(LINE.format(*HEADINGS))
    for row in comparison.ranked():
        print(line(comparison, row))
    print(conclusion(comparison))


def line(comparison: Comparison, row: Summary) -> str:
    return LINE.format(
        row.policy,
        f"{comparison.speed_up(row):.2f}x",
        f"{comparison.speed_up_mean_of_requests(row):.2f}x",
        f"{row.acceptance_length:.2f}",
        f"{row.target_calls_per_token:.3f}",
        row.wasted_tokens,
    )


if __name__ == "__main__":
    main()
