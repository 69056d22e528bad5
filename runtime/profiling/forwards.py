"""Seconds of every member's forwards over a grid of shapes, in turn, so that a slow spell affects all alike.

Beside the grid: rows of unequal length or apart from each other; how much longer a forward takes when its weights were
not read just before (other members run meanwhile, as other processors share the outer caches); a smooth model for other
shapes; a few forwards measured again, to see whether a profile still holds; and on a GPU the floor: the time to read
from memory what a forward must read (the rest is lost to launches, small products or a cache read twice). Letters: R
rows, M measured forwards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls
from transformers import PreTrainedModel

from ...base.terminal import Progress
from ...traces.profile import (
    MOST_JUDGED,
    AfterAway,
    BatchShape,
    MeasuredForward,
    ProfiledForwards,
    Reload,
    SmoothForward,
    UnevenRows,
)
from ..caches import total_bytes
from ..clock import Clock, timed
from ..forward import ModelForward
from ..pools.members import LoadedMember, table_of_its_own
from .probe import Journal, ShapeKey

# Forwards before the timed ones, and timed ones: outer caches need about ten repeats to settle on what is read
# repeatedly, as in decoding. Forwards of many tokens are limited by arithmetic.
SETTLING, TIMED = 10, 3
_MANY_TOKENS = 48

# Most seconds for settling: a forward that slow reads more than caches hold, and settles at once.
_SETTLING_S = 0.1

# A request that only separates rows.
_BETWEEN = "between"


class RowsHeld:
    """A cache whose rows hold `held` `[R]` tokens each, >= 0, on which forwards are run repeatedly.

    `apart`: another request's row is between the first row and the others; needs two rows at least.
    """

    def __init__(self, forward: ModelForward, held: Sequence[int], *, apart: bool = False) -> None:
        self._forward = forward
        self._held = list(held)
        self._requests = [str(row) for row in range(len(held))]
        self._cache = forward.slot_cache()
        self._apart = apart
        # Seconds do not depend on the values.
        first, *others = self._requests
        rows = ((first, held[0]), (_BETWEEN, int(apart)), *zip(others, held[1:], strict=True))
        standing = {request: num_tokens for request, num_tokens in rows if num_tokens}
        if standing:  # all at once: a cache that grows row by row is copied each time
            self._cache.place(list(standing), list(standing.values()))

    def run_of(self, counts: Sequence[int]) -> tuple[BatchShape, Callable[[], object]]:
        """A forward of `counts` `[R]` new tokens, which rolls the cache back first, and its shape."""
        forward, cache, requests, held = self._forward, self._cache, self._requests, self._held
        total, device = sum(counts), forward.kv_shape.device
        tokens = torch.zeros(total, dtype=torch.long, device=device)
        # Verifiers need the logits of all judged tokens, a prompt those of its end.
        keep = slice(None) if max(counts) <= MOST_JUDGED else torch.tensor(counts, device=device).cumsum(0) - 1

        def run() -> None:
            for request, num_tokens in zip(requests, held, strict=True):
                if request in cache.rows:
                    cache.roll_back(request, num_tokens)
            forward(tokens, cache.place(requests, counts), cache, keep)

        num_slots = max(num_tokens + count for num_tokens, count in zip(held, counts, strict=True))
        return BatchShape(len(counts), total, max(counts), num_slots, self._apart), run


def median_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    """The median of repeats, and half of their interquartile range as a share of it."""
    middle = median(seconds)
    first, _, third = quantiles(seconds, n=4) if len(seconds) > 1 else (middle, middle, middle)
    return middle, (third - first) / 2 / middle


def settled_s(run: Callable[[], object], num_tokens: int, device: torch.device) -> float:
    """Seconds of a forward of `num_tokens` tokens right after others like it."""
    if num_tokens > _MANY_TOKENS:
        run()
        return timed(run, device)
    settle(run)
    return median(timed(run, device) for _ in range(TIMED))


def settle(run: Callable[[], object]) -> None:
    """Run a forward until caches have settled on it."""
    taken_s = 0.0
    for _ in range(SETTLING):
        start_s = perf_counter()
        run()
        taken_s += perf_counter() - start_s
        if taken_s > _SETTLING_S:
            return


def forwards_run(num_tokens: int, seconds: float) -> int:
    """Number of forwards that `settled_s` runs, for `num_tokens` tokens and `seconds` each."""
    return 2 if num_tokens > _MANY_TOKENS else min(SETTLING, int(_SETTLING_S / seconds) + 1) + TIMED


# Share of a device's memory that the caches of one shape may take.
_MOST_MEMORY = 0.5

# Shapes of more tokens than this are timed in every third round only: they are slow, and vary little.
_LONG_FORWARD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeGrid:
    """Shapes that are measured: each number of rows with each number of new tokens after each number of tokens held.

    All axes are strictly increasing.

    Raises:
        ValueError: an axis that is empty or does not increase.
    """

    rows: tuple[int, ...] = (1, 2, 3, 6, 12, 24)  # >= 1
    new_tokens: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 20, 40, 80, 160)  # of each row, >= 1
    context_tokens: tuple[int, ...] = (0, 60, 200, 480, 1100, 2500)  # of each row, >= 0
    most_tokens: int = 1024  # new tokens of all rows that one forward may have
    # seconds since weights were read, after which forwards are measured too; > 0
    away_s: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.02)

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("new_tokens", 1), ("context_tokens", 0)):
            axis = getattr(self, name)
            if not axis or axis[0] < least or any(a >= b for a, b in pairwise(axis)):
                raise ValueError(f"{name} must be strictly increasing from >= {least}, got {axis}")
        if not self.away_s or any(a >= b for a, b in pairwise((0.0, *self.away_s))):
            raise ValueError(f"away_s must be strictly increasing from above 0, got {self.away_s}")

    def shapes(self, longest: int) -> Iterator[tuple[int, int, int]]:
        """(rows, tokens held, new tokens) of all shapes within a context of `longest` tokens, small ones first."""
        for rows, context, new in product(self.rows, self.context_tokens, self.new_tokens):
            if context + new <= longest and rows * new <= self.most_tokens:
                yield rows, context, new


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredForwards:
    """What was measured."""

    shapes: tuple[MeasuredForward, ...]  # of all members
    drift: float  # relative change of seconds from the first third of the rounds to the last, median over shapes
    left_out: tuple[str, ...]  # shapes whose caches would not fit into memory, in words

    def of(self, member: str) -> tuple[MeasuredForward, ...]:
        """The shapes of one member."""
        return tuple(shape for shape in self.shapes if shape.member == member)


@torch.inference_mode()
def measure_forwards(
    forwards: Mapping[str, ModelForward],
    grid: ShapeGrid,
    *,
    longest: int,
    repeats: int = 3,
    journal: Journal | None = None,
    stage: str = "stage 1 of 4, forwards",
) -> MeasuredForwards:
    """Time every shape of the grid.

    A round times the shapes of all members, member after member for each number of rows and tokens held; the
    first round warms up.

    Args:
        forwards: by member.
        grid: the shapes.
        longest: context of the pool, in tokens.
        repeats: counted rounds, >= 3.
        journal: earlier measurements, which are not repeated, and new ones; mutated.
        stage: name of its progress.
    """
    if repeats < 3:
        raise ValueError(f"repeats must be >= 3, got {repeats}")
    asked = list(grid.shapes(longest))
    if not asked:
        raise ValueError(f"no shape of the grid fits {longest} tokens of context and `most_tokens` {grid.most_tokens}")
    taken: dict[ShapeKey, list[float]] = {}
    left_out: list[str] = []
    groups = sorted({(rows, context) for rows, context, _ in asked})
    total = (repeats + 1) * len(groups)
    done = 0 if journal is None else min(len(journal), total)
    with Progress(stage, total, unit="groups of shapes", done=done, of_several=True) as progress:
        for number in range(repeats + 1):
            for rows, context in groups:
                known = None if journal is None else journal.known(number, (rows, context))
                found = {} if known is None else known
                counts = [new for r, c, new in asked if (r, c) == (rows, context)]
                for name, forward in forwards.items():
                    fitting = [count for count in counts if _fits(forward, rows, context + count)]
                    if not number and len(fitting) < len(counts):
                        left_out.append(f"{name}: {rows} x {counts[len(fitting)]} and more after {context}")
                    if known is None:
                        found |= _time_group(forward, name, rows, context, _due(fitting, rows, number))
                for key, seconds in found.items():
                    taken.setdefault(key, []).append(seconds)
                if known is None:
                    progress.advance()
                    if journal is not None:
                        journal.note(number, (rows, context), found)
    found_s = {key: median_and_spread(seconds[1:]) for key, seconds in sorted(taken.items())}
    steady = [seconds[1:] for seconds in taken.values() if len(seconds) == repeats + 1]
    return MeasuredForwards(
        shapes=tuple(MeasuredForward(*key, seconds=middle, spread=spread) for key, (middle, spread) in found_s.items()),
        # Without steady ones there are only long forwards, which are timed in some rounds.
        drift=drift_of(steady or [seconds for seconds in taken.values() if len(seconds) > 1]),
        left_out=tuple(left_out),
    )


def _due(counts: Sequence[int], rows: int, number: int) -> list[int]:
    return [count for count in counts if rows * count <= _LONG_FORWARD or number < 2 or number % 3 == 0]


def _fits(forward: ModelForward, rows: int, tokens: int) -> bool:
    shape = forward.kv_shape
    return rows * tokens * shape.bytes_per_slot <= _MOST_MEMORY * total_bytes(shape.device)


def _time_group(
    forward: ModelForward, name: str, rows: int, context: int, counts: Sequence[int]
) -> dict[ShapeKey, float]:
    if not counts:
        return {}
    held, device = RowsHeld(forward, [context] * rows), forward.kv_shape.device
    taken = {}
    for count in counts:
        run = held.run_of([count] * rows)[1]
        long = rows * count > _LONG_FORWARD
        taken[name, rows, count, context] = timed(run, device) if long else settled_s(run, rows * count, device)
    return taken


def drift_of(taken: Iterable[Sequence[float]]) -> float:
    """Relative change of seconds from the first third of the rounds to the last, the median over shapes.

    `taken` are by shape the seconds of each round, one at least.
    """
    thirds = [(seconds, max(1, len(seconds) // 3)) for seconds in taken]
    return abs(median(median(seconds[-third:]) / median(seconds[:third]) for seconds, third in thirds) - 1)


# Bytes of the tensor that is copied: beyond the caches of any device, and within the memory of any.
_COPIED_BYTES, _MOST_SHARE = 2**30, 0.05
_COPIES = 9


class MemoryFloor(NamedTuple):
    """The lower bound of seconds for one member's forwards."""

    member: str
    weight_bytes: int  # of all weights a forward reads
    kv_bytes_per_token: int  # keys and values of a token
    bytes_per_s: float  # of the device's memory, as measured by copying

    def seconds(self, rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of a forward that reads its weights once, and the keys and values of its rows once.

        `rows` >= 1 have `new_tokens` >= 1 each, after `context_tokens` >= 0 held of each.
        """
        kv_bytes = rows * (context_tokens + new_tokens) * self.kv_bytes_per_token
        return (self.weight_bytes + kv_bytes) / self.bytes_per_s

    def comparison(self, shapes: Sequence[MeasuredForward]) -> str:
        """One line: the member's smallest step, and its widest with one token a row, compared with the floor.

        `shapes` are measured, of the member; at least one of one new token.
        """
        steps = sorted(shape[1:4] for shape in shapes if shape.new_tokens == 1)
        seconds = {shape[1:4]: shape.seconds for shape in shapes}
        # One row with the longest context, and the most rows with their longest.
        alone = max(step for step in steps if step[0] == steps[0][0])
        times = [
            f"{seconds[step] / self.seconds(*step):.2f}x at {step[0]} x 1 after {step[2]}"
            for step in (alone, steps[-1])
        ]
        return (
            f"{self.member} against its memory floor ({self.weight_bytes / 1e9:.3g} GB of weights at "
            f"{self.bytes_per_s / 1e9:.0f} GB/s, {self.seconds(*alone) * 1e3:.3g} ms a step): "
            f"{', '.join(dict.fromkeys(times))}"
        )


def memory_floor(member: LoadedMember) -> MemoryFloor:
    """A member's floor on its device, whose memory speed is measured now; raises ValueError for a model-free member."""
    model = member.model
    if model is None:
        raise ValueError(f"{member.name} has no model to run")
    return MemoryFloor(
        member=member.name,
        weight_bytes=weight_bytes(model),
        kv_bytes_per_token=member.kv_bytes_per_token,
        bytes_per_s=copied_bytes_per_s(model.device),
    )


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that a forward reads: all except an untied table of embeddings, of which only rows are read.

    Weights that several modules share count once.
    """
    weights = {weight.data_ptr(): weight.numel() * weight.itemsize for weight in model.parameters()}
    table = table_of_its_own(model)
    if table is not None:
        del weights[table.data_ptr()]
    return sum(weights.values())


@torch.inference_mode()
def copied_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written in a second by copying a large tensor, the median of a few times."""
    size = min(_COPIED_BYTES, int(_MOST_SHARE * total_bytes(device)))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken = [timed(lambda: target.copy_(source), device) for _ in range(_COPIES + 1)]
    return 2 * size / median(taken[1:])


# New tokens of the longest forward; a longer one has more to multiply than to read.
_MOST_TOKENS = 80
_HELD_TOKENS = 60
REPEATS = 2

Run = Callable[[], object]


def reload_axes(grid: ShapeGrid, longest: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(numbers of new tokens, times away) of a grid's forwards after times away.

    `longest` is the context of the pool, in tokens; more new tokens than it has room for are left out.
    """
    most = min(_MOST_TOKENS, longest - _held(longest))
    return tuple(count for count in grid.new_tokens if count <= most) or (1,), grid.away_s


@torch.inference_mode()
def measure_after_away(
    forwards: Mapping[str, ModelForward],
    shares: Mapping[str, Mapping[str, float]],
    new_tokens: Sequence[int],
    away_s: Sequence[float],
    *,
    longest: int,
    stage: str = "stage 3 of 4, reloads",
) -> dict[str, tuple[AfterAway, ...]]:
    """By member, a forward of each number of new tokens right after another one, and after each time away.

    `shares` holds by member the others that read some of its weights: those do not run during these times. `new_tokens`
    are of one row, >= 1, and `away_s` seconds, > 0, both strictly increasing. `longest` is the pool's context, in
    tokens, and `stage` the name of its progress.
    """
    rows = {name: RowsHeld(forward, [_held(longest)]) for name, forward in forwards.items()}
    runs = {(name, count): rows[name].run_of([count])[1] for name in forwards for count in new_tokens}
    clock = Clock(forward.kv_shape.device for forward in forwards.values())
    singles = _by_seconds(clock, {name: runs[name, new_tokens[0]] for name in forwards})
    taken: dict[tuple[str, int, float], list[float]] = {}
    with Progress(stage, REPEATS * len(runs), unit="shapes", of_several=True) as progress:
        for _ in range(REPEATS):
            for (name, count), run in runs.items():
                others = {other: one for other, one in singles.items() if other not in (name, *shares[name])}
                device = forwards[name].kv_shape.device
                settle(run)  # after the last times away
                for away in (0.0, *away_s):
                    seconds = _after_away_s(clock, run, away, others, device)
                    taken.setdefault((name, count, away), []).extend(seconds)
                progress.advance()
    cells: dict[str, list[AfterAway]] = {name: [] for name in forwards}
    for (name, count, away), seconds in taken.items():
        middle, spread = median_and_spread(seconds)
        cells[name].append(AfterAway(new_tokens=count, away_s=away, seconds=middle, spread=spread))
    return {name: tuple(of_member) for name, of_member in cells.items()}


def _held(longest: int) -> int:
    return min(_HELD_TOKENS, longest // 2)


def reload_of(cells: Sequence[AfterAway]) -> Reload:
    """The least-squares fit to the seconds that does not fall with the time away.

    A running maximum would keep the worst noise. `cells` are of one member, every number of new tokens after every time
    away, 0 among them.
    """
    new_tokens = sorted({cell.new_tokens for cell in cells})
    away_s = sorted({cell.away_s for cell in cells})
    seconds = {(cell.new_tokens, cell.away_s): cell.seconds for cell in cells}
    lines = []
    for count in new_tokens:
        rising = isotonic_regression([seconds[count, away] for away in away_s]).x
        lines.append(tuple((rising - rising[0]).tolist()[1:]))
    return Reload(new_tokens=tuple(new_tokens), away_s=tuple(away_s[1:]), longer_s=tuple(lines))


def _after_away_s(
    clock: Clock, run: Run, away_s: float, others: Mapping[str, tuple[float, Run]], device: torch.device
) -> list[float]:
    seconds: list[float] = []

    def run_after() -> None:
        _pass_time(clock, away_s, others)
        seconds.append(timed(run, device))

    settle(run_after)
    for _ in range(TIMED):
        run_after()
    return seconds[-TIMED:]


def _by_seconds(clock: Clock, runs: Mapping[str, Run]) -> dict[str, tuple[float, Run]]:
    found = {}
    for name, run in runs.items():
        run()
        start_s = clock.now_s()
        run()
        found[name] = (clock.now_s() - start_s, run)
    return dict(sorted(found.items(), key=lambda one: -one[1][0]))


def _pass_time(clock: Clock, away_s: float, others: Mapping[str, tuple[float, Run]]) -> None:
    """Run other members; each has finished, on its device too, before the time left is read."""
    if not away_s:
        return
    end_s = clock.now_s() + away_s
    for seconds, run in others.values():
        while clock.now_s() + seconds < end_s:
            run()
    while clock.now_s() < end_s:
        pass


# Of shapes measured again: about how many tokens rows hold, and the most new ones a row.
_CONTEXT_TOKENS, _MOST_NEW_TOKENS = 60, 20

# Most seconds for measuring again, and least and most repeats of each shape.
_SECONDS, _LEAST_REPEATS, _MOST_REPEATS = 4.0, 3, 15

# Forwards after times away have one token or about `_FEW_TOKENS`, after about `_AWAY_S`, as in decoding.
_FEW_TOKENS, _AWAY_S = 5, 0.002


def reference_grid(shapes: Sequence[MeasuredForward]) -> ShapeGrid:
    """Some of the shapes of a profile: one row and several, after some text, of up to a verification's tokens.

    As many numbers of tokens as time allows, since a forward's seconds depend on what ran just before it.
    """
    rows = sorted({shape.rows for shape in shapes})
    new_tokens = sorted({shape.new_tokens for shape in shapes})
    contexts = {shape.context_tokens for shape in shapes}
    few_rows = tuple(sorted({rows[0], rows[len(rows) // 2]}))
    context = min(contexts, key=lambda count: (abs(count - _CONTEXT_TOKENS), count))
    counts = [count for count in new_tokens if count <= _MOST_NEW_TOKENS] or new_tokens[:1]
    while len(counts) > 1:
        grid = ShapeGrid(rows=few_rows, new_tokens=tuple(counts), context_tokens=(context,))
        if (_LEAST_REPEATS + 1) * _round_s(shapes, grid) <= _SECONDS:
            return grid
        counts.pop()
    return ShapeGrid(rows=few_rows, new_tokens=tuple(counts), context_tokens=(context,))


def _among(shapes: Sequence[MeasuredForward], grid: ShapeGrid) -> dict[tuple[str, int, int, int], MeasuredForward]:
    longest = max(shape.context_tokens + shape.new_tokens for shape in shapes)
    asked = {(rows, new, context) for rows, context, new in grid.shapes(longest)}
    return {shape.key: shape for shape in shapes if shape.key[1:] in asked}


def _round_s(shapes: Sequence[MeasuredForward], grid: ShapeGrid) -> float:
    asked = _among(shapes, grid).values()
    return sum(shape.seconds * forwards_run(shape.rows * shape.new_tokens, shape.seconds) for shape in asked)


def measure_again(
    forwards: Mapping[str, ModelForward], shapes: Sequence[MeasuredForward]
) -> dict[str, list[tuple[MeasuredForward, MeasuredForward]]]:
    """Measure a few of a profile's shapes in the same way: by member, each shape then and now."""
    grid = reference_grid(shapes)
    then = _among(shapes, grid)
    longest = max(shape.context_tokens + shape.new_tokens for shape in then.values())
    repeats = max(_LEAST_REPEATS, min(_MOST_REPEATS, int(_SECONDS / _round_s(shapes, grid)) - 1))
    measured = measure_forwards(forwards, grid, longest=longest, repeats=repeats, stage="measuring forwards again")
    pairs: dict[str, list[tuple[MeasuredForward, MeasuredForward]]] = {name: [] for name in forwards}
    for now in measured.shapes:
        if now.key in then:
            pairs[now.member].append((then[now.key], now))
    return {name: found for name, found in pairs.items() if found}


def reference_times(then: Mapping[str, Sequence[AfterAway]]) -> tuple[list[int], list[float]]:
    """Numbers of new tokens and times away that are measured again, as many as time allows, one of each at least.

    `then` is what was measured, by member, the same for each.
    """
    known = [cell for cells in then.values() for cell in cells]
    tokens = sorted({cell.new_tokens for cell in known})
    counts = sorted({tokens[0], min(tokens, key=lambda count: abs(count - _FEW_TOKENS))})
    times = sorted({cell.away_s for cell in known} - {0.0})
    times.sort(key=lambda away_s: max(away_s / _AWAY_S, _AWAY_S / away_s))
    while len(times) > 1 and _again_s(known, counts, times) > _SECONDS:
        times.pop()
    while len(counts) > 1 and _again_s(known, counts, times) > _SECONDS:
        counts.pop()
    return counts, sorted(times)


def _again_s(known: Sequence[AfterAway], counts: Sequence[int], times: Sequence[float]) -> float:
    asked = [cell for cell in known if cell.new_tokens in counts and cell.away_s in (0.0, *times)]
    each_s = [cell.away_s + cell.seconds for cell in asked]
    return REPEATS * sum(one_s * forwards_run(1, one_s) for one_s in each_s)


def measure_after_away_again(
    forwards: Mapping[str, ModelForward],
    shares: Mapping[str, Mapping[str, float]],
    then: Mapping[str, Sequence[AfterAway]],
    *,
    longest: int,
) -> dict[str, list[tuple[AfterAway, AfterAway]]]:
    """Measure a few of a profile's forwards after times away in the same way: by member, each then and now.

    `shares` holds by member the others that read some of its weights; `longest` is the pool's context, in tokens.
    """
    stage = "measuring reloads again"
    found = measure_after_away(forwards, shares, *reference_times(then), longest=longest, stage=stage)
    before = {(name, cell.new_tokens, cell.away_s): cell for name, cells in then.items() for cell in cells}
    return {
        name: [
            (before[key], cell)
            for cell in cells
            if cell.away_s and (key := (name, cell.new_tokens, cell.away_s)) in before
        ]
        for name, cells in found.items()
    }


# Every `_HELD_OUT`th shape is left out of the fit that is evaluated.
_HELD_OUT = 4


def fit_smooth(shapes: Sequence[MeasuredForward]) -> SmoothForward:
    """Fit the terms of `SmoothForward` to one member's shapes by non-negative least squares of relative errors.

    There must be at least one shape; with fewer than four the error is unknown.
    """
    terms, seconds = _terms_of_shapes(shapes), np.array([shape.seconds for shape in shapes])
    held_out = np.arange(len(shapes)) % _HELD_OUT == _HELD_OUT - 1
    error = None
    if held_out.any():
        found = terms[held_out] @ _fit_terms(terms[~held_out], seconds[~held_out])
        error = median(np.abs(found / seconds[held_out] - 1).tolist())
    intercept, per_row, per_new, per_context, per_pair = _fit_terms(terms, seconds).tolist()
    return SmoothForward(
        intercept_s=intercept,
        per_row_s=per_row,
        per_new_token_s=per_new,
        per_context_token_s=per_context,
        per_pair_s=per_pair,
        held_out_error=error,
    )


def _terms_of_shapes(shapes: Sequence[MeasuredForward]) -> NDArray[np.float64]:
    return np.array(
        [
            [1, shape.rows, shape.rows * shape.new_tokens, shape.rows * shape.context_tokens,
             shape.rows * shape.new_tokens * shape.context_tokens]
            for shape in shapes
        ],
        dtype=np.float64,
    )  # fmt: skip


def _fit_terms(
    terms: NDArray[np.float64], seconds: NDArray[np.float64], fitted: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Coefficients of `fitted` (None: of `seconds`) by errors as shares of `seconds`, none negative.

    Columns are scaled, since tokens and pairs of them differ by orders of magnitude.
    """
    relative = terms / seconds[:, None]
    scale = np.maximum(relative.max(axis=0), np.finfo(float).tiny)
    solved, _ = nnls(relative / scale, np.ones(len(seconds)) if fitted is None else fitted / seconds)
    return np.asarray(solved / scale)


_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Rows:
    """A forward to measure: tokens that each row holds, and new ones; empty rows come last."""

    held: tuple[int, ...]
    counts: tuple[int, ...]
    apart: bool = False


_CASES = (
    Rows((20, 100), (2, 5)),
    Rows((90, 40, 60), (1, 7, 2)),
    Rows((40, 110, 60), (3, 3, 3)),
    Rows((40, 110, 60), (3, 3, 3), apart=True),
    Rows((60, 60, 60), (1, 1, 1), apart=True),
    Rows((200, 150, 180), (1, 4, 2), apart=True),
    Rows((70, 30, 50, 110, 40, 60), (1, 6, 2, 4, 9, 3)),
    Rows((70, 30, 50, 110, 40, 60), (1, 1, 2, 1, 1, 2), apart=True),
    Rows((180, 220, 150, 240, 200, 190), (2, 8, 3, 5, 1, 2)),
    Rows((60, 80, 45, 90, 70, 0), (3, 1, 2, 3, 1, 35)),
    Rows((60, 80, 0), (4, 2, 50)),
    Rows((70, 30, 50, 110, 40, 60) * 2, (1, 6, 2, 4, 9, 3) * 2),
    Rows((70, 30, 50, 110, 40, 60) * 2, (4,) * 12, apart=True),
    Rows((*(70, 30, 50, 110, 40) * 2, 0, 0), (*(1, 6, 2, 4, 3) * 2, 40, 30)),
)


@torch.inference_mode()
def measure_uneven(
    forwards: Mapping[str, ModelForward], even: Mapping[str, ProfiledForwards], *, longest: int
) -> dict[str, UnevenRows]:
    """By member, the cost of rows of unequal length beyond `even`, measured with rows of equal length.

    `longest` is the context of the pool, in tokens; rows hold less where a case does not fit, and cases that still do
    not fit are left out.
    """
    cases = cases_within(longest)
    shapes: dict[tuple[str, int], BatchShape] = {}
    taken: dict[tuple[str, int], list[float]] = {}
    with Progress("stage 2 of 4, uneven rows", _REPEATS * len(cases), unit="shapes", of_several=True) as progress:
        for _ in range(_REPEATS):
            for place, case in enumerate(cases):
                for name, forward in forwards.items():
                    shapes[name, place], run = RowsHeld(forward, case.held, apart=case.apart).run_of(case.counts)
                    seconds = settled_s(run, sum(case.counts), forward.kv_shape.device)
                    taken.setdefault((name, place), []).append(seconds)
                progress.advance()
    return {
        name: _fit_uneven_rows(
            [(shapes[name, place], median(taken[name, place])) for place in range(len(cases))], even[name]
        )
        for name in forwards
    }


def cases_within(longest: int) -> list[Rows]:
    """The forwards that are measured within a context of `longest` tokens."""
    return [fitted for case in _CASES if (fitted := _within(case, longest)) is not None]


def _within(case: Rows, longest: int) -> Rows | None:
    """A case with held tokens reduced in proportion to fit a context; None where its new tokens do not fit."""
    most_held = longest - max(case.counts)
    if most_held < 1:
        return None
    share = min(1.0, most_held / max(case.held))
    return replace(case, held=tuple(max(1, int(share * held)) if held else 0 for held in case.held))


def _fit_uneven_rows(measured: Sequence[tuple[BatchShape, float]], even: ProfiledForwards) -> UnevenRows:
    """Non-negative least squares of the seconds of `[M]` forwards beyond even ones, as shares of their seconds."""
    if not measured:
        return UnevenRows()
    each = [UnevenRows(**{name: 1.0}) for name in UnevenRows.model_fields]
    terms = np.array([[one.seconds(shape) for one in each] for shape, _ in measured], dtype=np.float64)
    seconds = np.array([taken_s for _, taken_s in measured])
    beyond = seconds - np.array([even.even_seconds(shape) for shape, _ in measured])
    per_padding, per_pair, apart, per_gathered = _fit_terms(terms, seconds, beyond).tolist()
    return UnevenRows(
        per_padding_s=per_padding, per_padding_pair_s=per_pair, apart_s=apart, per_gathered_slot_s=per_gathered
    )
