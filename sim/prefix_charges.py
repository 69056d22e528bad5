"""What operations cost where members have prefix caches: what is cached is not fed, and rows may wait for others.

The logic is that of the runtime (`decoding.prefixes`), called at the same moments; blocks hold nothing here.
Letters: B requests of an operation.
"""

from collections.abc import Sequence

from ..decoding.contract import Draft, Verify
from ..decoding.pool import Pool
from ..decoding.prefixes.counts import PrefixCounts
from ..decoding.prefixes.pool_prefixes import PoolPrefixes
from ..decoding.results import Drafted, Forward
from ..decoding.session import Session
from ..decoding.trees.draft_tree import DraftTree
from ..decoding.trees.world import TreeItem
from ..decoding.world import DraftItem, VerifyItem
from .charges import draft_forwards, fed_forward, later_forwards, layer_feeds, verify_forward
from .cost.base import CostModel

Item = tuple[Session, Draft | DraftTree | Verify]


class PrefixCharges:
    """Charges operations, and keeps what their members have read. Mutated by each.

    Args:
        cost: seconds of forwards.
        pool: the members in level order.
        prefixes: their caches.
    """

    def __init__(self, cost: CostModel, pool: Pool, prefixes: PoolPrefixes) -> None:
        self._cost = cost
        self._pool = pool
        self._prefixes = prefixes

    def close(self, request_id: str) -> None:
        """A request refers to nothing more."""
        self._prefixes.release(request_id)

    def counts(self, level: int) -> PrefixCounts:
        """What the operation of a member that has just ended did."""
        return self._prefixes.take_counts(level)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> list[Forward]:
        """The forwards of a Verify: one for each wave."""
        name, forwards = self._pool.names[level], []
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            rows = [items[index] for index in wave]
            self._look_up(level, rows)
            forwards.append(verify_forward(self._cost, name, rows, level))
            self._enter(level, rows)
        return forwards

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> list[Forward]:
        """The forwards of a Draft: those that read, then one a token while any row still drafts."""
        name = self._pool.names[level]
        rows = [(item, len(row.tokens)) for item, row in zip(items, drafted, strict=True) if row.tokens]
        terms = self._cost.draft_terms(name)
        if terms is not None and terms.per_token_s is not None:  # whole drafts: none has a first forward
            return draft_forwards(self._cost, name, items, drafted, level)
        block = None if terms is None else terms.block
        if terms is not None and rows:
            terms.check_fits(name, max(length for _, length in rows))
        forwards: list[Forward] = [] if terms is None or block else [(len(items), 0, 1, terms.per_round_s)]
        held: list[tuple[int, int]] = []
        for wave in self._prefixes.waves(level, [item[0] for item, _ in rows]):
            reading = [rows[index] for index in wave]
            self._look_up(level, [item for item, _ in reading])
            fed = [item[0].feed(level, verify=False) for item, _ in reading]
            held += [(new + kept, length) for (new, kept), (_, length) in zip(fed, reading, strict=True)]
            if block is not None:
                fed = [block.forward(*row, length) for row, (_, length) in zip(fed, reading, strict=True)]
            forwards.append(fed_forward(self._cost, name, fed))
            self._enter(level, [item for item, _ in reading])
        return forwards if block is not None else [*forwards, *later_forwards(self._cost, name, held)]

    def draft_trees(self, level: int, items: Sequence[TreeItem], drafted: Sequence[Drafted]) -> list[Forward]:
        """The forwards of a DraftTree: those that read, then one for each layer of all trees."""
        name, forwards = self._pool.names[level], list[Forward]()
        held = [0] * len(items)
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            rows = [items[index] for index in wave]
            self._look_up(level, rows)
            fed = [session.feed(level, verify=False) for session, _ in rows]
            forwards.append(fed_forward(self._cost, name, fed))
            for index, (new, kept) in zip(wave, fed, strict=True):
                held[index] = new + kept
            self._enter(level, rows)
        return [*forwards, *(fed_forward(self._cost, name, fed) for fed in layer_feeds(held, drafted))]

    def _look_up(self, level: int, items: Sequence[Item]) -> None:
        for session, _ in items:
            self._prefixes.look_up(level, session)

    def _enter(self, level: int, items: Sequence[Item]) -> None:
        for session, _ in items:
            self._prefixes.enter(level, session)
