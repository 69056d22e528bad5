"""Token trees: a member drafts one by a forward for each layer, another judges it by one forward over all its nodes.

A drafter's branches are its best tokens by rank, a verifier walks down by its own tokens. Tokens rank by the scores
whose argmax is the next token: logits if greedy, logits / temperature + noise if coupled. So rank 0 is what the member
writes, and under coupled sampling the target's sample is most likely among the branches: it is the argmax of the
target's logits and the same noise, while the most probable tokens without the noise are not likelier draws at this
position. A branch weighs the softmax of the scores.

Letters: B requests, K nodes of one, N contexts of all requests in a forward, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.results import Deferred, Drafted, Failed, Judged, Rows
from ..decoding.session import Session
from ..decoding.trees import ROOT, Branches, Growth, Tree
from ..decoding.world import TreeItem, VerifyItem
from ..traces.contexts.columns import LOG_PROBS
from .caches import TreeRow, ancestry, depths
from .distances import Distances, Judgement, NonFiniteLogitsError, OpDistances, broken, without_room
from .executor import Executor, RollbackProcessor, kept_last
from .sampler import SameToken
from .state import KVMemoryError, PendingView, RequestState


def ranked(scores: Tensor, widths: Sequence[int]) -> list[Branches]:
    """`[N]` the best tokens of each context; equal scores rank by token, and tokens excluded by sampling do not rank.

    `scores` are `[N, V]`, the largest of each context finite; `widths` `[N]` how many at most, >= 1.
    """
    most = min(max(widths), scores.shape[-1])
    least: NDArray[np.float32] = scores.topk(most, dim=-1).values[:, -1:].cpu().numpy()
    weights = torch.log_softmax(scores, dim=-1).cpu().numpy()
    table = scores.cpu().numpy()
    found = []
    for row, bound, weight, width in zip(table, least, weights, widths, strict=True):
        # More than requested where scores tie with the last one.
        tokens = np.flatnonzero((row >= bound) & (row > -np.inf))
        tokens = tokens[np.lexsort((tokens, -row[tokens]))][:width]
        found.append(Branches(tokens.tolist(), LOG_PROBS.round(weight[tokens]).tolist()))
    return found


class _Growing:
    def __init__(self, session: Session, state: RequestState, growth: Growth, feed: list[int]) -> None:
        self.session, self.state, self.growth, self.feed = session, state, growth, feed
        self.broken = False
        self._fed: list[int] = []
        self._rows: dict[int, Tensor] = {}  # by node, the distribution `[V]` after it

    def positions(self) -> list[int]:
        """Output positions of the tokens after the current contexts."""
        return [len(self.session.emitted) + len(self.growth.path_to(node)) for node, _ in self.growth.asks]

    def take(self, rows: Sequence[Tensor], scores: Tensor) -> None:
        """Grow by the member's results at the current contexts: distributions, and scores `[N, V]`."""
        if not all(map(isfinite, scores.amax(dim=-1).tolist())):
            self.broken = True
            return
        asks = self.growth.asks
        self._rows.update({node: row for (node, _), row in zip(asks, rows, strict=True)})
        self.growth.take(ranked(scores, [width for _, width in asks]))

    def next_layer(self) -> tuple[list[int], TreeRow]:
        """(tokens of the nodes that are fed next, their places)."""
        growth, session = self.growth, self.session
        nodes = [node for node, _ in growth.asks]
        self._fed += nodes
        number = {node: index for index, node in enumerate(self._fed)}
        parents = [number.get(growth.parents[node], ROOT) for node in self._fed]
        start = session.num_prompt + len(session.emitted) - 1
        positions = [start + depth for depth in depths(parents)[-len(nodes) :]]
        row = TreeRow(session.request_id, positions, ancestry(parents)[-len(nodes) :])
        return [growth.tokens[node] for node in nodes], row

    def drafted(self, member: str) -> Drafted | Failed:
        growth = self.growth
        if self.broken:
            return Failed(NonFiniteLogitsError(member, self.session.request_id, len(self.session.emitted)))
        kept = growth.kept()
        views = [PendingView(growth.tokens[node], self._rows[growth.parents[node]]) for node in kept]
        places = [self.state.add(view) for view in views]
        return Drafted([growth.tokens[node] for node in kept], places, 0, growth.tree(kept))


