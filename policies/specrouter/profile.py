"""Running estimates of seconds by member, rows and new tokens, and a fit for widths that were not seen.

SpecRouter (arXiv:2505.07680) profiles its pool while it serves and does not say how. Here a cell for every (rows, new
tokens) of every member holds a mean that forgets. Between cells seconds are interpolated; beyond a member's own cells
they follow the curve of the best known member in proportion, for forwards are alike in how they widen: one forward
over a long prompt is enough to guess what a short verification takes.

The rows of an operation arrive one by one, each with the seconds of all. A row alone would mislead: in a batch the
seconds follow from the widths of all rows, and a draft runs until its longest row ends. So rows are gathered until the
operation is whole (`OperationTimer`). Nobody learns of the rows that were prefills; the requests that begin after the
operation tell of them.
"""

import numpy as np

from ...decoding.contract import Outcome, Verify
from ...decoding.pool import Pool
from ..parts.member_seconds import MemberSeconds
from ..speed import Floats

MEMORY = 16  # forwards that a cell's mean reaches back
MOVED = 0.05  # share by which a mean moves before what was read is read anew
NOTHING = (-1, False, 0, 0.0)  # what is gathered before the first row of an operation


class PerformanceProfiler:
    """Seconds of forwards. Mutated by `note`.

    Letters: L members, K widths.

    Args:
        pool: the members.
        costs: of a forward by member, as `member_seconds` takes them, at every width; None measures.

    Attributes:
        stated: seconds that were stated; None: they are measured.

    Raises:
        ValueError: costs that are none of this pool.
    """

    def __init__(self, pool: Pool, costs: str | None = None) -> None:
        self.stated = None if costs is None else MemberSeconds(pool, costs)
        self._names = pool.names
        self._prompts = self._prompt_tokens = self._budget_tokens = 0
        self._answers = self._answer_tokens = 0
        # Per member by the new tokens of all rows; see `_Cell`.
        self._cells: list[dict[int, _Cell]] = [{} for _ in pool.names]
        # What was read by what was asked for, until a mean moves by more than `MOVED`.
        self._read: dict[tuple[int, float, int], Floats] = {}

    def known(self, level: int) -> bool:
        """Whether anything is known of a member."""
        return self.stated is not None or bool(self._cells[level])

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
        if self.stated is not None:
            forwards = np.array([self.stated.verify_s(name, 1) for name in self._names], dtype=float)
            return np.repeat(forwards[:, None], widths, axis=1)
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
        if self.stated is not None or not (self._answers or (self._prompts and num_rows > 1)):
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


class OperationTimer:
    """Feeds a profiler with whole operations. Mutated by `note`, `note_prefill` and `settle`.

    Args:
        profiler: is told.
        target: level of the target.
    """

    def __init__(self, profiler: PerformanceProfiler, target: int) -> None:
        self._profiler = profiler
        self._target = target
        self._key: tuple[int, bool, int, float] = NOTHING
        self._settled = False
        self._rows = 0
        self._fed = 0
        self._longest = 0

    def settle(self) -> None:
        """Someone decides: the next row is one of another operation."""
        self._settled = True

    def note_prefill(self, num_prompt: int, *, num_rows: int, seconds: float) -> None:
        """A request begins whose prompt was read in the target's latest operation, of `num_rows` rows."""
        key = (self._target, True, num_rows, seconds)
        if key != self._key:
            self._begin(key)
        self._rows += 1
        self._fed += num_prompt
        self._verified()

    def note(self, level: int, fed: int, outcome: Outcome) -> None:
        """Take in a row that was fed `fed` tokens first."""
        verify = outcome.step.__class__ is Verify
        key = (level, verify, outcome.num_rows, outcome.duration_s)
        if key != self._key or self._settled:
            self._begin(key)
        self._rows += 1
        self._fed += fed
        self._longest = max(self._longest, outcome.num_drafted)
        if verify:
            self._verified()
        elif self._rows == outcome.num_rows:
            if self._longest:
                self._draft(level, self._width(), outcome.duration_s)
            self._key = NOTHING

    def _width(self) -> int:
        return max(1, round(self._fed / self._rows))

    def _begin(self, key: tuple[int, bool, int, float]) -> None:
        self._key = key
        self._settled = False
        self._rows = self._fed = self._longest = 0

    def _verified(self) -> None:
        """One row more of a verification; the last one tells what it took."""
        level, _, num_rows, seconds = self._key
        if self._rows == num_rows:
            self._profiler.note(level, new_tokens=self._fed, seconds=seconds)
            self._key = NOTHING

    def _draft(self, level: int, width: int, seconds: float) -> None:
        """The first forward is fed what the caches lack, the others one token a row."""
        rows, count = self._rows, self._longest
        narrow = self._profiler.narrowest_s(level, rows)
        if width <= 2 or (narrow is None and count > 1):
            self._profiler.note(level, new_tokens=rows, seconds=seconds / count)
        elif narrow is not None and seconds > (count - 1) * narrow:
            self._profiler.note(level, new_tokens=rows * width, seconds=seconds - (count - 1) * narrow)
        elif narrow is None:
            self._profiler.note(level, new_tokens=rows * width, seconds=seconds)
