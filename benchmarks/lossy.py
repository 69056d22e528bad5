"""What lossy policies do to speed and to text: on the shipped recording, and on the models with the same prompts.

Simulated at the seconds measured with the recording, at the first seed. `--models` decodes the prompts of the recording
with the real models, and their target judges the texts. `--speeds` times the first 18 of these prompts, one thread,
policies in turn; of RUNS turns each prompt's least seconds count, as whatever else the machine does only adds some.

python benchmarks/lossy.py [--models] [--speeds RUNS]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
from paceline.laboratory.finding import Setting
from paceline.laboratory.live_runs import pool_of, prompts_of, ran
from paceline.laboratory.replays import recording_of, replayed, scenario_of
from paceline.reports import Quality, Summary, summarise_run
from paceline.runs.text_quality import with_quality
from paceline.runtime.prompts import Prompt
from paceline.shipped import shipped
from paceline.sim import Scenario
from paceline.studies.agreeing.matching_recording import matching_trace
from paceline.traces import Sampling
from rich.console import Console
from rich.table import Table

from ..studies.runtime_door import runtime_module

TIMED_PROMPTS = 18
GREEDY = Sampling(mode="greedy")
POLICIES = (
    "draft:5/target",
    "via-sd",
    "via-sd,draft=mid",
    "via-sd,slim=mid",
    "via-sd,guard=0.3",
    "via-sd,budget=20",
    "via-sd-lossless",
    "via-sd-lossless,slim=mid",
    "cascade,eps=0.05",
    "cascade",
    "cascade,rule=opt",
    "cascade,rule=chow,eps=0.5",
    "pyramid-sd",
    "pyramid-sd,qualifier=mid",
    "early-commit",
    "early-commit,draft=mid",
    "entropy-patch",
    "equilibrium",
)
# To compare the above with: shorter blocks, and rules at equal divergences.
FURTHER = (
    "draft:4/target",
    "cascade,eps=0.1",
    "cascade,eps=0.7",
    "cascade,rule=diff,eps=0",
    "cascade,rule=opt,eps=0",
)
BUDGETS = (5, 10, 20, 40, 60)
BUDGETED = ("via-sd", "via-sd,slim=mid")
ON_MODELS = (
    "draft:5/target",
    "via-sd",
    "via-sd,draft=mid",
    "via-sd,guard=0.3",
    "via-sd,budget=20",
    "via-sd-lossless",
    "cascade",
    "pyramid-sd",
    "early-commit",
    "entropy-patch",
    "equilibrium",
)
TIMED = ("draft:5/target", "via-sd", "via-sd,draft=mid", "via-sd,slim=mid", "via-sd,budget=20", "cascade")


def quality_of(summary: Summary) -> Quality:
    assert summary.quality is not None  # a recording of tries and a judged run know it
    return summary.quality


def figures(summary: Summary) -> list[str]:
    """Target calls, rejection rate, divergences, log-likelihood."""
    quality = quality_of(summary)
    return [
        f"{summary.target_calls_per_token:.3f}",
        f"{summary.rejection_rate:.1%}",
        f"{quality.divergences_per_1000:.1f}",
        f"{quality.log_prob_per_token:.3f}",
    ]


def table_of(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("policy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def simulated_tables(scenario: Scenario) -> list[Table]:
    """The policies, what to compare them with, and what a budget of divergences comes to."""
    alone = summarise_run(replayed(scenario, "plain"))

    def simulated(policy: str) -> tuple[Summary, str]:
        summary = summarise_run(replayed(scenario, policy))
        return summary, f"{summary.output_tokens_per_s / alone.output_tokens_per_s:.2f}x"

    title = f"simulated, {alone.requests} requests, {alone.output_tokens:,} tokens"
    own = f"log-lik. /token (own {quality_of(alone).own_log_prob_per_token:.3f})"
    table = table_of(title, "speed-up", "target calls /token", "rejection rate", "diverg. /1,000", own)
    for policy in (*POLICIES, *FURTHER):
        summary, speed_up = simulated(policy)
        table.add_row(policy, speed_up, *figures(summary), end_section=policy == POLICIES[-1])
    budgets = table_of("divergences per 1,000 tokens, and speed-up, by budget", *(f"{budget}" for budget in BUDGETS))
    for policy in BUDGETED:
        found = [simulated(f"{policy},budget={budget}") for budget in BUDGETS]
        budgets.add_row(policy, *(f"{quality_of(row).divergences_per_1000:.1f}, {speed_up}" for row, speed_up in found))
    return [table, budgets]


def models_table(setting: Setting, prompts: Sequence[Prompt], max_new_tokens: int) -> Table:
    """The same figures of runs of the models, whose texts their target judges."""
    pool, measure = pool_of(setting), runtime_module("quality")
    rows = {}
    for policy in ON_MODELS:
        outputs, log = ran(pool, policy, prompts, max_new_tokens=max_new_tokens)
        alone = measure.Alone(sampling=GREEDY, max_new_tokens=max_new_tokens)
        qualities = measure.text_qualities(pool, prompts, outputs, alone, show_progress=False)
        rows[policy] = summarise_run(with_quality(log, qualities))
    first = quality_of(next(iter(rows.values())))
    own = f"log-lik. /token (own {first.own_log_prob_per_token:.3f})"
    right = f"answers right (own {first.answers_own} of {first.answers_total})"
    title = f"on the models, {len(prompts)} prompts, greedy, one at a time"
    table = table_of(title, "target calls /token", "rejection rate", "diverg. /1,000", own, "same text", right)
    for policy, summary in rows.items():
        quality = quality_of(summary)
        table.add_row(policy, *figures(summary), f"{quality.text_agreement:.0%}", f"{quality.answers_right}")
    return table


def speeds_table(setting: Setting, prompts: Sequence[Prompt], max_new_tokens: int, runs: int) -> Table:
    """Tokens per second on the models, at the least seconds of each prompt, beside the same prompts simulated."""
    pool = pool_of(setting)
    setting = replace(setting, limit=len(prompts))
    scenario = scenario_of(setting, recording_of(setting))
    simulated = {policy: summarise_run(replayed(scenario, policy)).output_tokens_per_s for policy in ("plain", *TIMED)}
    least_s = {policy: np.full(len(prompts), inf) for policy in ("plain", *TIMED)}
    tokens = dict.fromkeys(least_s, 0)
    for _ in range(runs):
        for policy, so_far in least_s.items():
            requests = ran(pool, policy, prompts, max_new_tokens=max_new_tokens)[1].requests
            np.minimum(so_far, requests["finished_at_s"] - requests["admitted_at_s"], out=so_far)
            tokens[policy] = int(requests["emitted_tokens"].sum())
    speeds = {policy: tokens[policy] / float(seconds.sum()) for policy, seconds in least_s.items()}
    table = table_of(f"on the models, {len(prompts)} prompts, {runs} turns", "tokens/s", "speed-up", "simulated")
    for policy, tokens_per_s in speeds.items():
        speed_ups = tokens_per_s / speeds["plain"], simulated[policy] / simulated["plain"]
        table.add_row(policy, f"{tokens_per_s:.1f}", *(f"{speed_up:.2f}x" for speed_up in speed_ups))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", action="store_true", help="also on the models, some minutes")
    parser.add_argument("--speeds", type=int, default=0, metavar="RUNS", help="also speeds on the models")
    options = parser.parse_args()
    if options.speeds < 0:
        parser.error(f"--speeds must be >= 0, got {options.speeds}")
    recording = shipped("recordings", "pico.trace")
    setting = Setting(pool=shipped("pools", "pico"), trace=recording, seed=0, threads=1, limit=None)
    trace = recording_of(setting)
    console = Console(width=100)
    for table in simulated_tables(scenario_of(setting, trace)):
        console.print(table)
    if not options.models and not options.speeds:
        return
    budget = trace.requests[0].max_new_tokens
    try:
        prompts = prompts_of(setting, len(trace.requests))
        matching_trace(recording, pool_of(setting), prompts, sampling=GREEDY, max_new_tokens=budget)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        sys.exit(f"nothing was measured on the models: {error}")
    if options.models:
        console.print(models_table(setting, prompts, budget))
    if options.speeds:
        console.print(speeds_table(setting, prompts[:TIMED_PROMPTS], budget, options.speeds))


if __name__ == "__main__":
    main()