class _Row(NamedTuple):
    session: Session
    state: RequestState
    tree: Tree  # pending
    feed: list[int]  # tokens its forward reads, the nodes last
    depth: list[int]  # `[K]` of each node

    @property
    def num_text(self) -> int:
        return self.session.num_prompt + len(self.session.emitted)

    def placed(self) -> TreeRow:
        linear = len(self.feed) - len(self.depth)
        text = range(self.num_text - linear, self.num_text)
        positions = [*text, *(self.num_text - 1 + depth for depth in self.depth)]
        return TreeRow(self.state.request_id, positions, ancestry(self.tree.parents))


class _Walk(NamedTuple):
    """A verifier's walk down a tree."""

    row: _Row
    path: list[int]  # nodes
    contexts: list[int]  # among all N, that of the text and those of the path
    own_token: int  # the token after it

    @staticmethod
    def along(row: _Row, start: int, written: Sequence[int]) -> "_Walk":
        """The walk by the verifier's tokens `[K + 1]` after the text, whose context is `start`, and every node."""
        path: list[int] = []
        while True:
            own_token = written[path[-1] + 1 if path else 0]
            node = row.tree.child(path, own_token, row.session.tokens)
            if node is None:
                return _Walk(row, path, [start, *(start + 1 + node for node in path)], own_token)
            path.append(node)

    def judgement(self, start: int) -> Judgement:
        """The drafter's distributions at the path's contexts, where there are any; `start` is the first one's place."""
        tree, state, session = self.row.tree, self.row.state, self.row.session
        beyond = tree.beyond(self.path)
        children = self.path if beyond is None else [*self.path, beyond]
        endorsed = [state.views[session.places[child]].drafter for child in children]
        return Judgement(start, endorsed, [False] * len(endorsed))


Part = TypeVar("Part", _Growing, _Row)


