"""Picoseconds of a replica's operations: of each forward, in whole ones."""

from collections.abc import Callable, Sequence

from ....decoding.pool import Pool
from ....decoding.results import Drafted, Forward
from ....decoding.session import Session
from ....decoding.world import DraftItem, VerifyItem
from ....traces.workloads.exact_seconds import PS_PER_S
from ...charges import draft_forwards, later_held
from ...cost.base import CostModel, OperationCost
from ...operation_charges import OperationCharges
from ..clock import to_ps
from ..forward_ps import forward_ps_of, in_whole_ps


class ServingCharges:
    """Charges operations, one after another.

    Seconds that a recording measured of single rounds are those of a lone request and are not asked for: an operation
    costs what `forward_s` says of its forwards, or what the cost says of operations.

    Args:
        cost: seconds.
        pool: its members in level order.
        now_s: reads the replica's clock: weights of a member are away while others run, and while nothing does.
        target_cost: of forwards of the target, in whole picoseconds if they are to be so; None: those of `cost`.
    """

    def __init__(
        self, cost: CostModel, pool: Pool, now_s: Callable[[], float], target_cost: CostModel | None = None
    ) -> None:
        self._cost = in_whole_ps(cost)
        self._draft_ps = forward_ps_of(self._cost)
        self._verify_ps = [self._draft_ps] * pool.target_level + [forward_ps_of(target_cost or self._cost)]
        self._names = pool.names
        self._operations = OperationCharges(cost, pool, now_s) if isinstance(cost, OperationCost) else None

    def close(self, request_id: str) -> None:
        """A request has left the batch."""
        if self._operations is not None:
            self._operations.close(request_id)

    def looked_up(self, num_rows: int) -> int:
        """Of prompt lookups for so many requests."""
        if self._operations is not None:
            return to_ps(self._operations.lookup_s(num_rows))
        return num_rows * to_ps(self._cost.lookup_s)

    def drafted(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> tuple[list[Forward], int]:
        """The forwards of a Draft, and the time of all of it."""
        if self._operations is not None:
            forwards, seconds = self._operations.draft(level, items, drafted)
            return forwards, to_ps(seconds)
        model = self._names[level]
        if len(items) == 1 and self._cost.draft_terms(model) is None:
            return self._row_drafted(level, model, items[0][0], len(drafted[0].tokens))
        forwards, duration_ps = draft_forwards(self._cost, model, items, drafted, level), 0
        for _, _, repeats, each_s in forwards:
            duration_ps += repeats * to_ps(each_s)
        return forwards, duration_ps

    def verified(self, level: int, items: Sequence[VerifyItem]) -> tuple[Forward, int]:
        """The one forward of a Verify, or of a catch-up; each row is fed what `Session.feed` says."""
        if self._operations is not None:
            forward, seconds = self._operations.verify(level, items)
            return forward, to_ps(seconds)
        num_rows, new_tokens, context_tokens = len(items), 0, 0
        for session, _ in items:
            new, held = session.feed(level, verify=True)
            new_tokens += new
            context_tokens += held
        duration_ps = self._verify_ps[level](self._names[level], num_rows, new_tokens, context_tokens)
        return (num_rows, new_tokens, 1, duration_ps / PS_PER_S), duration_ps

    def _row_drafted(self, level: int, model: str, session: Session, length: int) -> tuple[list[Forward], int]:
        """The same forwards as of `draft_forwards`, which need not be asked for seconds first."""
        if not length:
            return [], 0
        new_tokens, held = session.feed(level, verify=False)
        first_ps = self._draft_ps(model, 1, new_tokens, held)
        first = (1, new_tokens, 1, first_ps / PS_PER_S)
        if length == 1:
            return [first], first_ps
        later_ps = self._draft_ps(model, 1, 1, later_held(held + new_tokens, length))
        return [first, (1, 1, length - 1, later_ps / PS_PER_S)], first_ps + (length - 1) * later_ps
