"""What a replica is made of, what it shares with the others of its run, and what it writes down."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ...base.errors import check_within
from ...decoding.legal_steps import Policy
from ...decoding.pool import Pool
from ...runs.recorder import ServingRecorder
from ...traces.profile import DecideSeconds
from ...traces.workloads.arrival import Arrival
from ..cost.base import NOTHING_TO_DECIDE, CostModel
from ..recorded import RecordedAnswers
from ..rounds_once import SharedRounds
from .charges import to_s
from .limits import EngineLimits
from .memory import MemberKv
from .replica_memory import ReplicaMemory
from .requests import AnswerLengths, Batch, Deadline, DrawnRequests, ServedRequest
from .scheduler import SharedPrefixCost
from .world import EngineWorld, ServedWorld

# Told of requests whose answers others wait for, and when.
Reached: TypeAlias = Callable[[Iterable[ServedRequest], int], None]


class ReplicaBooks:
    """Tells the recorder of a run.

    Attributes:
        num_emitted, num_cycled: tokens that came out, and of requests that are not there any more those after the first
            pass of a recorded answer.
        noted_ps: when the latest of what was written down happened.
        recorder: of the run.
        reached: see above.
        busy: `[L]` picoseconds and forwards of each member that the recorder was not told yet.
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
        self._grown = [[0, 0] for _ in memory.members]  # blocks since the latest state, and these times when they came
        self._has_grown = False

    def note_outputs(self, sessions: Iterable[ServedRequest], at_ps: int, others: Iterable[ServedRequest] = ()) -> None:
        """Write down what is new in answers; all tokens of one request that are new came out together.

        Args:
            sessions: whose answers have grown, maybe.
            at_ps: now.
            others: of which that is written down, and that have as many tokens as others of their sessions wait for.
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
        """A request took blocks, which is all that changes; the recorder is told of it with the next state."""
        grown = self._grown[level]
        grown[0] += blocks
        grown[1] += blocks * at_ps
        self._has_grown = True
        self.noted_ps = at_ps

    def note_state(self, at_ps: int) -> None:
        """Write down what is held from now on, if that is something else than before."""
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
            if blocks:
                self.recorder.grew(self._index, level, blocks * at_ps - block_ps, self._held[2][level] + blocks)
                grown[:] = 0, 0
        self._has_grown = False

    def cut(self, level: int, num_forwards: int, start_ps: int, end_ps: int, until_ps: int) -> None:
        """The run ends while this runs: the member was busy until then, with forwards that are not over."""
        if num_forwards:
            lasted_ps = min(until_ps, end_ps) - start_ps
            self.recorder.busy(self._index, level, max(lasted_ps, 0), forwards=0)

    def close(self, sessions: Iterable[ServedRequest], until_ps: int) -> None:
        """Tell what is told once: look-ups in prefix caches, and the answers of `sessions`, which have not ended."""
        if self._has_grown:
            self.note_state(self.noted_ps)
        for level, kv in enumerate(self._memory.members):
            self.recorder.busy(self._index, level, *self.busy[level])
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                self.recorder.looked_up(self._index, level, asked, found)
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
    """How keys and values get from where a prompt was read to where its answer is decoded.

    Raises:
        ArgumentError: a number out of range.
    """

    bytes_per_s: float  # of the link, in [1, 1e18]
    latency_s: float  # after the last byte has left, in [0, 1e6]; others may send meanwhile
    token_bytes: int  # keys and values of one token of the target, >= 0

    def __post_init__(self) -> None:
        check_within("`bytes_per_s`", self.bytes_per_s, "[1, 1e18]")
        check_within("`latency_s`", self.latency_s, "[0, 1e6]")
        check_within("`token_bytes`", self.token_bytes, "[0, inf)")


# Makes what carries out a replica's operations, for the members and what is recorded of them.
MakeWorld = Callable[[Pool, RecordedAnswers], EngineWorld]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What one replica is."""

    policy: Policy  # an object of its own; no other replica may have the same
    policy_name: str  # for errors
    cost: CostModel  # seconds
    limits: EngineLimits  # of the batch, a step and the memory
    decide_s: DecideSeconds = NOTHING_TO_DECIDE  # seconds that the policy takes for a step
    # what answers and takes time instead; None: the recording answers, at the seconds of `cost`
    make_world: MakeWorld | None = None
    role: Role = Role.both  # what it does of a request

    def world(
        self,
        pool: Pool,
        answers: RecordedAnswers,
        now_s: Callable[[], float],
        target: Callable[[], MemberKv],
    ) -> EngineWorld:
        """What carries out its operations.

        Args:
            pool: the members.
            answers: of the recording.
            now_s: reads the clock of the run.
            target: its memory.

        Raises:
            ArgumentError: a prefix that rows share, and a cost that does not tell what is read.
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
    """What all replicas of a run share."""

    pool: Pool  # members of the recording
    answers: RecordedAnswers  # of the recording
    lengths: AnswerLengths  # of the target's own answers to its requests
    rounds: SharedRounds  # of policies that pending tokens alone decide
    drawn: DrawnRequests  # which of its requests stands for a served one
    unit_tokens: int  # of the blocks of the workload
    # of classes of service levels, by name; "" is for all others, and None for a class without one
    deadlines: Mapping[str, Deadline | None]
    recorder: ServingRecorder  # told what happens
    outputs: dict[str, list[int]] | None  # takes the tokens of every finished request by its id; None drops them
    on_ended: Callable[[Arrival, int], None]  # told of each request that finished or was rejected, and when
    # told when answers have as many tokens as others of their sessions wait for
    on_reached: Callable[[Arrival, int, int], None]

    def enter(self, arrival: Arrival, index: int, at_ps: int, *, refused: str) -> int | None:
        """Take note of a request that comes to the replica at `index`.

        Args:
            arrival: the request.
            index: of the replica, among those of the run.
            at_ps: when it comes.
            refused: why it can never run there; "" if it can.

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
        """Tell of depths that answers have reached, and that nobody was told of; those admitted earlier first."""
        for request in sorted(requests, key=_order):
            while request.depths and request.depths[0] <= request.num_answer:
                depth, *left = request.depths
                request.depths = tuple(left)
                self.on_reached(request.arrival, depth, at_ps)

    def session(self, arrival: Arrival, serial: int) -> ServedRequest:
        """The session of a request that is looked at for the first time."""
        deadline = self.deadlines.get(arrival.slo, self.deadlines.get(""))
        return ServedRequest(
            pool=self.pool,
            arrival=arrival,
            serial=serial,
            answers=self.answers,
            recorded_id=self.drawn.of(arrival.request_id, arrival.tag),
            due=None if deadline is None else deadline.after(to_s(arrival.arrives_ps)),
        )


def _order(request: ServedRequest) -> int:
    return request.order
