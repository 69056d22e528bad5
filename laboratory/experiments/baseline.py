"""Standard speculation against the target alone: every member as drafter, every window, simulated and on the models.

Standard speculation is a chain of two levels with a constant window (Leviathan et al. 2023, arXiv:2211.17192): what
every longer chain and every policy has to beat.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...counted import counted
from ...runs.log import RunLog
from ...studies.agreeing.matching_recording import matching_trace
from ...traces.meta import Sampling
from ...traces.tries.recording import TrieRecording
from ..finding import Column, Finding, Panel, Rows, Series, Setting, x_of
from ..live_runs import pool_of, prompts_of, ran_in_turns
from ..replays import ALL, TARGET_ALONE, drafters_of, recording_of, replayed, scenario_of, speed_of, tags_of

if TYPE_CHECKING:
    from ...runtime.pools.pool import ModelPool
    from ...runtime.prompts import Prompt

WINDOWS = tuple(range(1, 9))
MEASURED_PROMPTS = 12
RUNS = 5  # interleaved; the quickest counts, as whatever else the machine does only adds seconds

SpeedUps = Mapping[tuple[str, int, str], float]  # by drafter, window and tag


def run(setting: Setting) -> Finding:
    """Replay every drafter at every window, then run each drafter's best on the models.

    Raises:
        TraceFormatError: the recording is not one of this pool and its prompts.
    """
    trace = recording_of(setting)
    pool, prompts = _models(setting, trace)
    scenario = scenario_of(setting, trace)
    plain = replayed(scenario, TARGET_ALONE)
    drafters, target = drafters_of(scenario), scenario.tables.pool.target
    logs = {
        (drafter, window): replayed(scenario, _chain(drafter, window, target))
        for drafter in drafters
        for window in WINDOWS
    }
    speed_ups = {(*key, tag): _speed_up(log, plain, tag) for key, log in logs.items() for tag in _with_all(trace)}
    best = {drafter: _best_window(speed_ups, drafter, ALL) for drafter in drafters}
    names = {drafter: _chain(drafter, best[drafter], target) for drafter in drafters}
    chosen = {names[drafter]: logs[drafter, best[drafter]] for drafter in drafters}
    measured = _measured(pool, prompts, chosen, plain, max_new_tokens=trace.requests[0].max_new_tokens)
    return Finding(
        question="How much faster than the target alone is standard speculation, by drafter, window and kind of text?",
        tables=(_windows(speed_ups, drafters), _tags(speed_ups, drafters, trace), measured),
        panels=_panels(speed_ups, names, measured, trace),
        answer=_answer(speed_ups, drafters, target, measured, trace),
    )


def _chain(drafter: str, window: int, target: str) -> str:
    return f"{drafter}:{window}/{target}"


def _with_all(trace: TrieRecording) -> tuple[str, ...]:
    return (ALL, *tags_of(trace))


def _speed_up(log: RunLog, plain: RunLog, tag: str = ALL, among: Sequence[str] | None = None) -> float:
    alone = speed_of(plain, tag=tag, among=among).tokens_per_s
    return speed_of(log, tag=tag, among=among).tokens_per_s / alone


def _best_window(speed_ups: SpeedUps, drafter: str, tag: str) -> int:
    return max(WINDOWS, key=lambda window: speed_ups[drafter, window, tag])


def _best(speed_ups: SpeedUps, drafters: Sequence[str], tag: str) -> tuple[str, int]:
    """Drafter and window that are fastest on a tag."""
    return max(((d, w) for d in drafters for w in WINDOWS), key=lambda key: speed_ups[*key, tag])


def _models(setting: Setting, trace: TrieRecording) -> "tuple[ModelPool, tuple[Prompt, ...]]":
    """The pool of the recording, and the prompts that run on it; checked before anything runs."""
    pool = pool_of(setting)
    prompts = prompts_of(setting, min(MEASURED_PROMPTS, len(trace.requests)))
    budget = trace.requests[0].max_new_tokens
    matching_trace(setting.trace, pool, prompts, sampling=Sampling(mode="greedy"), max_new_tokens=budget)
    return pool, prompts


def _measured(
    pool: "ModelPool", prompts: "Sequence[Prompt]", chosen: Mapping[str, RunLog], plain: RunLog, *, max_new_tokens: int
) -> Rows:
    """The same chains on the models: the quickest of interleaved runs over a few prompts, beside replay."""
    among = [prompt.request_id for prompt in prompts]
    turns = ran_in_turns(pool, [TARGET_ALONE, *chosen], prompts, runs=RUNS, max_new_tokens=max_new_tokens)
    rates = {name: max(speed_of(log).tokens_per_s for _, log in runs) for name, runs in turns.items()}
    rows = []
    for name, log in {TARGET_ALONE: plain, **chosen}.items():
        rate = rates[name]
        simulated = speed_of(log, among=among).tokens_per_s
        rows.append((name, _speed_up(log, plain, among=among), rate / rates[TARGET_ALONE], simulated, rate))
    asked = counted(len(prompts), "prompt")
    title = f"on the models: {asked}, the quickest of {RUNS} interleaved runs, beside their replay"
    columns = (
        Column(name="chain"),
        Column(name="simulated speed-up", unit="x", digits=2),
        Column(name="measured speed-up", unit="x", digits=2),
        Column(name="simulated", unit="tokens/s", digits=1),
        Column(name="measured", unit="tokens/s", digits=1),
    )
    return Rows(title=title, columns=columns, rows=tuple(rows))


def _windows(speed_ups: SpeedUps, drafters: Sequence[str]) -> Rows:
    columns = (Column(name="window"), *(Column(name=drafter, unit="x", digits=2) for drafter in drafters))
    rows = tuple((window, *(speed_ups[drafter, window, ALL] for drafter in drafters)) for window in WINDOWS)
    return Rows(title="simulated speed-up over the target alone, by drafter and window", columns=columns, rows=rows)


def _tags(speed_ups: SpeedUps, drafters: Sequence[str], trace: TrieRecording) -> Rows:
    """Each drafter's best window by tag, and the best of all."""
    rows = []
    for tag in _with_all(trace):
        each = [_best_window(speed_ups, d, tag) for d in drafters]
        cells = [cell for d, window in zip(drafters, each, strict=True) for cell in (window, speed_ups[d, window, tag])]
        drafter, window = _best(speed_ups, drafters, tag)
        rows.append((tag, *cells, f"{drafter}:{window}", speed_ups[drafter, window, tag]))
    pairs = [(Column(name=f"{d}: window"), Column(name=d, unit="x", digits=2)) for d in drafters]
    ends = (Column(name="best"), Column(name="speed-up", unit="x", digits=2))
    columns = (Column(name="tag"), *(column for pair in pairs for column in pair), *ends)
    return Rows(title="simulated, the best window of each drafter by tag", columns=columns, rows=tuple(rows))


