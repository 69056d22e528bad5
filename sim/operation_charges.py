"""What operations cost where the seconds of forwards, and of all that is beside them, were measured in decoding.

A forward is charged by the rows it has: their padding, whether they stand side by side in the cache, and how long ago
its weights were read last. So rows are given out here as the runtime's caches give them out, and the run's clock is
read: whatever passes between two forwards, lookups, other members' forwards and decisions among it, keeps weights away.
"""

from collections.abc import Callable, Iterable, Sequence

from ..decoding.pool import Pool
from ..decoding.results import Drafted, Forward
from ..decoding.trees.world import TreeItem
from ..decoding.world import DraftItem, VerifyItem
from ..profiles.batch_shape import BatchShape
from ..profiles.weights_read import WeightsRead
from .charges import tree_feeds
from .cost.base import Beside, OperationCost


class OperationCharges:
    """Charges operations, one after another; mutated by each.

    Args:
        cost: knows operations.
        pool: its members in level order.
        now_s: reads the run's clock, which stands at the beginning of an operation when that is charged; None outside
            a run, where nothing takes time but what is charged, one operation right after the other.
    """

    def __init__(self, cost: OperationCost, pool: Pool, now_s: Callable[[], float] | None) -> None:
        self._cost = cost
        self._pool = pool
        self._charged_s = 0.0
        self._now_s = now_s or (lambda: self._charged_s)
        self._read = WeightsRead(cost.shares)
        self._rows: dict[int, dict[str, int]] = {}

    def close(self, request_id: str) -> None:
        """Its rows are free."""
        for rows in self._rows.values():
            rows.pop(request_id, None)

    def lookup_s(self, num_rows: int) -> float:
        """Seconds of prompt lookups for so many requests."""
        return self._charge(self._cost.lookups_s(num_rows))

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> tuple[list[Forward], float]:
        """The forwards of a Draft, and the seconds of all of it: one forward a token while any row still drafts."""
        writing = [(item[0], len(row.tokens)) for item, row in zip(items, drafted, strict=True) if row.tokens]
        rows = self._places(level, [session.request_id for session, _ in writing])
        fed = [session.feed(level, verify=False) for session, _ in writing]
        forwards: list[Forward] = []
        if writing:
            forwards.append(self._first(level, fed, rows))
            held = [new + kept for new, kept in fed]
            lengths = [length for _, length in writing]
            for done in range(1, max(lengths)):
                going = [place for place, length in enumerate(lengths) if length > done]
                shape = BatchShape(
                    len(going),
                    len(going),
                    1,
                    max(held[place] for place in going) + done,
                    _apart(rows[place] for place in going),
                )
                forwards.append(
                    (shape.num_rows, shape.new_tokens, 1, self._cost.batch_s(self._name(level), shape, first=False))
                )
        return forwards, self._whole("draft", level, len(items), sum(len(row.tokens) for row in drafted), forwards)

    def draft_trees(
        self, level: int, items: Sequence[TreeItem], drafted: Sequence[Drafted]
    ) -> tuple[list[Forward], float]:
        """The forwards of a DraftTree, one for each layer, and the seconds of all of it.

        What was measured beside the forwards of drafts stands for what is beside those of trees.
        """
        rows = self._places(level, [session.request_id for session, _ in items])
        feeds = list(tree_feeds(items, drafted, level))
        forwards = [self._first(level, feeds[0], rows)]
        widths = [row.tree.widths if row.tree is not None else () for row in drafted]
        for layer, fed in enumerate(feeds[1:]):
            standing = [rows[place] for place, by_layer in enumerate(widths) if len(by_layer) > layer]
            new, longest = sum(count for count, _ in fed), max(count for count, _ in fed)
            shape = BatchShape(len(fed), new, longest, max(count + held for count, held in fed), _apart(standing))
            forwards.append((len(fed), new, 1, self._cost.batch_s(self._name(level), shape, first=False)))
        return forwards, self._whole("draft", level, len(items), sum(len(row.tokens) for row in drafted), forwards)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> tuple[Forward, float]:
        """The forward of a Verify, and the seconds of all of it."""
        rows = self._places(level, [session.request_id for session, _ in items])
        forward = self._first(level, [session.feed(level, verify=True) for session, _ in items], rows)
        judged = sum(len(session.tokens) - session.first_unjudged(level) + 1 for session, _ in items)
        return forward, self._whole("verify", level, len(items), judged, [forward])

    def _first(self, level: int, fed: Sequence[tuple[int, int]], rows: Sequence[int]) -> Forward:
        """The first forward of an operation, whose weights were read a while ago."""
        num_rows = len(fed)
        new_tokens = sum(new for new, _ in fed)
        longest, num_slots = max(new for new, _ in fed), max(new + held for new, held in fed)
        shape = BatchShape(num_rows, new_tokens, longest, num_slots, _apart(rows))
        name = self._name(level)
        away = self._read.away(name, self._now_s())
        seconds = self._cost.batch_s(name, shape, first=True) + self._cost.reloads_s(name, new_tokens, away)
        return (num_rows, new_tokens, 1, seconds)

    def _whole(self, kind: Beside, level: int, num_rows: int, num_tokens: int, forwards: Sequence[Forward]) -> float:
        """Seconds of an operation; what is beside its forwards comes after them."""
        name = self._name(level)
        beside_s = self._cost.beside_s(kind, name, num_forwards=len(forwards), num_rows=num_rows, num_tokens=num_tokens)
        forwards_s = sum(each_s for *_, each_s in forwards)
        if forwards:
            self._read.note(name, self._now_s() + forwards_s)
        return self._charge(forwards_s + beside_s)

    def _charge(self, seconds: float) -> float:
        self._charged_s += seconds
        return seconds

    def _name(self, level: int) -> str:
        return self._pool.names[level]

    def _places(self, level: int, request_ids: Iterable[str]) -> list[int]:
        """Rows of the member's cache; a new request takes the first free one."""
        rows = self._rows.setdefault(level, {})
        for request_id in request_ids:
            if request_id not in rows:
                taken = set(rows.values())
                rows[request_id] = next(row for row in range(len(taken) + 1) if row not in taken)
        return [rows[request_id] for request_id in request_ids]


def _apart(rows: Iterable[int]) -> bool:
    """Whether rows have gaps between them."""
    known = list(rows)
    return max(known) - min(known) >= len(known)
