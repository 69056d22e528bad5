"""Picoseconds of a replica's operations: of each forward, in whole ones."""

from collections.abc import Callable, Sequence

from ....decoding.pool import Pool
from ....decoding.results import Drafted, Forward
from ....decoding.world import DraftItem, VerifyItem
from ...charges import draft_forwards, verify_forward
from ...cost.base import CostModel, OperationCost
from ...operation_charges import OperationCharges
from ..clock import to_ps
from ..forward_ps import in_whole_ps


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
        self._verifies = [self._cost] * pool.target_level + [target_cost or self._cost]
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
        forwards = draft_forwards(self._cost, self._names[level], items, drafted, level)
        duration_ps = 0
        for _, _, repeats, each_s in forwards:
            duration_ps += repeats * to_ps(each_s)
        return forwards, duration_ps

    def verified(self, level: int, items: Sequence[VerifyItem]) -> tuple[Forward, int]:
        """The one forward of a Verify, or of a catch-up; each row is fed what `Session.feed` says."""
        if self._operations is not None:
            forward, seconds = self._operations.verify(level, items)
            return forward, to_ps(seconds)
        forward = verify_forward(self._verifies[level], self._names[level], items, level)
        return forward, to_ps(forward[3])
