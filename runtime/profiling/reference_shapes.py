"""A few forwards of a profile measured again, settled and after times away, to see whether its seconds still hold."""

from collections.abc import Mapping, Sequence

from ...profiles.forward_terms import AfterAway
from ...profiles.profile import Shape
from ...progress import Progress, quiet
from ..forward.model_forward import ModelForward
from .forward_run import forwards_run
from .forward_shapes import Grid, measure_forwards
from .reloads import REPEATS, measure_after_away

# Shapes measured again stand after about so many tokens, and have at most so many new ones a row.
_CONTEXT_TOKENS, _MOST_NEW_TOKENS = 60, 20

# Seconds that measuring again may take, and how often each shape is timed at least and at most.
_SECONDS, _LEAST_REPEATS, _MOST_REPEATS = 4.0, 3, 15

# Forwards after times away are those of one token and of about so many, after about so long, as decoding has them.
_FEW_TOKENS, _AWAY_S = 5, 0.002


def reference_grid(shapes: Sequence[Shape]) -> Grid:
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
        grid = Grid(rows=few_rows, new_tokens=tuple(counts), context_tokens=(context,))
        if (_LEAST_REPEATS + 1) * _round_s(shapes, grid) <= _SECONDS:
            return grid
        counts.pop()
    return Grid(rows=few_rows, new_tokens=tuple(counts), context_tokens=(context,))


def _among(shapes: Sequence[Shape], grid: Grid) -> dict[tuple[str, int, int, int], Shape]:
    """Those that a grid holds too."""
    longest = max(shape.context_tokens + shape.new_tokens for shape in shapes)
    asked = {(rows, new, context) for rows, context, new in grid.shapes(longest)}
    return {shape.key: shape for shape in shapes if shape.key[1:] in asked}


def _round_s(shapes: Sequence[Shape], grid: Grid) -> float:
    """Seconds of a round over all members."""
    asked = _among(shapes, grid).values()
    return sum(shape.seconds * forwards_run(shape.rows * shape.new_tokens, shape.seconds) for shape in asked)


def measure_again(
    forwards: Mapping[str, ModelForward], shapes: Sequence[Shape]
) -> dict[str, list[tuple[Shape, Shape]]]:
    """Measure a few of a profile's shapes as it measured them: by member, each shape then and now.

    Args:
        forwards: by member, those of the profile.
        shapes: of these members, as measured then.
    """
    grid = reference_grid(shapes)
    then = _among(shapes, grid)
    longest = max(shape.context_tokens + shape.new_tokens for shape in then.values())
    repeats = max(_LEAST_REPEATS, min(_MOST_REPEATS, int(_SECONDS / _round_s(shapes, grid)) - 1))
    with Progress("measuring some of the profile again"), quiet():
        measured = measure_forwards(forwards, grid, longest=longest, repeats=repeats)
    pairs: dict[str, list[tuple[Shape, Shape]]] = {name: [] for name in forwards}
    for now in measured.shapes:
        if now.key in then:
            pairs[now.member].append((then[now.key], now))
    return {name: found for name, found in pairs.items() if found}


def reference_times(then: Mapping[str, Sequence[AfterAway]]) -> tuple[list[int], list[float]]:
    """Numbers of new tokens and times away that are measured again, as many as time allows, one of each at least.

    Args:
        then: what was measured, by member; of each the same.
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
    """Seconds of measuring these again."""
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
    """Measure a few of a profile's forwards after times away as it measured them: by member, each then and now.

    Args:
        forwards: by member, those of the profile.
        shares: by member, the others that read some of its weights.
        then: of these members, as measured then.
        longest: context of the pool, in tokens.
    """
    with Progress("measuring some of the profile again"), quiet():
        found = measure_after_away(forwards, shares, *reference_times(then), longest=longest)
    before = {(name, cell.new_tokens, cell.away_s): cell for name, cells in then.items() for cell in cells}
    return {
        name: [
            (before[key], cell)
            for cell in cells
            if cell.away_s and (key := (name, cell.new_tokens, cell.away_s)) in before
        ]
        for name, cells in found.items()
    }
