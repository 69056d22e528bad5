"""The specification of a replica, the objects shared by replicas of a run, and a replica's notes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TypeAlias

from ...decoding.legal_steps import Policy
from ...decoding.pool import Pool
from ...runs.recorder import ServingRecorder
from ...traces.profile import DecideSeconds
from ...traces.workloads.arrival import Arrival
from ..cost.base import NOTHING_TO_DECIDE, CostModel
from ..recorded import RecordedAnswers
from ..rounds_once import SharedRounds
from .charges import SharedPrefixCost, to_s
from .limits import EngineLimits
from .memory import MemberKv
from .replica_memory import ReplicaMemory
from .requests import Batch, Deadline, DrawnRequests, ServedRequest
from .world import EngineWorld, ServedWorld

# Called with requests whose answers others wait for, and the time.
Reached: TypeAlias = Callable[[Iterable[ServedRequest], int], None]


class ReplicaBooks:
    """Writes a replica's notes into the recorder of a run.

    Attributes:
        num_emitted, num_cycled: output tokens, and for requests that have left those after the first pass of a recorded
            answer.
        noted_ps: instant of the latest note.
        recorder: of the run.
        reached: see above.
        busy: `[L]` picoseconds and forwards of each member, not recorded yet.
    """

    def __init__(
        self, index: int, recorder: ServingRecorder, batch: Batch, memory: ReplicaMemory, reached: Reached
    ) -> None:
        self._index = index
        self.reached = reached
        self.recorder = recorder
        self._batch = batch
        self._memory = memory
        self._held: tuple[int, int, list[int]] | None = None
        self.num_emitted = self.num_cycled = self.noted_ps = 0
        self.busy = [[0, 0] for _ in memory.members]
        self._grown = [[0, 0] for _ in memory.members]  # blocks since the latest state, and these times their instants
        # The same by instant, where windows may give up more blocks than are taken.
        self._grown_at: list[dict[int, int]] = [{} for _ in memory.members]
        self._has_grown = False

    def note_outputs(self, sessions: Iterable[ServedRequest], at_ps: int, others: Iterable[ServedRequest] = ()) -> None:
        """Note new tokens of answers that may have grown; all new tokens of one request are one output.

        `others` are already noted, with as many tokens as others of their sessions wait for.
        """
        self.noted_ps = at_ps
        reached = list(others) if others else []
        count = latest_ps = 0
        for session in sessions:
            fresh, num_answer = session.num_fresh, session.num_answer
            if not fresh:
                continue
            if fresh == num_answer:
                self.recorder.first_token(session.serial, at_ps)
            elif count and at_ps - session.noted_at_ps == latest_ps:
                count += 1
            else:
                if count:
                    self.recorder.gaps(latest_ps, 0, 1, count)
                latest_ps, count = at_ps - session.noted_at_ps, 1
            self.num_emitted += fresh
            session.num_fresh, session.noted_at_ps = 0, at_ps
            if session.depths and num_answer >= session.depths[0]:
                reached.append(session)
        if count:
            self.recorder.gaps(latest_ps, 0, 1, count)
        if reached:
            self.reached(reached, at_ps)

    def grew(self, level: int, blocks: int, at_ps: int) -> None:
        """Note blocks taken by a request, if nothing else changes; recorded with the next state."""
        grown = self._grown[level]
        grown[0] += blocks
        grown[1] += blocks * at_ps
        if self._memory.windowed:
            grown_at = self._grown_at[level]
            grown_at[at_ps] = grown_at.get(at_ps, 0) + blocks
        self._has_grown = True
        self.noted_ps = at_ps

    def note_state(self, at_ps: int) -> None:
        """Note the state from now on, if it differs from the one before."""
        self.noted_ps = at_ps
        if self._has_grown:
            self._tell_grown(at_ps)
        batch, before, blocks = self._batch, self._held, self._memory.used_blocks
        running, waiting = len(batch.running), len(batch.waiting) + batch.elsewhere
        if before is not None and blocks is before[2] and running == before[0] and waiting == before[1]:
            return
        self._held = held = running, waiting, blocks
        if held != before:
            self.recorder.state(self._index, at_ps, *held)

    def _tell_grown(self, at_ps: int) -> None:
        assert self._held is not None
        for level, grown in enumerate(self._grown):
            blocks, block_ps = grown
            most, grown_at = blocks, self._grown_at[level]
            if blocks or grown_at:
                if grown_at:
                    most = max(accumulate([more for _, more in sorted(grown_at.items())]))
                    grown_at.clear()
                self.recorder.grew(self._index, level, blocks * at_ps - block_ps, self._held[2][level] + most)
                grown[:] = 0, 0
        self._has_grown = False

    def cut(self, level: int, num_forwards: int, start_ps: int, end_ps: int, until_ps: int) -> None:
        """Note an operation that the end of the run cuts: the member was busy until then, without finished forwards."""
        if num_forwards:
            lasted_ps = min(until_ps, end_ps) - start_ps
            self.recorder.busy(self._index, level, max(lasted_ps, 0), forwards=0)

    def close(self, sessions: Iterable[ServedRequest], until_ps: int) -> None:
        """Note final figures: look-ups in prefix caches, and the unfinished answers of `sessions`."""
        if self._has_grown:
            self.note_state(self.noted_ps)
        for level, kv in enumerate(self._memory.members):
            self.recorder.busy(self._index, level, *self.busy[level])
            if kv is not None:
                self.recorder.looked_up(self._index, level, kv.hits)
        if self._memory.host is not None:
            self.recorder.offloaded(self._index, self._memory.host.totals(until_ps))
        for session in sessions:
            self.num_cycled += session.num_cycled
            if session.num_answer > session.num_fresh:
                self.recorder.emitted(session.serial, session.num_answer - session.num_fresh)


class Role(StrEnum):
    """Of a replica; docs/cluster.md."""

    both = "both"
    prefill = "prefill"
    decode = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The link for keys and values from the replica that prefills to the one that decodes."""

    bytes_per_s: float  # of the link, in [1, 1e21]
    latency_s: float  # after the last byte has left, in [0, 1e6]; other transfers may run meanwhile
    token_bytes: int  # keys and values of one token of the target, >= 0


