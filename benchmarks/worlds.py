"""The shipped recording replayed, and the same prompts on the real models: the same counts, and how far seconds differ.

Replay charges forwards only, at the seconds measured with the recording, when modules ran the models. The runtime runs
them fused where it can, and also pays for choosing tokens, rolling caches back and Python.

python benchmarks/worlds.py [PROMPTS]
"""

from collections.abc import Sequence
from statistics import median

from paceline.laboratory.findings.finding import ExperimentSetting
from paceline.laboratory.findings.table import Cell, cell
from paceline.laboratory.model_runs import models_of, ran_in_turns
from paceline.laboratory.recording_replays import recording_of, replayed, scenario_of
from paceline.reports import Summary, summarise_run
from shared.report import parser_of, show

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
    parser = parser_of(__doc__)
    parser.add_argument("prompts", type=int, nargs="?", default=30)
    count = parser.parse_args().prompts
    setting = ExperimentSetting(limit=count)
    trace = recording_of(setting)
    scenario = scenario_of(setting, trace)
    pool, prompts = models_of(setting, trace, count)
    turns = ran_in_turns(pool, POLICIES, prompts, runs=RUNS, max_new_tokens=trace.requests[0].max_new_tokens)
    measured = {policy: [summarise_run(log) for _, log in runs] for policy, runs in turns.items()}
    show(
        f"{count} prompts, greedy, batch 1, one thread; medians of {RUNS} interleaved runs on the models",
        [row(policy, summarise_run(replayed(scenario, policy)), measured[policy]) for policy in POLICIES],
    )


def row(policy: str, simulated: Summary, measured: Sequence[Summary]) -> list[Cell]:
    same = all(_counts(summary) == _counts(simulated) for summary in measured)
    real = median(summary.output_tokens_per_s for summary in measured)
    return [
        cell("policy", policy),
        cell("counts", "equal" if same else "DIFFERENT"),
        cell("simulated tokens/s", simulated.output_tokens_per_s, digits=1),
        cell("measured tokens/s", real, digits=1),
        cell("simulated / measured", simulated.output_tokens_per_s / real, digits=2),
    ]


def _counts(summary: Summary) -> list[tuple[int, ...]]:
    """Forwards, drafted, judged, accepted, refused and own tokens by member."""
    return [
        (level.forwards, level.drafted, level.judged, level.accepted, level.refused, level.own)
        for level in summary.levels
    ]


if __name__ == "__main__":
    main()
