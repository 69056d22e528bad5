"""Carries out a DraftTree: one forward for each layer, over the nodes that the next layer grows from.

Letters: B requests, N contexts of all requests in a forward, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from ...decoding.results import Deferred, Drafted, Failed
from ...decoding.session import Session
from ...decoding.trees.growth import ROOT, Growth
from ...decoding.trees.world import TreeItem
from ..executor.errors import NonFiniteLogitsError, without_room
from ..executor.executor import Executor, kept_last
from ..executor.rollback_processor import RollbackProcessor
from ..executor.sampler import SameToken
from ..state.errors import KVMemoryError
from ..state.request_state import PendingView, RequestState
from .ranked import ranked
from .tree_placement import TreeRow, ancestry, depths


class _Growing:
    """One request's tree while it grows."""

    def __init__(self, session: Session, state: RequestState, growth: Growth, feed: list[int]) -> None:
        self.session, self.state, self.growth, self.feed = session, state, growth, feed
        self.broken = False
        self._fed: list[int] = []
        self._rows: dict[int, Tensor] = {}  # by node, the distribution `[V]` after it

    def positions(self) -> list[int]:
        """Of the tokens that come after the contexts asked for, in the answer."""
        return [len(self.session.emitted) + len(self.growth.path_to(node)) for node, _ in self.growth.asks]

    def take(self, rows: Sequence[Tensor], scores: Tensor) -> None:
        """Grow by what the member says at the contexts asked for: distributions, and scores `[N, V]`."""
        if not all(map(isfinite, scores.amax(dim=-1).tolist())):
            self.broken = True
            return
        asks = self.growth.asks
        self._rows.update({node: row for (node, _), row in zip(asks, rows, strict=True)})
        self.growth.take(ranked(scores, [width for _, width in asks]))

    def next_layer(self) -> tuple[list[int], TreeRow]:
        """Tokens of the nodes that are fed next, and where they stand."""
        growth, session = self.growth, self.session
        nodes = [node for node, _ in growth.asks]
        self._fed += nodes
        number = {node: index for index, node in enumerate(self._fed)}
        parents = [number.get(growth.parents[node], ROOT) for node in self._fed]
        start = session.num_prompt + len(session.emitted) - 1
        positions = [start + depth for depth in depths(parents)[-len(nodes) :]]
        row = TreeRow(session.request_id, positions, ancestry(parents)[-len(nodes) :])
        return [growth.tokens[node] for node in nodes], row

    def drafted(self) -> Drafted:
        """What the tree ends with."""
        growth = self.growth
        kept = growth.kept()
        views = [PendingView(growth.tokens[node], self._rows[growth.parents[node]]) for node in kept]
        places = [self.state.add(view) for view in views]
        return Drafted([growth.tokens[node] for node in kept], places, 0, growth.tree(kept))


class TreeDrafter:
    """Mutates caches and request states, no session.

    Args:
        executor: runs the members.
        rollback: prepares their caches.
        names: of the members, by level.
    """

    def __init__(self, executor: Executor, rollback: RollbackProcessor, names: Sequence[str]) -> None:
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._names = names

    def run(self, level: int, items: Sequence[TreeItem]) -> list[Drafted | Failed | Deferred]:
        """`[B]` the tree of each request, or why there is none."""
        sharing = self._executor.sharing
        # Rows of a cache may take slots side by side, so what each layer takes is bounded by all shapes together.
        further = sum(shape.most_fed for shape in {step.shape for _, step in items})
        rows: dict[str, _Growing] = {}
        started: dict[str, Tensor] = {}
        refused: dict[str, KVMemoryError | None] = {}
        for wave in sharing.waves(level, items):
            found = sharing.find(level, [session for session, _ in wave])
            made = self._rows(level, wave)
            rows |= {row.state.request_id: row for row in made}
            fed = [(row.state, len(row.feed)) for row in made]
            refused |= sharing.begin(level, found, fed, [further] * len(made), kept=started)
            started |= self._begin(level, [row for row in made if row.state.request_id not in refused])
        if sharing.on and further:
            refused |= self._reserve_rest(level, [rows[name] for name in started], further)
        self._grow(level, self._ordered(level, [rows[name] for name in started if name not in refused]), started)
        return [
            without_room(refused[name]) if name in refused else self._result(level, rows[name])
            for name in (session.request_id for session, _ in items)
        ]

    def _reserve_rest(self, level: int, rows: Sequence[_Growing], further: int) -> dict[str, KVMemoryError | None]:
        """Room for all layers, which another wave, or the end of one, may have taken away."""
        return self._manager.reserve(level, [row.state for row in rows], [1] * len(rows), [further - 1] * len(rows))

    def _ordered(self, level: int, rows: Sequence[_Growing]) -> list[_Growing]:
        """In the order of the cache's rows."""
        order = self._manager.cache(level).in_order([row.state.request_id for row in rows])
        return [rows[index] for index in order]

    def _rows(self, level: int, items: Sequence[TreeItem]) -> list[_Growing]:
        feeds = self._rollback.before(items, level, verify=False)
        return [
            _Growing(
                session,
                self._manager.states[session.request_id],
                Growth(step.shape, room=session.room, eos=session.eos),
                feed,
            )
            for (session, step), feed in zip(items, feeds, strict=True)
        ]

    def _begin(self, level: int, rows: Sequence[_Growing]) -> dict[str, Tensor]:
        """Feed what the member lacks of these texts; by request the logits `[V]` that a tree grows from."""
        if not rows:
            return {}
        asked = [row.state for row in rows]
        executor, rows = self._executor, self._ordered(level, rows)
        feeds, states = [row.feed for row in rows], [row.state for row in rows]
        logits = executor.feed(level, states, feeds, kept_last(executor.device(level), feeds, [1] * len(rows)))
        if executor.sharing.on:
            sound = logits.amax(dim=-1).isfinite().tolist()
            broken = [state.request_id for state, is_sound in zip(states, sound, strict=True) if not is_sound]
            executor.sharing.absorb(level, asked, broken)
        return {state.request_id: row for state, row in zip(states, logits.unbind(), strict=True)}

    def _grow(self, level: int, rows: list[_Growing], started: Mapping[str, Tensor]) -> None:
        """Let all trees grow to their ends; rows in the order of the cache's."""
        if not rows:
            return
        executor = self._executor
        logits = torch.stack([started[row.state.request_id] for row in rows])
        while True:
            start_s = executor.clock.now_s()
            self._answer(rows, logits)
            rows = [row for row in rows if row.growth.asks and not row.broken]
            executor.phases.sampling_s += executor.clock.now_s() - start_s
            if not rows:
                return
            tokens, trees = zip(*[row.next_layer() for row in rows], strict=True)
            logits = executor.feed(level, [row.state for row in rows], tokens, slice(None), trees=trees)

    def _answer(self, rows: Sequence[_Growing], logits: Tensor) -> None:
        """Hand the logits `[N, V]` at all contexts that were asked for to their requests."""
        sampler = self._executor.sampler
        assert isinstance(sampler, SameToken)  # the world refuses trees otherwise
        distributions = sampler.distributions(logits)
        states = [row.state for row in rows for _ in row.growth.asks]
        scores = sampler.scores(distributions, states, [place for row in rows for place in row.positions()])
        start = 0
        for row in rows:
            end = start + len(row.growth.asks)
            row.take(distributions[start:end].unbind(), scores[start:end])
            start = end

    def _result(self, level: int, row: _Growing) -> Drafted | Failed:
        if row.broken:
            position = len(row.session.emitted)
            return Failed(NonFiniteLogitsError(self._names[level], row.session.request_id, position))
        return row.drafted()