# Makes the world of a replica's operations, from the members and the recorded answers.
MakeWorld = Callable[[Pool, RecordedAnswers], EngineWorld]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """The specification of one replica."""

    policy: Policy  # an object of its own, not shared with other replicas
    policy_name: str  # for errors
    cost: CostModel  # seconds
    limits: EngineLimits  # of the batch, a step and the memory
    decide_s: DecideSeconds = NOTHING_TO_DECIDE  # seconds that the policy takes for a step
    # another world, with its own answers and time; None: the recording's answers, at the seconds of `cost`
    make_world: MakeWorld | None = None
    role: Role = Role.both  # its part of requests

    def world(
        self,
        pool: Pool,
        answers: RecordedAnswers,
        now_s: Callable[[], float],
        target: Callable[[], MemberKv],
    ) -> EngineWorld:
        """The world that carries out its operations; `now_s` reads the clock of the run, `target` is its memory.

        Raises:
            ArgumentError: a shared prefix with a cost that does not distinguish tokens read.
        """
        if self.make_world is not None:
            return self.make_world(pool, answers)
        rule = self.limits.shared_prefix
        if rule is None:
            return ServedWorld(answers=answers, pool=pool, cost=self.cost, now_s=now_s)
        rows: list[int] = []

        def repeated_tokens() -> int:
            least = {"least_tokens": rule.least_tokens, "least_owners": rule.least_rows}
            return target().repeated_tokens(rows, **least)

        common_tokens = repeated_tokens if rule.groups else lambda: target().common_tokens
        shared = SharedPrefixCost(self.cost, rule, common_tokens)
        return ServedWorld(answers=answers, pool=pool, cost=self.cost, target_cost=shared, now_s=now_s, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFrom:
    """Objects that all replicas of a run share."""

    pool: Pool  # members of the recording
    answers: RecordedAnswers  # of the recording
    rounds: SharedRounds  # of policies that decide only by pending tokens
    drawn: DrawnRequests  # recorded requests for served ones
    unit_tokens: int  # of the blocks of the workload
    # of classes of service levels, by name; "" is for all others; None: without one
    deadlines: Mapping[str, Deadline | None]
    recorder: ServingRecorder  # of the run
    outputs: dict[str, list[int]] | None  # takes the tokens of every finished request by its id; None drops them
    on_ended: Callable[[Arrival, int], None]  # called with each finished or rejected request, and the time
    # called when answers reach tokens that others of their sessions wait for
    on_reached: Callable[[Arrival, int, int], None]

    def enter(self, arrival: Arrival, index: int, at_ps: int, *, refused: str) -> int | None:
        """Register a request that arrives at the replica at `index`; `refused`: why it can never run there, or "".

        Returns:
            Its serial number in the run; None: it is rejected.
        """
        serial = self.recorder.arrived(arrival, index)
        if refused:
            self.recorder.rejected(serial, at_ps, refused)
            self.on_ended(arrival, at_ps)
            return None
        return serial

    def reached(self, requests: Iterable[ServedRequest], at_ps: int) -> None:
        """Report depths that answers have newly reached; those admitted earlier first."""
        for request in sorted(requests, key=lambda one: one.order):
            while request.depths and request.depths[0] <= request.num_answer:
                depth, *left = request.depths
                request.depths = tuple(left)
                self.on_reached(request.arrival, depth, at_ps)

    def session(self, arrival: Arrival, serial: int) -> ServedRequest:
        """Make the session of a request, at its first use."""
        deadline = self.deadlines.get(arrival.slo, self.deadlines.get(""))
        return ServedRequest(
            pool=self.pool,
            arrival=arrival,
            serial=serial,
            answers=self.answers,
            recorded_id=self.drawn.of(arrival.request_id, arrival.tag),
            due=None if deadline is None else deadline.after(to_s(arrival.arrives_ps)),
        )
