"""Carries out the verification of trees: one forward over all their nodes, and a walk by the verifier's own tokens.

Letters: B requests, K nodes of one, N = sum of K + 1 contexts, V vocabulary.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from ...decoding.results import Deferred, Failed, Judged
from ...decoding.session import Session
from ...decoding.trees.growth import Tree
from ...decoding.world import VerifyItem
from ..executor.distances import Distances, Judgement, OpDistances
from ..executor.errors import NonFiniteLogitsError, without_room
from ..executor.executor import Executor, kept_last
from ..executor.rollback_processor import RollbackProcessor
from ..executor.sampler import SameToken
from ..state.request_state import PendingView, RequestState
from .tree_placement import TreeRow, ancestry, depths


class _Row(NamedTuple):
    """One request's part.

    Attributes:
        session: read only.
        state: of the request.
        tree: that is pending.
        feed: tokens its forward reads, the nodes last.
        depth: `[K]` of each node.
    """

    session: Session
    state: RequestState
    tree: Tree
    feed: list[int]
    depth: list[int]

    @property
    def num_text(self) -> int:
        """Tokens of the committed text."""
        return self.session.num_prompt + len(self.session.emitted)

    def placed(self) -> TreeRow:
        """Where its tokens stand."""
        linear = len(self.feed) - len(self.depth)
        text = range(self.num_text - linear, self.num_text)
        positions = [*text, *(self.num_text - 1 + depth for depth in self.depth)]
        return TreeRow(self.state.request_id, positions, ancestry(self.tree.parents))


class TreeVerifier:
    """Mutates caches, request states and pending views, no session.

    Args:
        executor: runs the members.
        rollback: prepares and cleans up their caches.
        names: of the members, by level.
    """

    def __init__(self, executor: Executor, rollback: RollbackProcessor, names: Sequence[str]) -> None:
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._names = names

    def run(self, level: int, items: Sequence[VerifyItem]) -> list[Judged | Failed | Deferred]:
        """`[B]` the verdict on each tree, or why there is none."""
        results: dict[str, Judged | Failed | Deferred] = {}
        for wave in self._executor.sharing.waves(level, items):
            results |= self._run_wave(level, wave, frozenset(results))
        return [results[session.request_id] for session, _ in items]

    def _run_wave(
        self, level: int, items: Sequence[VerifyItem], kept: frozenset[str]
    ) -> dict[str, Judged | Failed | Deferred]:
        """What one forward gives; requests of `kept` ran before it in the same operation."""
        sharing = self._executor.sharing
        found = sharing.find(level, [session for session, _ in items])
        rows = self._rows(level, items)
        refused = sharing.begin(level, found, [(row.state, len(row.feed)) for row in rows], kept=kept)
        results: dict[str, Judged | Failed | Deferred] = {
            request_id: without_room(error) for request_id, error in refused.items()
        }
        ready = [row for row in rows if row.state.request_id not in refused]
        if ready:
            asked = [row.state for row in ready]
            order = self._manager.cache(level).in_order([state.request_id for state in asked])
            ready = [ready[index] for index in order]
            logits = self._logits(level, ready)
            start_s = self._executor.clock.now_s()
            judged = self._judge(level, ready, logits)
            sharing.absorb(level, asked, [name for name, one in judged.items() if isinstance(one, Failed)])
            results |= judged
            self._executor.phases.sampling_s += self._executor.clock.now_s() - start_s
        return results

    def _rows(self, level: int, items: Sequence[VerifyItem]) -> list[_Row]:
        feeds = self._rollback.before(items, level, verify=True)
        rows = []
        for (session, _), feed in zip(items, feeds, strict=True):
            assert session.tree is not None
            state = self._manager.states[session.request_id]
            rows.append(_Row(session, state, session.tree, feed, depths(session.tree.parents)))
        return rows

    def _logits(self, level: int, rows: Sequence[_Row]) -> Tensor:
        """`[N, V]` distributions at the contexts of all rows: the text, then every node."""
        feeds = [row.feed for row in rows]
        keep = kept_last(self._executor.device(level), feeds, [len(row.depth) + 1 for row in rows])
        trees = [row.placed() for row in rows]
        logits = self._executor.feed(level, [row.state for row in rows], feeds, keep, trees=trees)
        return self._executor.sampler.distributions(logits)

    def _judge(self, level: int, rows: Sequence[_Row], logits: Tensor) -> dict[str, Judged | Failed | Deferred]:
        sampler = self._executor.sampler
        assert isinstance(sampler, SameToken)  # the world refuses trees otherwise
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
        judgements = [walk.judgement(index) for index, walk in _numbered(walks)]
        contexts = [place for walk in walks for place in walk.contexts]
        of_paths = logits[torch.tensor(contexts, dtype=torch.long, device=logits.device)]
        distances = OpDistances(of_paths, judgements)
        for number, walk in enumerate(walks):
            apart = Distances(distances, number, len(judgements[number].endorsed))
            results[walk.row.state.request_id] = self._judged(level, walk, logits, apart)
        return results

    def _judged(self, level: int, walk: "_Walk", logits: Tensor, apart: Distances) -> Judged:
        """Note who endorses the path now, and let the caches hold nothing else of the tree."""
        row, path = walk.row, walk.path
        state, session = row.state, row.session
        for node, context in zip(path, walk.contexts, strict=False):
            state.views[session.places[node]].judge = logits[context]
        own = PendingView(walk.own_token, logits[walk.contexts[-1]])
        self._manager.keep_path(state, level, row.num_text, path)
        drafter = session.drafters[0]
        if session.cached[drafter] == row.num_text:  # else its memory was taken in the meantime
            fed = [row.tree.fed[node] for node in path[: row.tree.held(path)]]
            self._manager.keep_path(state, drafter, row.num_text, fed)
        return Judged(len(path), walk.own_token, state.add(own), apart, path=tuple(path))


class _Walk(NamedTuple):
    """A verifier's way down a tree.

    Attributes:
        row: whose tree it is.
        path: nodes.
        contexts: among all N, that of the text and those of the path.
        own_token: what comes after it.
    """

    row: _Row
    path: list[int]
    contexts: list[int]
    own_token: int

    @staticmethod
    def along(row: _Row, start: int, written: Sequence[int]) -> "_Walk":
        """By the tokens `[K + 1]` that the verifier writes after the text, whose context is `start`, and every node."""
        path: list[int] = []
        while True:
            own_token = written[path[-1] + 1 if path else 0]
            node = row.tree.child(path, own_token, row.session.tokens)
            if node is None:
                return _Walk(row, path, [start, *(start + 1 + node for node in path)], own_token)
            path.append(node)

    def judgement(self, start: int) -> Judgement:
        """Who drafted at the contexts of the path, as far as somebody did; `start` is the first one's place."""
        tree, state, session = self.row.tree, self.row.state, self.row.session
        beyond = tree.beyond(self.path)
        children = self.path if beyond is None else [*self.path, beyond]
        endorsed = [state.views[session.places[child]].drafter for child in children]
        return Judgement(start, endorsed, [False] * len(endorsed))


def _numbered(walks: Sequence[_Walk]) -> list[tuple[int, _Walk]]:
    """Each walk with the place of its first context among those of all paths."""
    found = []
    start = 0
    for walk in walks:
        found.append((start, walk))
        start += len(walk.contexts)
    return found
