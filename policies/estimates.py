"""Seconds of members' forwards and worth of rounds: by member and width, measured while a policy runs.

`MemberSeconds` keeps a line by width for each member, or takes stated costs, with which both worlds take the same
steps. A batched operation is charged to its requests in equal shares.

`PerformanceProfiler` keeps, for every number of new tokens of every member, a mean that forgets (SpecRouter,
arXiv:2505.07680, does not describe its profiling). Between cells seconds are interpolated; beyond a member's own cells
they follow the curve of the best known member in proportion, as forwards grow alike with width. Held tokens cost one
slope a member, by least squares within cells (as fixed effects are fitted). `ForwardWatch` feeds it whole operations
from the load, prefills and their chunks included.

`RoundSeconds` finds the window of least seconds per token of one level over another. Letters: L members, N the longest
window, v(k) seconds of a forward over k tokens, E(n) tokens of a round of window n.

`RoundWork` and `WorkPrices` price rounds in a batch of any size. A server's operation also reads prompts of arriving
requests, so its seconds in equal shares say little about a round. Rounds are counted as work (drafted tokens,
verifications and their positions, by member) and priced by the profile, as if no request arrived. What a member below
the target has to read first is priced by token of the answers to come.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf, isfinite, nan
from operator import sub

import numpy as np

from ..base.errors import check_least
from ..decoding.pool import Pool
from ..decoding.seen import Observation, ServerLoad
from ..decoding.steps import Draft, Outcome, Verify
from ..decoding.trees import DraftTree
from .about import Floats
from .blocks import TextToRead


def counts_seconds(reward: str, costs: str | None) -> bool:
    """Whether a round is rewarded by its tokens per second (`speed`), or by its `tokens` alone.

    Raises ValueError for another word, or `costs` where seconds are not used.
    """
    if reward not in {"speed", "tokens"}:
        raise ValueError(f"reward must be speed or tokens, got {reward!r}")
    if reward == "tokens" and costs is not None:
        raise ValueError(f"costs are for reward=speed, got {costs!r} with reward=tokens")
    return reward == "speed"


class MemberSeconds:
    """Costs of a draft and a verification to a request, by member: seconds, or the unit of `stated`.

    Args:
        stated: costs in any unit, > 0, as `draft:1/mid:3/target:10`, of every member with weights (others cost nothing
            unless named); None measures.
        memory: steps that an average reaches back, >= 1.

    Raises:
        ValueError: a text that is not a list of costs of this pool, or `memory` below 1.
    """

    def __init__(self, pool: Pool, stated: str | None = None, *, memory: int = 64) -> None:
        check_least("memory", memory, 1)
        self._stated = None if stated is None else _parse(stated, pool)
        self._kept = 1.0 - 1.0 / memory
        self._drafts: dict[str, _Line] = {}
        self._verifies: dict[str, _Line] = {}

    def charge(self, outcome: Outcome) -> float:
        """Note what this step cost its request, and return it."""
        step = outcome.step
        if self._stated is not None:
            if isinstance(step, Draft):
                return outcome.num_drafted * self._stated[step.model]
            if isinstance(step, DraftTree):  # a forward for each layer
                return step.shape.depth * self._stated[step.model]
            return self._stated[step.model] if isinstance(step, Verify) else 0.0
        seconds = outcome.duration_s / outcome.num_rows
        if isinstance(step, Verify):
            self._note(self._verifies, step.model, outcome.num_judged + 1, seconds)
        elif isinstance(step, Draft) and outcome.num_drafted:
            self._note(self._drafts, step.model, outcome.num_drafted, seconds)
        return seconds

    def draft_s(self, model: str, tokens: int) -> float | None:
        """Of a draft of `tokens` >= 1 tokens, catching up included; None if `model` never drafted.

        Some drafters cost by the round. As long as only one length was seen, seconds are taken to be in proportion.
        """
        if self._stated is not None:
            return tokens * self._stated[model]
        line = self._drafts.get(model)
        return None if line is None else line.above_zero(tokens)

    def verify_s(self, model: str, width: int) -> float | None:
        """Of a verification of `width` >= 1 positions, the verifier's own included; None if it never verified."""
        if self._stated is not None:
            return self._stated[model]
        line = self._verifies.get(model)
        return None if line is None else line.at(width)

    def _note(self, lines: dict[str, "_Line"], model: str, width: int, seconds: float) -> None:
        line = lines.get(model)
        if line is None:
            line = lines[model] = _Line(self._kept)
        line.note(width, seconds)


