"""A recording of contexts, ready for replay by any number of policies, and the world that replays it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..decoding.overlap_run import in_turns
from ..decoding.pool import Pool
from ..decoding.prefix_cache import PrefixCacheSize
from ..decoding.prefix_caches import PoolPrefixes
from ..decoding.results import DraftResults, OverlapResults, VerifyResults
from ..decoding.seen import Start, prefill_before
from ..decoding.session import Session
from ..decoding.world import OverlapItem, TreeItem, VerifyItem
from ..policies.about import ALL_OBSERVABLES, BRANCHES
from ..policies.chain_text import default_policies
from ..policies.oracles import Answer, Foreseen
from ..runs.log import TextQuality
from ..traces.contexts.recording import TrieRecording
from .charges import PrefixCharges, charges_of
from .context_tables import TablesByRequest, drafted_tree, judged_tree, recorded_quality
from .contexts_answers import Fallback, TrieAnswers
from .cost.base import CostModel
from .in_step import InStepReplay
from .recorded import DevicePlacement, recorded_pool
from .rounds_once import Automaton, Lead, TrieWalk
from .world import RecordedWorld


class ReplayWorld(TrieAnswers, RecordedWorld):
    """Answers operations from a trace and charges seconds from a cost model.

    Args:
        tables: the recording.
        pool: its members in level order.
        cost: seconds of forwards.
        fallback: answers beyond the record; None makes the first unknown an error.
        now_s: reads the run's clock; None outside a run, where only operations take time.

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
        self._recording, self._pool = tables.trace, pool
        self._cost = cost
        self._charges = charges_of(cost, pool, now_s)
        self.placement = DevicePlacement()
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}

    def session(self, request_id: str, prefill_before: tuple[bool, ...]) -> Session:
        return self.start(request_id).session(self._pool, request_id, prefill_before)

    @property
    def beside_s(self) -> float | None:
        """Seconds of operations so far outside forwards; None with a cost of forwards alone."""
        return self._charges.beside_s

    def share_prefixes(self, size: PrefixCacheSize) -> None:
        """Give every member a prefix cache, before a request begins; with costs of forwards alone."""
        self._charges = PrefixCharges(self._cost, self._pool, PoolPrefixes(size))

    def open(self, session: Session) -> None:
        """Hold the request's tables."""
        self._open[session.request_id] = self._tables.of(session.request_id)

    def close(self, session: Session) -> None:
        """Forget the request, except the comparison of its text with the trunk."""
        request_id = session.request_id
        self._charges.close(request_id)
        recorded = self._open.pop(request_id)
        anchors = self._anchors.pop(request_id, {})
        quality = recorded_quality(recorded, self._pool.target_level, session.emitted, anchors)
        self.quality[request_id] = quality
        self.num_divergent[request_id] = max(len(session.emitted), quality.trunk_tokens) - quality.same_tokens

    def paths(self, automaton: Automaton, session: Session) -> Iterator[list[Lead]] | None:
        walk = TrieWalk(automaton, self, session)
        return walk.paths() if walk.is_whole else None

    def was_drawn(self, modelled: NDArray[np.integer[Any]]) -> bool:
        """See `RecordedWorld`: many modelled decisions need no draw."""
        return self._fallback is not None and bool(self._fallback.draws)

    def check_tree(self, level: int) -> None:
        """Raises ValueError for a member whose branches are not recorded, and for a cost without seconds of trees."""
        meta, name = self._tables.trace.meta, self._pool.names[level]
        if name not in {tree.model for tree in meta.closure.trees}:
            how = f"record with --trees {name}:4x2x1, or let the policy name its `trees` to agree"
            raise ValueError(f"recording {meta.name} holds no trees by {name}; {how}")
        self._charges.check_trees(level)

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Grow every request's tree, then charge the operation: a forward for each layer."""
        drafted = [drafted_tree(self._open[session.request_id], session, step, level) for session, step in items]
        forwards, seconds = self._charges.draft_trees(level, items, drafted)
        return DraftResults(drafted, forwards, seconds, 1.0, self._charges.counts(level))

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every request's tree, then charge the operation: one forward over all nodes."""
        judged = [judged_tree(self._open[session.request_id], session, level) for session, _ in items]
        forwards, seconds = self._charges.verify(level, items)
        return VerifyResults(judged, forwards, seconds, 1.0, self._charges.counts(level))

    def check_ahead(self) -> None:
        """Members may always work ahead in a recording."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Walk every part in the same trie, then let parts on several devices run at once."""
        return self.placement.placed(levels, in_turns(self, levels, items))


class TrieTables(TablesByRequest):
    """A recording of contexts; see `ReplayTables`."""

    def __init__(self, trace: TrieRecording) -> None:
        super().__init__(trace)
        self.pool = recorded_pool(trace)
        self._fitted = Fallback(trace)
        self.observables = ALL_OBSERVABLES if trace.meta.closure.trees else ALL_OBSERVABLES - BRANCHES
        self.default_start = Start.prefill
        names = default_policies(self.pool)
        # Not for `agree`, whose recording would have to be as deep as the longest possible draft.
        if self.num_free:
            names += ["ngram-model", "suffix"] if self.pool.target_level > self.num_free else ["suffix"]
        if self.pool.target_level > 0:  # also routing alone, if there is a model-free member
            names += ["specrouter", "specrouter,without=copies"] if self.num_free else ["specrouter"]
        self.default_policies = tuple(names)
        # A subclass may answer otherwise.
        self.in_step = InStepReplay(self.pool, self.world) if type(self) is TrieTables else None

    def reordered(self, trace: TrieRecording) -> Self:
        other = super().reordered(trace)
        other.in_step = None if self.in_step is None else InStepReplay(self.pool, other.world)
        return other

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """See `ReplayTables`; a recording of contexts has no start of its own."""
        return prefill_before(start, self.pool, what=f"recording {self.trace.meta.name}")

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """See `ReplayTables`; without answers of a fallback, for any seed."""
        world = self.world(cost, seed=seed, strict=False)
        answers = {}
        for session in world.sessions(prefill_before):
            recorded = self.of(session.request_id)
            answers[session.request_id] = Answer(session, recorded.trunk_tokens, recorded.trunk)
        return Foreseen(world, answers, drawn=False)

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> ReplayWorld:
        fallback = None if strict else self._fitted.reseeded(seed)
        return ReplayWorld(tables=self, pool=self.pool, cost=cost, fallback=fallback, now_s=now_s)

    def answers(self, *, seed: int, strict: bool) -> TrieAnswers:
        return TrieAnswers(tables=self, fallback=None if strict else self._fitted.reseeded(seed))
