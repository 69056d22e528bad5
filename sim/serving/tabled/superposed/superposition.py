"""Cycles of a replica whose requests are superposed: planned many at once, and written down as sums."""

from bisect import bisect_left, bisect_right

import numpy as np

from ...engine.replica_memory import ReplicaMemory
from ...jumps.moment import Moment
from ...limits import EngineLimits
from ..request_queue import RequestQueue
from ..single_ops import Going, SingleOps
from ..tabled_batch import TabledBatch
from ..tabled_books import TabledBooks
from ..tabled_charges import TabledCharges
from ..tabled_request import TabledRequest
from .flight import Flight, block_ps
from .round_paths import RoundPaths
from .round_shapes import UnfitRoundError
from .slot_times import SlotClock
from .standing import Standing
from .superposed_rows import SuperposedRow, SuperposedRows

# Beats that are worked out at once, of several rows and of one: a request that comes makes the rest void.
MOST_BEATS, MOST_BEATS_ALONE = 32, 64


class Superposition:
    """Plans flights and steps of superposed requests, and says what came of them.

    Args:
        index: of the replica.
        limits: of it.
        paths: of its requests.
        queue: takes the requests where operations run one by one.
        batch, memory, charges, books, ops: of the replica.
        moment: of the run.

    Attributes:
        flight: that is planned or runs.
        is_below_over: whether of the present beat only the target's step is left.
        unfit: requests that cannot be superposed.
    """

    def __init__(
        self,
        index: int,
        limits: EngineLimits,
        *,
        paths: RoundPaths,
        queue: RequestQueue,
        batch: TabledBatch,
        memory: ReplicaMemory,
        charges: TabledCharges,
        books: TabledBooks,
        ops: SingleOps,
        moment: Moment,
    ) -> None:
        self._index = index
        self._limits = limits
        self._shapes = paths.shapes
        self._queue = queue
        self._batch = batch
        self._memory = memory
        self._charges = charges
        self._books = books
        self._ops = ops
        self._moment = moment
        self._rows = SuperposedRows(paths, memory)
        self._target = len(memory.members) - 1
        self._sizes = [0 if kv is None else kv.limits.block_tokens for kv in memory.members]
        self._standing = Standing(memory, books, self._rows, paths.shapes)
        self._clock = SlotClock(self._rows, paths.shapes, charges, limits.token_budget)
        self._caches_below = any(kv is not None and kv.limits.prefix_cache for kv in memory.members[:-1])
        self._began_ps = 0  # of the present beat
        self._noted_blocks: list[int] = []  # that rows held when the state was noted last
        self.flight: Flight | None = None
        self.is_below_over = False
        self.unfit: set[TabledRequest] = set()

    @property
    def needs_step(self) -> bool:
        """Whether the target's step comes next: its rows have come to it, or there are none."""
        return self.is_below_over or not self._rows.rows

    # -- planning

    def fly(self, now_ps: int) -> Flight | None:
        """The next beats; None: they have to run one by one, for lack of memory or of token budget."""
        rows, batch = self._rows, self._batch
        self._began_ps = now_ps
        stops = bool(batch.prefilling) or bool(batch.waiting and len(batch.running) < self._limits.max_num_seqs)
        most = MOST_BEATS_ALONE if len(rows.rows) == 1 else MOST_BEATS
        count = min(rows.beats_left(), 1 if stops else most)
        if self._caches_below and rows.beat in rows.lacking:
            count = 1  # what is read enters the prefix cache
        count = self._fitting(count)
        if not count:
            return None
        times = self._clock.times(count)
        count = times.count
        if not count:
            return None
        self._take(0, 0)
        self._noted_blocks = list(rows.held_blocks)
        self.flight = Flight(now_ps, times, count - stops, stops_below=stops)
        return self.flight

    def plan_step(self, now_ps: int) -> Going | None:
        """The target's step in the present beat; None: nobody is there, or memory is short."""
        rows, target, left = self._rows.rows, self._target, self._limits.token_budget
        num_rows = new_tokens = held = 0
        if rows:
            (num_rows,), (new_tokens,), (held,), _ = self._rows.features(1)[-1]
            self._take(-1, 0)
        left -= new_tokens
        chunks: list[tuple[TabledRequest, int]] = []
        for request in self._batch.prefilling:
            tokens = min(request.prefill_left, left)
            upto = request.cached[-1] + tokens
            if tokens > 0:
                if not self._memory.reserve(request, target, upto + (upto == request.num_text)):
                    return None
                chunks.append((request, tokens))
                left -= tokens
        chunks += self._batch.admit(left, now_ps)
        if not (rows or chunks):
            return None
        for request, tokens in chunks:
            new_tokens += tokens
            held += request.cached[-1]
        duration_ps = self._charges.forward(target, num_rows + len(chunks), new_tokens, held)
        return Going(None, self._batch.laid_out([], chunks), target, 1, now_ps, now_ps + duration_ps)

    def cut(self, at_ps: int) -> None:
        """A request has come that may be admitted: the next step of the target is planned anew."""
        flight = self.flight
        assert flight is not None
        passed = self._moment.passed(self._index)
        place = (bisect_right if passed else bisect_left)(flight.ends_ps, at_ps)
        if place < len(flight.ends_ps) and flight.below_ps(place) < at_ps + passed:
            place += 1
        if place < flight.count:
            flight.count, flight.stops_below = place, True

    def _fitting(self, count: int) -> int:
        """How many of the next beats memory suffices for."""
        for place, level in enumerate(self._rows.levels):
            kv = self._memory.members[level]
            assert kv is not None
            room = self._rows.held_blocks[level] + kv.available_blocks
            held = self._rows.blocks(place, count)[-1]
            if count and held[count - 1] > room:
                count = int(held.searchsorted(room, side="right"))
        return count

    def _take(self, slot: int, place: int) -> None:
        """Take the blocks that rows hold in a slot of one of the next beats."""
        rows = self._rows
        for index, level in enumerate(rows.levels):
            blocks = int(rows.blocks(index, place + 1)[slot, place])
            more = blocks - rows.held_blocks[level]
            if more > 0:
                enough = self._memory.take(level, more)
                assert enough, "a flight ends where memory does"
                rows.held_blocks[level] = blocks

    # -- what comes of it

    def commit_flight(self) -> None:
        """The flight is over."""
        flight, self.flight = self.flight, None
        assert flight is not None
        end_ps = flight.ends_ps[flight.count - 1] if flight.count else flight.start_ps
        self._write_down(flight, flight.count, below=flight.stops_below)
        self.is_below_over = flight.stops_below
        ended = self._pass(flight.count, end_ps)
        self._ops.end(ended, end_ps)

    def commit_step(self, going: Going) -> bool:
        """A step of the target is over; returns whether requests are superposed still."""
        end_ps, step = going.end_ps, going.step
        assert step is not None
        self._books.ran(going.level, end_ps - going.start_ps, 1)
        self.is_below_over = False
        ended: list[TabledRequest] = []
        if self._rows.rows:
            self._books.single_gaps([end_ps - self._began_ps], len(self._rows.rows))
            ended = self._pass(1, end_ps)
        begun = self._ops.commit_prefills(step, end_ps, ended)
        for request, _ in step.ending:
            self._memory.commit(request)
        self._ops.reach([request for request, _ in step.ending], end_ps)
        self._ops.end(ended, end_ps)
        return self.join(begun)

    def join(self, requests: list[TabledRequest]) -> bool:
        """Requests begin to decode; False: one of them cannot be superposed, so that nobody is."""
        for place, request in enumerate(requests):
            try:
                self._rows.join(request)
            except UnfitRoundError:
                self.unfit.add(request)
                self.dissolve()
                for other in requests[place:]:
                    self._queue.goes_on(other)
                return False
        return True

    def dissolve(self) -> None:
        """Let operations run one by one from where the rows stand."""
        rows = self._rows
        for row in rows.in_step_order() if self.is_below_over else rows.in_order():
            self._leave(row)
            if self.is_below_over:
                self._standing.before_target(row, rows.beat - row.beat)
                self._queue.waits(row.request)
            else:
                self._queue.goes_on(row.request)
        for level in rows.levels:  # what was taken of a beat that has begun
            held = sum(row.request.room_held[level] for row in rows.rows.values())
            more = rows.held_blocks[level] - held // self._sizes[level]
            if more:
                self._memory.take(level, -more)
        self.is_below_over = False
        rows.clear()

    def settle(self, *, begun: bool = True) -> None:
        """Write down the beats of the flight that are over; `begun`: take the blocks of what has begun since."""
        flight = self.flight
        if flight is None:
            return
        now_ps, passed = self._moment.now_ps, self._moment.passed(self._index)
        done = (bisect_right if passed else bisect_left)(flight.ends_ps, now_ps, hi=flight.count)
        if done:
            self._write_down(flight, done, below=False)
            self._pass(done, flight.ends_ps[done - 1])
            flight.drop(done)
        if begun:
            slot, at_ps, slots_ps = 0, flight.start_ps, [slot[0] for slot in flight.times.slots_ps]
            while slot < len(slots_ps) - 1 and at_ps + slots_ps[slot] < now_ps + passed:
                at_ps += slots_ps[slot]
                slot += 1
            self._take(slot, 0)

    def show_answers(self) -> None:
        """Answers that other requests will follow are in the prefix caches as far as they are computed now."""
        rows = self._rows
        for row in rows.rows.values():
            if row.request.arrival.answer:
                self._standing.between_rounds(row, rows.beat - row.beat, self._began_ps)

    def _write_down(self, flight: Flight, count: int, *, below: bool) -> None:
        """The first so many beats of a flight have run, and with `below` what is below the target in the next one."""
        books, rows, times = self._books, self._rows, flight.times
        begun = count + below
        slots_ps = [slot[:begun] for slot in times.slots_ps]
        target_ps = slots_ps[-1]
        books.ran(self._shapes.drafter, sum(map(sum, slots_ps[:-1:2])), sum(times.drafting[:begun]))
        books.ran(self._shapes.judge, sum(map(sum, slots_ps[1:-1:2])), sum(times.judging[:begun]))
        if below:
            target_ps[-1] = 0
        if count:
            books.ran(self._target, sum(target_ps), count)
            books.single_gaps(times.beats_ps(count), len(rows.rows))
        if begun:
            lasted_ps = np.array(slots_ps, dtype=np.int64)
            for place, level in enumerate(rows.levels):
                grown = rows.blocks(place, begun) - self._noted_blocks[level]
                books.grew(level, block_ps(grown, lasted_ps), 0)
            self._take(-1 - below, begun - 1)
        for level in rows.levels:
            kv = self._memory.members[level]
            assert kv is not None
            books.grew(level, 0, kv.used_blocks)

    def _pass(self, beats: int, end_ps: int) -> list[TabledRequest]:
        """So many beats are over; returns requests that are done, which have left."""
        rows = self._rows
        fresh = [row for row in rows.rows.values() if row.beat == rows.beat] if self._caches_below and beats else []
        if beats:
            self._began_ps = end_ps
        ended = rows.pass_beats(beats) if beats else []
        for row in fresh:
            self._standing.between_rounds(row, rows.beat - row.beat, end_ps)
        for row in ended:
            self._leave(row)
            rows.leave(row)
        return [row.request for row in ended]

    def _leave(self, row: SuperposedRow) -> None:
        """A row is superposed no more: its request stands where it is, and its rounds are counted."""
        place = self._rows.beat - row.beat
        self._standing.between_rounds(row, place, self._began_ps)
        self._books.played(row.shapes[:place])
