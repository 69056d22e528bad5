"""Slim verifiers from a few layers left out to most: distance to the target, seconds, and speed of a chain.

A slim verifier is the target without some of its layers, found by search (VIA-SD, arXiv:2606.12243). Here it is the
middle of a chain of three levels, whose text is the target's. The pool's own submodels are shown beside those found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from paceline.base.errors import counted
from paceline.reports.panels import Panel, Series, series_of
from paceline.runs.log import RunLog
from paceline.runtime.pools.members import LoadedMember
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import read_pool_file
from paceline.runtime.slim import (
    Budget,
    Distance,
    Frontier,
    SlimFound,
    calibrate,
    find_slims,
    masks_of,
    measure_distance,
)

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import TARGET_ALONE, chain
from ..shared import pool_of, prompts_of, ran_in_turns, with_slims

SHARES = (0.1, 0.2, 0.35, 0.45, 0.6, 0.75)
TRIALS, RANDOM_TRIALS = 24, 8
PROMPTS, NEW_TOKENS, RUNS = 12, 32, 3
DRAFTED, KEPT = 4, 8  # windows: before the slim verifier, and before the target


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Tokens per second of a chain over those of the target alone."""

    typical: float  # the median of the runs, each relative to the target's adjacent run
    # their range
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One slim verifier."""

    found: SlimFound  # as searched, with distances on the prompts of the search
    distance: Distance  # on other prompts
    speed_up: SpeedUp  # of the chain with it in the middle, over the target alone, on those other prompts


def run(setting: ExperimentSetting) -> Finding:
    """Search a mask for each share, then measure its distance and its chain on prompts not used in the search."""
    pool = pool_of(setting)
    drafter = _drafter(pool)
    prompts = prompts_of(setting, PROMPTS, skip=PROMPTS)
    frontier = _searched(setting, pool)
    rows = sorted((*frontier.found, *frontier.baselines), key=lambda row: (row.share, row.tvd))
    calibration = calibrate(pool, prompts, max_new_tokens=NEW_TOKENS)
    own = replace(pool, members=(drafter, pool.target))
    wide = with_slims(own, {row.name: row.skip_layers for row in rows})
    without = chain((drafter.name, pool.target.name), (DRAFTED,))
    chains = {row.name: chain((drafter.name, row.name, pool.target.name), (DRAFTED, KEPT)) for row in rows}
    distances = {row.name: measure_distance(wide.member(row.name).model, calibration) for row in rows}
    turns = ran_in_turns(wide, [TARGET_ALONE, without, *chains.values()], prompts, runs=RUNS, max_new_tokens=NEW_TOKENS)
    seconds = {name: [_requests_s(log) for _, log in taken] for name, taken in turns.items()}
    speed_ups = {name: _speed_up(seconds[TARGET_ALONE], seconds[name]) for name in (without, *chains.values())}
    points = [Point(found=row, distance=distances[row.name], speed_up=speed_ups[chains[row.name]]) for row in rows]
    two_levels = speed_ups[without]
    title = (
        f"{counted(len(prompts), 'prompt')} not searched on, the median of {RUNS} interleaved runs; seconds of a "
        f"verification against the target's; {without} has a speed-up of {two_levels.typical:.2f}x"
    )
    return Finding(
        question="How many layers can a verifier leave out before it is too far from the target to pay in a chain?",
        tables=(table(title, map(_row, points)),),
        panels=_panels(points, without, two_levels),
        answer=_answer(points, without, two_levels),
    )


def _drafter(pool: ModelPool) -> LoadedMember:
    """The smallest member with its own model; raises ValueError if there is none below the target."""
    for member in pool.members[:-1]:
        if member.kind == "model":
            return member
    raise ValueError(f"pool {pool.name}: members must hold a model below the target to draft, got none")


def _searched(setting: ExperimentSetting, pool: ModelPool) -> Frontier:
    """A mask for every number of layers of the shares, beside the submodels of the pool."""
    shares = {round(share * pool.target.num_layers): share for share in reversed(SHARES)}
    found = find_slims(
        pool,
        prompts_of(setting, PROMPTS),
        [share for skipped, share in sorted(shares.items()) if 0 < skipped < pool.target.num_layers],
        Budget(trials=TRIALS, random_trials=RANDOM_TRIALS, seed=setting.seed),
        max_new_tokens=NEW_TOKENS,
        baselines=masks_of(read_pool_file(setting.pool)[1]),
    )
    names = {row.name for row in found.found}
    return replace(found, baselines=tuple(row for row in found.baselines if row.name not in names))


def _requests_s(log: RunLog) -> float:
    """Seconds of all requests together."""
    return float(sum((log.requests["finished_at_s"] - log.requests["admitted_at_s"]).tolist()))


def _speed_up(alone: Sequence[float], taken: Sequence[float]) -> SpeedUp:
    """From seconds by run; all texts are the target's, so the tokens cancel."""
    each = [one / other for one, other in zip(alone, taken, strict=True)]
    return SpeedUp(typical=median(each), low=min(each), high=max(each))