def _panels(speed_ups: SpeedUps, names: Mapping[str, str], measured: Rows, trace: TrieRecording) -> tuple[Panel, ...]:
    tags = _with_all(trace)
    x = tuple(map(float, WINDOWS))
    lines = [Series(name=d, x=x, y=tuple(speed_ups[d, window, ALL] for window in WINDOWS)) for d in names]
    bars = [
        Series(name=d, x=x_of(tags), y=tuple(speed_ups[d, _best_window(speed_ups, d, tag), tag] for tag in tags))
        for d in names
    ]
    chains = tuple(str(row[0]) for row in measured.rows[1:])
    worlds = [
        Series(name=world, x=x_of(chains), y=tuple(_number(row[place]) for row in measured.rows[1:]))
        for place, world in ((1, "simulated"), (2, "measured"))
    ]
    y_label = "speed-up over the target alone"
    return (
        Panel(title="all text, simulated", x_label="window", y_label=y_label, series=tuple(lines)),
        Panel(
            title="both worlds, same prompts",
            x_label="",
            y_label=y_label,
            kind="bar",
            categories=chains,
            series=tuple(worlds),
        ),
        Panel(
            title="best window by kind of text, simulated",
            x_label="",
            y_label=y_label,
            kind="bar",
            categories=tags,
            series=tuple(bars),
        ),
    )


def _number(cell: object) -> float:
    assert isinstance(cell, float)
    return cell


def _answer(
    speed_ups: SpeedUps,
    drafters: Sequence[str],
    target: str,
    measured: Rows,
    trace: TrieRecording,
) -> str:
    drafter, window = _best(speed_ups, drafters, ALL)
    tags = tags_of(trace)
    best = {tag: _best(speed_ups, drafters, tag) for tag in tags}
    gains = {tag: speed_ups[*best[tag], tag] for tag in tags}
    low, high = min(tags, key=lambda tag: gains[tag]), max(tags, key=lambda tag: gains[tag])
    real = {str(row[0]): (_number(row[1]), _number(row[2])) for row in measured.rows[1:]}
    fastest = max(real, key=lambda name: real[name][1])
    ratios = [simulated / found for simulated, found in real.values()]
    return (
        f"With windows of {WINDOWS[0]} to {WINDOWS[-1]} the best pair over all text is "
        f"{_chain(drafter, window, target)}, {speed_ups[drafter, window, ALL]:.2f}x in replay; the best pair by "
        f"kind of text gains from {gains[low]:.2f}x ({low}) to {gains[high]:.2f}x ({high}), and "
        f"{len(set(best.values()))} different pairs are best on the {len(tags)} kinds. "
        f"On the models the fastest was {fastest} with {real[fastest][1]:.2f}x where replay of the same prompts says "
        f"{real[fastest][0]:.2f}x; simulated over measured speed-up is {min(ratios):.2f} to {max(ratios):.2f}."
    )
