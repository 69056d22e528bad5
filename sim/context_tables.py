"""One recorded request of contexts as plain lists, with look-ups of tokens, trees, facts and the quality of a text.

A list look-up is several times faster than reading one element of a numpy array, and replay is nothing but look-ups.
Lists are built when a request starts and shared by all sessions of it; rarely used ones are built on demand. Letters: N
nodes, L levels, V views: those of the members by level, then of a drafter from the target's states at each further
depth, from 2 on (`traces.contexts.trie`).
"""

from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from itertools import pairwise, product
from math import exp, nan
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import Drafted, Judged, made
from ..decoding.rules import Facts, Rule, Signal
from ..decoding.session import Session
from ..decoding.trees import ROOT, Branches, DraftTree, Growth
from ..runs.log import TextQuality, same_counts
from ..traces.contexts.meta import TrieMeta
from ..traces.contexts.recording import TrieRecording
from ..traces.contexts.trie import TrieRequest
from .recorded import UnrecordedTreeError

MOST_KEPT_NODES = 1 << 18  # of tables that no running request holds: some 40 MB with three models


class SharedIntegers:
    """Lists of whole numbers from -1 up, in which equal numbers are one object: 8 bytes each instead of 40."""

    def __init__(self) -> None:
        self._objects: NDArray[np.object_] = np.array([-1], dtype=object)

    def to_list(self, numbers: NDArray[np.integer[Any]]) -> list[Any]:
        """As `ndarray.tolist`."""
        most = int(numbers.max(initial=0))
        if most + 1 >= len(self._objects):
            # -1 stands last, where numpy looks for index -1.
            self._objects = np.array([*range(2 * most + 2), -1], dtype=object)
        listed: list[Any] = self._objects[numbers].tolist()
        return listed


class TargetVerdict(Judged):
    """The target's verdict by exact match where nothing is pending, or on one member's draft from the trunk on.

    Attributes:
        written: tokens that it commits where there is room, the accepted ones and its own, up to one that ends the
            text; not to be changed.
        ends: whether the last one does.
    """

    written: list[int]
    ends: bool


class ChainDraft(Drafted):
    """The start of a chain as a draft.

    Attributes:
        verdicts: of members, by exact match, by level; of the target where nothing else is pending.
    """

    verdicts: dict[int, Judged]


class WrittenChain:
    """Tokens that one member writes from a node on.

    Attributes:
        tokens, places: in their order, as in `Drafted`.
        kept: leading ones that the target would also have written.
        ends: whether the last one ends the text.
        tvd: total variation distances to the target at these tokens, up to the first that it would not have written.
        drafts, verdicts: by length, results of a draft and of the target's judgement of it, made on demand; not to be
            changed.
    """

    __slots__ = ("drafts", "ends", "kept", "places", "tokens", "tvd", "verdicts")

    def __init__(self, tokens: list[int], places: list[int], kept: int, tvd: tuple[float, ...], *, ends: bool) -> None:
        self.tokens, self.places, self.kept, self.tvd, self.ends = tokens, places, kept, tvd, ends
        self.drafts: dict[int, ChainDraft] = {}
        self.verdicts: dict[int, TargetVerdict] = {}


