"""The requests of a replica that decode: each gets a token in every step, so they are counted together.

A **beat** is a step in which they all get one. A row's *base* is its text less the beats when it joined, so that its
text is always `base + beats`. It holds the blocks of its text, and needs one more in the next beat if these are full.
Letters: b tokens of a block, j beats from now on.
"""

from heapq import heappop, heappush

from .jump import Jump
from .jumping_request import JumpingRequest


class DecodingRows:
    """Mutated by `join`, `leave`, `pass_beats` and `pop_finished`.

    Args:
        block_tokens: b.

    Attributes:
        count: rows.
        beats: so far.
        held_tokens: in the target's cache: of each row all but the last of its text.
    """

    __slots__ = ("_block_tokens", "_ends", "_filling", "beats", "count", "held_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.beats = 0
        self.held_tokens = 0
        self._block_tokens = block_tokens
        self._filling: dict[int, int] = {}  # rows by the beats, modulo b, before which they need a block
        self._ends: list[tuple[int, int, JumpingRequest]] = []  # a heap; rows that left before their end stay in it

    def join(self, request: JumpingRequest, text: int) -> None:
        """A request decodes from the next beat on."""
        base = request.base = text - self.beats
        self.count += 1
        self.held_tokens += text - 1
        place = -base % self._block_tokens
        self._filling[place] = self._filling.get(place, 0) + 1
        heappush(self._ends, (request.most_tokens - base, request.order, request))

    def leave(self, request: JumpingRequest) -> None:
        """A request decodes no more; its text stays what it is."""
        base = request.base
        assert base is not None
        request.text = base + self.beats
        request.base = None
        self.count -= 1
        self.held_tokens -= request.text - 1
        place = -base % self._block_tokens
        if self._filling[place] == 1:
            del self._filling[place]
        else:
            self._filling[place] -= 1

    def beats_left(self) -> int:
        """Beats until the first row is done, >= 1; there must be a row."""
        ends = self._ends
        while ends[0][2].base is None or ends[0][2].order != ends[0][1]:
            heappop(ends)
        return ends[0][0] - self.beats

    def pop_finished(self) -> list[JumpingRequest]:
        """Rows that are done, which leave; those admitted earlier first."""
        ends, found = self._ends, []
        while ends and ends[0][0] <= self.beats:
            _, order, request = heappop(ends)
            if request.base is not None and request.order == order:
                self.leave(request)
                found.append(request)
        return found

    def next_blocks(self) -> int:
        """Blocks that all rows together need in the next beat."""
        return self._filling.get(self.beats % self._block_tokens, 0)

    def blocks_until(self, beats: int) -> int:
        """Blocks that they need in so many beats together."""
        size, done = self._block_tokens, self.beats
        rounds, rest = divmod(beats, size)
        return rounds * self.count + sum(rows for place, rows in self._filling.items() if (place - done) % size < rest)

    def most_beats(self, beats: int, blocks: int) -> int:
        """How many of the next beats, at most `beats`, need no more than so many blocks."""
        if self.count * (beats // self._block_tokens + 1) <= blocks or self.blocks_until(beats) <= blocks:
            return beats
        least, most = 0, beats  # these need no more, and those do
        while most - least > 1:
            middle = (least + most) // 2
            if self.blocks_until(middle) <= blocks:
                least = middle
            else:
                most = middle
        return least

    def used_until(self, jump: Jump, beats: int) -> tuple[int, int]:
        """Blocks used in the last of a jump's first so many beats, and in all of them, times picoseconds.

        The rows stand where they stood before the jump.
        """
        size, first_ps, increment_ps, last = self._block_tokens, jump.first_ps, jump.increment_ps, beats - 1
        end_ps = beats * first_ps + increment_ps * (beats * last // 2)
        used, next_place = jump.used_blocks, self.beats + 1
        block_ps = used * end_ps
        for place, blocks in self._filling.items():
            done = (place - next_place) % size + 1
            if done <= last:
                # Blocks come with the beat after these, and with every b-th one after it: so often, after so many.
                times = (last - done) // size + 1
                pairs = times * (times - 1) // 2
                sums = times * done + size * pairs
                squares = (times * done + 2 * size * pairs) * done + size * size * (pairs * (2 * times - 1) // 3)
                used += blocks * times
                block_ps += blocks * (times * end_ps - first_ps * sums - increment_ps * ((squares - sums) // 2))
        return used, block_ps

    def pass_beats(self, beats: int) -> None:
        """So many beats are over."""
        self.beats += beats
        self.held_tokens += beats * self.count
