"""Replicas that prefill for others, replicas that decode, and the link between them.

When a prefill has ended a router picks the replica that decodes. The request waits there for blocks of its whole text
and for a place in the batch; then the part of the text that is not in that replica's prefix cache is sent over the
link, first come, first served. Until then the replica that prefilled also holds its blocks. The request joins the batch
at the start of the first cycle after that. A preempted one is prefilled where it decodes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import simpy

from ...runs.recorder import ServingRecorder
from ...runs.serving import Lookups, TransferTotals
from ...traces.workloads.arrival import PS_PER_S, Arrival
from .charges import to_ps
from .engine import Going, Replica
from .replica import ReplicaSpec, ServedFrom, Transfer
from .requests import ServedRequest
from .routers import Dispatcher
from .running import ARRIVALS, Moment, RankedEvent


class _Sent(NamedTuple):
    """A transfer: when it arrived at the link, and when its first and last bytes leave."""

    num_bytes: int
    at_ps: int
    begins_ps: int
    ends_ps: int


class Link:
    """Carries transfers in turn, in the order of `send`."""

    def __init__(self, transfer: Transfer) -> None:
        self._token_bytes = transfer.token_bytes
        self._ps_per_byte = Fraction(PS_PER_S) / Fraction(transfer.bytes_per_s)
        self._latency_ps = to_ps(transfer.latency_s)
        self._free_at_ps = 0
        self._open: deque[_Sent] = deque()
        # Sums over the transfers before these.
        self._sums = dict.fromkeys(("sent", "unfinished", "bytes", "busy_ps", "queued_ps", "most_queued_ps"), 0)

    def send(self, num_tokens: int, now_ps: int) -> int:
        """Send the keys and values of `num_tokens`; returns when the last has arrived.

        Nothing to send takes no time. Times of calls must not decrease.
        """
        if not num_tokens:
            return now_ps
        num_bytes = num_tokens * self._token_bytes
        begins_ps = max(self._free_at_ps, now_ps)
        self._free_at_ps = begins_ps + round(num_bytes * self._ps_per_byte)
        while self._open and self._open[0].ends_ps <= now_ps:
            self._add(self._open.popleft(), now_ps)
        self._open.append(_Sent(num_bytes, now_ps, begins_ps, self._free_at_ps))
        return self._free_at_ps + self._latency_ps

    def totals(self, handed_over: int, held_ps: int, until_ps: int) -> TransferTotals:
        """Totals until the run ended, with the given figures of requests handed over; see `TransferTotals`.

        To be called once, with a time not before that of the last `send`.
        """
        for one in self._open:
            self._add(one, until_ps)
        return TransferTotals(handed_over=handed_over, held_ps=held_ps, **self._sums)

    def _add(self, one: _Sent, until_ps: int) -> None:
        """Count a transfer that arrived at the link before `until_ps`."""
        lasts_ps, sums = one.ends_ps - one.begins_ps, self._sums
        busy_ps = min(max(until_ps - one.begins_ps, 0), lasts_ps)
        queued_ps = max(min(until_ps, one.begins_ps) - one.at_ps, 0)
        sums["sent"] += 1
        sums["unfinished"] += one.ends_ps > until_ps
        sums["bytes"] += one.num_bytes * busy_ps // max(lasts_ps, 1) if one.ends_ps > until_ps else one.num_bytes
        sums["busy_ps"] += busy_ps
        sums["queued_ps"] += queued_ps
        sums["most_queued_ps"] = max(sums["most_queued_ps"], queued_ps)


class Handover(NamedTuple):
    """A request between two replicas."""

    session: ServedRequest  # of the request, its first token written
    prefiller: "PrefillReplica"  # that read its prompt
    decoder: "DecodeReplica"  # that writes the rest
    prefilled_at_ps: int  # when the first token was written


class Handovers:
    """Mutated by the replicas of a run, and by its events, which come in turn among the requests that arrive then.

    `wake` lets an idle replica plan again, now, by its index.
    """

    def __init__(
        self,
        transfer: Transfer,
        recorder: ServingRecorder,
        env: simpy.Environment,
        moment: Moment,
        wake: Callable[[int], None],
    ) -> None:
        self._link = Link(transfer)
        self._recorder, self._env, self._moment, self._wake = recorder, env, moment, wake
        self._prefilled: dict[int, ServedRequest] = {}
        self._decoders: list[DecodeReplica] = []
        self._dispatcher: Dispatcher | None = None
        self._held: dict[int, Handover] = {}  # requests that wait for blocks, by serial
        self._handed_over = self._held_ps = 0

    def connect(self, replicas: Sequence[Replica], dispatch: Callable[[Sequence[Replica]], Dispatcher]) -> Dispatcher:
        """Let those that prefill hand over to those that decode; returns the router of new requests."""
        self._decoders = [replica for replica in replicas if isinstance(replica, DecodeReplica)]
        self._dispatcher = dispatch(self._decoders)
        first = [replica.index for replica in replicas if not isinstance(replica, DecodeReplica)]
        return dispatch([replicas[index] for index in first]).before(self._dispatcher, first)

    def refuses(self, arrival: Arrival) -> str:
        """Why some replica could never decode a request, in the words of the first; "" if all can."""
        return next(filter(None, (decoder.refuses(arrival) for decoder in self._decoders)), "")

    def prefilled(self, prefiller: "PrefillReplica", session: ServedRequest, at_ps: int) -> None:
        """Hand over a request that has its first token and has left the batch of its prefill."""
        self._prefilled[session.serial] = session
        self._at(at_ps, lambda: self._hand_over(prefiller, session, at_ps))

    def begin(self, handover: Handover, num_tokens: int, now_ps: int) -> None:
        """Send `num_tokens` of a request for which blocks are held."""
        self._held_ps += now_ps - self._held.pop(handover.session.serial).prefilled_at_ps
        arrives_ps = self._link.send(num_tokens, now_ps)
        self._at(arrives_ps, lambda: self._arrived(handover, arrives_ps))

    def close_books(self, until_ps: int) -> None:
        """Write the totals into the recorder at the end of the run."""
        for session in self._prefilled.values():
            self._recorder.emitted(session.serial, session.num_answer)
        held_ps = self._held_ps + sum(max(until_ps - one.prefilled_at_ps, 0) for one in self._held.values())
        self._recorder.transferred(self._link.totals(self._handed_over, held_ps, until_ps))

    def _hand_over(self, prefiller: "PrefillReplica", session: ServedRequest, at_ps: int) -> None:
        assert self._dispatcher is not None
        del self._prefilled[session.serial]
        decoder = self._decoders[self._dispatcher.pick(session.arrival)]
        self._handed_over += 1
        handover = self._held[session.serial] = Handover(session, prefiller, decoder, at_ps)
        decoder.expect(handover, at_ps)
        self._wake(decoder.index)

    def _arrived(self, handover: Handover, at_ps: int) -> None:
        handover.prefiller.sent(handover.session, at_ps)
        self._wake(handover.prefiller.index)
        handover.decoder.received(handover.session)
        self._wake(handover.decoder.index)

    def _at(self, at_ps: int, do: Callable[[], None]) -> None:
        """Call `do` at an instant; several at one instant in the order of these calls."""

        def happen(_: simpy.Event) -> None:
            self._moment.now_ps = at_ps
            do()

        RankedEvent(self._env, at_ps, ARRIVALS, happen)


class DecodeReplica(Replica):
    """As `Replica`; see `Handovers`, which calls `expect` and `received`."""

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, handovers: Handovers) -> None:
        super().__init__(index, spec, shared, may_lag=False)
        self._handovers = handovers
        self._most_running = spec.limits.max_num_seqs
        self._expected: deque[Handover] = deque()
        self._received: deque[ServedRequest] = deque()
        self._in_cycle = False

    def expect(self, handover: Handover, at_ps: int) -> None:
        """Let a request wait for blocks."""
        self._expected.append(handover)
        self._batch.elsewhere += 1
        self._requests[handover.session.request_id] = handover.session
        self._asked.load.num_waiting += 1
        self.books.note_state(at_ps)

    def received(self, session: ServedRequest) -> None:
        """A transfer has arrived."""
        self._received.append(session)

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        while True:
            if not self._in_cycle:
                self._join()
            end_ps = super().plan(now_ps)
            if end_ps is not None or not self._received:
                return end_ps

    def _join(self) -> None:
        """Requests whose keys and values have arrived join the batch."""
        while self._received and len(self._batch.running) < self._most_running:
            self._scheduler.has_moved = True
            session = self._received.popleft()
            self._batch.elsewhere -= 1
            self._batch.joined(session)
            self._memory.commit(session)
            self._asked.enter(session)
            self._asked.make_ready(session)
            self._asked.load.num_waiting -= 1
        self._asked.load.free_kv_share = self._memory.free_share  # without blocks of requests that are sent

    def _below(self, level: int, drafts: bool, rows: list[ServedRequest], now_ps: int, start_ps: int) -> Going | None:
        self._in_cycle = True
        return super()._below(level, drafts, rows, now_ps, start_ps)

    def _step(self, rows: list[ServedRequest], now_ps: int, start_ps: int) -> Going | None:
        self._in_cycle = False
        going = super()._step(rows, now_ps, start_ps)
        batch, expected = self._batch, self._expected
        # Preempted requests come first: while one waits, no other gets blocks that it lacks.
        while expected and not batch.waiting:
            # Requests that hold blocks run, or will when their keys and values have arrived.
            if len(batch.running) + batch.elsewhere - len(expected) >= self._most_running:
                break
            num_tokens = self._memory.receive(expected[0].session)
            if num_tokens is None:
                break
            self._scheduler.has_moved = True
            self._handovers.begin(expected.popleft(), num_tokens, now_ps)
        return going


class PrefillReplica(Replica):
    """As `Replica`, without decisions of its policy."""

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, handovers: Handovers) -> None:
        super().__init__(index, spec, shared, may_lag=False)
        self._handovers = handovers

    def refuses(self, arrival: Arrival) -> str:
        """Why a request can never run here, or at a replica that decodes; "" if it can."""
        return self._memory.refuses(arrival, answer_tokens=1) or self._handovers.refuses(arrival)

    def sent(self, session: ServedRequest, at_ps: int) -> None:
        """Free the blocks of a request whose keys and values were sent."""
        self._memory.release(session.serial)
        self.books.note_state(at_ps)

    def close_books(self, until_ps: int) -> None:
        """See `Replica`; members below the target never run here, so that no look-up of theirs counts as missed."""
        super().close_books(until_ps)
        for level in range(len(self._memory.members) - 1):
            self._recorder.looked_up(self.index, level, Lookups())

    def _read(
        self, rows: list[ServedRequest], results: Sequence[Any], num_ending: int, chunks: Sequence[ServedRequest],
        duration_s: float, end_ps: int,
    ) -> None:  # fmt: skip
        super()._read(rows, results, num_ending, chunks, duration_s, end_ps)
        for session in rows:
            if session.num_answer < session.arrival.output_tokens:  # it leaves the batch, and keeps its blocks
                self._asked.withdraw(session)
                self._world.preempt(session)
                self._batch.ended(session)
                session.forget_caches()
                del self._requests[session.request_id]
                self._handovers.prefilled(self, session, end_ps)