class TreeProcessor:
    """Drafts and judges trees. Mutates caches, request states and pending views, no session."""

    def __init__(self, executor: Executor, rollback: RollbackProcessor, names: Sequence[str]) -> None:
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._names = names

    def draft(self, level: int, items: Sequence[TreeItem]) -> Rows[Drafted]:
        """`[B]` the tree of each request, or why there is none."""
        sharing = self._executor.sharing
        # Rows of a cache may take the same columns, so the slots of a layer are bounded by all shapes together.
        further = sum(shape.most_fed for shape in {step.shape for _, step in items})
        rows: dict[str, _Growing] = {}
        started: dict[str, Tensor] = {}
        refused: dict[str, KVMemoryError | None] = {}
        for wave in sharing.waves(level, items):
            found = sharing.find(level, [session for session, _ in wave])
            made = self._growing(level, wave)
            rows |= {row.state.request_id: row for row in made}
            fed = [(row.state, len(row.feed)) for row in made]
            refused |= sharing.begin(level, found, fed, [further] * len(made), kept=started)
            started |= self._begin(level, [row for row in made if row.state.request_id not in refused])
        if sharing.on and further:
            # Reserve room for all layers, which another wave, or the end of one, may have taken.
            states = [rows[name].state for name in started]
            refused |= self._manager.reserve(level, states, [1] * len(states), [further - 1] * len(states))
        self._grow(level, self._ordered(level, [rows[name] for name in started if name not in refused]), started)
        return [
            without_room(refused[name]) if name in refused else rows[name].drafted(self._names[level])
            for name in (session.request_id for session, _ in items)
        ]

    def _ordered(self, level: int, rows: Sequence[Part]) -> list[Part]:
        """In the order of the cache's rows."""
        order = self._manager.cache(level).in_order([row.state.request_id for row in rows])
        return [rows[index] for index in order]

    def _growing(self, level: int, items: Sequence[TreeItem]) -> list[_Growing]:
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
        """Feed the tokens that the member lacks of these texts; by request the logits `[V]` that a tree grows from."""
        if not rows:
            return {}
        asked = [row.state for row in rows]
        executor, rows = self._executor, self._ordered(level, rows)
        feeds, states = [row.feed for row in rows], [row.state for row in rows]
        logits = executor.feed(level, states, feeds, kept_last(executor.device(level), feeds, [1] * len(rows)))
        if executor.sharing.on:
            executor.sharing.absorb(level, asked, broken([state.request_id for state in states], logits))
        return {state.request_id: row for state, row in zip(states, logits.unbind(), strict=True)}

    def _grow(self, level: int, rows: list[_Growing], started: Mapping[str, Tensor]) -> None:
        """Grow all trees to their ends; `rows` are in the order of the cache's."""
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
        sampler = self._executor.sampler
        assert isinstance(sampler, SameToken)  # the world rejects trees otherwise
        states = [row.state for row in rows for _ in row.growth.asks]
        distributions = sampler.distributions(logits, states)
        scores = sampler.scores(distributions, states, [place for row in rows for place in row.positions()])
        start = 0
        for row in rows:
            end = start + len(row.growth.asks)
            row.take(distributions[start:end].unbind(), scores[start:end])
            start = end

    def verify(self, level: int, items: Sequence[VerifyItem]) -> Rows[Judged]:
        """`[B]` the verdict on each tree, or why there is none."""
        executor, sharing = self._executor, self._executor.sharing
        results: dict[str, Judged | Failed | Deferred] = {}
        for wave in sharing.waves(level, items):
            found = sharing.find(level, [session for session, _ in wave])
            rows = self._pending(level, wave)
            counts = [(row.state, len(row.feed)) for row in rows]
            refused = sharing.begin(level, found, counts, kept=frozenset(results))
            results |= {request_id: without_room(error) for request_id, error in refused.items()}
            asked = [row.state for row in rows if row.state.request_id not in refused]
            ready = self._ordered(level, [row for row in rows if row.state.request_id not in refused])
            if ready:
                feeds = [row.feed for row in ready]
                keep = kept_last(executor.device(level), feeds, [len(row.depth) + 1 for row in ready])
                trees = [row.placed() for row in ready]
                logits = executor.feed(level, [row.state for row in ready], feeds, keep, trees=trees)
                contexts = [row.state for row in ready for _ in range(len(row.depth) + 1)]
                logits = executor.sampler.distributions(logits, contexts)
                start_s = executor.clock.now_s()
                judged = self._judge(level, ready, logits)
                sharing.absorb(level, asked, [name for name, one in judged.items() if isinstance(one, Failed)])
                results |= judged
                executor.phases.sampling_s += executor.clock.now_s() - start_s
        return [results[session.request_id] for session, _ in items]

    def _pending(self, level: int, items: Sequence[VerifyItem]) -> list[_Row]:
        feeds = self._rollback.before(items, level, verify=True)
        rows = []
        for (session, _), feed in zip(items, feeds, strict=True):
            assert session.tree is not None
            state = self._manager.states[session.request_id]
            rows.append(_Row(session, state, session.tree, feed, depths(session.tree.parents)))
        return rows

    def _judge(self, level: int, rows: Sequence[_Row], logits: Tensor) -> dict[str, Judged | Failed | Deferred]:
        sampler = self._executor.sampler
        assert isinstance(sampler, SameToken)  # the world rejects trees otherwise
        states = [row.state for row in rows for _ in range(len(row.depth) + 1)]
        positions = [len(row.session.emitted) + depth for row in rows for depth in (0, *row.depth)]
        tokens, best = sampler.write(logits, states, positions)
        written, scores = tokens.tolist(), best.tolist()
        walks = []
        start = 0
        results: dict[str, Judged | Failed | Deferred] = {}
        for row in rows:
            end = start + len(row.depth) + 1
            if all(map(isfinite, scores[start:end])):
                walks.append(_Walk.along(row, start, written[start:end]))
            else:
                where = self._names[level], row.state.request_id, len(row.session.emitted)
                results[row.state.request_id] = Failed(NonFiniteLogitsError(*where))
            start = end
        firsts = accumulate((len(walk.contexts) for walk in walks), initial=0)
        judgements = [walk.judgement(first) for walk, first in zip(walks, firsts, strict=False)]
        contexts = [place for walk in walks for place in walk.contexts]
        of_paths = logits[torch.tensor(contexts, dtype=torch.long, device=logits.device)]
        distances = OpDistances(of_paths, judgements)
        for number, walk in enumerate(walks):
            apart = Distances(distances, number, len(judgements[number].endorsed))
            results[walk.row.state.request_id] = self._judged(level, walk, logits, apart)
        return results

    def _judged(self, level: int, walk: "_Walk", logits: Tensor, apart: Distances) -> Judged:
        """Note the path's endorser, and drop the rest of the tree from the caches."""
        row, path = walk.row, walk.path
        state, session = row.state, row.session
        for node, context in zip(path, walk.contexts, strict=False):
            state.views[session.places[node]].judge = logits[context]
        own = PendingView(walk.own_token, logits[walk.contexts[-1]])
        self._manager.keep_path(state, level, row.num_text, path)
        drafter = session.drafters[0]
        if session.cached[drafter] == row.num_text:  # else it lost its memory in the meantime
            fed = [row.tree.fed[node] for node in path[: row.tree.held(path)]]
            self._manager.keep_path(state, drafter, row.num_text, fed)
        return Judged(len(path), walk.own_token, state.add(own), apart, path=tuple(path))
