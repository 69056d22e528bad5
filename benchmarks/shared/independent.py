"""Recordings that keep what the closed forms assume, and chains over them as the simulator plays them."""

from collections.abc import Sequence

from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.sim import Scenario, TrieTables, recorded_pool, simulate
from paceline.sim.cost.files import CostLine, FileCost
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.replays import chain

NAMES = {2: ("draft", "target"), 3: ("draft", "mid", "target"), 4: ("draft", "mid", "large", "target")}


def recording(rates: Sequence[float], *, requests: int, tokens: int = 5000, reach: int, run: int) -> TrieTables:
    """A recording whose members agree with the next larger one at `rates`, independently of everything else."""
    acceptance = [1.0]
    for rate in reversed(rates):
        acceptance.insert(0, rate * acceptance[0])
    spec = SyntheticSpec(
        requests=requests,
        tokens=tokens,
        prompt_tokens=1,
        models=NAMES[len(rates) + 1],
        acceptance=tuple(acceptance[:-1]),
        off_trunk=tuple(rates),
        depth_decay=0.0,
        shared_difficulty=1.0,
        reach=reach,
        run=run,
    )
    return TrieTables(make_trace(spec))


def simulated(tables: TrieTables, windows: Sequence[int], forward_s: Sequence[float]) -> tuple[str, float, float]:
    """(chain, tokens per round, seconds per token)."""
    names = NAMES[len(forward_s)]
    name = chain(names, windows)
    pairs = zip(names, forward_s, strict=True)
    flat = FileCost("flat", {name: CostLine(intercept_s=taken) for name, taken in pairs})
    scenario = Scenario(tables=tables, cost=flat, strict=True)
    summary = summarise_run(simulate(scenario, make_policy(name, recorded_pool(tables.trace)), name))
    return name, summary.acceptance_length, summary.duration_s / summary.output_tokens