def _row(point: Point) -> list[Cell]:
    found, distance, speed_up = point.found, point.distance, point.speed_up
    return [
        table_cell("member", found.name),
        table_cell("left out", len(found.skip_layers), "layers"),
        table_cell("which", " ".join(map(str, found.skip_layers))),
        table_cell("found by", found.how),
        table_cell("TVD, searched on", found.tvd, digits=4),
        table_cell("TVD, other", distance.tvd, digits=4),
        table_cell("unequal, other", distance.disagreement * 100, "%", 1),
        table_cell("seconds", found.seconds_share * 100, "%", 0),
        table_cell("dominated", "yes" if found.dominated else "no"),
        table_cell("speed-up", speed_up.typical, "x", 2),
        table_cell("lowest", speed_up.low, digits=2),
        table_cell("highest", speed_up.high, digits=2),
    ]


def _panels(points: Sequence[Point], without: str, two_levels: SpeedUp) -> tuple[Panel, ...]:
    searched = [point for point in points if point.found.how != "pool"]
    had = [point for point in points if point.found.how == "pool"]
    groups = {name: ones for name, ones in (("found by search", searched), ("in the pool", had)) if ones}

    def series(read: Callable[[Point], float], suffix: str = "") -> list[Series]:
        return [
            one
            for name, points in groups.items()
            for one in series_of([point.found.share * 100 for point in points], {name + suffix: map(read, points)})
        ]

    ends = [point.found.share * 100 for point in (points[0], points[-1])]
    tvd = series(lambda one: one.distance.tvd, ", TVD")
    unequal = series(lambda one: one.distance.disagreement, ", unequal argmax")
    level = series_of(ends, {without: (two_levels.typical, two_levels.typical)})
    x_label = "layers left out, %"
    return (
        Panel(
            title="distance to the target, on other text",
            x_label=x_label,
            y_label="TVD, and unequal argmax, 0 to 1",
            series=(*tvd, *unequal),
            kind="scatter",
        ),
        Panel(
            title="seconds of a verification",
            x_label=x_label,
            y_label="% of the target's",
            series=tuple(series(lambda one: one.found.seconds_share * 100)),
            kind="scatter",
        ),
        Panel(
            title="speed of a chain with it in the middle",
            x_label=x_label,
            y_label="speed-up over the target alone",
            series=(*series(lambda one: one.speed_up.typical), *level),
        ),
    )


def _answer(points: Sequence[Point], without: str, two_levels: SpeedUp) -> str:
    first, last = points[0], points[-1]
    best = max(points, key=lambda point: point.speed_up.typical)
    pairs = [(point.found.tvd, point.distance.tvd) for point in points if point.found.how != "pool"]
    worst = max(other / searched for searched, other in pairs if searched > 0)
    return (
        f"From {first.found.share:.0%} to {last.found.share:.0%} of the layers left out the distance to the target "
        f"grows from {first.distance.tvd:.3f} to {last.distance.tvd:.3f}, while a verification falls from "
        f"{first.found.seconds_share:.0%} to {last.found.seconds_share:.0%} of the target's seconds. "
        f"The fastest chain has {best.found.name}, {best.found.share:.0%} left out, in the middle: "
        f"{best.speed_up.typical:.2f}x against {two_levels.typical:.2f}x of {without}, so that a middle level "
        f"{_verdict(best.speed_up, two_levels)}. "
        f"On text that it was not searched on, no mask is more than {worst:.2f} times as far from the target. "
        f"{_beside_the_pool(points)}"
    )


def _verdict(best: SpeedUp, two_levels: SpeedUp) -> str:
    if best.low > two_levels.high:
        return "pays in every run"
    if best.high < two_levels.low:
        return "pays in no run"
    ranges = f"{best.low:.2f} to {best.high:.2f} against {two_levels.low:.2f} to {two_levels.high:.2f}"
    return f"is within the noise of the runs ({ranges})"


def _beside_the_pool(points: Sequence[Point]) -> str:
    had = [point.found for point in points if point.found.how == "pool"]
    if not had:
        return "The pool had no submodel of the target to compare with."
    beaten = [row.name for row in had if row.dominated]
    return f"Of the submodels that the pool had ({', '.join(row.name for row in had)}), {len(beaten)} are dominated."
