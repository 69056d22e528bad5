"""What scheduling costs, 2 to 64 pool members: profiling, search, planning and every step, against what it saves.

Pools of 2 to 64 members are synthetic: each has seconds and an agreement with every other one, without text. A round's
saving is the search's prediction: seconds of its tokens by the target alone less those by the chain found. The
recording then gives the cost and the savings of a run's steps. Seconds of deciding are those of this thread: other work
on the machine adds none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from time import thread_time
from typing import cast

import numpy as np
from paceline.base.errors import counted
from paceline.decoding.pool import Member, Pool
from paceline.decoding.seen import Observation
from paceline.policies.specrouter.policy import SpecRouter
from paceline.policies.specrouter.search import SearchFigures, best_chain
from paceline.reports.panels import Panel, series_of
from paceline.sim.simulate import simulate

from ..findings import Cell, ExperimentSetting, Finding, Rows, table, table_cell
from ..replays import TARGET_ALONE, TimedSteps, recording_of, replayed, scenario_of

SIZES = (2, 4, 8, 16, 32, 64)
WINDOW = 16
EVERY = 8  # rounds between two selections, SpecRouter's default
REPEATS = 9
TARGET_S = 0.02
TOKENS = 24  # verdicts of every pair
KEY = "made up"


class _Asking:
    """What a selection sees of a request that all members have read."""

    tag = KEY
    context_tokens = 0
    remaining = TOKENS

    def cached(self, model: str) -> int:
        return self.context_tokens


ASKING = cast(Observation, _Asking())


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds of one selection over a pool."""

    members: int
    profiling_s: float  # reading seconds and agreement
    search_s: float  # over chains and windows
    planning_s: float  # the rest of a selection: comparing with the present chain, windows' rules, steps
    saved_s: float  # predicted, of one round

    @property
    def round_s(self) -> float:
        """Of a selection, per round."""
        return (self.profiling_s + self.search_s + self.planning_s) / EVERY


def run(setting: ExperimentSetting) -> Finding:
    """Time selections over synthetic pools, then the steps of a run."""
    found = [_overhead(size, setting.seed) for size in SIZES]
    steps, share = _steps(setting)
    title = (
        f"one selection, the quickest of {REPEATS}; windows to {WINDOW}, a target of {TARGET_S * 1e3:.0f} ms a token"
    )
    return Finding(
        question="What does scheduling cost as the pool grows, against what it saves?",
        tables=(table(title, map(_selection, found)), steps),
        panels=(_panel(found),),
        answer=_answer(found, share),
    )


def _overhead(size: int, seed: int) -> Overhead:
    policy = _known_pool(size, seed)
    scheduler = policy.scheduler

    def profile() -> SearchFigures:
        return scheduler.knowledge.figures(KEY, 1, ASKING)

    known = profile()
    found = best_chain(known)

    def select() -> None:
        plan = scheduler.plan(ASKING, num_rows=1, num_running=1, begins=False)
        scheduler.note_round(KEY, plan, num_tokens=1, copied=False)

    profiling_s = _least_s(profile)
    search_s = _least_s(lambda: best_chain(known))
    whole_s = _least_s(select)
    tokens = 1.0
    if found.windows:
        tokens += sum(float(known.rates[found.levels[-2], -1]) ** kept for kept in range(1, found.windows[-1] + 1))
    return Overhead(
        members=size,
        profiling_s=profiling_s,
        search_s=search_s,
        planning_s=max(0.0, whole_s - profiling_s - search_s),
        saved_s=tokens * (float(known.seconds[-1, 0]) - found.token_s),
    )


