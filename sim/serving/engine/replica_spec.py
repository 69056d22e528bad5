"""What a replica is made of, and what it shares with the others of its run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ....decoding.policy import Policy
from ....decoding.pool import Pool
from ....runs.serving.recorder import ServingRecorder
from ....traces.workloads.arrival import Arrival
from ...cost.base import CostModel
from ...recorded_answers import RecordedAnswers
from ..clock import to_s
from ..kv.member_kv import MemberKv
from ..limits import Admission, EngineLimits, Preemption
from ..roles import Role
from ..shared_prefix import SharedPrefixCost
from .answer_lengths import AnswerLengths
from .drawn_requests import DrawnRequests
from .served_session import Deadline, ServedSession
from .served_world import EngineWorld, ServedWorld

# Makes what carries out a replica's operations, for the members and what is recorded of them.
MakeWorld = Callable[[Pool, RecordedAnswers], EngineWorld]


class Answering(Protocol):
    """A request that answers: how much, and with which further depths others of its session follow."""

    depths: tuple[int, ...]

    @property
    def arrival(self) -> Arrival:
        """What is wanted."""
        ...

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        ...

    @property
    def order(self) -> int:
        """Number of its latest admission."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What one replica is.

    Attributes:
        policy: an object of its own; no other replica may have the same.
        policy_name: for errors.
        cost: seconds.
        limits: of the batch, a step and the memory.
        decide_s: seconds that the policy takes for a step, >= 0.
        make_world: what answers and takes time instead; None: the recording answers, at the seconds of `cost`.
        role: what it does of a request.
    """

    policy: Policy
    policy_name: str
    cost: CostModel
    limits: EngineLimits
    decide_s: float = 0.0
    make_world: MakeWorld | None = None
    role: Role = Role.both

    @property
    def only_by_steps(self) -> str:
        """Which of its options single steps alone know, in words; "" if there is none."""
        if self.role != Role.both:
            return f"role is {self.role}"
        if self.limits.preemption != Preemption.latest:
            return f"preemption is {self.limits.preemption}"
        if self.limits.admission != Admission.first_chunk:
            return f"admission is by {self.limits.admission}"
        if self.limits.offload is not None:
            return "evicted blocks go to host memory"
        if self.limits.shared_prefix is not None:
            return "rows share the reading of a common prefix"
        if self.decide_s:
            return f"policy {self.policy_name} takes time to decide"
        return ""

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
    """What all replicas of a run share.

    Attributes:
        pool: members of the recording.
        answers: of the recording.
        lengths: of the target's own answers to its requests.
        drawn: which of its requests stands for a served one.
        unit_tokens: of the blocks of the workload.
        deadlines: of classes of service levels, by name; "" is for all others, and None for a class without one.
        recorder: told what happens.
        outputs: takes the tokens of every finished request by its id; None drops them.
        on_ended: told of each request that finished or was rejected, and when.
        on_reached: told when answers have as many tokens as others of their sessions wait for.
    """

    pool: Pool
    answers: RecordedAnswers
    lengths: AnswerLengths
    drawn: DrawnRequests
    unit_tokens: int
    deadlines: Mapping[str, Deadline | None]
    recorder: ServingRecorder
    outputs: dict[str, list[int]] | None
    on_ended: Callable[[Arrival, int], None]
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

    def reached(self, requests: Iterable[Answering], at_ps: int) -> None:
        """Tell of depths that answers have reached, and that nobody was told of; those admitted earlier first."""
        for request in sorted(requests, key=_order):
            while request.depths and request.depths[0] <= request.num_answer:
                depth, *left = request.depths
                request.depths = tuple(left)
                self.on_reached(request.arrival, depth, at_ps)

    def session(self, arrival: Arrival, serial: int) -> ServedSession:
        """The session of a request that is looked at for the first time."""
        deadline = self.deadlines.get(arrival.slo, self.deadlines.get(""))
        return ServedSession(
            pool=self.pool,
            arrival=arrival,
            serial=serial,
            answers=self.answers,
            recorded_id=self.drawn.of(arrival.request_id, arrival.tag),
            due=None if deadline is None else deadline.after(to_s(arrival.arrives_ps)),
        )


def _order(request: Answering) -> int:
    return request.order
