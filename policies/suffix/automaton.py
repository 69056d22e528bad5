"""A suffix automaton: every piece of some texts, how often it stands there, and what follows it.

Of n tokens it has at most 2n states, and a suffix tree of them as its links (Blumer et al. 1985, Theoretical Computer
Science 40). A state stands for all pieces that end in the same places: the longest of them, and suffixes of it down to
one token more than the longest piece of the state it links to.
"""

ROOT = 0


class SuffixAutomaton:
    """An index of texts. Mutated by `begin` and `extend`, which takes as long as the text has repeated suffixes.

    Attributes:
        num_tokens: of all texts.
        last: state of the whole text so far.
        follows: by state, the state after each next token, in the order in which they came first.
        links: by state, that of its longest suffix that also ends elsewhere; the root's own is -1.
        lengths: by state, tokens of its longest piece.
        counts: by state, places where its pieces end.
    """

    __slots__ = ("counts", "follows", "last", "lengths", "links", "num_tokens")

    def __init__(self) -> None:
        self.follows: list[dict[int, int]] = [{}]
        self.links, self.lengths, self.counts = [-1], [0], [0]
        self.last = ROOT
        self.num_tokens = 0

    def begin(self) -> None:
        """What comes now is another text."""
        self.last = ROOT

    def extend(self, token: int) -> None:
        """The text goes on."""
        self.num_tokens += 1
        before = self.last
        known = self.follows[before].get(token)
        if known is None:
            state = self._add({}, self.lengths[before] + 1, 0)
            while before >= 0 and token not in self.follows[before]:
                self.follows[before][token] = state
                before = self.links[before]
            self.links[state] = ROOT if before < 0 else self._exactly(before, token)
        else:
            state = self._exactly(before, token)
        self.last = state
        while state > ROOT:
            self.counts[state] += 1
            state = self.links[state]

    def at(self, state: int, length: int) -> tuple[int, int]:
        """(state, tokens) of a piece that was found at `state`; pieces may have been told apart since."""
        while state and length <= self.lengths[self.links[state]]:
            state = self.links[state]
        return state, length

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """(state, tokens) of the longest suffix, of a piece that was found at `state` and a token, that stands here."""
        state, length = self.at(state, length)
        while state and token not in self.follows[state]:
            state = self.links[state]
            length = self.lengths[state]
        after = self.follows[state].get(token)
        return (ROOT, 0) if after is None else (after, length + 1)

    def _exactly(self, before: int, token: int) -> int:
        """The state of the longest piece of `before` and the token, which is told apart from longer ones if need be."""
        after = self.follows[before][token]
        length = self.lengths[before] + 1
        if self.lengths[after] == length:
            return after
        apart = self._add(dict(self.follows[after]), length, self.counts[after])
        self.links[apart], self.links[after] = self.links[after], apart
        while before >= 0 and self.follows[before].get(token) == after:
            self.follows[before][token] = apart
            before = self.links[before]
        return apart

    def _add(self, follows: dict[int, int], length: int, count: int) -> int:
        self.follows.append(follows)
        self.links.append(ROOT)
        self.lengths.append(length)
        self.counts.append(count)
        return len(self.follows) - 1
