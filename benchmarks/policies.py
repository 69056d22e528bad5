"""Microseconds of every policy's `decide` and `learn` in the simulator, and of SpecRouter's search over chains.

python benchmarks/policies.py [--runs 3]
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from paceline.base.files import shipped
from paceline.policies.by_name import make_policy, own_policies
from paceline.policies.specrouter.search import SearchFigures, best_chain
from paceline.sim.simulate import Scenario, grant_foresight, simulate
from paceline.studies.fit import fit_head
from paceline_laboratory.findings import Cell, ExperimentSetting, table_cell
from paceline_laboratory.replays import TimedSteps, interleaved, recording_of, scenario_of
from shared.closed_forms import least_along_paths
from shared.report import parser_of, show

GOAL_US = 20.0
COLD_GOAL_US, AMORTISED_GOAL_US = 1000.0, 50.0
EVERY = 8  # rounds between two selections, SpecRouter's default
WINDOW = 16
SIZES = (2, 4, 8, 10, 16, 32, 64)
# Policies that need options, and SpecRouter with fixed windows.
OPTIONS = {
    "chain": "chain,spec=draft:3/mid:6/target",
    "per-tag": "per-tag,default=draft:4/target",
    "per-turn": "per-turn,policy=draft:4/target",
    "guarded": "guarded,policy=draft:4/target",
}
FITTED = "specdec++"  # needs a fitted file
FURTHER = ("specrouter,stop=window",)
FORMS = {"nested": False, "in step": True}  # of the search: whether in step


def texts(head: Path) -> dict[str, str]:
    """The text of every policy, by its shown name; a fitted one uses this head."""
    # The shipped recording holds no token trees.
    named = [OPTIONS.get(name, name) for name in own_policies() if not name.startswith("tree")]
    return {name: f"{name},head={head}" if name == FITTED else name for name in (*named, *FURTHER)}


def policy_row(scenario: Scenario, name: str, text: str, runs: int) -> list[Cell]:
    """Figures of a step, medians over runs: median, mean, p90, p99; and percent of decoding seconds."""
    found = []
    for _ in range(runs + 1):  # the first is the warm-up
        policy = make_policy(text, scenario.tables.pool)
        before = scenario.tables.prefill_before(scenario.begins)
        grant_foresight(policy, name, scenario.tables, scenario.cost, before)  # for oracles; planning is not a step
        timed = TimedSteps(policy)
        log = simulate(scenario, timed, name)
        taken_us = np.array(timed.steps_s) * 1e6
        thinking = 100 * (timed.deciding_s + timed.learning_s) / log.requests["finished_at_s"].max()
        found.append((np.median(taken_us), taken_us.mean(), *np.quantile(taken_us, (0.9, 0.99)), thinking))
    middle, mean, late, latest, share = np.median(found[1:], axis=0).tolist()
    return [
        table_cell("policy", name),
        table_cell("median us", middle, digits=1),
        table_cell("mean us", mean, digits=1),
        table_cell("90% us", late, digits=1),
        table_cell("99% us", latest, digits=1),
        table_cell("% of decoding", share, digits=2),
        table_cell(f"median < {GOAL_US:.0f} us", "yes" if middle < GOAL_US else "no"),
    ]


def figures(size: int) -> SearchFigures:
    """A pool of `size` members: random agreement, seconds that grow with size."""
    rng = np.random.default_rng(size)
    agreement = np.triu(rng.uniform(0.3, 0.95, (size, size)), 1)
    first_s = np.sort(rng.uniform(0.01, 1.0, size))
    seconds = first_s[:, None] * (1.0 + 0.02 * np.arange(WINDOW + 1))
    return SearchFigures(agreement, seconds, np.zeros(size))


def search_rows() -> Iterator[list[Cell]]:
    """By members: each form, its share in a round of `EVERY`, and a search without an order of the members."""
    jobs: dict[str, Callable[[], object]] = {}
    for size in SIZES:
        known = figures(size)
        jobs |= {f"{form} {size}": partial(best_chain, known, in_step=shared) for form, shared in FORMS.items()}
        jobs[f"paths {size}"] = partial(least_along_paths, known.rates, known.seconds)
    taken_us = {name: timing.wall_s * 1e6 for name, timing in interleaved(jobs).items()}
    for size in SIZES:
        row = [table_cell("members", size)]
        for form in FORMS:
            found, half = taken_us[f"{form} {size}"], taken_us.get(f"{form} {size // 2}")
            row += [
                table_cell(f"{form} us", found, digits=0),
                table_cell(f"a round of {EVERY}", found / EVERY, digits=1),
                table_cell("over the half", "" if half is None else f"{found / half:.1f}x"),
            ]
        yield [*row, table_cell("shortest path us", taken_us[f"paths {size}"], digits=0)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    setting = ExperimentSetting()
    scenario = scenario_of(setting, recording_of(setting))
    trace = scenario.tables.trace
    with TemporaryDirectory() as folder:
        head = Path(folder, "head.json")
        head.write_text(fit_head(shipped("recordings", f"{trace.about.name}.trace")).head.to_json(), encoding="utf-8")
        show(
            f"decide + learn in the simulator, {len(trace.requests)} requests of {trace.about.name}, batch 1",
            [policy_row(scenario, name, text, options.runs) for name, text in texts(head).items()],
            f"{FITTED} has a head that was fitted to this recording",
        )
    show(
        f"search over all chains and windows to {WINDOW}",
        search_rows(),
        f"goal at 10 members: under {COLD_GOAL_US:.0f} us, and under {AMORTISED_GOAL_US:.0f} us a round",
    )


if __name__ == "__main__":
    main()