def _known_pool(size: int, seed: int) -> SpecRouter:
    """A policy with complete statistics of a pool: larger members agree more and take longer."""
    rng = np.random.default_rng(seed + size)
    pool = Pool(tuple(Member(name=f"m{level}") for level in range(size)))
    policy = SpecRouter(pool, every=1, probe=0, explore=0)
    scheduler = policy.scheduler
    shares = np.append(np.sort(rng.uniform(0.01, 0.6, size - 1)), 1.0)
    for level, share in enumerate(shares):
        for width in range(1, WINDOW + 2):
            seconds = TARGET_S * share * (1.0 + 0.02 * width)
            scheduler.knowledge.profiler.note(level, new_tokens=width, seconds=seconds)
    for low in range(size):
        for high in range(low + 1, size):
            kept = rng.random(TOKENS) < 0.4 + 0.5 * shares[low] / shares[high]
            for one in kept:
                scheduler.knowledge.agreement.note(KEY, low, high, kept=bool(one), similar=nan)
    scheduler.knowledge.profiler.note_prompt(num_prompt=1, budget=TOKENS)
    while scheduler.plan(ASKING, num_rows=1, num_running=1, begins=False).trial:  # skip the warm-up
        pass
    return policy


def _least_s(job: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS + 1):
        start_s = thread_time()
        job()
        taken.append(thread_time() - start_s)
    return min(taken[1:])


def _steps(setting: ExperimentSetting) -> tuple[Rows, float]:
    """The steps of a run on the recording, and their cost as a share of its savings."""
    trace = recording_of(setting)
    scenario = scenario_of(setting, trace)
    plain_s = float(replayed(scenario, TARGET_ALONE).requests["finished_at_s"].max())
    policy = SpecRouter(scenario.tables.pool)
    timed = TimedSteps(policy)
    decoding_s = float(simulate(scenario, timed, "specrouter").requests["finished_at_s"].max())
    thinking_s = timed.deciding_s + timed.learning_s
    row = [
        table_cell("steps", len(timed.steps_s)),
        table_cell("selections", policy.counters.selections),
        table_cell("deciding, selections included", timed.deciding_s, "s", 3),
        table_cell("learning", timed.learning_s, "s", 3),
        table_cell("decoding", decoding_s, "s", 2),
        table_cell("saved against the target alone", plain_s - decoding_s, "s", 2),
        table_cell("thinking over decoding", thinking_s / decoding_s * 100, "%", 2),
    ]
    members = counted(len(scenario.tables.pool.names), "member")
    title = f"{counted(len(trace.requests), 'request')} of {trace.meta.name}, {members}, batch 1"
    return table(title, [row]), thinking_s / (plain_s - decoding_s)


def _selection(one: Overhead) -> list[Cell]:
    return [
        table_cell("members", one.members),
        table_cell("profiling", one.profiling_s * 1e6, "us", 0),
        table_cell("search", one.search_s * 1e6, "us", 0),
        table_cell("planning", one.planning_s * 1e6, "us", 0),
        table_cell(f"a round of {EVERY}", one.round_s * 1e6, "us", 0),
        table_cell("saved in a round", one.saved_s * 1e3, "ms", 1),
        table_cell("spent over saved", one.round_s / one.saved_s * 100, "%", 3),
    ]


def _panel(found: Sequence[Overhead]) -> Panel:
    parts = {
        "profiling": [one.profiling_s for one in found],
        "search": [one.search_s for one in found],
        "planning": [one.planning_s for one in found],
        "saved in a round": [one.saved_s for one in found],
    }
    micro = {name: [max(seconds * 1e6, 1e-3) for seconds in values] for name, values in parts.items()}
    return Panel(
        title="one selection",
        x_label="pool members",
        y_label="microseconds",
        series=series_of([one.members for one in found], micro),
        log_x=True,
        log_y=True,
    )


def _answer(found: Sequence[Overhead], share: float) -> str:
    first, last = found[0], found[-1]
    growth = last.search_s / first.search_s
    return (
        f"A search over all chains and windows takes {first.search_s * 1e6:.0f} microseconds for {first.members} "
        f"members and {last.search_s * 1e6:.0f} for {last.members}: {growth:.0f} times as long for "
        f"{last.members / first.members:.0f} times as many members. "
        f"With all that belongs to a selection, a round of a pool of {last.members} spends "
        f"{last.round_s / last.saved_s * 100:.2f}% of what it is predicted to save. "
        f"On the recording, all thinking of the run took {share * 100:.1f}% of the seconds it saved."
    )
