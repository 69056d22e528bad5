"""One replica as a state machine: what runs next, until when, and its results. It has no clock of its own.

In a **cycle** every decoding request drafts, and is judged below the target, lowest member first. Then comes one
**step** of the target: verifications, chunks of prefills, new requests. `plan` chooses what runs and returns when it
ends, `commit` applies its results; `plan` also carries out all that ends before a given instant.

`plan` gets a step for every ready request (`asked`), takes the lowest group of steps, holds blocks for it (`scheduler`,
which preempts, and fills the target's step with prefills), answers it from the recording and charges it (`world`).
`commit` moves tokens, passes outcomes to the policy, fills prefix caches and ends requests. Answers of the recording
are cached.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from ...decoding.results import DRAFT, VERIFY, made
from ...policies.about import decides_by_pending, members_run_by, runs_target_alone
from ...runs.operations import READ, RanRow
from ...runs.serving import CYCLES, STEP_BY_STEP
from ...traces.workloads.arrival import PS_PER_S, Arrival
from .asked import AskedPolicy
from .charges import to_ps
from .flights import Flights
from .limits import Admission
from .memory import FirstBlocks
from .replica import ReplicaBooks, ReplicaSpec, Role, ServedFrom
from .replica_memory import ReplicaMemory
from .requests import READS, ServedRequest, Waiting
from .routers import CachedTokens, ReplicaSignals
from .scheduler import Scheduler
from .world import Fed, ServedWorld

VERIFIES = False  # of `Going.drafts`


class Going(NamedTuple):
    """What a replica runs: a draft or a verification, or a step of the target with chunks of prefills."""

    level: int  # of the member
    drafts: bool  # whether it drafts
    rows: list[ServedRequest]  # requests; in a step of the target those whose prefill ends come last
    results: Sequence[Any]  # of each row, `Drafted` or `Judged`
    num_ending: int  # rows whose prefill ends
    chunks: Sequence[ServedRequest]  # unfinished prefills
    # totals
    num_forwards: int
    new_tokens: int
    duration_s: float  # of all of it, for policies
    free_share: float  # of KV memory while it runs
    # when
    start_ps: int
    end_ps: int

    def without(self, request: ServedRequest) -> Self:
        """The same operation, without the result of one request."""
        kept = [place for place, row in enumerate(self.rows) if row is not request]
        return self._replace(
            rows=[self.rows[place] for place in kept],
            results=[self.results[place] for place in kept],
            num_ending=sum(place >= len(self.rows) - self.num_ending for place in kept),
            chunks=[row for row in self.chunks if row is not request],
        )


class Replica:
    """Serves requests. The caller calls `plan`, lets the time pass, and calls `commit`; `arrive` at any time.

    Attributes:
        index: in the run.
        books: its notes.
        end_ps: of the planned operation.
        may_lag: whether it may run later than the others, and in whole cycles; see `RunningReplicas`.
    """

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, *, may_lag: bool) -> None:
        pool = shared.pool
        self.index = index
        self._shared = shared
        self._target = pool.target_level
        self._recorder = shared.recorder
        self._operations = shared.recorder.operations
        self.may_lag = may_lag = may_lag and self._operations is None
        self._memory = ReplicaMemory(pool, spec.limits, shared.unit_tokens, runs=members_run_by(spec.policy))
        self._keeps = [kv is not None for kv in self._memory.members]
        self._has_caches = self._memory.has_caches
        self._world = spec.world(pool, shared.answers, lambda: self._asked.load.now_s, lambda: self._memory.target)
        self._decides = not spec.decide_s.is_free
        self._budget = spec.limits.token_budget
        self._asked = AskedPolicy(
            pool, spec.policy, spec.policy_name, self._world, spec.decide_s.each_s if self._decides else None
        )
        self._scheduler = Scheduler(
            limits=spec.limits,
            asked=self._asked,
            target=self._target,
            memory=self._memory,
            recorder=shared.recorder,
            open_request=self._opened,
            world=self._world,
        )
        self._batch = self._scheduler.batch
        self._requests: dict[str, ServedRequest] = {}
        self._kept: tuple[int, bool, list[ServedRequest]] | None = None
        self._going: Going | None = None
        self.books = ReplicaBooks(index, shared.recorder, self._batch, self._memory, self._reached)
        self._told = False
        self._flights = self._flights_of(spec) if may_lag else None
        self._planned_ps = self.end_ps = 0  # of the planned operation; it starts once the policy has decided

    def _flights_of(self, spec: ReplicaSpec) -> Flights | None:
        """None for a policy whose rounds are not known in advance."""
        guesses = spec.limits.admission == Admission.estimate  # by written tokens of requests
        if guesses or self._decides or spec.role != Role.both or not decides_by_pending(spec.policy):
            return None
        if not isinstance(self._world, ServedWorld) or not self._world.is_plain:
            return None
        return Flights(
            pool=self._shared.pool,
            rounds=self._shared.rounds.of(spec.policy, spec.policy_name),
            asked=self._asked,
            memory=self._memory,
            books=self.books,
            world=self._world,
            budget=self._budget,
            runs_alone=runs_target_alone(spec.policy),
        )

    # -- the outside view

    @property
    def path(self) -> str:
        """How its steps were computed, in words."""
        return STEP_BY_STEP if self._flights is None or not self._flights.has_flown else CYCLES

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._batch.waiting) + self._batch.elsewhere

    @property
    def num_modelled(self) -> int:
        """Decisions that were modelled rather than replayed."""
        return self._asked.num_modelled

    def signals(self) -> ReplicaSignals:
        queued_tokens, free_share = self._batch.queued_tokens, self._memory.free_share
        return ReplicaSignals(self.num_running, self.num_waiting, queued_tokens, free_share)

    def cached_tokens(self, arrival: Arrival) -> int:
        return self._memory.cached_tokens(arrival, self._memory.target)

    def first_blocks(self) -> FirstBlocks:
        kv = self._memory.target
        return FirstBlocks(self._shared.unit_tokens, kv.limits.block_tokens, kv.first_keys)

    def frozen_prefixes(self) -> CachedTokens:
        return partial(self._memory.cached_tokens, kv=self._memory.target.frozen())

    # -- the machine

    def refuses(self, arrival: Arrival) -> str:
        """Why a request can never run, in words without its id; "" if it can."""
        return self._memory.refuses(arrival)

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """Take a request; one that can never run is rejected."""
        serial = self._shared.enter(arrival, self.index, at_ps, refused=self.refuses(arrival))
        if serial is None:
            return
        # One that follows another at once comes when the next cycle has begun, and misses its step under any policy.
        going = self._going
        misses = going is not None and going.level < self._target and self._planned_ps >= at_ps
        self._batch.arrived(Waiting(arrival, serial, from_step=self._scheduler.num_filled + bool(misses)))
        self._asked.load.num_waiting += 1
        self.books.note_state(at_ps)

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """Choose what runs next, and carry out what ends before `until_ps`.

        Returns:
            When it ends, >= `now_ps`; None: there is nothing to run.

        Raises:
            PolicyError: the policy broke the contract.
            UnrecordedContextError: strict, and a decision is not recorded.
            CostRangeError: an operation outside the range of the cost model.
        """
        flights, asked, scheduler = self._flights, self._asked, self._scheduler
        target, decides = self._target, self._decides
        while True:
            if flights is not None:
                flown_ps = flights.run(now_ps, 0 if self._told else until_ps) if self._goes_round() else None
                if flown_ps is not None:
                    now_ps = flown_ps
                    if asked.finished:
                        self._end_finished(now_ps)
                    self.books.note_state(now_ps)
                    continue
                flights.land()
            going, start_ps = None, now_ps
            while going is None:
                op, self._kept = self._kept, None
                if op is None:
                    op = asked.next_op(start_ps / PS_PER_S)
                    if decides:
                        start_ps += self._decided_ps()
                if asked.committed and self._has_ended(start_ps):
                    self._kept = op
                    going = Going(target, VERIFIES, [], (), 0, (), 0, 0, 0.0, 1.0, start_ps, start_ps)
                    break
                level, drafts, rows = op or (target, VERIFIES, [])
                if level == target:
                    going = self._step(rows, now_ps, start_ps)
                    break
                going = self._below(level, drafts, rows, now_ps, start_ps)
            if scheduler.has_moved:  # also where nothing runs: the last request may have lost its blocks
                scheduler.has_moved = False
                self.books.note_state(now_ps)
            # After the end of a request, or tokens that others waited for, others may arrive.
            if going is None or going.end_ps >= until_ps or self._told:
                self._planned_ps, self._going, self._told = now_ps, going, False
                if going is None:
                    return None
                self.end_ps = going.end_ps
                return self.end_ps
            now_ps = self._carry_out(going)

    def _goes_round(self) -> bool:
        """Whether all requests decode, at the start of a round."""
        asked = self._asked
        is_idle = self._kept is None and not asked.finished and not asked.committed
        return is_idle and self._scheduler.only_decodes and asked.between_rounds

    def _decided_ps(self) -> int:
        """Picoseconds of the latest decisions, counted: the policy's clock in seconds loses digits late in a run."""
        asked = self._asked
        count, asked.decided = len(asked.decided), []
        return count * to_ps(asked.each_s)

    def commit(self) -> None:
        """Apply the planned operation to requests, policy, caches and the recorder."""
        going, self._going = self._going, None
        assert going is not None
        if self._operations is None:
            self._carry_out(going)
            return
        rows = ran_rows(going)
        self._carry_out(going)
        if going.num_forwards or going.rows:
            self._note_ran(going, rows)

    def _carry_out(self, going: Going) -> int:
        """Apply an operation at its end, which is returned."""
        (level, drafts, rows, results, num_ending, chunks,
         num_forwards, new_tokens, duration_s, free_share, start_ps, end_ps) = going  # fmt: skip
        asked, books, num_rows = self._asked, self.books, len(rows)
        load = asked.load
        if num_forwards:
            busy = books.busy[level]
            busy[0] += end_ps - start_ps
            busy[1] += num_forwards
        if rows:
            load.now_s = end_ps / PS_PER_S
            load.free_kv_share = free_share
            load.batch[level] = num_rows
            load.duration_s[level] = duration_s
            load.num_forwards[level] = num_forwards
            load.new_tokens[level] = new_tokens
            if drafts:
                asked.drafted(level, rows, results, duration_s)
                books.noted_ps = end_ps
                return end_ps
        elif num_forwards:
            load.now_s = end_ps / PS_PER_S
        if num_ending or chunks:
            self._read(rows, results, num_ending, chunks, duration_s, end_ps)
            if chunks:
                num_rows += len(chunks)
                load.batch[level], load.duration_s[level] = num_rows, duration_s
                load.num_forwards[level], load.new_tokens[level] = num_forwards, new_tokens
        elif level < self._target:
            asked.judged(level, rows, results, duration_s)
            books.noted_ps = end_ps
            return end_ps
        else:
            reached = asked.wrote(rows, results, duration_s, num_rows, books, end_ps)
            if reached:
                books.reached(reached, end_ps)
            self._slide(rows)
            if self._has_caches:
                self._cache(rows)
        if asked.finished:
            self._end_finished(end_ps)
        elif not (num_ending or self._has_caches or self._memory.windowed):
            return end_ps  # the batch is the same, and blocks were held before
        load.free_kv_share = self._memory.free_share
        books.note_state(end_ps)
        return end_ps

    def _cache(self, rows: Iterable[ServedRequest]) -> None:
        """Cache full blocks of tokens that the target has read."""
        for request in rows:
            self._memory.commit(request)

    def _slide(self, rows: Iterable[ServedRequest]) -> None:
        """Free blocks before the windows of requests after each step of the target.

        vLLM does so as the next step is planned, for a request just before it takes its own blocks. An earlier request
        of that step cannot have them yet, so that in tight memory vLLM preempts a little more often.
        """
        if self._memory.windowed:
            for request in rows:
                self._memory.slide(request)

    def leave(self, request_id: str, at_ps: int) -> None:
        """Drop a waiting or running request, in any state; its policy gets no outcome, of the planned operation either.

        For a replica that runs step by step.

        Raises:
            KeyError: it neither waits nor runs: it was rejected, has ended, or never arrived.
        """
        request, batch, asked = self._requests.pop(request_id, None), self._batch, self._asked
        waiting = batch.withdrawn(request_id)
        if waiting is not None:
            asked.load.num_waiting -= 1
        elif request is not None:
            asked.withdraw(request)
            if self._kept is not None:
                level, drafts, rows = self._kept
                rows = [other for other in rows if other is not request]
                self._kept = (level, drafts, rows) if rows else None
            if self._going is not None:
                self._going = self._going.without(request)
            batch.prefilling.pop(request, None)
            batch.ended(request)
        else:
            raise KeyError(request_id)
        if request is not None:
            self.books.num_cycled += request.num_cycled
            self._memory.leave(request, runs=waiting is None)
            if request.scheduled:
                self._world.close(request)
        asked.load.free_kv_share = self._memory.free_share
        self.books.note_state(at_ps)

    def _note_ran(
        self, going: Going, ran: list[tuple[ServedRequest, int, RanRow]], until_ps: int | None = None
    ) -> None:
        """Note an operation; `ran` has each request with its text before, and its row without output.

        It ends at `until_ps`, if that is before its end.
        """
        assert self._operations is not None
        rows = [row._replace(emitted=request.num_text - before) for request, before, row in ran]
        span_ps = going.start_ps, going.end_ps if until_ps is None else min(going.end_ps, until_ps)
        kind = DRAFT if going.drafts else VERIFY
        self._operations.ran(self.index, going.level, kind, span_ps, (going.num_forwards, going.new_tokens), rows)

    # -- operations

    def _has_ended(self, now_ps: int) -> bool:
        """Note outputs of Commits; returns whether a request is done."""
        for request in self._asked.committed:
            self.books.note_outputs([request], now_ps)
        self._asked.committed = []
        return bool(self._asked.finished)

    def _below(self, level: int, drafts: bool, rows: list[ServedRequest], now_ps: int, start_ps: int) -> Going | None:
        """An operation of a member below the target; None: no request is left in it."""
        target, keeps, new_tokens, held_tokens = self._target, self._keeps[level], 0, 0
        short: list[ServedRequest] = []
        for request in rows:
            context, held, room = request.num_text + len(request.tokens), request.cached[level], request.room_held
            before = context - 1 if drafts else request.num_text + request.first - 1
            if held > before:
                held = before
            new_tokens += context - held
            held_tokens += held
            wanted = context + request.asked
            if wanted >= room[target] or (keeps and wanted >= room[level]):
                short.append(request)
        fed: Fed = (new_tokens, held_tokens)
        if short:
            held_rows = self._scheduler.hold_below(level, rows, short, now_ps)
            if not held_rows:
                return None
            if held_rows is not rows:  # a request was preempted
                rows, fed = held_rows, None
        caught_up = None
        if keeps and new_tokens > self._budget:
            fed = None
            rows, left = within_budget(level, drafts, rows, self._budget)
            if left:
                self._kept = level, drafts, left
            caught_up = self._catch_up(level, drafts, rows)
        ran = self._world.draft(level, rows, fed) if drafts else self._world.verify(level, rows, (), fed)
        results, num_forwards, new_tokens, duration_ps = ran
        if caught_up is not None:
            duration_ps += caught_up[0]
            num_forwards += caught_up[1]
            new_tokens += caught_up[2]
        return made(Going, (
            level, drafts, rows, results, 0, (), num_forwards, new_tokens, duration_ps / PS_PER_S,
            self._memory.free_share, start_ps, start_ps + duration_ps,
        ))  # fmt: skip

    def _catch_up(self, level: int, drafts: bool, rows: list[ServedRequest]) -> tuple[int, int, int]:
        """Run forwards of at most the budget's tokens until the rest to feed is within the budget.

        Updates the cached tokens of requests. Rows are served in order.

        Returns:
            Picoseconds, forwards, and tokens fed to them.
        """
        world, budget = self._world, self._budget
        spare = {request: max(needed(request, level, drafts) - request.cached[level], 0) for request in rows}
        total = sum(spare.values()) + sum(context_of(row) - needed(row, level, drafts) for row in rows)
        duration_ps = num_forwards = new_tokens = 0
        while total > budget and any(spare.values()):
            left = budget
            chunks = []
            for request in rows:
                chunk = min(spare[request], left)
                if chunk:
                    request.chunk, request.chunk_level = chunk, level
                    chunks.append(request)
                    left -= chunk
            duration_ps += world.catch_up(level, chunks)
            for request in chunks:
                request.cached[level] += request.chunk
                spare[request] -= request.chunk
                request.chunk = 0
            num_forwards += 1
            new_tokens += budget - left
            total -= budget - left
        return duration_ps, num_forwards, new_tokens

    def _step(self, rows: list[ServedRequest], now_ps: int, start_ps: int) -> Going | None:
        """A step of the target; None: it has no request."""
        level = self._target
        rows, ending, chunks, fed = self._scheduler.step(rows, now_ps)
        if ending or chunks:
            for request in (*ending, *chunks):
                request.chunk_level = level
                request.step = READS
            rows = [*rows, *ending]
        elif not rows:
            assert not self._batch.running, "a batch that has nothing to run"
            assert not self._batch.waiting or any(self._memory.used_blocks), "who waits beside an empty batch"
            return None
        judged, num_forwards, new_tokens, duration_ps = self._world.verify(level, rows, chunks, fed)
        memory, end_ps = self._memory, start_ps + duration_ps
        if memory.host is not None:
            end_ps += memory.host.take_load_ps(start_ps)
        return made(Going, (
            level, VERIFIES, rows, judged, len(ending), chunks, num_forwards, new_tokens, duration_ps / PS_PER_S,
            memory.free_share, start_ps, end_ps,
        ))  # fmt: skip

    def _read(
        self, rows: list[ServedRequest], results: Sequence[Any], num_ending: int, chunks: Sequence[ServedRequest],
        duration_s: float, end_ps: int,
    ) -> None:  # fmt: skip
        """Apply a step of the target with prefills: chunks are read, those that end write their first token."""
        asked, books, num_rows, num_judged = self._asked, self.books, len(rows), len(rows) - num_ending
        judged, ending = rows[:num_judged], rows[num_judged:]
        reached = asked.wrote(judged, results, duration_s, num_rows, books, end_ps)
        asked.prefilled(ending, results[num_judged:], duration_s, num_rows)
        for request in chunks:
            request.cached[self._target] += request.chunk
            request.chunk = 0
        for request in ending:
            request.chunk = 0
            del self._batch.prefilling[request]
        self._slide((*rows, *chunks))
        if self._has_caches:
            self._cache(chunks)
        books.note_outputs(ending, end_ps, reached)
        if self._has_caches:
            self._cache(rows)

    def _end_finished(self, at_ps: int) -> None:
        """Release the blocks of finished requests, those admitted earlier first."""
        done, self._asked.finished = self._asked.finished, []
        for request in sorted(done, key=lambda request: request.order):
            del self._requests[request.request_id]
            self._batch.ended(request)
            self._memory.close(request)
            self._world.close(request)
            del request.view  # it refers to the request: the cycle would wait for the garbage collector
            if self._shared.outputs is not None:
                self._shared.outputs[request.request_id] = request.earlier + request.emitted
            self.books.num_cycled += request.num_cycled
            self._recorder.finished(request.serial, at_ps)
            self._shared.on_ended(request.arrival, at_ps)
            if request.arrival.turns is not None:
                self._told = True

    def _reached(self, requests: Iterable[ServedRequest], at_ps: int) -> None:
        self._told = True
        self._shared.reached(requests, at_ps)

    def _opened(self, waiting: Waiting) -> ServedRequest:
        """The served request of a waiting one, made at first use."""
        request = self._shared.session(waiting.arrival, waiting.serial)
        self._requests[request.request_id] = request
        return request

    def close_books(self, until_ps: int) -> None:
        """Write final figures into the recorder; the run ends then, perhaps within an operation."""
        going = self._going
        if going:
            self.books.cut(going.level, going.num_forwards, going.start_ps, going.end_ps, until_ps)
        if going and self._operations is not None and going.start_ps < until_ps:
            cut = [(request, text, row._replace(tokens=0, accepted=0)) for request, text, row in ran_rows(going)]
            self._note_ran(going, cut, until_ps)
        if self._flights is not None:
            self._flights.close()
        for level, (num_rows, drafted, accepted, own) in enumerate(self._asked.judged_sums):
            self._recorder.judged(level, drafted, accepted, own, num_rows)
        self.books.close(self._requests.values(), until_ps)


