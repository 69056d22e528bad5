"""Standard speculation against the target alone: every member as drafter, every window, simulated and on the models.

Standard speculation is a chain of two levels with a constant window (Leviathan et al. 2023, arXiv:2211.17192): what
every longer chain and every policy has to beat.
"""

from collections.abc import Mapping, Sequence

from paceline.base.errors import counted
from paceline.reports.panels import Panel, by_category, series_of
from paceline.runs.log import RunLog
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.traces.contexts.recording import TrieRecording

from ..findings import Cell, ExperimentSetting, Finding, Rows, table, table_cell
from ..replays import (
    ALL,
    TARGET_ALONE,
    chain,
    drafters_of,
    recording_of,
    replayed,
    scenario_of,
    speed_of,
    speed_up_of,
    tags_of,
)
from ..shared import models_of, ran_in_turns

WINDOWS = tuple(range(1, 9))
MEASURED_PROMPTS = 12
SIMULATED, MEASURED = "simulated speed-up", "measured speed-up"
RUNS = 5  # interleaved; the fastest counts, as other work on the machine only adds seconds

SpeedUps = Mapping[tuple[str, int, str], float]  # by drafter, window and tag


def run(setting: ExperimentSetting) -> Finding:
    """Replay every drafter at every window, then run each drafter's best on the models."""
    trace = recording_of(setting)
    pool, prompts = models_of(setting, trace, MEASURED_PROMPTS)
    scenario = scenario_of(setting, trace)
    plain = replayed(scenario, TARGET_ALONE)
    drafters, target = drafters_of(scenario), scenario.tables.pool.target
    tags = (ALL, *tags_of(trace))
    logs = {
        (drafter, window): replayed(scenario, chain((drafter, target), (window,)))
        for drafter in drafters
        for window in WINDOWS
    }
    speed_ups = {(*key, tag): speed_up_of(log, plain, tag=tag) for key, log in logs.items() for tag in tags}
    best = [(drafter, _best_window(speed_ups, drafter, ALL)) for drafter in drafters]
    chosen = {chain((drafter, target), (window,)): logs[drafter, window] for drafter, window in best}
    measured = _measured(pool, prompts, chosen, plain, max_new_tokens=trace.requests[0].max_new_tokens)
    windows = table(
        "simulated speed-up over the target alone, by drafter and window",
        [
            [
                table_cell("window", window),
                *(table_cell(drafter, speed_ups[drafter, window, ALL], "x", 2) for drafter in drafters),
            ]
            for window in WINDOWS
        ],
    )
    return Finding(
        question="How much faster than the target alone is standard speculation, by drafter, window and kind of text?",
        tables=(
            windows,
            table(
                "simulated, the best window of each drafter by tag",
                [_best_windows(speed_ups, drafters, tag) for tag in tags],
            ),
            measured,
        ),
        panels=_panels(speed_ups, windows, drafters, measured, tags),
        answer=_answer(speed_ups, drafters, target, measured, trace),
    )


def _best_window(speed_ups: SpeedUps, drafter: str, tag: str) -> int:
    return max(WINDOWS, key=lambda window: speed_ups[drafter, window, tag])


def _best(speed_ups: SpeedUps, drafters: Sequence[str], tag: str) -> tuple[str, int]:
    return max(((d, w) for d in drafters for w in WINDOWS), key=lambda key: speed_ups[*key, tag])


def _measured(
    pool: ModelPool, prompts: Sequence[Prompt], chosen: Mapping[str, RunLog], plain: RunLog, *, max_new_tokens: int
) -> Rows:
    """The same chains on the models: the fastest of interleaved runs over a few prompts, beside replay."""
    among = [prompt.request_id for prompt in prompts]
    turns = ran_in_turns(pool, [TARGET_ALONE, *chosen], prompts, runs=RUNS, max_new_tokens=max_new_tokens)
    rates = {name: max(speed_of(log) for _, log in runs) for name, runs in turns.items()}

    def row(name: str, log: RunLog) -> list[Cell]:
        return [
            table_cell("chain", name),
            table_cell(SIMULATED, speed_up_of(log, plain, among=among), "x", 2),
            table_cell(MEASURED, rates[name] / rates[TARGET_ALONE], "x", 2),
            table_cell("simulated", speed_of(log, among=among), "tokens/s", 1),
            table_cell("measured", rates[name], "tokens/s", 1),
        ]

    asked = counted(len(prompts), "prompt")
    title = f"on the models: {asked}, the quickest of {RUNS} interleaved runs, beside their replay"
    return table(title, [row(name, log) for name, log in {TARGET_ALONE: plain, **chosen}.items()])


def _best_windows(speed_ups: SpeedUps, drafters: Sequence[str], tag: str) -> list[Cell]:
    """Each drafter's best window on a tag, and the best of all."""
    cells = [table_cell("tag", tag)]
    for one in drafters:
        window = _best_window(speed_ups, one, tag)
        cells += [table_cell(f"{one}: window", window), table_cell(one, speed_ups[one, window, tag], "x", 2)]
    drafter, window = _best(speed_ups, drafters, tag)
    return [
        *cells,
        table_cell("best", f"{drafter}:{window}"),
        table_cell("speed-up", speed_ups[drafter, window, tag], "x", 2),
    ]


def _panels(
    speed_ups: SpeedUps, windows: Rows, drafters: Sequence[str], measured: Rows, tags: Sequence[str]
) -> tuple[Panel, ...]:
    y_label = "speed-up over the target alone"
    chains = [str(row[0]) for row in measured.rows[1:]]
    worlds = {"simulated": measured.numbers(SIMULATED)[1:], "measured": measured.numbers(MEASURED)[1:]}
    best = {d: [speed_ups[d, _best_window(speed_ups, d, tag), tag] for tag in tags] for d in drafters}
    lines = {drafter: windows.numbers(drafter) for drafter in drafters}
    return (
        Panel(title="all text, simulated", x_label="window", y_label=y_label, series=series_of(WINDOWS, lines)),
        by_category("both worlds, same prompts", y_label, chains, worlds),
        by_category("best window by kind of text, simulated", y_label, tags, best),
    )


def _answer(speed_ups: SpeedUps, drafters: Sequence[str], target: str, measured: Rows, trace: TrieRecording) -> str:
    drafter, window = _best(speed_ups, drafters, ALL)
    tags = tags_of(trace)
    best = {tag: _best(speed_ups, drafters, tag) for tag in tags}
    gains = {tag: speed_ups[*best[tag], tag] for tag in tags}
    low, high = min(tags, key=lambda tag: gains[tag]), max(tags, key=lambda tag: gains[tag])
    chains = [str(row[0]) for row in measured.rows]
    pairs = zip(measured.numbers(SIMULATED), measured.numbers(MEASURED), strict=True)
    real = dict(list(zip(chains, pairs, strict=True))[1:])
    fastest = max(real, key=lambda name: real[name][1])
    ratios = [simulated / found for simulated, found in real.values()]
    return (
        f"With windows of {WINDOWS[0]} to {WINDOWS[-1]} the best pair over all text is "
        f"{chain((drafter, target), (window,))}, {speed_ups[drafter, window, ALL]:.2f}x in replay; the best pair by "
        f"kind of text gains from {gains[low]:.2f}x ({low}) to {gains[high]:.2f}x ({high}), and "
        f"{len(set(best.values()))} different pairs are best on the {len(tags)} kinds. "
        f"On the models the fastest was {fastest} with {real[fastest][1]:.2f}x where replay of the same prompts says "
        f"{real[fastest][0]:.2f}x; simulated over measured speed-up is {min(ratios):.2f} to {max(ratios):.2f}."
    )