class _Line:
    """A least-squares line through measured points, older ones with less weight."""

    __slots__ = ("_kept", "_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, x: float, y: float) -> None:
        kept = self._kept
        self._weight = kept * self._weight + 1.0
        self._x = kept * self._x + x
        self._y = kept * self._y + y
        self._xx = kept * self._xx + x * x
        self._xy = kept * self._xy + x * y

    def at(self, x: float) -> float:
        """The line at x, but never falling with x, and at least half the mean: few points say little about a slope."""
        mean_x, mean_y, slope = self._fitted(0.0)
        return max(mean_y + max(slope, 0.0) * (x - mean_x), 0.5 * mean_y)

    def above_zero(self, x: float) -> float:
        """The line at x, but never falling with x and never below zero at 0; through zero where all x were the same."""
        mean_x, mean_y, slope = self._fitted(inf)
        return mean_y + min(max(slope, 0.0), mean_y / mean_x) * (x - mean_x)

    def _fitted(self, otherwise: float) -> tuple[float, float, float]:
        """(mean x, mean y, slope), the slope `otherwise` where all x were the same."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        slope = (self._xy / self._weight - mean_x * mean_y) / variance if variance > 1e-6 else otherwise
        return mean_x, mean_y, slope


def _parse(text: str, pool: Pool) -> dict[str, float]:
    costs: dict[str, float] = {}
    for part in text.split("/"):
        name, _, cost = part.partition(":")
        pool.level(name)
        try:
            seconds = float(cost)
        except ValueError:
            seconds = nan
        if not (isfinite(seconds) and seconds > 0):
            raise ValueError(f"costs must read member:number with numbers > 0, as in draft:1/target:10, got {part!r}")
        if name in costs:
            raise ValueError(f"costs must name a member once, {name} is repeated in {text!r}")
        costs[name] = seconds
    free = {member.name: 0.0 for member in pool.members if member.model_free}
    costs = {**free, **costs}
    missing = [name for name in pool.names if name not in costs]
    if missing:
        raise ValueError(f"costs must name every model of the pool, {', '.join(missing)} is missing in {text!r}")
    return costs


PROMPT = 16  # tokens a row of a first forward, above which the later ones take other seconds
DRAFTS_MEMORY = 64  # drafts that a line by window reaches back
SLOPE_MEMORY = 256  # forwards that the slope over held tokens reaches back
ALIKE = 1e-3  # least difference of two sums of squares to count as two directions: against rounding, not tuned
MOST_READ = 64  # tables that are kept: limits memory, not tuned


class PerformanceProfiler:
    """Seconds of forwards. Mutated by `note`. Letters: L members, K widths.

    Args:
        costs: of a forward by member, as for `MemberSeconds`, at every width; None measures. ValueError if bad.
        memory: forwards that a cell's mean reaches back, >= 1.
        moved: share by which a mean moves before tables are read again, > 0.

    Attributes:
        stated: stated seconds; None: they are measured.
        num_lookups: members that copy and have no forwards, the lowest ones.
    """

    def __init__(self, pool: Pool, costs: str | None = None, *, memory: int = 16, moved: float = 0.05) -> None:
        self._memory, self._moves = memory, moved
        self.stated = None if costs is None else MemberSeconds(pool, costs)
        self.num_lookups = pool.num_free
        self._names = pool.names
        self._prompts = self._prompt_tokens = self._budget_tokens = 0
        self._answers = self._answer_tokens = 0
        # Per member by the new tokens of all rows; see `_Cell`.
        self._cells: list[dict[int, _Cell]] = [{} for _ in pool.names]
        self._slopes = [_Slope() for _ in pool.names]
        # Of every member how often it was read again: when a mean has moved by more than `moved`.
        self._versions = [0] * len(pool.names)
        self._moved: set[int] = set()
        self._read: dict[tuple[int, float, int, int], _Table] = {}

    def known(self, level: int) -> bool:
        """Whether a member has any seconds."""
        return self.stated is not None or bool(self._cells[level])

    def note(self, level: int, *, new_tokens: int, seconds: float, held_tokens: int = 0) -> None:
        """Note one forward over `new_tokens` >= 1 tokens of all its rows, which hold `held_tokens`."""
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
        """Seconds of such a forward as `table` estimates them; infinite for an unknown member."""
        return float(self.table(1, num_rows=num_rows)[level, 0])

    def table(self, widths: int, *, num_rows: int = 1, held_tokens: int = 0) -> Floats:
        """`[L, K]` seconds of a forward over 1 to K = `widths` new tokens a row; infinite where nothing is known.

        The rows hold `held_tokens`, all together, if `note` gets such.
        """
        if self.stated is not None:
            forwards = np.array([self.stated.verify_s(name, 1) for name in self._names], dtype=float)
            return np.repeat(forwards[:, None], widths, axis=1)
        return self._read_all(1.0, widths, num_rows, _bucket(held_tokens))

    def note_prompt(self, *, num_prompt: int, budget: int) -> None:
        """Note a request that begins: tokens of its prompt, and the most that its answer may have."""
        self._prompts += 1
        self._prompt_tokens += num_prompt
        self._budget_tokens += budget

    def note_answer(self, num_tokens: int) -> None:
        """Note the answer of a request that is done."""
        self._answers += 1
        self._answer_tokens += num_tokens

    def entry_s(self, *, num_rows: int = 1) -> Floats:
        """`[L]` seconds of a member's forward over a prompt, per token of an answer; both are means.

        An unfinished answer counts as half its budget, as the first ones done are short. Zero before any is done, if
        `num_rows` is 1: a prompt alone is cheap.
        """
        if self.stated is not None or not (self._answers or (self._prompts and num_rows > 1)):
            return np.zeros(len(self._cells))
        return self.prompts_s(num_rows) / self._mean_answer()

    def joining_s(self, lacking: Sequence[int], remaining: int) -> Floats:
        """`[L]` seconds of a member's forward over the tokens of a request that it lacks, per token still to come.

        `lacking` is `[L]`; up to `PROMPT` tokens are free, since they are read with the next ones. A mean answer is
        expected to come, or the `remaining` tokens of the budget if they are fewer.
        """
        found = np.zeros(len(self._cells))
        if self.stated is None:
            left = min(remaining, self._mean_answer())
            for level, tokens in enumerate(lacking):
                if tokens > PROMPT:
                    found[level] = self._read_all(float(_bucket(tokens)), 1, 1)[level, 0] / left
        return found

    def _mean_answer(self) -> float:
        running = 1.0 - self._answers / self._prompts
        return (self._answer_tokens + running * 0.5 * self._budget_tokens) / self._prompts

    def prompts_s(self, num_rows: int) -> Floats:
        """`[L]` seconds of a forward over `num_rows` prompts of mean length; zero where seconds are stated."""
        if self.stated is not None or not self._prompts:
            return np.zeros(len(self._cells))
        mean = _bucket(round(self._prompt_tokens / self._prompts))  # few values, so that tables are reused
        return self._read_all(float(mean), 1, num_rows)[:, 0]

    def _read_all(self, first: float, widths: int, num_rows: int, held: int = 0) -> Floats:
        """`[L, widths]` seconds from `first` new tokens a row on; the same array as long as no member moved."""
        for level in self._moved:
            self._versions[level] += 1
            for cell in self._cells[level].values():
                cell.read, cell.read_held = cell.mean, cell.held
        self._moved.clear()
        found = self._read.get((num_rows, first, widths, held))
        if found is None:
            found = _Table(len(self._cells), widths)
            if len(self._read) >= MOST_READ:
                self._read.clear()
            self._read[num_rows, first, widths, held] = found
        # With held tokens slopes count too, which every forward moves.
        versions = [sum(self._versions)] * len(self._cells) if held else self._versions
        if found.versions != versions:
            self._fill(found, versions, num_rows, first, held)
        return found.seconds

    def _fill(self, table: "_Table", versions: list[int], num_rows: int, first: float, held: int) -> None:
        # The reference has most cells of all members that take any time; the largest among equals.
        cells = self._cells
        best = max(
            range(len(cells)), key=lambda level: (any(c.read for c in cells[level].values()), len(cells[level]), level)
        )
        reference = _curve(self._cells[best], num_rows, self._slopes[best].fitted, held).narrowed(first)
        follow = (best, versions[best]) != (table.reference, table.versions[best])
        table.seconds = table.seconds.copy()  # callers keep the one they have
        for level, version in enumerate(versions):
            if version != table.versions[level] or (follow and table.follows[level]):
                curve = _curve(self._cells[level], num_rows, self._slopes[level].fitted, held)
                table.seconds[level], table.follows[level] = curve.read(first, table.seconds.shape[1], reference)
        table.versions, table.reference = versions.copy(), best


class _Table:
    """Seconds read for one set of arguments. Mutated by the profiler.

    Attributes:
        seconds: `[L, K]`; replaced, never written to, when it is read again.
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
    """Forwards of one member and number of new tokens: `count` of them up to `memory`, mean seconds and held tokens.

    Seconds depend on the tokens of all rows far more than on the number of rows, so a cell is for tokens, `tokens` in
    the mean. `read` and `read_held` are the means as they were read.
    """

    __slots__ = ("count", "held", "mean", "read", "read_held", "tokens")

    def __init__(self, seconds: float, held_tokens: float, new_tokens: float) -> None:
        self.mean = self.read = seconds
        self.held = self.read_held = held_tokens
        self.tokens = new_tokens
        self.count = 1

    def at(self, held_tokens: float, slope: float) -> float:
        """Seconds as read, at other held tokens; never below zero at none."""
        if not self.read_held:
            return self.read
        return self.read + min(slope, self.read / self.read_held) * (held_tokens - self.read_held)


class _Slope:
    """Seconds by held token, >= 0, from deviations of forwards from their cells' means; older ones count less.

    Wide forwards of one cell also differ by some new tokens: seconds are fitted to both.
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
    """Seconds by new tokens a row, ascending. Lists: few points are read at a time."""

    __slots__ = ("_seconds", "_widths")

    def __init__(self, widths: list[float], seconds: list[float]) -> None:
        self._widths, self._seconds = widths, seconds

    def narrowed(self, least: float) -> "_Curve":
        """The same down to `least` new tokens a row: along its first slope, but no faster than in proportion."""
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
                # A reference that takes no time there cannot scale seconds.
                seconds *= reference.at(width) / edge_s if edge_s > 0.0 else 1.0
            found.append(seconds)
        return found, follows


def _curve(cells: dict[int, _Cell], num_rows: int, slope: float, held: int) -> _Curve:
    tokens = sorted(cells)
    return _Curve([count / num_rows for count in tokens], [cells[count].at(held, slope) for count in tokens])


def _bucket(width: int) -> int:
    """Widths of long forwards in steps of a sixteenth to an eighth of them: few cells hold every prompt."""
    step = 1 << max(0, width.bit_length() - 5)
    return width // step * step


class DraftSeconds:
    """Seconds of a whole Draft of a batch by its window: a part that is the same for all, and one for each token.

    A line for every size of batch, up to a factor of two; for a size not seen that of the nearest one. As long as only
    one window was seen, seconds are taken to be in proportion to it. Mutated by `note`.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def note(self, num_rows: int, window: int, seconds: float) -> None:
        """Note a Draft of `window` >= 1 tokens for `num_rows` requests."""
        size = num_rows.bit_length()
        if size not in self._lines:
            self._lines[size] = _Line(1.0 - 1.0 / DRAFTS_MEMORY)
        self._lines[size].note(window, seconds)

    def of(self, num_rows: int, most: int) -> Floats | None:
        """`[most + 1]` seconds of a Draft of each window, 0 of none; None as long as nothing is known."""
        if not self._lines:
            return None
        size = num_rows.bit_length()
        line = self._lines[min(self._lines, key=lambda known: abs(known - size))]
        return np.array([0.0, *(line.above_zero(window) for window in range(1, most + 1))])


class ForwardWatch:
    """Feeds a profiler with operations of the members at `levels`. Mutated by `look`."""

    __slots__ = ("_levels", "_profiler", "_seen")

    def __init__(self, profiler: PerformanceProfiler, levels: Sequence[int]) -> None:
        self._profiler = profiler
        self._levels = levels
        self._seen: dict[int, tuple[int, int, float]] = {}

    def look(self, load: ServerLoad) -> None:
        """Note each member's latest operation, unless it equals the last; a draft's forwards count as equal."""
        for level in self._levels:
            num_forwards, new_tokens, duration_s = key = (
                load.num_forwards[level],
                load.new_tokens[level],
                load.duration_s[level],
            )
            if not num_forwards or self._seen.get(level) == key:
                continue
            self._seen[level] = key
            self._profiler.note(
                level,
                new_tokens=max(1, round(new_tokens / num_forwards)),
                seconds=duration_s / num_forwards,
                held_tokens=load.context_tokens,
            )


class RoundSeconds:
    """The figures of a search over chains, as lists: it reads single ones, which is slow in arrays. Immutable.

    Arguments are those of `specrouter.search.SearchFigures`; `step_s` is `[L]` the least seconds by which a token more
    lengthens a forward.
    """

    def __init__(
        self, rates: Floats, seconds: Floats, entry_s: Floats, drafting: float = 1.0, undrafted: float = 1.0
    ) -> None:
        self.rates: list[list[float]] = rates.tolist()
        self.seconds: list[list[float]] = seconds.tolist()
        self.entry_s: list[float] = entry_s.tolist()
        self.drafting, self.undrafted = drafting, undrafted
        # An unknown member has infinite seconds.
        self.step_s = [min(map(sub, row[1:], row)) if row[0] < inf else 0.0 for row in self.seconds]

    def round(self, below: int, level: int, below_s: float, least_s: float) -> tuple[int, float]:
        """The window of least (n tau + v(n + 1)) / E(n) over tau = `below_s`, and those seconds per token.

        (0, `least_s`) where none is less.
        """
        rate, forward_s = self.rates[below][level], self.seconds[level]
        added_s = below_s + self.step_s[level]
        window, tokens, power = 0, self.undrafted, self.drafting * rate
        for width in range(1, len(forward_s)):
            if least_s * power <= added_s:
                break
            tokens += power
            power *= rate
            token_s = (width * below_s + forward_s[width]) / tokens
            if token_s < least_s:
                window, least_s = width, token_s
        return window, least_s


class RoundWork:
    """Work of rounds, added up; older rounds may count less. Mutated by `note` and `add`. Letter: L members.

    `tokens` are emitted ones; `drafted`, `verifies` and `positions` are `[L]` by level: drafted tokens, verifications,
    and the positions of these, judged tokens and the verifier's own.
    """

    __slots__ = ("drafted", "positions", "tokens", "verifies")

    def __init__(self, num_members: int) -> None:
        self.tokens = 0.0
        self.drafted = [0.0] * num_members
        self.verifies = [0.0] * num_members
        self.positions = [0.0] * num_members

    def note(self, outcome: Outcome, pool: Pool) -> None:
        """Take in a step."""
        step = outcome.step
        self.tokens += outcome.num_emitted
        if isinstance(step, Draft):
            self.drafted[pool.level(step.model)] += outcome.num_drafted
        elif isinstance(step, Verify):
            level = pool.level(step.model)
            self.verifies[level] += 1.0
            self.positions[level] += outcome.num_judged + 1.0

    def add(self, other: "RoundWork", *, kept: float) -> None:
        """Add a round, after the sums were cut to a share `kept`, 0 to 1."""
        self.tokens = kept * self.tokens + other.tokens
        for mine, theirs in (
            (self.drafted, other.drafted),
            (self.verifies, other.verifies),
            (self.positions, other.positions),
        ):
            for level, amount in enumerate(theirs):
                mine[level] = kept * mine[level] + amount


class WorkPrices:
    """Prices work by measured operations. Mutated by `see` and `end`.

    Args:
        below: names of members below the target that may run; each first reads what its cache lacks.
        costs: of forwards, as for `MemberSeconds`, in place of measured ones; then reading costs nothing.
    """

    def __init__(self, pool: Pool, below: Iterable[str], costs: str | None = None) -> None:
        self._profiler = PerformanceProfiler(pool, costs)
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]
        self._watch = ForwardWatch(self._profiler, self._models)
        self._to_read = {pool.level(name): TextToRead() for name in below if not pool.is_model_free(name)}
        self._names = pool.names

    def see(self, seen: Observation) -> None:
        """A round of a request begins: note seconds of operations, and what members have yet to read."""
        if self._profiler.stated is None:
            self._watch.look(seen.load)
            for level, to_read in self._to_read.items():
                lacking = seen.context_tokens - seen.cached(self._names[level])
                to_read.see(seen.request_id, lacking, seen.remaining)

    def end(self, outcome: Outcome) -> None:
        """Note a request that this step finished."""
        if self._profiler.stated is None:
            for to_read in self._to_read.values():
                to_read.end(outcome.request_id, outcome.num_emitted)

    def seconds(self, work: RoundWork, *, num_rows: int, held_tokens: int) -> float:
        """Of a request's work in a batch of `num_rows` that hold `held_tokens`; infinite for members never seen.

        Requires a request that was seen and is not done.
        """
        widths = 2 + max(
            int(positions / count) for positions, count in zip(work.positions, work.verifies, strict=True) if count
        )
        table = self._profiler.table(widths, num_rows=num_rows, held_tokens=held_tokens)
        total = 0.0
        for level in self._models:
            drafted, verifies = work.drafted[level], work.verifies[level]
            if not (drafted or verifies):
                continue
            forwards: list[float] = table[level].tolist()
            if forwards[0] == inf:
                return inf
            total += drafted * forwards[0]
            if verifies:
                width = work.positions[level] / verifies
                whole = int(width)
                share = width - whole
                total += verifies * ((1.0 - share) * forwards[whole - 1] + share * forwards[whole])
            if level in self._to_read and self._profiler.stated is None:
                token_s = max(forwards[-1] - forwards[0], 0.0) / (widths - 1)
                total += token_s * self._to_read[level].by_answer_token * work.tokens
        return total / num_rows
