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
    """

    __slots__ = ("_bases", "_block_tokens", "_ends", "_filling", "beats", "count")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.beats = 0
        self._bases = 0  # added up
        self._block_tokens = block_tokens
        self._filling = [0] * block_tokens  # rows by base modulo b
        self._ends: list[tuple[int, int, JumpingRequest]] = []  # a heap; rows that left before their end stay in it

    @property
    def held_tokens(self) -> int:
        """Tokens in the target's cache: of each row all but the last of its text."""
        return self._bases + self.count * (self.beats - 1)

    def join(self, request: JumpingRequest, text: int) -> None:
        """A request decodes from the next beat on."""
        base = request.base = text - self.beats
        self.count += 1
        self._bases += base
        self._filling[base % self._block_tokens] += 1
        heappush(self._ends, (request.most_tokens - base, request.order, request))

    def leave(self, request: JumpingRequest) -> None:
        """A request decodes no more; its text stays what it is."""
        base = request.base
        assert base is not None
        request.text = base + self.beats
        request.base = None
        self.count -= 1
        self._bases -= base
        self._filling[base % self._block_tokens] -= 1

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
        return self._filling[-self.beats % self._block_tokens]

    def blocks_until(self, beats: int) -> int:
        """Blocks that they need in so many beats together."""
        size, filling = self._block_tokens, self._filling
        rounds, rest = divmod(beats, size)
        needed = rounds * self.count
        if rest:
            last = -self.beats % size  # where the next beat looks; each looks one place before the last
            first = last - rest + 1
            needed += sum(filling[first : last + 1]) if first >= 0 else sum(filling[: last + 1], sum(filling[first:]))
        return needed

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

    def later_blocks(self, jump: Jump, beats: int) -> tuple[int, int]:
        """Blocks that come after a jump's first beat, in so many beats, and their picoseconds until these are over.

        The rows stand where they stood before the jump.
        """
        size, filling = self._block_tokens, self._filling
        num_blocks = block_ps = 0
        end_ps = jump.lasts_ps(beats)
        place = -self.beats % size  # where the first beat looks; each looks one place before the last
        for done in range(1, min(beats - 1, size) + 1):
            blocks = filling[place - done]
            if blocks:
                # Blocks come with the beat after these, and with every b-th one after it.
                times = (beats - 1 - done) // size + 1
                began_ps = jump.lasts_ps(done) if times == 1 else _series_ps(jump, done, size, times)
                num_blocks += blocks * times
                block_ps += blocks * (times * end_ps - began_ps)
        return num_blocks, block_ps

    def pass_beats(self, beats: int) -> None:
        """So many beats are over."""
        self.beats += beats


def _series_ps(jump: Jump, first: int, stride: int, times: int) -> int:
    """`jump.lasts_ps` of first, first + stride, ..., so many times, added up."""
    pairs = times * (times - 1) // 2
    steps = times * first + stride * pairs
    squares = times * first * first + 2 * first * stride * pairs + stride * stride * (pairs * (2 * times - 1) // 3)
    return jump.first_ps * steps + jump.increment_ps * ((squares - steps) // 2)
