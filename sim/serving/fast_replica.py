"""A replica whose policy's rounds are fixed: as `engine.Replica`, many cycles at once.

While its requests decode, they are superposed: each is known to its end, and what they cost together is a sum. Where
memory is short, or a forward would be fed more than the token budget, operations run one by one (`SingleOps`).
"""

from functools import partial

from ...traces.workloads.arrival import Arrival
from .many_cycles import Superposition
from .memory import FirstBlocks, first_blocks_of
from .numbers import RequestQueue, SettledKeys, TabledBatch, TabledBooks, TabledCharges, TabledRequest
from .replica import ReplicaSpec, ServedFrom
from .replica_memory import ReplicaMemory
from .routers import CachedTokens, ReplicaSignals
from .running import Moment
from .shared_paths import SharedPaths
from .single_ops import Going, SingleOps


class TabledReplica:
    """Driven as `engine.Replica` is; what a request cuts ends earlier than `plan` said, see `end_ps`.

    Args:
        index: among the replicas of the run.
        spec: what it is; `may_table.why_stepwise` has nothing against it.
        shared: what it shares with the others.
        moment: of the run.
        shared_paths: of the run.

    Attributes:
        may_lag: nobody else learns what it does.
    """

    may_lag = True

    def __init__(
        self, index: int, spec: ReplicaSpec, shared: ServedFrom, moment: Moment, shared_paths: SharedPaths
    ) -> None:
        pool = shared.pool
        self._index, self._shared, self._moment = index, shared, moment
        self._num_levels = len(pool.members)
        self._target = pool.target_level
        self._limits = spec.limits
        self._memory = ReplicaMemory(pool, spec.limits, shared.unit_tokens)
        self._charges = TabledCharges(spec.cost, pool, shared.answers.num_free)
        paths = self._paths = shared_paths.of(spec.policy, spec.policy_name, pool, shared.answers)
        self._queue = RequestQueue(self._paths.rounds)
        self._batch = TabledBatch(spec.limits, self._queue, self._memory, shared)
        self._books = TabledBooks(index, shared.recorder, self._memory.members)
        self._ops = SingleOps(
            queue=self._queue,
            batch=self._batch,
            memory=self._memory,
            charges=self._charges,
            books=self._books,
            shared=shared,
            budget=spec.limits.token_budget,
        )
        self._superposed = Superposition(
            index,
            spec.limits,
            paths=paths,
            queue=self._queue,
            batch=self._batch,
            memory=self._memory,
            charges=self._charges,
            books=self._books,
            ops=self._ops,
            moment=moment,
        )
        self._first_keys = SettledKeys(self._memory.target.first_keys, self._superposed.settle)
        self._one_by_one = not self._charges.drafts_are_forwards
        self._going: Going | None = None
        self._used: list[int] = []  # blocks as they were noted last
        self.end_ps = 0

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
        """Tokens that came out, those of requests that decode now left out until the end."""
        return self._books.num_emitted

    @property
    def num_cycled(self) -> int:
        """Of these, those after the first pass of a recorded answer."""
        return self._books.num_cycled

    @property
    def num_modelled(self) -> int:
        """Decisions that were modelled rather than replayed, as far as the books are closed."""
        return self._books.num_modelled

    def signals(self) -> ReplicaSignals:
        """See `routers.WatchedReplica`."""
        self._superposed.settle()
        batch = self._batch
        return ReplicaSignals(
            len(batch.running), len(batch.waiting), batch.queued_tokens, self._memory.target.free_share
        )

    def cached_tokens(self, arrival: Arrival) -> int:
        """See `routers.WatchedReplica`."""
        self._superposed.settle()
        return self._memory.cached_tokens(arrival, self._memory.target)

    def first_blocks(self) -> FirstBlocks:
        """See `routers.WatchedReplica`."""
        return first_blocks_of(self._memory.target, self._shared.unit_tokens)._replace(keys=self._first_keys)

    def frozen_prefixes(self) -> CachedTokens:
        """See `routers.WatchedReplica`."""
        self._superposed.settle()
        self._superposed.show_answers()  # those who will follow an answer may be routed by what it is now
        return partial(self._memory.cached_tokens, kv=self._memory.target.frozen())

    # -- the machine

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes; one that can never run is rejected."""
        serial = self._shared.enter(arrival, self._index, at_ps, refused=self._memory.refuses(arrival))
        if serial is None:
            return
        batch, flight = self._batch, self._superposed.flight
        if flight is not None and not batch.waiting and len(batch.running) < self._limits.max_num_seqs:
            self._superposed.cut(at_ps)
            self.end_ps = flight.end_ps
        batch.arrived(TabledRequest(arrival, serial, self._num_levels))
        self._note_state(at_ps)
        if arrival.prompt_tokens < self._memory.target.limits.block_tokens:
            self._first_keys.may_lag = True

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """Decide what runs next; see `ServedReplica.plan`."""
        self._may_superpose()
        superposed = self._superposed
        self._going = None
        if not self._one_by_one:
            if superposed.needs_step:
                self._going = superposed.plan_step(now_ps)
                self._one_by_one = self._going is None
            else:
                self._one_by_one = superposed.fly(now_ps) is None
            if self._one_by_one:
                superposed.dissolve()
        if self._one_by_one:
            self._going = self._ops.plan(now_ps)
        planned = self._going or superposed.flight
        if planned is None:
            return None
        self._note_state(now_ps)
        self.end_ps = planned.end_ps
        return self.end_ps

    def commit(self) -> None:
        """What was planned has run, to its end: requests, caches and the recorder learn of it."""
        going, superposed = self._going, self._superposed
        self._going = None
        if going is None:
            superposed.commit_flight()
        elif self._one_by_one:
            superposed.unfit.difference_update(self._ops.commit(going))
        else:
            self._one_by_one = not superposed.commit_step(going)
        self._note_state(self.end_ps)

    def close_books(self, until_ps: int) -> None:
        """Write down what ran until then, where the run ends, and what the recorder is told once."""
        superposed = self._superposed
        superposed.settle(begun=False)
        flight, superposed.flight = superposed.flight, None
        if not self._one_by_one:
            superposed.dissolve()
        if flight is not None:
            self._run_until(until_ps, flight.start_ps)
        elif self._going is not None:
            self._cut(self._going, until_ps)
        self._books.close(self._paths.shapes, (*self._batch.running.values(), *self._batch.waiting))

    def _run_until(self, now_ps: int, start_ps: int) -> None:
        """Run the operations of the beat in which the run ends, as far as it comes."""
        passed = self._moment.passed(self._index)
        self._batch.was_short = True  # nobody was admitted in it; who waits came later
        while True:
            going = self._ops.plan(start_ps)
            assert going is not None
            for level, (used, noted) in enumerate(zip(self._memory.used_blocks, self._used, strict=True)):
                self._books.grew(level, (used - noted) * (min(going.end_ps, now_ps) - start_ps), used)
            if going.end_ps >= now_ps + passed:
                self._cut(going, now_ps)
                return
            self._ops.commit(going)
            start_ps = going.end_ps

    def _cut(self, going: Going, until_ps: int) -> None:
        if going.forwards:
            self._books.cut(going.level, going.start_ps, min(going.end_ps, until_ps))

    def _may_superpose(self) -> None:
        """Superpose requests again once they are all about to begin a round."""
        if not (self._one_by_one and self._ops.is_between_rounds and self._charges.drafts_are_forwards):
            return
        if self._batch.was_short or any(request in self._superposed.unfit for request in self._batch.running.values()):
            return
        self._one_by_one = not self._superposed.join(self._queue.take_all())

    def _note_state(self, at_ps: int) -> None:
        if self._superposed.flight is None or self.end_ps <= at_ps or not self._used:
            self._used = list(self._memory.used_blocks)
        running, waiting = len(self._batch.running), len(self._batch.waiting)
        self._shared.recorder.state(self._index, at_ps, running, waiting, self._used)
