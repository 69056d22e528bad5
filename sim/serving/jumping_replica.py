"""A replica of the target alone that jumps over steps in which nothing changes.

Which replicas may jump; of any other one can say why it goes step by step.

Who waits, who runs and who holds which blocks, on a replica that jumps; the order of things is that of `engine`.

A replica that serves the target alone, and jumps: as `engine.Replica`, many steps at once.

A step in which a prefill runs, or a request is put back, is a jump of one step. Where all who run decode, a jump goes
on to the first of: a request is done, memory is short, the line of the cost ends. A request that comes and may be
admitted cuts it at the end of the step that runs.
"""

from collections import deque
from functools import partial
from typing import cast

from ...traces.workloads.arrival import Arrival
from .charges import ForwardLines
from .jumping_books import DecodingRows, Jump, JumpingBooks, JumpingRequest, request_blocks
from .memory import FirstBlocks, first_blocks_of
from .replica import ReplicaSpec, ServedFrom
from .replica_memory import ReplicaMemory
from .requests import NEVER
from .routers import CachedTokens, ReplicaSignals
from .running import Moment


def why_no_jumps(spec: ReplicaSpec) -> str:
    """Why a replica that runs the target alone has to go step by step, in words; "" if it may jump."""
    limits = spec.limits
    if limits.token_budget < limits.max_num_seqs:
        return f"token_budget {limits.token_budget} is below max_num_seqs {limits.max_num_seqs}"
    return spec.cost.unlined()


