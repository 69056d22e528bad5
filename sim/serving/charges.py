"""The clock of simulated serving, and charges of operations: whole picoseconds inside, seconds at the interfaces.

Sums of integers are the same in any order, so a closed form of many steps ends at the same instant as the steps.

Where a cost has lines by the tokens held, picoseconds are on lines too: whole ones at the start of a piece, and whole
ones for each token more. A piece is short enough that this rounding changes a forward by at most its share `MOST_ERROR`
and half a picosecond. Elsewhere each forward's seconds are rounded once.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, cast

from ...base.errors import ArgumentError
from ...decoding.pool import Pool
from ...decoding.results import Drafted
from ...decoding.steps import Draft, Verify
from ...decoding.world import DraftItem
from ...traces.workloads.arrival import PS_PER_S
from ..charges import OperationCharges, around_middle, draft_forwards, later_runs
from ..cost.base import ContextLine, CostModel, WrappedCost, held_together
from .limits import SharedPrefix
from .requests import ServedRequest


def to_ps(seconds: float) -> int:
    """Picoseconds nearest to a number of seconds, ties to the even one; raises ValueError unless >= 0 and finite.

    A float of seconds represents each picosecond up to 2^51 of them, which is 37 minutes; above, its own steps are
    wider than one (at a week 116 ps).
    """
    if not 0 <= seconds < inf:
        raise ValueError(f"seconds must be >= 0 and finite, got {seconds!r}")
    return round(seconds * PS_PER_S)


def to_s(ps: int) -> float:
    """The float of seconds nearest to a number of picoseconds."""
    return ps / PS_PER_S


MOST_ERROR = 5e-8
MOST_KEPT = 2**14  # pieces of lines, a few MB


class PsLine(NamedTuple):
    """Picoseconds of a forward by the tokens held: `start_ps + slope_ps x (held - start)` for `start <= held < end`."""

    start: int
    end: float
    start_ps: int
    slope_ps: int

    def ps(self, context_tokens: int) -> int:
        """Of a forward with `context_tokens` held."""
        return self.start_ps + self.slope_ps * (context_tokens - self.start)


class ForwardLines:
    """The lines of a cost in picoseconds."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._latest: dict[tuple[str, int, int], PsLine] = {}

    def ps(self, model: str, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        """Picoseconds of one forward; arguments and errors as of `line`."""
        known = self._latest.get((model, num_rows, new_tokens))
        if known is not None:
            start, end, start_ps, slope_ps = known
            if start <= context_tokens < end:
                return start_ps + slope_ps * (context_tokens - start)
        return self.line(model, num_rows, new_tokens, context_tokens).ps(context_tokens)

    def line(self, model: str, num_rows: int, new_tokens: int, context_tokens: int) -> PsLine:
        """The line that `context_tokens` lies on; arguments and errors as of `CostModel.forward_s`."""
        key = (model, num_rows, new_tokens)
        known = self._latest.get(key)
        if known is not None and known.start <= context_tokens < known.end:
            return known
        line = self._cost.context_line(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        if len(self._latest) >= MOST_KEPT:
            self._latest.clear()
        found = self._latest[key] = _whole(line, context_tokens)
        return found


class WholeSeconds(WrappedCost):
    """A cost with forwards by `ForwardLines`; all else is that of the cost. Exact below 2^51 picoseconds.

    Attributes:
        lines: of its forwards.
    """

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost, cost.name)
        self.lines = ForwardLines(cost)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        return self.lines.ps(model, num_rows, new_tokens, context_tokens) / PS_PER_S


def in_whole_ps(cost: CostModel) -> CostModel:
    """A cost whose forwards take whole picoseconds on lines, if it has lines; else unchanged."""
    return cost if cost.unlined() else WholeSeconds(cost)


def forward_ps_of(cost: CostModel) -> Callable[[str, int, int, int], int]:
    """Picoseconds of one forward, by model, rows, new tokens and tokens held, of a cost as `in_whole_ps` returns it."""
    if isinstance(cost, WholeSeconds):
        return cost.lines.ps

    def forward_ps(model: str, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        asked = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        return to_ps(cost.forward_s(model, **asked))

    return forward_ps


def _whole(line: ContextLine, context_tokens: int) -> PsLine:
    """The piece of a line that `context_tokens` lies in; pieces follow from the line alone."""
    start, end, start_s, slope_s = line
    slope = slope_s * PS_PER_S
    slope_ps = round(slope)
    drift = abs(slope - slope_ps)
    length = MOST_ERROR * start_s * PS_PER_S / drift if drift else inf
    if length < end - start:
        tokens = max(1, int(length))
        begin = start
        start += (context_tokens - start) // tokens * tokens
        end = min(end, start + tokens)
        start_s += slope_s * (start - begin)
    return PsLine(start, end, to_ps(start_s), slope_ps)


class SharedPrefixCost(WrappedCost):
    """Seconds of forwards whose rows share a prefix, which attention reads once, and not once for each row.

    Engines that do so have the blocks of that text once, in the prefix cache. vLLM calls it cascade attention
    (`use_cascade_attention`): in a step in which every running request refers to the same first blocks, the kernel
    reads those once for all rows, and then each row's own. Multi-level cascades (FlashInfer; Hydragen,
    arXiv:2402.05099) do it for every group of rows. Rows still attend to all of it: only bytes are saved, not
    arithmetic.

    Args:
        cost: of forwards.
        rule: when a prefix is read once.
        common_tokens: returns the tokens of the rows' common prefix, >= 0; called at each forward. With groups: the
            rows' total tokens held, less those that must be read.

    Raises:
        ArgumentError: a cost that does not distinguish tokens read from tokens attended to.
    """

    def __init__(self, cost: CostModel, rule: SharedPrefix, common_tokens: Callable[[], int]) -> None:
        if not cost.knows_reads:
            raise ArgumentError(
                "shared_prefix of a replica needs a cost that tells what is read, a device of the sheet or a FILE.json "
                f"with grids or lines; {cost.name} does not"
            )
        super().__init__(cost, cost.name)
        self._each = in_whole_ps(cost)
        self._rule = rule
        self._common_tokens = common_tokens

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Never more than where each row reads the text for itself."""
        each_s = self._each.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        spared = self._spared_tokens(num_rows)
        if not spared:
            return each_s
        read = context_tokens - spared
        assert read * (num_rows - 1) >= spared, "a row that does not hold the text it shares"
        once_s = self._cost.shared_forward_s(
            model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens, read_tokens=read
        )
        return min(once_s, each_s)  # `each_s` is rounded by pieces of lines

    def _spared_tokens(self, num_rows: int) -> int:
        """Tokens held that a forward need not read."""
        if num_rows < self._rule.least_rows:
            return 0
        common = self._common_tokens()
        if self._rule.groups:
            return common
        return (num_rows - 1) * common if common >= self._rule.least_tokens else 0


class ServingCharges:
    """Charges operations, in order.

    Recorded seconds of single rounds are those of a lone request and are not used: an operation takes `forward_s` of
    its forwards, or the cost's seconds of operations.

    Args:
        cost: seconds.
        pool: its members in level order.
        now_s: reads the replica's clock: weights of a member are not read while others run, and while nothing does.
        target_cost: of forwards of the target, perhaps in whole picoseconds; None: those of `cost`.

    Attributes:
        forward_ps: of one forward, by model, rows, new tokens and tokens held.
        lines: of these; None for a cost without lines.
        are_forwards: whether an operation takes only its forwards.
    """

    def __init__(
        self, cost: CostModel, pool: Pool, now_s: Callable[[], float], target_cost: CostModel | None = None
    ) -> None:
        self._cost = in_whole_ps(cost)
        self.forward_ps = forward_ps_of(self._cost)
        self._verify_ps = [self.forward_ps] * pool.target_level + [forward_ps_of(target_cost or self._cost)]
        self._names, self._target = pool.names, pool.target_level
        plain = [not cost.longest and cost.draft_terms(name) is None for name in pool.names]
        self.lines = self._cost.lines if isinstance(self._cost, WholeSeconds) else None
        self.are_forwards = target_cost is None and not cost.knows_operations and all(plain[pool.num_free :])
        self._by_forwards = [is_plain and not cost.knows_operations for is_plain in plain]
        self._operations = OperationCharges(cost, pool, now_s) if cost.knows_operations else None

    def close(self, request_id: str) -> None:
        """Forget a request that has left the batch."""
        if self._operations is not None:
            self._operations.close(request_id)

    def looked_up(self, num_rows: int) -> int:
        """Picoseconds of prompt lookups for `num_rows` requests."""
        if self._operations is not None:
            return to_ps(self._operations.lookup_s(num_rows))
        return to_ps(self._cost.lookups_s(num_rows))

    def drafted(
        self, level: int, rows: Sequence[ServedRequest], drafted: Sequence[Drafted], fed: tuple[int, int] | None
    ) -> tuple[int, int, int]:
        """Forwards of a Draft, tokens fed in all of them, and picoseconds of the whole.

        `fed` is the sum of `ServedRequest.feed` over rows, if known.
        """
        if not self._by_forwards[level]:
            return self._drafted_otherwise(level, [(row, cast(Draft, row.step)) for row in rows], drafted)
        longest = shortest = len(drafted[0][0])
        lengths = [longest]
        if len(rows) > 1:
            lengths = [len(row[0]) for row in drafted]
            longest, shortest = max(lengths), min(lengths)
        if fed is None or not shortest:
            rows = [session for session, length in zip(rows, lengths, strict=True) if length]
            each = [session.feed(level, verify=False) for session in rows]
            fed = sum([new for new, _ in each]), sum([held for _, held in each])
            lengths = [length for length in lengths if length]
            if not rows:
                return 0, 0, 0
        (new_tokens, held_tokens), model, forward_ps = fed, self._names[level], self.forward_ps
        count = len(rows)
        duration_ps = forward_ps(model, count, new_tokens, held_tokens)
        if longest == 1:
            return longest, new_tokens, duration_ps
        if longest == shortest:
            for middle, times in around_middle(2 * (held_tokens + new_tokens) + count * (longest - 2), longest - 1):
                duration_ps += times * forward_ps(model, count, count, middle)
            return longest, new_tokens + (longest - 1) * count, duration_ps
        contexts = [session.num_text + len(session.tokens) for session in rows]
        for some, repeats, held_tokens in later_runs(lengths, contexts):
            duration_ps += repeats * forward_ps(model, some, some, held_tokens)
            new_tokens += repeats * some
        return longest, new_tokens, duration_ps

    def _drafted_otherwise(
        self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]
    ) -> tuple[int, int, int]:
        """The same, where the cost has seconds of operations or drafts, or depends on tokens held by each row."""
        if self._operations is not None:
            forwards, seconds = self._operations.draft(level, items, drafted)
            duration_ps = to_ps(seconds)
        else:
            forwards, duration_ps = draft_forwards(self._cost, self._names[level], items, drafted, level), 0
            for _, _, repeats, each_s in forwards:
                duration_ps += repeats * to_ps(each_s)
        num_forwards = sum([repeats for _, new, repeats, _ in forwards if new])
        return num_forwards, sum([repeats * new for _, new, repeats, _ in forwards]), duration_ps

    def verified(
        self, level: int, rows: Sequence[ServedRequest], fed: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """Tokens fed in the one forward of a Verify or a catch-up, and its picoseconds; `fed` as in `drafted`."""
        if fed is not None and self._by_forwards[level]:
            return fed[0], self._verify_ps[level](self._names[level], len(rows), *fed)
        if self._operations is not None:
            (forward,), seconds = self._operations.verify(level, [(row, cast(Verify, row.step)) for row in rows])
            return forward[1], to_ps(seconds)
        each, name = [row.feed(level, verify=True) for row in rows], self._names[level]
        new_tokens, held = sum([new for new, _ in each]), [held for _, held in each]
        held_tokens = sum(held) if self._by_forwards[level] else held_together(self._cost, name, held)
        return new_tokens, self._verify_ps[level](name, len(rows), new_tokens, held_tokens)
