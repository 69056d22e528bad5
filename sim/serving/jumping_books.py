"""What a replica that jumps writes down: rows of a decoding, blocks of requests, operations.

Steps that follow one another without a change of the batch: each takes a fixed time more than the one before.

Letter: j steps done, of those that are left.

One request of a replica that jumps: how long its text is, and what the target has read of it.

The requests of a replica that decode: each gets a token in every step, so they are counted together.

A **beat** is a step in which they all get one. A row's *base* is its text less the beats when it joined, so that its
text is always `base + beats`. It holds the blocks of its text, and needs one more in the next beat if these are full.
Letters: b tokens of a block, j beats from now on.

Which blocks of the target a request of a replica that jumps holds, with a prefix cache and without.

Only while a request is prefilled its blocks are its own: rows that decode take theirs together (`MemberKv.take`), and
what each of them holds follows from its text. Letter: b tokens of a block.

What a replica that jumps tells the recorder: of steps their sums, of requests what happens to them.
"""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import sqrt
from typing import Protocol

from ...runs.recorder import ServingRecorder
from ...traces.workloads.arrival import Arrival
from .memory import BlockKeys, MemberKv
from .replica_memory import ReplicaMemory
from .requests import NEVER


class Jump:
    """What a replica is about to run, or has begun to run. Mutated as steps are written down.

    Attributes:
        start_ps: when the first of the steps begins.
        first_ps: how long it takes, >= 0.
        increment_ps: how much longer each one takes than the one before.
        num_steps: >= 1.
        end_ps: when the last of the steps ends.
        used_blocks: in the first of them.
    """

    __slots__ = ("end_ps", "first_ps", "increment_ps", "num_steps", "start_ps", "used_blocks")

    def __init__(self, start_ps: int, first_ps: int, increment_ps: int = 0, num_steps: int = 1) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.increment_ps = increment_ps
        self.num_steps = num_steps
        self.used_blocks = 0
        self.end_ps = start_ps + (first_ps if num_steps == 1 else self.lasts_ps(num_steps))

    def lasts_ps(self, steps: int) -> int:
        """How long the first so many steps take."""
        return steps * self.first_ps + self.increment_ps * (steps * (steps - 1) // 2)

    def done(self, at_ps: int, *, inclusive: bool) -> int:
        """How many steps, the last one apart, have ended before an instant, or until it if that is inclusive."""
        span_ps, most = at_ps - self.start_ps + inclusive, self.num_steps - 1
        if span_ps <= self.first_ps:
            return 0
        # So many steps last a quadratic in them, whose root is nearly right; what is rounded off is put right.
        linear = 2 * self.first_ps - self.increment_ps
        root = linear + sqrt(max(0, linear * linear + 8 * self.increment_ps * span_ps))
        steps = min(int(4 * span_ps / root), most) if root > 0 else most
        while steps < most and self.lasts_ps(steps + 1) < span_ps:
            steps += 1
        while steps and self.lasts_ps(steps) >= span_ps:
            steps -= 1
        return steps

    def cut(self, steps: int) -> None:
        """Leave out all but the first so many steps."""
        self.num_steps = steps
        self.end_ps = self.start_ps + self.lasts_ps(steps)

    def drop(self, steps: int) -> None:
        """Leave out the first so many steps."""
        self.start_ps += self.lasts_ps(steps)
        self.first_ps += self.increment_ps * steps
        self.num_steps -= steps


class JumpingRequest:
    """Mutated by its replica.

    Attributes:
        arrival: what is wanted.
        serial: of the request in its run.
        most_tokens: that its text ever has, prompt and answer.
        text: tokens of its prompt and answer, unless it decodes.
        base: of its row while it decodes (`DecodingRows`), else None.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        shown_at: tokens of its text with which others may find what it wrote.
        read: tokens of its text that the target has read, while it is prefilled.
        order: number of its latest admission; NEVER while it waits.
        since_ps: when it began to wait, or was admitted last.
        first_pass: tokens of the recorded answer that it repeats; 0 until it is first admitted.
        keys: of its blocks; None until it is first looked at, or where there is no prefix cache.
        blocks: that it holds while it is prefilled, where there is no prefix cache.
        out_at_ps: when its latest token came out, of one that does not decode.
    """

    __slots__ = (
        "arrival", "base", "blocks", "depths", "first_pass", "keys", "most_tokens", "order", "out_at_ps", "read",
        "serial", "shown_at", "since_ps", "text",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, serial: int, at_ps: int) -> None:
        self.arrival = arrival
        self.serial = serial
        self.text = arrival.prompt_tokens
        self.most_tokens = self.text + arrival.output_tokens
        self.base: int | None = None
        self.depths = depths = arrival.depths
        self.shown_at = _shown_at(self.text, depths) if depths else ()
        self.read = self.first_pass = self.blocks = 0
        self.order = self.out_at_ps = NEVER
        self.since_ps = at_ps
        self.keys: BlockKeys | None = None

    @property
    def num_answer(self) -> int:
        """Tokens of its answer so far, unless it decodes."""
        return self.text - self.arrival.prompt_tokens


def _shown_at(prompt_tokens: int, depths: tuple[int, ...]) -> tuple[int, ...]:
    """At each depth, and a token later: the token at the depth is then computed, and may fill a block."""
    return tuple(sorted({prompt_tokens + depth + more for depth in depths for more in (0, 1)}))


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


class RequestBlocks(Protocol):
    """Blocks of requests, from their admission to their release."""

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """Take the prefix hit of a text, which counts as read, and blocks for its first chunk.

        Returns:
            Tokens of the chunk, at most `budget`; 0: memory is short, and nothing has changed.
        """
        ...

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """Whether a request that was not admitted may be in the next step, though memory is shorter then.

        Once a block of its hit is evicted, the budget no more suffices for all of its text, and so it needs no place
        for the next token yet.
        """
        ...

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """Hold blocks for so many tokens in all; False, and nothing has changed, if memory is short."""
        ...

    def read(self, request: JumpingRequest) -> None:
        """The target has read the first `request.read` tokens of a text."""
        ...

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """A row's own blocks are those of so many tokens, of those that were taken for all rows."""
        ...

    def release(self, request: JumpingRequest) -> None:
        """A row gives up the blocks of its text; full ones that the target has computed stay cached."""
        ...

    def drop(self, request: JumpingRequest) -> None:
        """A request that is prefilled gives up its blocks."""
        ...

    def show(self, request: JumpingRequest) -> None:
        """A row goes on, and others may find the full blocks of its text that the target has computed."""
        ...


class PlainBlocks:
    """Without a prefix cache blocks are only counted.

    Args:
        memory: of the replica.
    """

    def __init__(self, memory: ReplicaMemory) -> None:
        self._kv = memory.target
        self._block_tokens = memory.target.limits.block_tokens

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """See `RequestBlocks`."""
        text = request.text
        wanted, chunk = (text + 1, text) if text <= budget else (budget, budget)
        blocks = -(-wanted // self._block_tokens)
        if not self._kv.take(blocks):
            return 0
        request.blocks = blocks
        request.read = 0
        return chunk

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """See `RequestBlocks`: there are no hits."""
        return False

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """See `RequestBlocks`."""
        blocks = -(-num_tokens // self._block_tokens)
        if blocks > request.blocks:
            if not self._kv.take(blocks - request.blocks):
                return False
            request.blocks = blocks
        return True

    def read(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`: nothing stays of it."""

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """See `RequestBlocks`."""
        request.blocks = -(-num_tokens // self._block_tokens)

    def release(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.free_blocks += -(-request.text // self._block_tokens)

    def drop(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.free_blocks += request.blocks

    def show(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`: nobody finds any."""


class CachedBlocks:
    """With a prefix cache. Full blocks of a row enter it when it leaves the batch, or when others follow what it wrote.

    Nobody else can find them before: what a row writes has keys that only those know who follow it. A stale snapshot
    of the cache, which those who follow are routed by, takes in what rows have written so far.

    Args:
        memory: of the replica.
    """

    def __init__(self, memory: ReplicaMemory) -> None:
        self._memory = memory
        self._kv = memory.target

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """See `RequestBlocks`."""
        kv, text, keys = self._kv, request.text, self._keys(request)
        hit = kv.hit_tokens(keys, text)
        chunk = min(text - hit, budget)
        upto = hit + chunk
        wanted = upto + (upto == text)
        if not kv.fits(keys, text, wanted):
            return 0
        kv.open(request.serial, keys, text, resumes=request.first_pass > 0, hit_tokens=hit)
        kv.reserve(request.serial, wanted)
        request.read = hit
        return chunk

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """See `RequestBlocks`."""
        hit = self._kv.hit_tokens(self._keys(request), request.text)
        return 0 < hit == request.text - budget

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """See `RequestBlocks`."""
        return self._kv.reserve(request.serial, num_tokens)

    def read(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.commit(request.serial, request.read, self._keys(request))

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """See `RequestBlocks`."""
        self._kv.hold(request.serial, num_tokens)

    def release(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self.show(request)
        self._kv.close(request.serial)

    def drop(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.close(request.serial)

    def show(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        kv, serial, text = self._kv, request.serial, request.text
        kv.hold(serial, text)
        kv.commit(serial, text - 1, self._keys(request))

    def _keys(self, request: JumpingRequest) -> BlockKeys:
        if request.keys is None:
            request.keys = self._memory.block_keys(request.arrival, request.serial, self._kv)
        return request.keys


def request_blocks(memory: ReplicaMemory) -> RequestBlocks:
    """As the memory of a replica's target is."""
    return CachedBlocks(memory) if memory.target.limits.prefix_cache else PlainBlocks(memory)


class JumpingBooks:
    """Sums are kept here and told once, by `close`.

    Args:
        index: of the replica.
        recorder: of the run.
        members: memory of each level, None where there is none.
        target: level of the target.

    Attributes:
        num_cycled: tokens that came out after the first pass of a recorded answer, of requests that are done or closed.
    """

    def __init__(self, index: int, recorder: ServingRecorder, members: Sequence[MemberKv | None], target: int) -> None:
        self._index = index
        self._recorder = recorder
        self._states = recorder.states_of(index)
        self._gaps = recorder.gaps
        self._members = members
        self._target = target
        # Those below the target are asked for each text as well, and never have it.
        self._idle = [kv for kv in members[:target] if kv is not None and kv.limits.prefix_cache]
        self._idle_lookups = {id(kv): [0, 0] for kv in self._idle}  # blocks, tokens: asked for
        self._busy_ps = self._num_steps = self._num_judged = self._num_states = 0
        self._running_ps = self._waiting_ps = self._block_ps = 0
        self._most_running = self._most_waiting = self._most_blocks = 0
        self._num_read = 0
        self.num_cycled = 0

    @property
    def num_emitted(self) -> int:
        """Tokens that came out, of steps and of prefills."""
        return self._num_judged + self._num_read

    # -- requests

    def wait(self, waiting: int) -> None:
        """So many requests wait now."""
        if waiting > self._most_waiting:
            self._most_waiting = waiting

    def admitted(self, request: JumpingRequest, at_ps: int) -> None:
        """A request enters the batch, with its cached tokens read; what is said of its first time is said then."""
        self._waiting_ps += at_ps - request.since_ps
        request.since_ps = at_ps
        if request.first_pass:
            return
        hit = request.read
        self._recorder.scheduled(request.serial, at_ps, [0] * self._target + [hit] if hit else ())
        for kv in self._idle:
            asked = self._idle_lookups[id(kv)]
            asked[0] += request.text // kv.limits.block_tokens
            asked[1] += request.text

    def put_back(self, request: JumpingRequest, at_ps: int, waiting: int) -> None:
        """A request left the batch; so many wait now."""
        self._running_ps += at_ps - request.since_ps
        request.since_ps = at_ps
        self.wait(waiting)
        self._recorder.preempted(request.serial, at_ps)

    def first_out(self, request: JumpingRequest, at_ps: int) -> None:
        """The token that a prefill writes: the first one, or one that was long in coming."""
        self._num_read += 1
        if request.out_at_ps == NEVER:
            self._recorder.first_token(request.serial, at_ps)
        else:
            self._gaps(at_ps - request.out_at_ps, 0, 1, 1)

    def ended(self, request: JumpingRequest, at_ps: int) -> None:
        """A request has all of its tokens."""
        self._running_ps += at_ps - request.since_ps
        cycled = request.arrival.output_tokens - request.first_pass
        if cycled > 0:
            self.num_cycled += cycled
        self._recorder.finished(request.serial, at_ps)

    def unfinished(self, request: JumpingRequest, num_emitted: int, at_ps: int) -> None:
        """A request has only so many tokens when the run ends."""
        if request.order == NEVER:
            self._waiting_ps += at_ps - request.since_ps
        else:
            self._running_ps += at_ps - request.since_ps
        if num_emitted:
            self._recorder.emitted(request.serial, num_emitted)
            self.num_cycled += max(0, num_emitted - request.first_pass)

    # -- steps

    def planned(self, at_ps: int, running: int, waiting: int, used: int) -> None:
        """What the replica holds from now on, until something is planned again or a request comes."""
        if running > self._most_running:
            self._most_running = running
        if used > self._most_blocks:
            self._most_blocks = used
        self._num_states += 1
        if self._num_states == self._states.next_sample:
            self._states.sample(at_ps, running, waiting, self._target, used)

    def ran(self, jump: Jump, steps: int, rows: int, later: int, later_ps: int) -> None:
        """Steps of a jump have run.

        Args:
            jump: which.
            steps: of it.
            rows: that got a token in each.
            later: blocks that came after the first of the steps.
            later_ps: how long these were used, added up.
        """
        lasted_ps = jump.end_ps - jump.start_ps if steps == jump.num_steps else jump.lasts_ps(steps)
        used = jump.used_blocks
        self._busy_ps += lasted_ps
        self._num_steps += steps
        self._block_ps += used * lasted_ps + later_ps
        if used + later > self._most_blocks:
            self._most_blocks = used + later
        if rows:
            self._num_judged += rows * steps
            self._gaps(jump.first_ps, jump.increment_ps, steps, rows)

    def in_step(self, jump: Jump, at_ps: int) -> None:
        """The run ends within the first step of a jump."""
        self._busy_ps += at_ps - jump.start_ps
        self._block_ps += jump.used_blocks * (at_ps - jump.start_ps)
        self._most_blocks = max(self._most_blocks, jump.used_blocks)

    def close(self) -> None:
        """Tell the sums."""
        recorder, index, target = self._recorder, self._index, self._target
        below = [0] * target
        self._states.held(
            [self._running_ps, self._waiting_ps, *below, self._block_ps],
            [self._most_running, self._most_waiting, *below, self._most_blocks],
            self._num_states,
        )
        recorder.busy(index, target, self._busy_ps, self._num_steps)
        recorder.judged(target, 0, 0, self._num_judged, self._num_judged)
        for level, kv in enumerate(self._members):
            if kv is not None:
                hits, (blocks, tokens) = kv.hits, self._idle_lookups.get(id(kv), (0, 0))
                asked = hits.asked_blocks + blocks, hits.asked_tokens + tokens
                recorder.looked_up(index, level, asked, (hits.found_blocks, hits.found_tokens))