class RequestTables:
    """One request's trie as the lists of each view (a model-free member has empty ones).

    Attributes:
        request_id: of the recording.
        num_nodes: N.
        trunk: nodes of the trunk from the root down.
        trunk_tokens: the tokens of the trunk, which the target writes.
        trunk_log_prob: the sum of its log-probabilities of them, nats.
        num_views: V.
        target: its level, L - 1.
        next_token, child: `[V][N]` the token that each view writes and the node after it (-1: not recorded).
        chains: `[L]` results of `chain`, by node.
        alone: the target's verdict where nothing is pending, by node, made on demand.
        eos: tokens that end a text.
    """

    __slots__ = ("__weakref__", "_distances", "_drafters", "_num_free", "_pairs", "_record", "_written_by", "alone",
                 "branches", "chains", "child", "entropy", "eos", "gap", "next_log_prob", "next_token", "num_nodes",
                 "num_views", "own_log_prob", "request_id", "target", "token", "top_log_prob", "trunk",
                 "trunk_log_prob", "trunk_tokens", "tvd", "unwritten")  # fmt: skip

    # Built at first use:
    token: list[int]  # `[N]` token that leads to each node
    # `[V][V][N]` by verifier and drafter, symmetric, zero for a view and itself, NaN for a model-free member, which has
    # no distribution, and between further views, of which none judges another
    tvd: list[list[list[float]]]
    # `[V][N]`, all five as in `traces.contexts.trie.Trie`
    next_log_prob: list[list[float]]
    top_log_prob: list[list[float]]
    gap: list[list[float]]
    entropy: list[list[float]]
    own_log_prob: list[list[float]]
    # `[L]` for token trees: by node, the number of requested branches, and these; empty for a member whose branches are
    # not recorded
    branches: list[dict[int, tuple[int, Branches]]]
    # by node and token, children that no member writes there as its next token: branches of token trees
    unwritten: dict[tuple[int, int], int]

    def __init__(self, record: TrieRequest, meta: TrieMeta, num_free: int, integers: SharedIntegers) -> None:
        self.request_id = record.request_id
        # Do not keep the trie, which may be part of an array of many requests.
        self._record, self._num_free = record, num_free
        self._drafters = meta.tree_drafters
        trie = record.trie
        free: list[list[int]] = [[] for _ in range(num_free)]
        trunk = trie.trunk
        self.num_nodes = trie.num_nodes
        self.trunk: list[int] = integers.to_list(trunk)
        self.trunk_tokens: list[int] = integers.to_list(trie.token[trunk[1:]])
        self.trunk_log_prob = float(trie.next_log_prob[-1][trunk[:-1]].sum())
        self.next_token: list[list[int]] = free + integers.to_list(trie.next_token)
        self.child: list[list[int]] = free + integers.to_list(trie.children())
        self.target = len(self.next_token) - 1
        self._distances = trie.tvd.copy()
        self._pairs = [(low + num_free, high + num_free) for low, high in meta.pairs]
        if trie.features is not None and meta.features is not None:
            self.next_token += integers.to_list(trie.features.next_token)
            self.child += integers.to_list(trie.features.children(trie.parent, trie.token))
            self._distances = np.concatenate([trie.tvd, trie.features.tvd])
            others = [num_free + place for place, name in enumerate(meta.model_names) if name != meta.features.model]
            self._pairs += product(range(self.target + 1, len(self.next_token)), others)
        self.num_views = len(self.next_token)
        self.chains: list[dict[int, WrittenChain]] = [{} for _ in self.next_token]
        self.alone: dict[int, TargetVerdict] = {}
        self.eos = frozenset(meta.eos_token_ids)
        self._written_by = [pair for pair in zip(self.next_token, self.child, strict=True) if pair[0]]

    def __getattr__(self, name: str) -> object:
        if name not in RequestTables.__annotations__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        listed: list[Any] | dict[tuple[int, int], int]
        if name == "tvd":
            listed = self._by_pairs(self._distances.tolist())
        elif name == "branches":
            listed = self._branches()
        elif name == "unwritten":
            listed = self._unwritten()
        elif name == "token":
            listed = self._record.trie.token.tolist()
        else:
            trie = self._record.trie
            further = [] if trie.features is None else getattr(trie.features, name).tolist()
            listed = [[] for _ in range(self._num_free)] + getattr(trie, name).tolist() + further
        setattr(self, name, listed)
        return listed

    def _branches(self) -> list[dict[int, tuple[int, Branches]]]:
        trie = self._record.trie
        listed: list[dict[int, tuple[int, Branches]]] = [{} for _ in self.next_token]
        if trie.ranks is None:
            return listed
        for row, model in enumerate(self._drafters):
            rank, ranked = trie.ranks.rank[row], trie.ranks.ranked[row].tolist()
            nodes = np.flatnonzero(rank >= 0)
            nodes = nodes[np.lexsort((rank[nodes], trie.parent[nodes]))]
            parents, starts = np.unique(trie.parent[nodes], return_index=True)
            tokens, log_probs = trie.token[nodes].tolist(), trie.ranks.branch_log_prob[row][nodes].tolist()
            places = nodes.tolist()
            for parent, (start, end) in zip(parents.tolist(), pairwise([*starts.tolist(), len(nodes)]), strict=True):
                found = Branches(tokens[start:end], log_probs[start:end], places[start:end])
                listed[self._num_free + model][parent] = ranked[parent], found
        return listed

    def _unwritten(self) -> dict[tuple[int, int], int]:
        written = {0}.union(*self.child)
        parents, tokens = self._record.trie.parent.tolist(), self.token
        return {(parents[node], tokens[node]): node for node in range(self.num_nodes) if node not in written}

    def _by_pairs(self, rows: list[list[float]]) -> list[list[list[float]]]:
        zeros, unknown = [0.0] * self.num_nodes, [nan] * self.num_nodes
        table = [[zeros if a == b else unknown for b in range(self.num_views)] for a in range(self.num_views)]
        for row, (a, b) in zip(rows, self._pairs, strict=True):
            table[a][b] = table[b][a] = row
        return table

    def chain(self, level: int, node: int, count: int) -> WrittenChain | None:
        """Tokens that a member writes from a node on, `count` >= 1 or up to an end; None where some are not recorded.

        Chains are kept, so one may be longer than `count`.
        """
        known = self.chains[level].get(node)
        if known is None or (len(known.tokens) < count and not known.ends):
            known = self.chains[level][node] = self._written(level, node, count)
        return known if known.ends or len(known.tokens) >= count else None

    def _written(self, level: int, node: int, count: int) -> WrittenChain:
        writes, child, target, eos = self.next_token[level], self.child[level], self.child[self.target], self.eos
        distances = self.tvd[self.target][level]
        tokens: list[int] = []
        places: list[int] = []
        tvd: list[float] = []
        kept, ends = 0, False
        while node >= 0 and len(tokens) < count and not ends:
            token, place = writes[node], child[node]
            if kept == len(tokens):
                tvd.append(distances[node])
                if place >= 0 and target[node] == place:
                    kept += 1
            tokens.append(token)
            places.append(place)
            ends = token in eos
            node = place
        return WrittenChain(tokens, places, kept, tuple(tvd), ends=ends)

    def drafted(self, chain: WrittenChain, node: int, count: int) -> ChainDraft:
        """A draft of the first `count` tokens that a member writes from a node on, all if there are no more."""
        found = chain.drafts[count] = ChainDraft(chain.tokens[:count], chain.places[:count])
        found.verdicts = {}
        return found

    def verdict(self, chain: WrittenChain, node: int, count: int) -> TargetVerdict | None:
        """The target's verdict on the first `count` tokens that a member writes from a node on; None: not recorded."""
        kept, places, tvd = min(chain.kept, count), chain.places, chain.tvd
        place = places[kept - 1] if kept else node
        own = self.next_token[self.target][place]
        if kept == count:
            tvd = tvd[:count]
        elif own == chain.tokens[kept]:  # the target's own token too, but the context after it is not recorded
            return None
        found = chain.verdicts[count] = self._verdict(chain.tokens[:kept], place, tvd)
        return found

    def writes_alone(self, node: int) -> TargetVerdict:
        """The target's verdict at a node where nothing is pending."""
        found = self.alone.get(node)
        if found is None:
            found = self.alone[node] = self._verdict([], node, ())
        return found

    def _verdict(self, accepted: list[int], place: int, tvd: tuple[float, ...]) -> TargetVerdict:
        """A verdict of the target with its accepted tokens, which lead to `place`."""
        own, num_accepted = self.next_token[self.target][place], len(accepted)
        found = TargetVerdict(num_accepted, own, self.child[self.target][place], tvd)
        if not (accepted and accepted[-1] in self.eos):
            accepted.append(own)
        found.written, found.ends = accepted, accepted[-1] in self.eos
        return found

    def view(self, level: int, num_unjudged: int) -> int:
        """The view of a drafter from the target's states where the target has not judged `num_unjudged` tokens, >= 1.

        One that is not recorded is `num_views` or more.
        """
        return level if num_unjudged == 1 else self.target + num_unjudged - 1

    def signal(self, view: int, node: int) -> Signal:
        """How sure a model is at a node of the token that it writes there."""
        said = exp(self.next_log_prob[view][node]), self.entropy[view][node], self.gap[view][node]
        return made(Signal, said)

    def prob(self, view: int, node: int, token: int, child: int) -> float:
        """A model's probability at a node of a token that leads to `child`, NaN where that is not recorded."""
        if self.next_token[view][node] == token:
            return exp(self.next_log_prob[view][node])
        return nan if child < 0 else exp(self.own_log_prob[view][child])

    def find_child(self, node: int, token: int) -> int:
        """The recorded node after `token` at `node`; -1 if the recording has none."""
        for tokens, children in self._written_by:
            if tokens[node] == token:
                return children[node]
        return self.unwritten.get((node, token), -1)


