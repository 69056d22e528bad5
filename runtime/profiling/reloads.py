"""How much longer a forward takes when its weights were not read just before.

Other processors share the outer caches, so it is time that counts as well as what this program reads meanwhile: the
other members run until the time is over, the slowest that still fits first.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from time import perf_counter

import torch

from ...profiles.forward_terms import Reload
from ...progress import Progress
from ..forward.model_forward import ModelForward
from ..timing.forward_seconds import timed
from .forward_run import TIMED, RowsHeld, settle, settled_s
from .forward_shapes import Grid

# New tokens of the longest forward; a longer one has more to multiply than to read.
_MOST_TOKENS = 80
_HELD_TOKENS = 60
_REPEATS = 2

Run = Callable[[], object]


@torch.inference_mode()
def measure_reloads(
    forwards: Mapping[str, ModelForward], shares: Mapping[str, Mapping[str, float]], grid: Grid, *, longest: int
) -> dict[str, Reload]:
    """By member.

    Args:
        forwards: of the members.
        shares: by member, the others that read some of its weights: they do not run while these are away.
        grid: numbers of new tokens, and times away.
        longest: context of the pool, in tokens; more new tokens than it has room for are left out.
    """
    held = min(_HELD_TOKENS, longest // 2)
    counts = [count for count in grid.new_tokens if count <= min(_MOST_TOKENS, longest - held)] or [1]
    rows = {name: RowsHeld(forward, [held]) for name, forward in forwards.items()}
    runs = {(name, count): rows[name].run_of([count])[1] for name in forwards for count in counts}
    singles = _by_seconds({name: runs[name, counts[0]] for name in forwards})
    taken: dict[tuple[str, int, float], list[float]] = {}
    with Progress("profiling reloads", _REPEATS * len(runs), unit="shapes") as progress:
        for _ in range(_REPEATS):
            for (name, count), run in runs.items():
                others = {other: one for other, one in singles.items() if other not in (name, *shares[name])}
                device = forwards[name].kv_shape.device
                settle(run)  # after the last times away
                taken.setdefault((name, count, 0.0), []).append(settled_s(run, 1, device))
                for away_s in grid.away_s:
                    taken.setdefault((name, count, away_s), []).append(_away_s(run, away_s, others, device))
                progress.advance()
    return {name: _reload(name, counts, grid.away_s, taken) for name in forwards}


def _reload(
    name: str,
    counts: Sequence[int],
    away_s: Sequence[float],
    taken: Mapping[tuple[str, int, float], Sequence[float]],
) -> Reload:
    """Medians; what was away for longer takes no less, and what differs from that is noise."""
    lines = []
    for count in counts:
        settled_s = median(taken[name, count, 0.0])
        longer = [median(taken[name, count, away]) - settled_s for away in away_s]
        lines.append(tuple(accumulate(longer, max, initial=0.0))[1:])
    return Reload(new_tokens=tuple(counts), away_s=tuple(away_s), longer_s=tuple(lines))


def _away_s(run: Run, away_s: float, others: Mapping[str, tuple[float, Run]], device: torch.device) -> float:
    """Seconds of a forward that is run again and again, each time after such a while."""
    seconds: list[float] = []

    def run_after() -> None:
        _pass_time(away_s, others)
        seconds.append(timed(run, device))

    settle(run_after)
    for _ in range(TIMED):
        run_after()
    return median(seconds[-TIMED:])


def _by_seconds(runs: Mapping[str, Run]) -> dict[str, tuple[float, Run]]:
    """Each member's seconds and run, the slowest first."""
    found = {}
    for name, run in runs.items():
        run()
        start_s = perf_counter()
        run()
        found[name] = (perf_counter() - start_s, run)
    return dict(sorted(found.items(), key=lambda one: -one[1][0]))


def _pass_time(away_s: float, others: Mapping[str, tuple[float, Run]]) -> None:
    end_s = perf_counter() + away_s
    for seconds, run in others.values():
        while perf_counter() + seconds < end_s:
            run()
    while perf_counter() < end_s:
        pass
