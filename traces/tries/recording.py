"""A recording of contexts: a token trie of each request."""

from dataclasses import dataclass

from .meta import TrieMeta
from .trie import TrieRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieRecording:
    """A recording: what it says of itself, and its requests in file order."""

    meta: TrieMeta
    requests: tuple[TrieRequest, ...]