class TablesByRequest:
    """The tables of a recording's requests, built at first use; those of running requests, and some more, are kept.

    `num_free` counts model-free members, which come first in the pool.
    """

    def __init__(self, trace: TrieRecording) -> None:
        self.trace = trace
        self.num_free = 1 if trace.meta.ngram else 0
        self._places = {record.request_id: place for place, record in enumerate(trace.requests)}
        self._integers = SharedIntegers()
        self._running: WeakValueDictionary[str, RequestTables] = WeakValueDictionary()
        self._kept: OrderedDict[str, RequestTables] = OrderedDict()
        self._kept_nodes = 0

    def reordered(self, trace: TrieRecording) -> Self:
        """The same for a recording of the same requests in another order; both share kept tables."""
        other = copy(self)
        other.trace = trace
        other._places = {record.request_id: place for place, record in enumerate(trace.requests)}
        other._kept, other._kept_nodes = OrderedDict(), 0
        return other

    def record(self, request_id: str) -> TrieRequest:
        """One request as recorded; raises KeyError for a request the trace does not hold."""
        return self.trace.requests[self._places[request_id]]

    def of(self, request_id: str) -> RequestTables:
        """One request's tables, the same object as long as it is referenced.

        Raises:
            KeyError: a request the recording does not hold.
            TraceFormatError: its contexts are read now, and are not sound.
        """
        kept = self._kept.get(request_id)
        if kept is not None:
            self._kept.move_to_end(request_id)
            return kept
        tables = self._running.get(request_id)
        if tables is None:
            record = self.trace.requests[self._places[request_id]]
            tables = self._running[request_id] = RequestTables(record, self.trace.meta, self.num_free, self._integers)
        self._kept[request_id] = tables
        self._kept_nodes += tables.num_nodes
        while self._kept_nodes > MOST_KEPT_NODES and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_nodes -= gone.num_nodes
        return tables


