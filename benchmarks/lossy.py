"""Speed and texts under lossy policies: on the shipped recording, and on the models with the same prompts.

Simulated with the seconds measured with the recording, at the first seed. `--models` decodes the prompts of the
recording with the real models, and their target judges the texts. `--speeds` times the first 18 of these prompts, one
thread, policies in turn; the least seconds of RUNS turns count for each prompt, as other work of the machine only adds
time.

python benchmarks/lossy.py [--models] [--speeds RUNS]
"""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from paceline.reports import Quality, Summary, summarise_run
from paceline.runs.log import with_quality
from paceline.runtime.decode import Alone, text_qualities
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.sim import Scenario
from paceline_laboratory.findings import Cell, ExperimentSetting, table_cell
from paceline_laboratory.replays import recording_of, replayed, scenario_of, speed_of
from paceline_laboratory.shared import GREEDY, models_of, ran, ran_in_turns
from shared.report import parser_of, show

TIMED_PROMPTS = 18
POLICIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BUDGETS = (5, 10, 20, 40, 60)


def quality_of(summary: Summary) -> Quality:
    assert summary.quality is not None  # a recording of tries and a judged run have it
    return summary.quality


def figures(summary: Summary, own: float | None) -> list[Cell]:
    """Target calls, rejection rate, divergences, log-likelihood minus that of the target's `own` texts."""
    quality = quality_of(summary)
    return [
        table_cell("target calls /token", summary.target_calls_per_token, digits=3),
        table_cell("rejection rate", f"{summary.rejection_rate:.1%}"),
        table_cell("diverg. /1,000", quality.divergences_per_1000, digits=1),
        table_cell(f"log-lik. /token (own {own:.3f})", quality.log_prob_per_token, digits=3),
    ]


def show_simulated(scenario: Scenario) -> None:
    """Show the policies, the ones to compare with, and the effect of a budget of divergences."""
    alone = summarise_run(replayed(scenario, "plain"))
    own = quality_of(alone).own_log_prob_per_token

    def simulated(policy: str) -> tuple[Summary, str]:
        summary = summarise_run(replayed(scenario, policy))
        return summary, f"{summary.output_tokens_per_s / alone.output_tokens_per_s:.2f}x"

    def row(policy: str) -> list[Cell]:
        summary, speed_up = simulated(policy)
        return [table_cell("policy", policy), table_cell("speed-up", speed_up), *figures(summary, own)]

    def by_budget(policy: str) -> list[Cell]:
        found = {budget: simulated(f"{policy},budget={budget}") for budget in BUDGETS}
        texts = {
            budget: f"{quality_of(run).divergences_per_1000:.1f}, {speed_up}"
            for budget, (run, speed_up) in found.items()
        }
        return [table_cell("policy", policy), *(table_cell(str(budget), text) for budget, text in texts.items())]

    title = f"simulated, {alone.requests} requests, {alone.output_tokens:,} tokens"
    show(title, map(row, POLICIES["policies"] + POLICIES["further"]), lines=[len(POLICIES["policies"]) - 1])
    show("divergences per 1,000 tokens, and speed-up, by budget", map(by_budget, POLICIES["budgeted"]))


def show_models(pool: ModelPool, prompts: Sequence[Prompt], max_new_tokens: int) -> None:
    """Show the same figures for runs of the models, with texts judged by their target."""
    alone = Alone(sampling=GREEDY, max_new_tokens=max_new_tokens)

    def row(policy: str) -> list[Cell]:
        outputs, log = ran(pool, policy, prompts, max_new_tokens=max_new_tokens)
        summary = summarise_run(with_quality(log, text_qualities(pool, prompts, outputs, alone)))
        quality = quality_of(summary)
        return [
            table_cell("policy", policy),
            *figures(summary, quality.own_log_prob_per_token),
            table_cell("same text", f"{quality.text_agreement:.0%}"),
            table_cell(f"answers right (own {quality.answers_own} of {quality.answers_total})", quality.answers_right),
        ]

    show(f"on the models, {len(prompts)} prompts, greedy, one at a time", map(row, POLICIES["on_models"]))


def show_speeds(
    setting: ExperimentSetting, pool: ModelPool, prompts: Sequence[Prompt], max_new_tokens: int, runs: int
) -> None:
    """Show tokens per second on the models, at each prompt's least seconds, beside the same simulated."""
    setting = replace(setting, limit=len(prompts))
    scenario = scenario_of(setting, recording_of(setting))
    names = ("plain", *POLICIES["timed"])
    simulated = {policy: speed_of(replayed(scenario, policy)) for policy in names}
    speeds = {}
    for policy, turns in ran_in_turns(pool, names, prompts, runs=runs, max_new_tokens=max_new_tokens).items():
        requests = [log.requests for _, log in turns]
        least_s = np.min([each["finished_at_s"] - each["admitted_at_s"] for each in requests], axis=0)
        speeds[policy] = float(requests[-1]["emitted_tokens"].sum() / least_s.sum())

    def row(policy: str) -> list[Cell]:
        return [
            table_cell("policy", policy),
            table_cell("tokens/s", speeds[policy], digits=1),
            table_cell("speed-up", f"{speeds[policy] / speeds['plain']:.2f}x"),
            table_cell("simulated", f"{simulated[policy] / simulated['plain']:.2f}x"),
        ]

    show(f"on the models, {len(prompts)} prompts, {runs} turns", map(row, speeds))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--models", action="store_true", help="also on the models, some minutes")
    parser.add_argument("--speeds", type=int, default=0, metavar="RUNS", help="also speeds on the models")
    options = parser.parse_args()
    if options.speeds < 0:
        parser.error(f"--speeds must be >= 0, got {options.speeds}")
    setting = ExperimentSetting()
    trace = recording_of(setting)
    show_simulated(scenario_of(setting, trace))
    if not options.models and not options.speeds:
        return
    budget = trace.requests[0].max_new_tokens
    pool, prompts = models_of(setting, trace, len(trace.requests))
    if options.models:
        show_models(pool, prompts, budget)
    if options.speeds:
        show_speeds(setting, pool, prompts[:TIMED_PROMPTS], budget, options.speeds)


if __name__ == "__main__":
    main()