class JumpingBatch:
    """The queues of a replica. Only the target's memory counts: no other member ever runs.

    Args:
        memory: of the replica.
        most_running: requests in the batch at most.
        shared: what the replica shares with others.
        books: of the replica.

    Attributes:
        blocks: who holds which.
        rows: requests that decode.
        running: by the order of their admission.
        waiting: in the order in which they are admitted.
        waiting_tokens: of their texts.
        prefilling: whose text the target has begun to read; at most one, the latest of `running`, since nobody is
            admitted before the one before is read to its end.
        looks_again: whether the first that waits did not fit, and may in the next step.
    """

    def __init__(self, memory: ReplicaMemory, most_running: int, shared: ServedFrom, books: JumpingBooks) -> None:
        self.blocks = request_blocks(memory)
        self.rows = DecodingRows(memory.target.limits.block_tokens)
        self.running: dict[int, JumpingRequest] = {}
        self.waiting: deque[JumpingRequest] = deque()
        self.waiting_tokens = 0
        self.prefilling: JumpingRequest | None = None
        self.looks_again = False
        self._most_running = most_running
        self._shared = shared
        self._books = books
        self._admissions = 0

    def arrive(self, request: JumpingRequest) -> None:
        """A request waits, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.text
        self._books.wait(len(self.waiting))

    def show_answers(self) -> None:
        """Answers of rows that others will follow are in the prefix cache as far as they are computed now."""
        for request in self.running.values():
            if request.base is not None and request.arrival.answer:
                request.text = request.base + self.rows.beats
                self.blocks.show(request)

    def admit(self, left: int, now_ps: int) -> list[tuple[JumpingRequest, int]]:
        """The first that wait enter the batch, as long as there is room; returns their first chunks.

        Args:
            left: of the step's token budget.
            now_ps: when the step begins.
        """
        waiting, running, blocks = self.waiting, self.running, self.blocks
        chunks: list[tuple[JumpingRequest, int]] = []
        self.looks_again = False
        while waiting and left > 0 and len(running) < self._most_running:
            request = waiting[0]
            chunk = blocks.admit(request, left)
            if not chunk:
                self.looks_again = blocks.may_fit_next(request, left)
                break
            waiting.popleft()
            self.waiting_tokens -= request.text
            request.order = order = self._admissions
            self._admissions = order + 1
            running[order] = request
            self._books.admitted(request, now_ps)
            if not request.first_pass:
                arrival, shared = request.arrival, self._shared
                request.first_pass = shared.lengths.of(shared.drawn.of(arrival.request_id, arrival.tag))
            self.prefilling = request
            chunks.append((request, chunk))
            left -= chunk
        return chunks

    def make_room(self, now_ps: int) -> None:
        """Every row gets the block that it needs in the next step, if need be from the latest of them."""
        beats, blocks = self.rows.beats, self.blocks
        decoding = [request for request in self.running.values() if request.base is not None]
        for request in decoding:
            blocks.hold_text(request, cast(int, request.base) + beats)
        for request in decoding:
            while request.order != NEVER:
                if blocks.reserve(request, cast(int, request.base) + beats + 1):
                    break
                self.put_back(now_ps)

    def put_back(self, now_ps: int) -> None:
        """The latest that was admitted waits again, before all others."""
        _, request = self.running.popitem()
        if request.base is None:
            self.blocks.drop(request)
        else:
            self.rows.leave(request)
            request.out_at_ps = now_ps
            self.blocks.release(request)
        if request is self.prefilling:
            self.prefilling = None
        request.order = NEVER
        request.read = 0
        self.waiting.appendleft(request)
        self.waiting_tokens += request.text
        self._books.put_back(request, now_ps, len(self.waiting))

    def end(self, request: JumpingRequest, at_ps: int) -> None:
        """A request has all of its tokens."""
        del self.running[request.order]
        self.blocks.release(request)
        self._books.ended(request, at_ps)
        self._shared.on_ended(request.arrival, at_ps)


class JumpingReplica:
    """Driven as `engine.Replica` is; a jump that a request cuts ends earlier than `plan` said, see `end_ps`.

    Args:
        index: among the replicas of the run.
        spec: what it is; `may_jump.why_stepwise` has nothing against it.
        shared: what it shares with the others.
        moment: of the run.

    Attributes:
        num_modelled: decisions that were modelled rather than replayed: none.
        may_lag: nobody else learns what it does.
    """

    may_lag = True

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, moment: Moment) -> None:
        pool = shared.pool
        memory = ReplicaMemory(pool, spec.limits, shared.unit_tokens)
        self._index = index
        self._shared = shared
        self._moment = moment
        self._memory = memory
        self._kv = memory.target
        self._first_blocks = first_blocks_of(memory.target, shared.unit_tokens)
        self._block_tokens = memory.target.limits.block_tokens
        self._target = pool.target
        self._budget = spec.limits.token_budget
        self._most_running = spec.limits.max_num_seqs
        self._lines = ForwardLines(spec.cost)
        self._books = JumpingBooks(index, shared.recorder, memory.members, pool.target_level)
        self._batch = JumpingBatch(memory, spec.limits.max_num_seqs, shared, self._books)
        self._rows = self._batch.rows
        self._chunks: list[tuple[JumpingRequest, int]] = []
        self._jump: Jump | None = None
        self.num_modelled = 0

    # -- what others see

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that were put back among them."""
        return len(self._batch.waiting)

    @property
    def num_emitted(self) -> int:
        """Tokens that came out."""
        return self._books.num_emitted

    @property
    def num_cycled(self) -> int:
        """Tokens that came out after the first pass of a recorded answer, of requests that are done."""
        return self._books.num_cycled

    @property
    def end_ps(self) -> int:
        """When what was planned ends."""
        assert self._jump is not None
        return self._jump.end_ps

    def signals(self) -> ReplicaSignals:
        """See `routers.WatchedReplica`."""
        queued = self._batch.waiting_tokens + sum(request.text - request.read for request, _ in self._chunks)
        available = self._kv.available_blocks - self._untaken()
        return ReplicaSignals(
            len(self._batch.running), len(self._batch.waiting), queued, available / self._kv.limits.num_blocks
        )

    def cached_tokens(self, arrival: Arrival) -> int:
        """See `routers.WatchedReplica`."""
        self._settle()
        return self._memory.cached_tokens(arrival, self._kv)

    def first_blocks(self) -> FirstBlocks:
        """See `routers.WatchedReplica`."""
        return self._first_blocks  # steps that are over and not written down have put in no text

    def frozen_prefixes(self) -> CachedTokens:
        """See `routers.WatchedReplica`."""
        self._settle()
        self._batch.show_answers()  # those who will follow an answer may be routed by what it is now
        return partial(self._memory.cached_tokens, kv=self._kv.frozen())

    # -- the machine

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes; one that can never run is rejected. One that may be admitted ends a jump with this step."""
        serial = self._shared.enter(arrival, self._index, at_ps, refused=self._memory.refuses(arrival))
        if serial is None:
            return
        jump, batch = self._jump, self._batch
        if jump is not None and jump.num_steps > 1 and not batch.waiting and len(batch.running) < self._most_running:
            jump.cut(self._done(jump) + 1)
        batch.arrive(JumpingRequest(arrival, serial, at_ps))

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """Decide what runs next; see `ServedReplica.plan`. Raises CostRangeError."""
        rows, batch, kv = self._rows, self._batch, self._kv
        more = rows.next_blocks()
        is_short = more > 0 and not kv.take(more)
        if is_short:
            batch.make_room(now_ps)
        if is_short or batch.waiting or batch.prefilling is not None:
            is_short = self._plan_chunks(now_ps, is_short=is_short)
        if self._chunks or is_short or (batch.looks_again and rows.count):
            jump = self._one_step(now_ps)
        elif rows.count:
            jump = self._many_steps(now_ps, more)
        else:
            self._books.planned(now_ps, 0, 0, 0)
            return None
        self._jump = jump
        jump.used_blocks = used = kv.used_blocks
        self._books.planned(now_ps, len(batch.running), len(batch.waiting), used)
        return jump.end_ps

    def commit(self) -> None:
        """All steps that were planned have run."""
        jump = self._jump
        assert jump is not None
        self._jump = None
        end_ps = jump.end_ps
        self._write_down(jump, jump.num_steps)
        reached = self._rows.pop_reached()
        for request in reached:
            self._batch.blocks.show(request)
        ended = self._rows.pop_finished()
        if self._chunks:
            begun, ended_at_once = self._read_chunks(end_ps)
            reached += [request for request in begun if request.depths]
            ended += ended_at_once
        if reached:  # or are a token beyond what others wait for
            self._shared.reached(reached, end_ps)
        for request in ended:
            self._batch.end(request, end_ps)

    def close_books(self, until_ps: int) -> None:
        """Write down what ran until then, where the run ends, and what the recorder is told once."""
        self._settle()
        for request in (*self._batch.running.values(), *self._batch.waiting):
            text = request.text if request.base is None else request.base + self._rows.beats
            self._books.unfinished(request, text - request.arrival.prompt_tokens, until_ps)
        if self._jump is not None:
            self._books.in_step(self._jump, until_ps)
        self._books.close()

    # -- steps

    def _plan_chunks(self, now_ps: int, *, is_short: bool) -> bool:
        """Chunks of prefills for the next step; returns whether memory is short."""
        batch, left = self._batch, self._budget - self._rows.count
        first = batch.prefilling
        if first is not None:
            tokens = min(first.text - first.read, left)
            upto = first.read + tokens
            if batch.blocks.reserve(first, upto + (upto == first.text)):
                self._chunks.append((first, tokens))
                left -= tokens
            else:
                is_short = True
                batch.put_back(now_ps)
        if not is_short:
            self._chunks += batch.admit(left, now_ps)
        return is_short

    def _one_step(self, now_ps: int) -> Jump:
        rows, held, new = self._rows.count, self._rows.held_tokens, self._rows.count
        for request, tokens in self._chunks:
            held += request.read
            new += tokens
        num_rows = rows + len(self._chunks)
        return Jump(now_ps, self._lines.line(self._target, num_rows, new, held).ps(held))

    def _many_steps(self, now_ps: int, taken: int) -> Jump:
        """All who run decode, and so many blocks were taken for the first step."""
        rows = self._rows
        count, held, steps = rows.count, rows.held_tokens, rows.beats_left()
        line = self._lines.line(self._target, count, count, held)
        if held + (steps - 1) * count >= line.end:
            steps = -(-(int(line.end) - held) // count)
        if count * (steps // self._block_tokens + 1) > self._kv.free_blocks:
            steps = rows.most_beats(steps, self._kv.available_blocks + taken)
        return Jump(now_ps, line.ps(held), line.slope_ps * count, steps)

    def _write_down(self, jump: Jump, steps: int) -> None:
        """The first so many steps of a jump have run; the blocks of the first one are taken already."""
        rows = self._rows
        later = later_ps = 0
        if steps > 1:
            later, later_ps = rows.later_blocks(jump, steps)
            if later:
                enough = self._kv.take(later)
                assert enough, "a jump ends where memory does"
        self._books.ran(jump, steps, rows.count, later, later_ps)
        rows.pass_beats(steps)

    def _read_chunks(self, at_ps: int) -> tuple[list[JumpingRequest], list[JumpingRequest]]:
        """The target has read what was planned of texts; returns requests that have got a token, and those done."""
        batch, chunks = self._batch, self._chunks
        self._chunks = []
        batch.prefilling = None
        last: list[JumpingRequest] = []
        ended: list[JumpingRequest] = []
        for request, tokens in chunks:
            request.read += tokens
            if request.read == request.text:
                last.append(request)
            else:
                batch.prefilling = request
                batch.blocks.read(request)
        for request in last:
            batch.blocks.read(request)
        for request in last:
            self._books.first_out(request, at_ps)
            request.text += 1
            if request.text == request.most_tokens:
                ended.append(request)
            else:
                self._rows.join(request, request.text)
        return last, ended

    # -- in the midst of a jump

    def _done(self, jump: Jump) -> int:
        """Steps of a jump that are over by now, the last one apart."""
        if jump.num_steps == 1:
            return 0
        return jump.done(self._moment.now_ps, inclusive=self._moment.passed(self._index))

    def _untaken(self) -> int:
        """Blocks of the steps that have begun by now, those of the jump's first one apart, which are taken."""
        jump, rows = self._jump, self._rows
        done = 0 if jump is None else self._done(jump)
        return rows.blocks_until(done + 1) - rows.next_blocks() if done else 0

    def _settle(self) -> None:
        """Write down the steps that are over by now, and take the blocks of the one that runs."""
        jump = self._jump
        done = 0 if jump is None else self._done(jump)
        if jump is not None and done:
            self._write_down(jump, done)
            jump.drop(done)
            self._kv.take(self._rows.next_blocks())
            jump.used_blocks = self._kv.used_blocks