def drafted_tree(tables: RequestTables, session: Session, step: DraftTree, level: int) -> Drafted:
    """Grow a tree from the committed context.

    Raises:
        UnrecordedTreeError: it needs branches that are not recorded.
    """
    growth = Growth(step.shape, room=session.room, eos=session.eos)
    branches = tables.branches[level]

    def answer(node: int, width: int) -> Branches:
        found = branches.get(session.place if node == ROOT else growth.places[node])
        if found is None or found[0] < width:
            depth = len(growth.path_to(node))
            raise UnrecordedTreeError(session.request_id, len(session.emitted) + depth, "tree")
        tokens, log_probs, places = found[1]
        return Branches(tokens[:width], log_probs[:width], places[:width])

    while growth.asks:
        growth.take([answer(node, width) for node, width in growth.asks])
    kept = growth.kept()
    tokens, places = ([column[node] for node in kept] for column in (growth.tokens, growth.places))
    return Drafted(tokens, places, 0, growth.tree(kept))


def judged_tree(tables: RequestTables, session: Session, level: int) -> Judged:
    """Walk down the pending tree, as long as the verifier's own token is a node of it."""
    tree, node = session.tree, session.place
    assert tree is not None
    next_token, distances = tables.next_token[level], tables.tvd[level][session.drafters[0]]
    path: list[int] = []
    tvd: list[float] = []
    while True:
        if tree.beyond(path) is not None:
            tvd.append(distances[node])
        own_token = next_token[node]
        child = tree.child(path, own_token, session.tokens)
        if child is None:
            return Judged(len(path), own_token, tables.child[level][node], tuple(tvd), path=tuple(path))
        path.append(child)
        node = session.places[child]


