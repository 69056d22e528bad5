"""The shipped recording replayed, and the same prompts on the real models: the same counts, and how far seconds differ.

Replay charges forwards only, at the seconds measured with the recording, when modules ran the models. The runtime runs
them fused where it can, and also pays for choosing tokens, rolling caches back and Python.

python benchmarks/worlds.py [PROMPTS]
"""

import argparse
import sys
from dataclasses import replace
from statistics import median

from paceline.policies import make_policy
from paceline.reports import Summary, summarise_run
from paceline.runtime.prompts import read_prompts
from paceline.shipped import shipped
from paceline.sim import Scenario, TrieTables, make_cost, recorded_pool, simulate
from paceline.traces import read_trace
from rich.console import Console
from rich.table import Table

from ..studies.runtime_door import runtime_module

POLICIES = (
    "plain",
    "draft:4/target",
    "mid:4/target",
    "draft:3/mid:6/target",
    "draft:3/slim:6/target",
    "ngram",
    "confident",
)
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=int, nargs="?", default=30)
    count = parser.parse_args().prompts
    trace = read_trace(shipped("recordings", "pico.trace"))
    trace = replace(trace, requests=trace.requests[:count])
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace))
    pool = recorded_pool(trace)
    try:
        models = runtime_module("pools.pool").ModelPool.load(shipped("pools", "pico"), threads=1)
        decode = runtime_module("decode").decode
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        sys.exit(f"nothing was measured: {error}")
    prompts = read_prompts(shipped("pools", "pico") / "prompts.jsonl")[:count]
    budget = trace.requests[0].max_new_tokens
    measured: dict[str, list[Summary]] = {policy: [] for policy in POLICIES}
    for _ in range(RUNS):
        for policy in POLICIES:
            decider = make_policy(policy, pool)
            _, log = decode(models, decider, prompts, sampling=trace.meta.sampling, max_new_tokens=budget, name=policy)
            measured[policy].append(summarise_run(log))
    title = f"{count} prompts, greedy, batch 1, one thread; medians of {RUNS} interleaved runs on the models"
    table = Table(title=title, title_justify="left")
    for heading in ("policy", "counts", "simulated tokens/s", "measured tokens/s", "simulated / measured"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in POLICIES:
        simulated = summarise_run(simulate(scenario, make_policy(policy, pool), policy))
        real = median(summary.output_tokens_per_s for summary in measured[policy])
        same = all(_counts(summary) == _counts(simulated) for summary in measured[policy])
        rate = simulated.output_tokens_per_s
        table.add_row(policy, "equal" if same else "DIFFERENT", f"{rate:.1f}", f"{real:.1f}", f"{rate / real:.2f}")
    Console(width=110).print(table)


def _counts(summary: Summary) -> list[tuple[int, ...]]:
    """Forwards, drafted, judged, accepted, refused and own tokens by member."""
    return [
        (level.forwards, level.drafted, level.judged, level.accepted, level.refused, level.own)
        for level in summary.levels
    ]


if __name__ == "__main__":
    main()
