"""Seconds of one forward of each model of a pool by new tokens, as a recording keeps them.

A point is a number of new tokens, all rows together. Up to 32 they are one row; more are rows of 16, as in batched
verification. Every row follows up to 128 tokens of context in a slot cache. The timing includes what the runtime does:
placing the tokens, and the forward; medians of rounds, not smoothed. A profile can replace it.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ...base.errors import ArgumentError
from ...base.terminal import Progress
from ...traces.meta import CostTable
from ...traces.profile import Profile, ProfiledForwards
from ..clock import timed
from ..pools.pool import ModelPool
from .forwards import RowsHeld, drift_of, median_and_spread
from .probe import ShapeKey

NEW_TOKENS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXT_TOKENS = 128
LEAST_ROUNDS = 3  # least rounds for a median, where time is short
_LONGEST_ROW = 32
_BATCHED_ROW = 16
# Times the seconds that rounds may take: after that without the least rounds, the machine is too slow or busy.
_PATIENCE = 10


class MeasuredCosts(NamedTuple):
    """Seconds of one forward, and their uncertainty."""

    tables: dict[str, CostTable]  # by member that has a model
    rounds: int  # that were counted, >= 1
    spread: float  # the median over a member's points, as a share (`median_and_spread`); the largest of all members
    drift: float  # relative change of seconds from the first third of the rounds to the last, median over points
    took_s: float  # for all rounds


class _Turn(NamedTuple):
    """The points of one model that are timed one after the other."""

    device: torch.device
    points: dict[ShapeKey, Callable[[], object]]


@torch.inference_mode()
def measure_costs(
    pool: ModelPool,
    *,
    new_tokens: Sequence[int] = NEW_TOKENS,
    repeats: int = 21,
    most_s: float = inf,
    stage: str = "timing forwards",
) -> MeasuredCosts:
    """Measured seconds of one forward, by member that has a model.

    A round times every point of every model once, so that a slow spell of the machine affects all alike; a first round
    warms up and is not counted, nor is one forward of each model's smallest point at the start of its turn. In a round
    batched points of all models come after the others: a small point after a large one would include its memory
    traffic. Threads are those torch has (`ModelPool.load(threads=...)` sets them).

    Args:
        pool: the models.
        new_tokens: points, strictly increasing, above 32 multiples of 16.
        repeats: counted rounds, >= 1; fewer where time is short.
        most_s: seconds after which rounds end, > 0, once three of them are counted.
        stage: name of its progress.

    Raises:
        ValueError: a point above 32 that is no multiple of 16, or no repeats.
        TimeoutError: ten times `most_s` passed before three rounds were counted; one line.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    for count in new_tokens:
        if count > _LONGEST_ROW and count % _BATCHED_ROW:
            raise ValueError(f"new_tokens above {_LONGEST_ROW} must be multiples of {_BATCHED_ROW}, got {count}")
    turns = list(_turns(pool, new_tokens))
    taken: dict[ShapeKey, list[float]] = {key: [] for turn in turns for key in turn.points}
    ends_at_s = perf_counter() + _PATIENCE * most_s
    with Progress(f"{stage}, first rounds", 2 * len(taken), unit="forwards", alike=False) as progress:
        warming_s = _time_round(turns, taken, ends_at_s, progress.advance)
        counted_s = _time_round(turns, taken, ends_at_s, progress.advance)
    # The first counted round gives the others' seconds, and so their number and the time left.
    least = min(LEAST_ROUNDS, repeats)
    planned = repeats if most_s == inf else max(least, min(repeats, int(most_s / counted_s)))
    began_at_s = perf_counter()
    with Progress(stage, planned, unit="rounds", done=1) as progress:
        for number in range(2, planned + 1):
            _time_round(turns, taken, ends_at_s if number <= least else inf)
            progress.advance()
            if number >= least and perf_counter() - began_at_s + counted_s > most_s:
                break
    return _measured(taken, new_tokens, took_s=warming_s + counted_s + perf_counter() - began_at_s)


def _turns(pool: ModelPool, new_tokens: Sequence[int]) -> Iterator[_Turn]:
    """Points of one row model by model, then batched ones."""
    context = max(1, min(CONTEXT_TOKENS, pool.context_tokens - _LONGEST_ROW))
    forwards = {
        member.name: pool.forward(level, "auto", share_weights=True)
        for level, member in enumerate(pool.members)
        if member.model is not None
    }
    for batched in (False, True):
        shapes = [(num_rows(count), count) for count in new_tokens if (count > _LONGEST_ROW) is batched]
        for name, forward in forwards.items() if shapes else ():
            points = {
                (name, rows, count // rows, context): RowsHeld(forward, [context] * rows).run_of(
                    [count // rows] * rows
                )[1]
                for rows, count in shapes
            }
            yield _Turn(forward.kv_shape.device, points)


def _time_round(
    turns: Sequence[_Turn],
    taken: dict[ShapeKey, list[float]],
    ends_at_s: float,
    on_timed: Callable[[], None] = lambda: None,
) -> float:
    """Time every point once; returns the seconds of all. Raises TimeoutError once it is `ends_at_s`."""
    began_at_s = perf_counter()
    for turn in turns:
        # The other models evicted this one from the processor's caches; a draft is cached again from its second token
        # on.
        next(iter(turn.points.values()))()
        for key, run in turn.points.items():
            if perf_counter() > ends_at_s:
                done = max(0, min(map(len, taken.values())) - 1)
                raise TimeoutError(f"only {done} of {LEAST_ROUNDS} rounds of forwards were measured in time")
            taken[key].append(timed(run, turn.device))
            on_timed()
    return perf_counter() - began_at_s


def _measured(taken: dict[ShapeKey, list[float]], new_tokens: Sequence[int], *, took_s: float) -> MeasuredCosts:
    """The result of the rounds, without the first one."""
    tables, spreads = {}, []
    for name in dict.fromkeys(key[0] for key in taken):
        found = [median_and_spread(seconds[1:]) for key, seconds in taken.items() if key[0] == name]
        tables[name] = CostTable(new_tokens=tuple(new_tokens), seconds=tuple(seconds for seconds, _ in found))
        spreads.append(median(spread for _, spread in found))
    rounds = min(map(len, taken.values())) - 1
    return MeasuredCosts(tables, rounds, max(spreads), drift_of([seconds[1:] for seconds in taken.values()]), took_s)


def num_rows(count: int) -> int:
    """Rows in which `count` new tokens are fed."""
    return 1 if count <= _LONGEST_ROW else count // _BATCHED_ROW


def tables_of(profile: Profile) -> dict[str, CostTable]:
    """The points that `measure_costs` would measure, by member; those beyond the measured shapes are left out.

    Raises:
        ArgumentError: a member without a shape near such a point.
    """
    context = min(CONTEXT_TOKENS, max(shape.context_tokens for shape in profile.shapes))
    tables = {}
    for member in profile.meta.members:
        forwards = ProfiledForwards(profile.of(member.name), None)
        measured = {count: forwards.measured(num_rows(count), count, context * num_rows(count)) for count in NEW_TOKENS}
        known = {count: seconds for count, seconds in measured.items() if seconds is not None}
        if not known:
            raise ArgumentError(f"`profile` has no shapes of {member.name} that a recording could hold")
        tables[member.name] = CostTable(new_tokens=tuple(known), seconds=tuple(known.values()))
    return tables