def recorded_facts(
    tables: RequestTables, session: Session, verifier: int, drafter: int | None, index: int, node: int, *, tvd: float
) -> Facts:
    """The facts of the pending token of `session` at `index` for a verifier.

    `verifier` and `drafter` are views; None for a model-free one, which has no probabilities. `node` is the token's
    context, recorded; `tvd` is the distance of the two distributions there.
    """
    token, child = session.tokens[index], session.places[index]
    own_child = tables.child[verifier][node]
    return Facts(
        same=tables.next_token[verifier][node] == token,
        draft_prob=nan if drafter is None else tables.prob(drafter, node, token, child),
        target_prob=tables.prob(verifier, node, token, child),
        top_prob=exp(tables.top_log_prob[verifier][node]),
        entropy=tables.entropy[verifier][node],
        tvd=tvd,
        judge=session.judges[index],
        draft_top_prob=nan if drafter is None else exp(tables.top_log_prob[drafter][node]),
        own_draft_prob=nan if drafter is None or own_child < 0 else exp(tables.own_log_prob[drafter][own_child]),
        own_prob=exp(tables.next_log_prob[verifier][node]),
    )


def lacks(rule: Rule, facts: Facts) -> bool:
    """Whether the recording lacks a fact that the rule reads: a token it did not follow has no probability."""
    if facts.same:
        return False
    if rule.needs_target_prob and facts.target_prob != facts.target_prob:  # NaN differs from itself
        return True
    return getattr(rule, "needs_own_draft_prob", False) and facts.own_draft_prob != facts.own_draft_prob


def recorded_quality(tables: RequestTables, level: int, tokens: list[int], anchors: Mapping[int, int]) -> TextQuality:
    """The quality of one answer with committed `tokens`; `level` is the target's.

    After a step back to the trunk the target's view is that of the trunk's context there, as in the replay itself.
    Between the end of the record and that step the quality is unknown. `anchors` has by position the node at which
    replay resumed after it had left the record.
    """
    trunk, count, log_prob = tables.trunk_tokens, len(tokens), tables.trunk_log_prob
    if tokens == trunk:  # the usual case
        divergences, num_seen, num_scored, exact_start, same = 0, count, count, count, (count, count)
    else:
        divergences, num_seen, num_scored, log_prob, exact_start = _walk(tables, level, tokens, anchors)
        same = same_counts(tokens, trunk)
    return TextQuality(
        divergences=divergences,
        seen_tokens=num_seen,
        scored_tokens=num_scored,
        log_prob=log_prob,
        exact_start=exact_start,
        trunk_tokens=len(trunk),
        trunk_log_prob=tables.trunk_log_prob,
        same_tokens=same[0],
        same_start=same[1],
    )


def _walk(
    tables: RequestTables, level: int, tokens: list[int], anchors: Mapping[int, int]
) -> tuple[int, int, int, float, int]:
    """(divergences, seen tokens, scored tokens, log-probability, exact start), as of `TextQuality`."""
    writes, own_log_prob = tables.next_token[level], tables.own_log_prob[level]
    node, num_seen, divergences, exact_start = 0, 0, 0, len(tokens)
    log_probs: list[float] = []
    for position, token in enumerate(tokens):
        if node < 0:
            exact_start = min(exact_start, position)
            node = anchors.get(position, -1)
        if token < 0 or node < 0:  # modelled tokens have no identity
            node = -1
            continue
        num_seen += 1
        child = tables.find_child(node, token)
        if writes[node] == token:
            log_probs.append(tables.next_log_prob[level][node])
        else:
            divergences += 1
            if child >= 0:
                log_probs.append(own_log_prob[child])
        node = child
    return divergences, num_seen, len(log_probs), sum(log_probs), exact_start
