"""The world that replays a recording of contexts: its answers, and what operations cost.

Where a request's text ends, it is compared with the trunk.
"""

from collections.abc import Callable, Iterator, Sequence

from ...arguments import ArgumentError
from ...decoding.overlap.turns import in_turns
from ...decoding.overlap.world import OverlapItem
from ...decoding.pool import Pool
from ...decoding.prefixes.counts import NO_COUNTS
from ...decoding.prefixes.pool_prefixes import PoolPrefixes
from ...decoding.prefixes.size import PrefixCacheSize
from ...decoding.results import DraftResults, Judged, OverlapResults, VerifyResults, made
from ...decoding.session import READER, Session
from ...decoding.trees.world import TreeItem
from ...decoding.world import DraftItem, VerifyItem
from ...runs.text_quality import TextQuality
from ..charges import draft_forwards, reading_forwards, total_s, tree_forwards, verify_forward
from ..cost.base import CostModel, OperationCost
from ..operation_charges import OperationCharges
from ..placement import Placement
from ..prefix_charges import PrefixCharges
from .agreement_rates import Fallback
from .answers import TrieAnswers
from .recorded_quality import recorded_quality
from .request_tables import TablesByRequest
from .trees import drafted_tree, judged_tree


class ReplayWorld(TrieAnswers):
    """Answers operations from a trace and charges seconds from a cost model.

    Args:
        tables: the recording.
        pool: its members in level order.
        cost: seconds of forwards.
        fallback: answers beyond the record; None makes the first unknown an error.
        now_s: reads the run's clock; None outside a run, where nothing takes time but the operations themselves.

    Attributes:
        placement: where members run; on one device, unless it is set before the run.
    """

    def __init__(
        self,
        *,
        tables: TablesByRequest,
        pool: Pool,
        cost: CostModel,
        fallback: Fallback | None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(tables=tables, fallback=fallback)
        self._pool = pool
        self._cost = cost
        if isinstance(cost, OperationCost) and pool.feature_level is not None:
            reader = pool.names[pool.feature_level]
            raise ArgumentError(
                f"`cost` must charge forwards beside {reader}, {READER}, got {cost.name}, of operations"
            )
        self._charges = OperationCharges(cost, pool, now_s) if isinstance(cost, OperationCost) else None
        self.placement = Placement()
        self._sharing: PrefixCharges | None = None
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}

    def sessions(self, prefill_before: tuple[bool, ...]) -> Iterator[Session]:
        """The requests in file order, each made when it is asked for; `prefill_before` as in `Session`."""
        for record in self._tables.trace.requests:
            yield Session(
                pool=self._pool,
                request_id=record.request_id,
                tag=record.tag,
                prompt=record.prompt,
                budget=record.max_new_tokens,
                eos=self._eos,
                prefill_before=prefill_before,
            )

    def share_prefixes(self, size: PrefixCacheSize) -> None:
        """Let every member have a prefix cache, before a request begins; of costs that know forwards alone."""
        assert self._charges is None
        if self._pool.feature_level is not None:
            raise ArgumentError(
                f"`prefix_cache` does not go with {self._pool.names[self._pool.feature_level]}, {READER}"
            )
        self._sharing = PrefixCharges(self._cost, self._pool, PoolPrefixes(size))

    def open(self, session: Session) -> None:
        """Start at the root of the request's trie."""
        self._open[session.request_id] = self._tables.of(session.request_id)
        session.place = 0

    def close(self, session: Session) -> None:
        """Forget the request, but for how its text compares with the trunk."""
        request_id = session.request_id
        if self._charges is not None:
            self._charges.close(request_id)
        if self._sharing is not None:
            self._sharing.close(request_id)
        recorded = self._open.pop(request_id)
        anchors = self._anchors.pop(request_id, {})
        quality = recorded_quality(recorded, self._pool.target_level, session.emitted, anchors)
        self.quality[request_id] = quality
        self.num_divergent[request_id] = max(len(session.emitted), quality.trunk_tokens) - quality.same_tokens

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Walk every request's trie, then charge the operation."""
        if level < self.num_free:
            looked_up = [self.looked_up(session, step) for session, step in items]
            if self._charges is not None:
                return DraftResults(looked_up, [], self._charges.lookup_s(len(items)))
            return DraftResults(looked_up, [], self._cost.lookup_s * len(items))
        drafted = [self.drafted(session, step, level) for session, step in items]
        if self._sharing is not None:
            forwards = self._sharing.draft(level, items, drafted)
            return DraftResults(drafted, forwards, total_s(forwards), 1.0, self._sharing.counts(level))
        if self._charges is not None:
            forwards, seconds = self._charges.draft(level, items, drafted)
        else:
            forwards = draft_forwards(self._cost, self._pool.names[level], items, drafted, level)
            seconds = total_s(forwards)
        return made(DraftResults, (drafted, forwards, seconds, 1.0, NO_COUNTS))

    def check_tree(self, level: int) -> None:
        """Raises ValueError for a member whose branches are not recorded, and for seconds that know no trees."""
        meta, name = self._tables.trace.meta, self._pool.names[level]
        if name not in {tree.model for tree in meta.closure.trees}:
            raise ValueError(f"recording {meta.name} holds no trees by {name}; record with --trees {name}:4x2x1")
        if self._charges is None and self._cost.draft_terms(name) is not None:
            raise ValueError(
                f"cost {self._cost.name} charges drafts by {name} by the round, which says nothing of trees"
            )

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Grow every request's tree, then charge the operation: a forward for each layer."""
        drafted = [drafted_tree(self._open[session.request_id], session, step, level) for session, step in items]
        if self._sharing is not None:
            forwards = self._sharing.draft_trees(level, items, drafted)
            return DraftResults(drafted, forwards, total_s(forwards), 1.0, self._sharing.counts(level))
        if self._charges is not None:
            forwards, seconds = self._charges.draft_trees(level, items, drafted)
        else:
            forwards = tree_forwards(self._cost, self._pool.names[level], items, drafted, level)
            seconds = total_s(forwards)
        return DraftResults(drafted, forwards, seconds)

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every request's tree, then charge the operation: one forward over all nodes."""
        return self._charged(level, items, [judged_tree(self._open[one.request_id], one, level) for one, _ in items])

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every request's trie, then charge the operation."""
        return self._charged(level, items, [self.judged(session, step, level) for session, step in items])

    def _charged(self, level: int, items: Sequence[VerifyItem], judged: list[Judged]) -> VerifyResults:
        if self._sharing is not None:
            forwards = self._sharing.verify(level, items)
            return VerifyResults(judged, forwards, total_s(forwards), 1.0, self._sharing.counts(level))
        if level == self._pool.feature_level:
            forwards = reading_forwards(self._cost, self._pool.names[level], items, level, [1] * len(items))
            return VerifyResults(judged, forwards, total_s(forwards))
        if self._charges is not None:
            forward, seconds = self._charges.verify(level, items)
        else:
            forward = verify_forward(self._cost, self._pool.names[level], items, level)
            seconds = forward[3]
        return made(VerifyResults, (judged, [forward], seconds, 1.0, NO_COUNTS))

    def check_ahead(self) -> None:
        """Members may always work ahead of one another in a recording."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Walk every part in the same trie, then let parts on several devices run at once."""
        return self.placement.placed(levels, in_turns(self, levels, items))
