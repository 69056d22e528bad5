"""Rounds of one recorded request, walked in its trie."""

from .automaton import Automaton, Lead
from .round import Round
from .trie_walk import TrieWalk

# Of a path, whether the segment ends with it: the round that it is.
KnownPaths = dict[tuple[bool, tuple[Lead, ...]], Round]


class WalkedRequest:
    """Walks rounds in any order; see `FixedRounds`.

    Args:
        automaton: of the policy.
        walk: that has begun the request, whose answer is recorded to its end.
        text: of the answer.
        paths: rounds that were come to, here or in other requests; added to.

    Attributes:
        length: tokens of the answer.
    """

    def __init__(self, automaton: Automaton, walk: TrieWalk, text: list[int], paths: KnownPaths) -> None:
        self._bare = automaton.bare
        self._walk = walk
        self.length = walk.length
        self._text = text
        self._paths = paths

    def round(self, position: int, room: int) -> Round:
        """The round at a place of the answer.

        Raises:
            ValueError: beyond the answer's end.
            Exception: whatever is wrong with a step, with no word on whose it was.
        """
        walk, budget = self._walk, position + room
        self._check(position + 1)
        path = tuple(walk.round(self._bare, position, budget))
        ends = position + path[-1].emitted >= min(budget, self.length)
        found = self._paths.get((ends, path))
        if found is None:
            found = self._paths[ends, path] = Round.of([lead.op for lead in path], path[-1].emitted, ends)
        return found

    def tokens(self, position: int, count: int) -> list[int]:
        """What stands there in the answer."""
        self._check(position + count)
        return self._text[position : position + count]

    def _check(self, position: int) -> None:
        if position > self.length:
            raise ValueError(f"position must be within the recorded answer of {self.length} tokens")
