"""Running estimates of seconds by member, rows and new tokens, and a fit for widths that were not seen.

SpecRouter (arXiv:2505.07680) profiles its pool while it serves and does not say how. Here a cell for every number of
new tokens of every member holds a mean that forgets. Between cells seconds are interpolated; beyond a member's own
cells they follow the curve of the best known member in proportion, for forwards are alike in how they widen: one
forward over a long prompt is enough to guess what a short verification takes.

Held tokens cost too. Forwards of one cell, which differ in what their rows hold, tell how much: one slope a member,
by least squares within cells (as fixed effects are fitted), so that the curve over new tokens may have any shape. Who
tells of no held tokens gets the cells as they are.
"""

from bisect import bisect_right
from math import inf

import numpy as np

from ...decoding.pool import Pool
from ..speed import Floats
from .member_seconds import MemberSeconds

SLOPE_MEMORY = 256  # forwards that the slope over held tokens reaches back
ALIKE = 1e-3  # of two sums of squares, what directions must differ by to be told apart: of rounding, not tuned
MOST_READ = 64  # tables that are kept: of room, not tuned


class PerformanceProfiler:
    """Seconds of forwards. Mutated by `note`.

    Letters: L members, K widths.

    Args:
        pool: the members.
        costs: of a forward by member, as `member_seconds` takes them, at every width; None measures.
        memory: forwards that a cell's mean reaches back, >= 1.
        moved: share by which a mean moves before what was read is read anew, > 0.

    Attributes:
        stated: seconds that were stated; None: they are measured.
        num_lookups: members that copy and have no forwards, the lowest ones.

    Raises:
        ValueError: costs that are none of this pool.
    """

    def __init__(self, pool: Pool, costs: str | None = None, *, memory: int = 16, moved: float = 0.05) -> None:
        self._memory, self._moves = memory, moved
        self.stated = None if costs is None else MemberSeconds(pool, costs)
        self.num_lookups = sum(member.model_free for member in pool.members)
        self._names = pool.names
        self._prompts = self._prompt_tokens = self._budget_tokens = 0
        self._answers = self._answer_tokens = 0
        # Per member by the new tokens of all rows; see `_Cell`.
        self._cells: list[dict[int, _Cell]] = [{} for _ in pool.names]
        self._slopes = [_Slope() for _ in pool.names]
        # Of every member how often it was read anew: when a mean has moved by more than `moved`.
        self._versions = [0] * len(pool.names)
        self._moved: set[int] = set()
        self._read: dict[tuple[int, float, int, int], _Table] = {}

    def known(self, level: int) -> bool:
        """Whether anything is known of a member."""
        return self.stated is not None or bool(self._cells[level])

    def note(self, level: int, *, new_tokens: int, seconds: float, held_tokens: int = 0) -> None:
        """Take in one forward over `new_tokens` >= 1 tokens, those of all its rows, which hold `held_tokens`."""
        cells = self._cells[level]
        tokens = _bucket(new_tokens)
        cell = cells.get(tokens)
        if cell is None:
            cells[tokens] = _Cell(seconds, held_tokens, new_tokens)
            self._moved.add(level)
            return
        if cell.count < self._memory:
            cell.count += 1
        off_s, off_held, off_tokens = seconds - cell.mean, held_tokens - cell.held, new_tokens - cell.tokens
        if off_held:
            self._slopes[level].note(off_held, off_tokens, off_s)
        cell.mean += off_s / cell.count
        cell.held += off_held / cell.count
        cell.tokens += off_tokens / cell.count
        if abs(cell.mean - cell.read) > self._moves * cell.read:
            self._moved.add(level)

    def narrowest_s(self, level: int, num_rows: int) -> float | None:
        """Seconds of a forward of one new token a row; None if that was never seen."""
        cell = self._cells[level].get(_bucket(num_rows))
        return None if cell is None else cell.mean

    def guessed_s(self, level: int, num_rows: int) -> float:
        """Seconds of such a forward as far as others tell; infinite where nothing is known of the member."""
        return float(self.table(1, num_rows=num_rows)[level, 0])

    def table(self, widths: int, *, num_rows: int = 1, held_tokens: int = 0) -> Floats:
        """`[L, K]` seconds of a forward over 1 to K new tokens a row; infinite for a member nothing is known of.

        Args:
            widths: K.
            num_rows: requests that it is for.
            held_tokens: that these hold, all together, if `note` is told of such.
        """
        if self.stated is not None:
            forwards = np.array([self.stated.verify_s(name, 1) for name in self._names], dtype=float)
            return np.repeat(forwards[:, None], widths, axis=1)
        return self._read_all(1.0, widths, num_rows, _bucket(held_tokens))

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

        An answer not done counts as half of what it may be: the first ones done are short. Alone, a prompt is cheap.
        """
        if self.stated is not None or not (self._answers or (self._prompts and num_rows > 1)):
            return np.zeros(len(self._cells))
        running = 1.0 - self._answers / self._prompts
        return self.prompts_s(num_rows) * (self._prompts / (self._answer_tokens + running * 0.5 * self._budget_tokens))

    def prompts_s(self, num_rows: int) -> Floats:
        """`[L]` seconds of a forward over so many prompts of mean length; none where seconds are stated."""
        if self.stated is not None or not self._prompts:
            return np.zeros(len(self._cells))
        mean = _bucket(round(self._prompt_tokens / self._prompts))  # few of them: what was read is kept
        return self._read_all(float(mean), 1, num_rows)[:, 0]

    def _read_all(self, first: float, widths: int, num_rows: int, held: int = 0) -> Floats:
        """`[L, widths]` seconds from `first` new tokens a row on; the same array as long as no member moved."""
        if self._moved:
            self._settle_moved()
        found = self._read.get((num_rows, first, widths, held))
        if found is None:
            found = _Table(len(self._cells), widths)
            if len(self._read) >= MOST_READ:
                self._read.clear()
            self._read[num_rows, first, widths, held] = found
        # Rows that hold tokens follow slopes too, which every forward moves.
        versions = [sum(self._versions)] * len(self._cells) if held else self._versions
        if found.versions != versions:
            self._fill(found, versions, num_rows, first, held)
        return found.seconds

    def _settle_moved(self) -> None:
        for level in self._moved:
            self._versions[level] += 1
            for cell in self._cells[level].values():
                cell.read, cell.read_held = cell.mean, cell.held
        self._moved.clear()

    def _fill(self, table: "_Table", versions: list[int], num_rows: int, first: float, held: int) -> None:
        """Read rows of members that moved, and those that follow another one if that did."""
        # It is the member of most cells, of those that take any time; the largest among equals.
        cells = self._cells
        best = max(
            range(len(cells)), key=lambda level: (any(c.read for c in cells[level].values()), len(cells[level]), level)
        )
        reference = _curve(self._cells[best], num_rows, self._slopes[best].fitted, held).narrowed(first)
        follow = (best, versions[best]) != (table.reference, table.versions[best])
        table.seconds = table.seconds.copy()  # whoever has it keeps what was read
        for level, version in enumerate(versions):
            if version != table.versions[level] or (follow and table.follows[level]):
                curve = _curve(self._cells[level], num_rows, self._slopes[level].fitted, held)
                table.seconds[level], table.follows[level] = curve.read(first, table.seconds.shape[1], reference)
        table.versions, table.reference = versions.copy(), best


class _Table:
    """What was read for one purpose. Mutated by the profiler.

    Attributes:
        seconds: `[L, K]`; replaced, never written to, when it is read anew.
        versions: `[L]` of the members as read; -1: never.
        reference: the member that others follow beyond their own cells; -1: none.
        follows: `[L]` whether a row follows it.
    """

    __slots__ = ("follows", "reference", "seconds", "versions")

    def __init__(self, num_members: int, widths: int) -> None:
        self.seconds: Floats = np.empty((num_members, widths))
        self.versions = [-1] * num_members
        self.reference = -1
        self.follows = [True] * num_members


class _Cell:
    """Forwards of one member over so many new tokens: `count` of them up to `memory`, mean seconds and held tokens.

    What a forward takes follows from the tokens of all its rows far more than from how many rows they are spread over,
    so a cell is of tokens, `tokens` in the mean. `read` and `read_held` are the means as they were read.
    """

    __slots__ = ("count", "held", "mean", "read", "read_held", "tokens")

    def __init__(self, seconds: float, held_tokens: float, new_tokens: float) -> None:
        self.mean = self.read = seconds
        self.held = self.read_held = held_tokens
        self.tokens = new_tokens
        self.count = 1

    def at(self, held_tokens: float, slope: float) -> float:
        """Seconds as read, taken to other held tokens; never below zero without any."""
        if not self.read_held:
            return self.read
        return self.read + min(slope, self.read / self.read_held) * (held_tokens - self.read_held)


class _Slope:
    """Seconds by held token, >= 0, from how forwards are off the means of their cells; older ones with less weight.

    Wide forwards of one cell differ by some new tokens too, and those of a growing batch by both at once: seconds are
    fitted by both.
    """

    __slots__ = ("_held_held", "_held_s", "_held_tokens", "_tokens_s", "_tokens_tokens")

    def __init__(self) -> None:
        self._held_held = self._held_s = self._held_tokens = self._tokens_s = self._tokens_tokens = 0.0

    def note(self, held: float, tokens: float, seconds: float) -> None:
        kept = 1.0 - 1.0 / SLOPE_MEMORY
        self._held_held = kept * self._held_held + held * held
        self._held_tokens = kept * self._held_tokens + held * tokens
        self._held_s = kept * self._held_s + held * seconds
        self._tokens_tokens = kept * self._tokens_tokens + tokens * tokens
        self._tokens_s = kept * self._tokens_s + tokens * seconds

    @property
    def fitted(self) -> float:
        own, other, both = self._held_held, self._tokens_tokens, self._held_tokens
        apart = own * other - both * both
        if apart > ALIKE * own * other:
            return max((self._held_s * other - self._tokens_s * both) / apart, 0.0)
        return max(self._held_s / own, 0.0) if own and not other else 0.0


class _Curve:
    """Seconds by new tokens a row, these ascending. Lists: few points are read at a time."""

    __slots__ = ("_seconds", "_widths")

    def __init__(self, widths: list[float], seconds: list[float]) -> None:
        self._widths, self._seconds = widths, seconds

    def narrowed(self, least: float) -> "_Curve":
        """The same down to `least` new tokens a row: on along its first slope, but no faster than in proportion."""
        widths, seconds = self._widths, self._seconds
        if not widths or widths[0] <= least:
            return self
        slope = (seconds[1] - seconds[0]) / (widths[1] - widths[0]) if len(widths) > 1 else inf
        narrowest = seconds[0] - min(max(slope, 0.0), seconds[0] / widths[0]) * (widths[0] - least)
        return _Curve([least, *widths], [narrowest, *seconds])

    def at(self, width: float) -> float:
        """Interpolated; beyond either end as at that end."""
        widths, seconds = self._widths, self._seconds
        right = bisect_right(widths, width)
        if not right or right == len(widths):
            return seconds[0] if not right else seconds[-1]
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (widths[right] - widths[left])
        return slope * (width - widths[left]) + seconds[left]

    def read(self, first: float, count: int, reference: "_Curve") -> tuple[list[float], bool]:
        """Seconds at `first` and the widths that follow it one by one, and whether any follows the reference."""
        widths = self._widths
        if not widths:
            return [inf] * count, False
        narrowest, widest = widths[0], widths[-1]
        found, follows = [], False
        for index in range(count):
            width = first + index
            seconds = self.at(width)
            if not narrowest <= width <= widest:
                follows = True
                edge_s = reference.at(narrowest if width < narrowest else widest)
                # A reference that takes no time there says nothing of how seconds grow.
                seconds *= reference.at(width) / edge_s if edge_s > 0.0 else 1.0
            found.append(seconds)
        return found, follows


def _curve(cells: dict[int, _Cell], num_rows: int, slope: float, held: int) -> _Curve:
    """Seconds by new tokens a row for so many rows, which hold so many tokens."""
    tokens = sorted(cells)
    return _Curve([count / num_rows for count in tokens], [cells[count].at(held, slope) for count in tokens])


def _bucket(width: int) -> int:
    """Widths of long forwards in steps of a sixteenth to an eighth of them: few cells hold every prompt."""
    step = 1 << max(0, width.bit_length() - 5)
    return width // step * step
