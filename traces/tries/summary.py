"""What a recording holds, as plain data: for `paceline trace inspect`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..folder import TRIE_FILES, size_of
from ..recording import Summary, by_tag
from .meta import TrieMeta
from .trie import Floats, TrieRequest


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
    """Count and average a recording; `path` is where it was read from, if it was."""
    total = _summarise_group(meta, requests)
    size_bytes = size_of(path, TRIE_FILES)
    return TrieSummary(
        meta=meta,
        total=total,
        by_tag={tag: _summarise_group(meta, group) for tag, group in by_tag(requests).items()},
        nodes_per_trunk_token=total.num_nodes / total.num_trunk_tokens if total.num_trunk_tokens else None,
        size_bytes=size_bytes,
        bytes_per_node=None if size_bytes is None else size_bytes / total.num_nodes,
    )


def _summarise_group(meta: TrieMeta, records: Sequence[TrieRequest]) -> TrieGroup:
    num_trunk_tokens = 0
    agreeing = np.zeros(len(meta.models))
    distance = np.zeros(len(meta.pairs))
    for record in records:
        agrees = record.trie.agreement
        num_trunk_tokens += agrees.shape[1]
        agreeing += agrees.sum(axis=1)
        distance += record.trie.tvd[:, record.trie.trunk[:-1]].sum(axis=1)
    pairs = [f"{meta.model_names[low]}/{meta.model_names[high]}" for low, high in meta.pairs]
    return TrieGroup(
        num_requests=len(records),
        num_prompt_tokens=sum(len(record.prompt) for record in records),
        num_trunk_tokens=num_trunk_tokens,
        num_nodes=sum(record.trie.num_nodes for record in records),
        agreement=_means(meta.model_names[:-1], agreeing[:-1], num_trunk_tokens),
        mean_tvd=_means(pairs, distance, num_trunk_tokens),
    )


def _means(names: Iterable[str], sums: Floats, count: int) -> dict[str, float | None]:
    return {name: float(value) / count if count else None for name, value in zip(names, sums, strict=True)}
