"""Running estimates of seconds by member, rows and new tokens, and a fit for widths that were not seen.

SpecRouter (arXiv:2505.07680) profiles its pool while it serves and does not say how. Here a cell for every (rows, new
tokens) of every member holds a mean that forgets. Between cells seconds are interpolated; beyond a member's own cells
they follow the curve of the best known member in proportion, for forwards are alike in how they widen: one forward
over a long prompt is enough to guess what a short verification takes.
"""

import numpy as np

from ...decoding.pool import Pool
from ..parts.member_seconds import MemberSeconds
from .search import Floats

MEMORY = 16  # forwards that a cell's mean reaches back
MOVED = 0.05  # share by which a mean moves before what was read is read anew


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
        # Per member by the new tokens of all rows; see `_Cell`.
        self._cells: list[dict[int, _Cell]] = [{} for _ in pool.names]
        # What was read by what was asked for, until a mean moves by more than `MOVED`.
        self._read: dict[tuple[int, float, int], Floats] = {}

    @property
    def measures(self) -> bool:
        """Whether seconds are measured; else they were stated."""
        return self._stated is None

    def known(self, level: int) -> bool:
        """Whether anything is known of a member."""
        return self._stated is not None or bool(self._cells[level])

    def note(self, level: int, *, new_tokens: int, seconds: float) -> None:
        """Take in one forward over `new_tokens` >= 1 tokens, those of all its rows."""
        cells = self._cells[level]
        tokens = _bucket(new_tokens)
        cell = cells.get(tokens)
        if cell is None:
            cells[tokens] = _Cell(seconds)
            self._read.clear()
            return
        if cell.count < MEMORY:
            cell.count += 1
        cell.mean += (seconds - cell.mean) / cell.count
        if abs(cell.mean - cell.read) > MOVED * cell.read:
            self._read.clear()

    def narrowest_s(self, level: int, num_rows: int) -> float | None:
        """Seconds of a forward of one new token a row; None if that was never seen."""
        cell = self._cells[level].get(_bucket(num_rows))
        return None if cell is None else cell.mean

    def table(self, widths: int, *, num_rows: int = 1) -> Floats:
        """`[L, K]` seconds of a forward over 1 to K new tokens a row; infinite for a member nothing is known of."""
        if self._stated is not None:
            return np.repeat(self._stated[:, None], widths, axis=1)
        return self._read_all(1.0, widths, num_rows)

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
        """`[L]` seconds of a member's forward over a prompt, per token of an answer; both are means.

        An answer that is not done counts as half of what it may be: those that are done first are the short ones.
        Alone, reading a first prompt is cheap enough to find out.
        """
        if self._stated is not None or not (self._answers or (self._prompts and num_rows > 1)):
            return np.zeros(len(self._cells))
        mean = _bucket(round(self._prompt_tokens / self._prompts))  # few of them: what was read is kept
        running = 1.0 - self._answers / self._prompts
        return self._read_all(float(mean), 1, num_rows)[:, 0] * (
            self._prompts / (self._answer_tokens + running * 0.5 * self._budget_tokens)
        )

    def _read_all(self, first: float, widths: int, num_rows: int) -> Floats:
        """`[L, widths]` seconds from `first` new tokens a row on."""
        found = self._read.get((num_rows, first, widths))
        if found is not None:
            return found
        if not self._read:
            for cells in self._cells:
                for cell in cells.values():
                    cell.read = cell.mean
        curves = [_curve(cells, num_rows) for cells in self._cells]
        # The curve of most cells; the largest member among equals.
        reference = _narrowed(max(reversed(curves), key=lambda curve: len(curve[0])), first)
        at = np.arange(first, first + widths)
        found = self._read[num_rows, first, widths] = np.stack([_read(curve, reference, at) for curve in curves])
        return found


class _Cell:
    """Forwards of one member over so many new tokens: mean seconds, `count` of them up to `MEMORY`, the mean as read.

    What a forward takes follows from the tokens of all its rows far more than from how many rows they are spread over,
    so a cell is of tokens.
    """

    __slots__ = ("count", "mean", "read")

    def __init__(self, seconds: float) -> None:
        self.mean = self.read = seconds
        self.count = 1


_Curve = tuple[Floats, Floats]  # new tokens a row, ascending, and seconds


def _curve(cells: dict[int, _Cell], num_rows: int) -> _Curve:
    """Seconds by new tokens a row for so many rows."""
    tokens = sorted(cells)
    return np.array(tokens, dtype=float) / num_rows, np.array([cells[count].read for count in tokens])


def _narrowed(curve: _Curve, least: float) -> _Curve:
    """The same curve down to `least` new tokens a row: on along its first slope, but no faster than in proportion."""
    widths, seconds = curve
    if not len(widths) or widths[0] <= least:
        return curve
    slope = (seconds[1] - seconds[0]) / (widths[1] - widths[0]) if len(widths) > 1 else np.inf
    narrowest = seconds[0] - min(max(slope, 0.0), seconds[0] / widths[0]) * (widths[0] - least)
    return np.concatenate([[least], widths]), np.concatenate([[narrowest], seconds])


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
