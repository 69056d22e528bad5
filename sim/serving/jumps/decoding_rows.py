"""The requests of a replica that decode: each gets a token in every step, so they are counted together.

A **beat** is a step in which they all get one. A row's *base* is its text less the beats when it joined, so that its
text is always `base + beats`. It holds the blocks of its text, and needs one more in the next beat if these are full.
Letters: b tokens of a block, j beats from now on.
"""

from functools import lru_cache
from heapq import heappop, heappush

from .jump import Jump
from .jumping_request import JumpingRequest


class DecodingRows:
    """Mutated by `join`, `leave`, `pass_beats`, `pop_reached` and `pop_finished`.

    Args:
        block_tokens: b.

    Attributes:
        count: rows.
        beats: so far.
        held_tokens: in the target's cache: of each row all but the last of its text.
    """

    __slots__ = ("_block_tokens", "_ends", "_filling", "_shows", "beats", "count", "held_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.count = 0
        self.beats = 0
        self.held_tokens = 0
        self._block_tokens = block_tokens
        self._filling: dict[int, int] = {}  # rows by the beats, modulo b, before which they need a block
        self._ends: list[tuple[int, int, JumpingRequest]] = []  # a heap; rows that left before their end stay in it
        self._shows: list[tuple[int, int, JumpingRequest]] = []  # likewise, of texts that others may find

    def join(self, request: JumpingRequest, text: int) -> None:
        """A request decodes from the next beat on."""
        base = request.base = text - self.beats
        self.count += 1
        self.held_tokens += text - 1
        place = -base % self._block_tokens
        self._filling[place] = self._filling.get(place, 0) + 1
        heappush(self._ends, (request.most_tokens - base, request.order, request))
        if request.shown_at:
            self._wait_for(request, text)

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
        """Beats until the first row is done, or so far that others follow it, >= 1; there must be a row."""
        end = _first(self._ends)
        assert end is not None
        if self._shows and (shown := _first(self._shows)) is not None and shown < end:
            end = shown
        return end - self.beats

    def pop_reached(self) -> list[JumpingRequest]:
        """Rows whose texts others may find now, or follow; they know their texts."""
        shows, found = self._shows, []
        while shows and shows[0][0] <= self.beats:
            _, order, request = heappop(shows)
            if request.base is not None and request.order == order:
                request.text = request.base + self.beats
                self._wait_for(request, request.text)
                found.append(request)
        return found

    def pop_finished(self) -> list[JumpingRequest]:
        """Rows that are done, which leave; those admitted earlier first."""
        ends, found = self._ends, []
        while ends and ends[0][0] <= self.beats:
            _, order, request = heappop(ends)
            if request.base is not None and request.order == order:
                self.leave(request)
                found.append(request)
        return found

    def _wait_for(self, request: JumpingRequest, text: int) -> None:
        """Its text is shown next when it is longer than it is now."""
        base = request.base
        assert base is not None
        shown_at = next((tokens for tokens in request.shown_at if tokens > text), None)
        if shown_at is not None:
            heappush(self._shows, (shown_at - base, request.order, request))

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
        if self.blocks_until(beats) <= blocks:
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
        size, last, next_place = self._block_tokens, beats - 1, self.beats + 1
        comings = all_beats = all_pairs = 0
        for place, blocks in self._filling.items():
            done = (place - next_place) % size + 1
            if done <= last:
                # Blocks come after so many beats, and after every b-th one from then on.
                times = (last - done) // size + 1
                sums, pairs = _added_up(done, size, times)
                comings += blocks * times
                all_beats += blocks * sums
                all_pairs += blocks * pairs
        if not comings:
            return 0, 0
        began_ps = jump.first_ps * all_beats + jump.increment_ps * all_pairs
        return comings, comings * jump.lasts_ps(beats) - began_ps

    def pass_beats(self, beats: int) -> None:
        """So many beats are over."""
        self.beats += beats
        self.held_tokens += beats * self.count


def _first(heap: list[tuple[int, int, JumpingRequest]]) -> int | None:
    """The first beat of a row that has not left; None: there is none."""
    while heap:
        beat, order, request = heap[0]
        if request.order == order and request.base is not None:
            return beat
        heappop(heap)
    return None


@lru_cache(maxsize=2**12)
def _added_up(first: int, stride: int, times: int) -> tuple[int, int]:
    """Of n = first, first + stride, ..., so many of them: all n, and all n (n - 1) / 2."""
    pairs = times * (times - 1) // 2
    sums = times * first + stride * pairs
    squares = (times * first + 2 * stride * pairs) * first + stride * stride * (pairs * (2 * times - 1) // 3)
    return sums, (squares - sums) // 2
