"""A few shapes of a profile measured again, to see whether its seconds still hold."""

from collections.abc import Mapping, Sequence

from ...profiles.profile import Shape
from ...progress import Progress, quiet
from ..forward.model_forward import ModelForward
from .forward_run import forwards_run
from .forward_shapes import Grid, measure_forwards

# Shapes measured again stand after about so many tokens, and have at most so many new ones a row.
_CONTEXT_TOKENS, _MOST_NEW_TOKENS = 60, 20

# Seconds that measuring again may take, and how often each shape is timed at least and at most.
_SECONDS, _LEAST_REPEATS, _MOST_REPEATS = 4.0, 3, 15


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