def ran_rows(going: Going) -> list[tuple[ServedRequest, int, RanRow]]:
    """Each request of an operation, the tokens of its text before it, and its row without output."""
    level, num_judged = going.level, len(going.rows) - going.num_ending
    found = []
    for index, (request, result) in enumerate(zip(going.rows, going.results, strict=True)):
        if going.drafts:
            row = RanRow(request.serial, DRAFT, len(result.tokens))
        elif index < num_judged:
            judged = len(request.tokens) - request.first_unjudged(level)
            row = RanRow(request.serial, VERIFY, judged, result.num_accepted)
        else:
            row = RanRow(request.serial, READ, request.chunk)
        found.append((request, request.num_text, row))
    found += [(row, row.num_text, RanRow(row.serial, READ, row.chunk)) for row in going.chunks]
    return found


def context_of(request: ServedRequest) -> int:
    """Tokens of its text, pending ones included."""
    return request.num_text + len(request.tokens)


def needed(request: ServedRequest, level: int, drafts: bool) -> int:
    """Tokens that a cache must hold so that a forward is fed only the last token, or the judged ones."""
    if drafts:
        return context_of(request) - 1
    return request.num_text + request.first_unjudged(level) - 1


def within_budget(
    level: int, drafts: bool, rows: list[ServedRequest], budget: int
) -> tuple[list[ServedRequest], list[ServedRequest]]:
    """The rows that, after catch-up, are fed at most `budget` tokens, at least the first; and the others."""
    left, count = budget, 0
    for request in rows:
        left -= context_of(request) - needed(request, level, drafts)
        if left < 0 and count:
            break
        count += 1
    return rows[:count], rows[count:]
