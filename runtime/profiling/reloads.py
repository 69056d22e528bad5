"""How much longer a forward takes when its weights were not read just before.

Other processors share the outer caches, so it is time that counts as well as what this program reads meanwhile: the
other members run until the time is over, the slowest that still fits first.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch

from ...profiles.forward_terms import AfterAway, Reload
from ...progress import Progress
from ..forward.model_forward import ModelForward
from ..timing.clock import Clock
from ..timing.forward_seconds import timed
from .forward_run import TIMED, RowsHeld, median_and_spread, settle
from .forward_shapes import Grid

# New tokens of the longest forward; a longer one has more to multiply than to read.
_MOST_TOKENS = 80
_HELD_TOKENS = 60
REPEATS = 2

Run = Callable[[], object]


def reload_axes(grid: Grid, longest: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Numbers of new tokens, and times away, that forwards of a grid are measured after.

    Args:
        grid: of the profile.
        longest: context of the pool, in tokens; more new tokens than it has room for are left out.
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
) -> dict[str, tuple[AfterAway, ...]]:
    """By member, a forward of each number of new tokens right after another, and after each time away.

    Args:
        forwards: of the members.
        shares: by member, the others that read some of its weights: they do not run while these are away.
        new_tokens: of one row, strictly increasing, >= 1.
        away_s: seconds, strictly increasing, > 0.
        longest: context of the pool, in tokens.
    """
    rows = {name: RowsHeld(forward, [_held(longest)]) for name, forward in forwards.items()}
    runs = {(name, count): rows[name].run_of([count])[1] for name in forwards for count in new_tokens}
    clock = Clock(forward.kv_shape.device for forward in forwards.values())
    singles = _by_seconds(clock, {name: runs[name, new_tokens[0]] for name in forwards})
    taken: dict[tuple[str, int, float], list[float]] = {}
    with Progress("profiling reloads", REPEATS * len(runs), unit="shapes") as progress:
        for _ in range(REPEATS):
            for (name, count), run in runs.items():
                others = {other: one for other, one in singles.items() if other not in (name, *shares[name])}
                device = forwards[name].kv_shape.device
                settle(run)  # after the last times away
                for away in (0.0, *away_s):
                    seconds = _after_away_s(clock, run, away, others, device)
                    taken.setdefault((name, count, away), []).extend(seconds)
                progress.advance()
    return {name: tuple(_cell(key[1:], taken[key]) for key in taken if key[0] == name) for name in forwards}


def _held(longest: int) -> int:
    return min(_HELD_TOKENS, longest // 2)


def _cell(key: tuple[int, float], seconds: Sequence[float]) -> AfterAway:
    middle, spread = median_and_spread(seconds)
    return AfterAway(new_tokens=key[0], away_s=key[1], seconds=middle, spread=spread)


def reload_of(cells: Sequence[AfterAway]) -> Reload:
    """What was away for longer takes no less than after a shorter time, and what differs from that is noise.

    Args:
        cells: of one member, every number of new tokens after every time away, 0 among them.
    """
    new_tokens = sorted({cell.new_tokens for cell in cells})
    away_s = sorted({cell.away_s for cell in cells} - {0.0})
    seconds = {(cell.new_tokens, cell.away_s): cell.seconds for cell in cells}
    lines = []
    for count in new_tokens:
        longer = [seconds[count, away] - seconds[count, 0.0] for away in away_s]
        lines.append(tuple(accumulate(longer, max, initial=0.0))[1:])
    return Reload(new_tokens=tuple(new_tokens), away_s=tuple(away_s), longer_s=tuple(lines))


def _after_away_s(
    clock: Clock, run: Run, away_s: float, others: Mapping[str, tuple[float, Run]], device: torch.device
) -> list[float]:
    """Seconds of a forward that is run again and again, each time after such a while."""
    seconds: list[float] = []

    def run_after() -> None:
        _pass_time(clock, away_s, others)
        seconds.append(timed(run, device))

    settle(run_after)
    for _ in range(TIMED):
        run_after()
    return seconds[-TIMED:]


def _by_seconds(clock: Clock, runs: Mapping[str, Run]) -> dict[str, tuple[float, Run]]:
    """Each member's seconds and run, the slowest first."""
    found = {}
    for name, run in runs.items():
        run()
        start_s = clock.now_s()
        run()
        found[name] = (clock.now_s() - start_s, run)
    return dict(sorted(found.items(), key=lambda one: -one[1][0]))


def _pass_time(clock: Clock, away_s: float, others: Mapping[str, tuple[float, Run]]) -> None:
    """Let other members run; each is done, on its device too, before it is seen what time is left."""
    if not away_s:
        return
    end_s = clock.now_s() + away_s
    for seconds, run in others.values():
        while clock.now_s() + seconds < end_s:
            run()
    while clock.now_s() < end_s:
        pass
