"""What a recording holds, as plain data: for `paceline trace inspect`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..folder import TRIE_FILES, size_of
from ..recording import Summary
from .meta import TrieMeta
from .trie import Floats, TrieRequest

_COUNTS = ("num_requests", "num_prompt_tokens", "num_trunk_tokens", "num_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieGroup:
    """Requests of one tag, or of all tags.

    Means are over the trunk contexts that wrote a token: all but the last context of each request.

    Attributes:
        num_requests: in the group.
        num_prompt_tokens: all together.
        num_trunk_tokens: all together.
        num_nodes: all together.
        agreement: by model below the target, share of trunk contexts where it writes the target's token, 0 to 1; None
            without trunk tokens.
        mean_tvd: by pair `smaller/larger`, mean total variation distance on the trunk, 0 to 1; None without trunk
            tokens.
    """

    num_requests: int
    num_prompt_tokens: int
    num_trunk_tokens: int
    num_nodes: int
    agreement: dict[str, float | None]
    mean_tvd: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieSummary(Summary[TrieMeta, TrieGroup]):
    """A recording at a glance.

    Attributes:
        nodes_per_trunk_token: contexts recorded per trunk token; None without trunk tokens.
        bytes_per_node: of the files on the disk; None if the recording came from memory.
    """

    nodes_per_trunk_token: float | None
    bytes_per_node: float | None


def summary_of(meta: TrieMeta, requests: Sequence[TrieRequest], path: Path | None) -> TrieSummary:
    """Count and average a recording, in one pass; `path` is where it was read from, if it was."""
    everything, by_tag = _Sums(meta), dict[str, _Sums]()
    for request in requests:
        trie = request.trie
        agrees, distance = trie.agreement, trie.tvd[:, trie.trunk[:-1]].sum(axis=1)
        for sums in (everything, by_tag.setdefault(request.tag, _Sums(meta))):
            sums.add(request, agrees, distance)
    total = everything.group()
    size_bytes = size_of(path, TRIE_FILES)
    return TrieSummary(
        meta=meta,
        total=total,
        by_tag={tag: sums.group() for tag, sums in by_tag.items()},
        nodes_per_trunk_token=total.num_nodes / total.num_trunk_tokens if total.num_trunk_tokens else None,
        size_bytes=size_bytes,
        bytes_per_node=None if size_bytes is None else size_bytes / total.num_nodes,
    )


class _Sums:
    """What requests of a group add up to."""

    def __init__(self, meta: TrieMeta) -> None:
        self._meta = meta
        self._counts: Counter[str] = Counter()
        self._agreeing = np.zeros(len(meta.models))
        self._distance = np.zeros(len(meta.pairs))

    def add(self, request: TrieRequest, agrees: NDArray[np.bool_], distance: Floats) -> None:
        """One more request, its agreement on the trunk and its distances there, summed."""
        self._counts["num_requests"] += 1
        self._counts["num_prompt_tokens"] += len(request.prompt)
        self._counts["num_trunk_tokens"] += agrees.shape[1]
        self._counts["num_nodes"] += request.num_nodes
        self._agreeing += agrees.sum(axis=1)
        self._distance += distance

    def group(self) -> TrieGroup:
        """The group as it is told."""
        names, num_tokens = self._meta.model_names, self._counts["num_trunk_tokens"]
        pairs = [f"{names[low]}/{names[high]}" for low, high in self._meta.pairs]
        return TrieGroup(
            **{name: self._counts[name] for name in _COUNTS},
            agreement=_means(names[:-1], self._agreeing[:-1], num_tokens),
            mean_tvd=_means(pairs, self._distance, num_tokens),
        )


def _means(names: Iterable[str], sums: Floats, count: int) -> dict[str, float | None]:
    return {name: float(value) / count if count else None for name, value in zip(names, sums, strict=True)}
