"""Running estimates of seconds by member, rows and new tokens, and a fit for widths that were not seen.

SpecRouter (arXiv:2505.07680) profiles its pool while it serves and does not say how. Here a cell for every (rows, new
tokens) of every member holds a mean that forgets. Between cells seconds are interpolated; beyond a member's own cells
they follow the curve of the best known member in proportion, for forwards are alike in how they widen: one forward
over a long prompt is enough to guess what a short verification takes.
"""

import numpy as np

from ..member_seconds import MemberSeconds
from ..pool import Pool
from .search import Floats

MEMORY = 16  # forwards that a cell's mean reaches back


class PerformanceProfiler:
    """Seconds of forwards. Mutated by `note`.

    Letters: L members, K widths.

    Args:
        pool: the members.
        costs: of a forward by member, as `member_seconds` takes them, at every width; None measures.

    Raises:
        ValueError: costs that are none of this pool.
    """

    def __init__(self, pool: Pool, costs: str | None = None) -> None:
        self._stated: Floats | None = None
        if costs is not None:
            stated = MemberSeconds(pool, costs)
            self._stated = np.array([stated.verify_s(name, 1) for name in pool.names], dtype=float)
        self._prompts = self._prompt_tokens = self._budget_tokens = 0
        self._answers = self._answer_tokens = 0
        # Per member, (rows, new tokens of all rows) -> mean seconds and how many forwards it is of.
        self._cells: list[_Cells] = [{} for _ in pool.names]

    @property
    def measures(self) -> bool:
        """Whether seconds are measured; else they were stated."""
        return self._stated is None

    def known(self, level: int) -> bool:
        """Whether anything is known of a member."""
        return self._stated is not None or bool(self._cells[level])

    def note(self, level: int, *, num_rows: int, new_tokens: int, seconds: float) -> None:
        """Take in one forward of `num_rows` rows with about `new_tokens` >= 1 each."""
        cells = self._cells[level]
        shape = (num_rows, _bucket(num_rows * new_tokens))
        mean, count = cells.get(shape, (0.0, 0))
        count = min(count + 1, MEMORY)
        cells[shape] = (mean + (seconds - mean) / count, count)

    def narrowest_s(self, level: int, num_rows: int) -> float | None:
        """Seconds of a forward of one new token a row; None if that was never seen."""
        cell = self._cells[level].get((num_rows, _bucket(num_rows)))
        return None if cell is None else cell[0]

    def table(self, widths: int, *, num_rows: int = 1) -> Floats:
        """`[L, K]` seconds of a forward over 1 to K new tokens a row; infinite for a member nothing is known of."""
        if self._stated is not None:
            return np.repeat(self._stated[:, None], widths, axis=1)
        return self._read_all(np.arange(1.0, widths + 1.0), num_rows)

    def note_prompt(self, *, num_prompt: int, budget: int) -> None:
        """Take in a request that begins: its prompt, and the most tokens its answer may have."""
        self._prompts += 1
        self._prompt_tokens += num_prompt
        self._budget_tokens += budget

    def note_answer(self, num_tokens: int) -> None:
        """Take in a request that is done."""
        self._answers += 1
        self._answer_tokens += num_tokens

    def entry_s(self, *, num_rows: int = 1) -> Floats:
        """`[L]` seconds of a member's forward over a prompt, per token of an answer.

        Both are means; before anything is done, an answer counts as half of what it may be.
        """
        if self._stated is not None or not self._prompts:
            return np.zeros(len(self._cells))
        seconds = self._read_all(np.array([self._prompt_tokens / self._prompts]), num_rows)[:, 0]
        if self._answers:
            return seconds * (self._answers / self._answer_tokens)
        return seconds * (2.0 * self._prompts / self._budget_tokens)

    def _read_all(self, at: Floats, num_rows: int) -> Floats:
        curves = [_curve(cells, num_rows) for cells in self._cells]
        # The curve of most cells; the largest member among equals.
        reference = max(reversed(curves), key=lambda curve: len(curve[0]))
        return np.stack([_read(curve, reference, at) for curve in curves])


_Cells = dict[tuple[int, int], tuple[float, int]]
_Curve = tuple[Floats, Floats]  # new tokens a row, ascending, and seconds


def _curve(cells: _Cells, num_rows: int) -> _Curve:
    """Seconds by new tokens a row for so many rows.

    What a forward takes follows from the tokens of all its rows far more than from how many rows they are spread over,
    so cells of other numbers of rows count too, at the width that has as many tokens.
    """
    sums: dict[int, tuple[float, int]] = {}
    for (_, tokens), (mean, count) in cells.items():
        total, number = sums.get(tokens, (0.0, 0))
        sums[tokens] = (total + count * mean, number + count)
    tokens_seen = sorted(sums)
    seconds = [sums[tokens][0] / sums[tokens][1] for tokens in tokens_seen]
    return np.array(tokens_seen, dtype=float) / num_rows, np.array(seconds)


def _read(curve: _Curve, reference: _Curve, at: Floats) -> Floats:
    widths, seconds = curve
    if not len(widths):
        return np.full(len(at), np.inf)
    inside = np.interp(at, widths, seconds)
    if widths[0] <= at[0] and at[-1] <= widths[-1]:
        return inside
    edges = np.clip(at, widths[0], widths[-1])
    return inside * np.interp(at, *reference) / np.interp(edges, *reference)


def _bucket(width: int) -> int:
    """Widths of long forwards in steps of a sixteenth to an eighth of them: few cells hold every prompt."""
    step = 1 << max(0, width.bit_length() - 5)
    return width // step * step
