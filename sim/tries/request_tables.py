"""A recorded request as plain lists: what replay walks, built once and shared by all policies of a comparison.

A list look-up is several times faster than reading one element of a numpy array, and replay is nothing but look-ups.
"""

from math import nan

from ...traces.tries.meta import TrieMeta
from ...traces.tries.recording import TrieRecording
from ...traces.tries.trie import TrieRequest


class RequestTables:
    """One request's trie by level of the pool (a model-free member has empty lists).

    Letters: L levels, N nodes.

    Attributes:
        request_id: of the recording.
        token: `[N]` token that leads to each node.
        trunk: nodes of the trunk from the root down.
        trunk_tokens: the tokens of the trunk, which the target writes.
        trunk_log_prob: the sum of its log-probabilities of them, nats.
        next_token, child: `[L][N]` the token each member writes and the node after it (-1: not recorded).
        next_log_prob, top_log_prob, gap, entropy, own_log_prob: `[L][N]` as in `traces.tries.trie.Trie`.
        tvd: `[L][L][N]` by verifier and drafter level, symmetric, zero for a member and itself, NaN for a model-free
            member, which has no distribution.
    """

    __slots__ = ("child", "entropy", "gap", "next_log_prob", "next_token", "own_log_prob", "request_id", "token",
                 "top_log_prob", "trunk", "trunk_log_prob", "trunk_tokens", "tvd")  # fmt: skip

    def __init__(self, record: TrieRequest, meta: TrieMeta, num_free: int) -> None:
        self.request_id = record.request_id
        trie = record.trie
        free: list[list[int]] = [[] for _ in range(num_free)]
        free_floats: list[list[float]] = [[] for _ in range(num_free)]
        self.token: list[int] = trie.token.tolist()
        trunk = trie.trunk
        self.trunk: list[int] = trunk.tolist()
        self.trunk_tokens: list[int] = trie.token[trunk[1:]].tolist()
        self.trunk_log_prob = float(trie.next_log_prob[-1][trunk[:-1]].sum())
        self.next_token: list[list[int]] = free + trie.next_token.tolist()
        self.child: list[list[int]] = free + trie.children().tolist()
        self.next_log_prob: list[list[float]] = free_floats + trie.next_log_prob.tolist()
        self.top_log_prob: list[list[float]] = free_floats + trie.top_log_prob.tolist()
        self.gap: list[list[float]] = free_floats + trie.gap.tolist()
        self.entropy: list[list[float]] = free_floats + trie.entropy.tolist()
        self.own_log_prob: list[list[float]] = free_floats + trie.own_log_prob.tolist()
        levels = num_free + len(meta.models)
        zeros, unknown = [0.0] * trie.num_nodes, [nan] * trie.num_nodes
        self.tvd: list[list[list[float]]] = [
            [zeros if a == b else unknown for b in range(levels)] for a in range(levels)
        ]
        for row, (low, high) in zip(trie.tvd.tolist(), meta.pairs, strict=True):
            self.tvd[low + num_free][high + num_free] = row
            self.tvd[high + num_free][low + num_free] = row

    def find_child(self, node: int, token: int) -> int:
        """The recorded node after `token` at `node`; -1 if the recording has none."""
        for tokens, children in zip(self.next_token, self.child, strict=True):
            if tokens and tokens[node] == token:
                return children[node]
        return -1


class TablesByRequest:
    """The tables of every request of a recording, built at first use.

    Attributes:
        trace: the recording.
        num_free: model-free members, which come first in the pool.
    """

    def __init__(self, trace: TrieRecording) -> None:
        self.trace = trace
        self.num_free = 1 if trace.meta.ngram else 0
        self._tables: dict[str, RequestTables] = {}
        self._records = {record.request_id: record for record in trace.requests}

    def record(self, request_id: str) -> TrieRequest:
        """One request as recorded; raises KeyError for a request the trace does not hold."""
        return self._records[request_id]

    def of(self, request_id: str) -> RequestTables:
        """One request's tables; raises KeyError for a request the trace does not hold."""
        tables = self._tables.get(request_id)
        if tables is None:
            tables = RequestTables(self._records[request_id], self.trace.meta, self.num_free)
            self._tables[request_id] = tables
        return tables
