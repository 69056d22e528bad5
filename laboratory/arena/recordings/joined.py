"""Requests of several recordings of the same members as one recording."""

from collections.abc import Sequence
from dataclasses import replace

from ....arguments import ArgumentError
from ....traces.tries.meta import TrieMeta
from ....traces.tries.recording import TrieRecording
from ....traces.tries.trie import TrieRequest

# What decides the columns, and what a replay of one recording takes to hold for all of its requests.
_SHARED = ("models", "ngram", "vocab_size", "eos_token_ids", "tokenizer_sha256", "sampling", "closure")


def in_turn(lists: Sequence[Sequence[TrieRequest]]) -> tuple[TrieRequest, ...]:
    """The first of each list, the second of each, and so on; a list that has ended is passed over."""
    longest = max(map(len, lists), default=0)
    return tuple(requests[place] for place in range(longest) for requests in lists if place < len(requests))


def as_one(
    recordings: Sequence[TrieRecording], requests: Sequence[TrieRequest], *, name: str, origin: str
) -> TrieRecording:
    """Requests of these recordings as one; near ties are those of all of them, and the rest is that of the first.

    Args:
        recordings: at least one.
        requests: of them, in the order of the new one.
        name: of the new one.
        origin: how it was made, in words.

    Raises:
        ArgumentError: the recordings differ in members, tokens, sampling or closure, or are none.
    """
    if not recordings:
        raise ArgumentError(f"recording {name}: must be of at least one recording, got none")
    first = recordings[0].meta
    for other in recordings[1:]:
        _check_same(name, first, other.meta)
    near_ties = sum(each.meta.near_ties for each in recordings)
    meta = first.model_copy(update={"name": name, "origin": origin, "near_ties": near_ties})
    return replace(recordings[0], meta=meta, requests=requests)


def _check_same(name: str, first: TrieMeta, other: TrieMeta) -> None:
    for field in _SHARED:
        if getattr(first, field) != getattr(other, field):
            raise ArgumentError(
                f"recording {name}: {first.name} and {other.name} must have the same {field}, got "
                f"{getattr(first, field)!r} and {getattr(other, field)!r}"
            )
