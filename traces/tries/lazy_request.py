"""A request that makes its trie when it is asked for: read from a file, or worked out of another one."""

from collections.abc import Callable
from typing import Any, Self, cast, final

from .trie import Trie, TrieRequest


@final
class LazyRequest(TrieRequest):
    """A request whose trie is made anew for each who asks, and not kept: to hold many of them takes little memory.

    What `dataclasses.replace` makes of it is a `TrieRequest` like any other.
    """

    __slots__ = ("_make", "_num_nodes")

    _make: Callable[[], Trie]
    _num_nodes: int

    def __new__(cls, **fields: object) -> Self:
        """Asked for by its fields, the trie among them, it is a request that holds it."""
        whole = TrieRequest(**cast(dict[str, Any], fields)) if fields else super().__new__(cls)
        return cast(Self, whole)

    @classmethod
    def of(
        cls,
        *,
        request_id: str,
        tag: str,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        num_nodes: int,
        make: Callable[[], Trie],
    ) -> Self:
        """A request whose trie of `num_nodes` contexts is what `make` gives; else as in `TrieRequest`."""
        request = cls.__new__(cls)
        values = {"request_id": request_id, "tag": tag, "prompt": prompt, "max_new_tokens": max_new_tokens}
        for name, value in {**values, "_num_nodes": num_nodes, "_make": make}.items():
            object.__setattr__(request, name, value)  # it is frozen
        return request

    def __getattr__(self, name: str) -> Trie:
        """Asked for what is not set, which is the trie."""
        if name != "trie":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        return self._make()

    @property
    def num_nodes(self) -> int:
        """Number of contexts, known without them."""
        return self._num_nodes
