"""A policy in the serving engine: every request of a recording comes once, to one replica."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ....decoding.policy import Policy
from ....decoding.pool import Pool
from ....runs.serving.log import ServingLog
from ....runs.serving.meta import ServingAbout
from ....runs.serving.recorder import ServingRecorder
from ....sim.cost.base import CostModel, CostRangeError
from ....sim.replay_tables import ReplayTables
from ....sim.serving.engine.drawn_requests import DrawnRequests
from ....sim.serving.engine.replica_spec import ReplicaSpec
from ....sim.serving.limits import EngineLimits, KvLimits
from ....sim.serving.routers import Dispatcher, RouterSetting
from ....sim.serving.routers.round_robin import RoundRobin
from ....sim.serving.served_replica import ServedReplica
from ....sim.serving.simulate import serve
from ....traces.forms import by_form
from ....traces.recording import Recording
from ....traces.rounds.rounds import TARGET_ALONE
from ....traces.workloads.arrival import Arrival, WorkloadAbout
from ....traces.workloads.exact_seconds import PS_PER_S
from ..loads import MOST_RUNNING

TOKEN_BUDGET = 8192  # tokens of a step
BLOCKS = 100_000  # of 16 tokens, in each member: memory is never short


class PoissonArrivals:
    """The requests of a recording, in their order, at times that are drawn.

    The engine draws by its name which recorded request stands for one that comes. So each comes under a name by which
    it stands for itself: else a third of them would be answers that came before, and longer ones would start anew.

    Args:
        recording: whose requests they are.
        tokens_per_s: of output that are asked for, in the mean.
        seed: of the times, and of the engine.

    Attributes:
        about: see `Workload`.
    """

    def __init__(self, recording: Recording, tokens_per_s: float, *, seed: int) -> None:
        self._lengths = by_form(
            recording,
            tries=lambda tries: [
                (one.request_id, one.tag, len(one.prompt), len(one.trie.trunk) - 1) for one in tries.requests
            ],
            rounds=lambda rounds: [
                (one.request_id, one.tag, max(1, one.prompt_tokens), one.length(TARGET_ALONE))
                for one in rounds.requests
            ],
        )
        self._drawn = DrawnRequests(recording.requests, seed=seed)
        mean_tokens = sum(tokens for *_, tokens in self._lengths) / len(self._lengths)
        gaps_s = np.random.default_rng(seed).exponential(mean_tokens / tokens_per_s, len(self._lengths))
        self._arrives_ps: list[int] = np.rint(np.cumsum(gaps_s) * PS_PER_S).astype(np.int64).tolist()
        name = recording.about.name
        self.about = WorkloadAbout(
            name=name, files=(), format="", unit_tokens=0, num_requests=len(self._lengths), notes=(), drawn=True
        )

    def __iter__(self) -> Iterator[Arrival]:
        """From the first to the last."""
        for (request_id, tag, prompt, tokens), at_ps in zip(self._lengths, self._arrives_ps, strict=True):
            yield Arrival(self._name(request_id, tag), at_ps, prompt, tokens, tag)

    def _name(self, recorded_id: str, tag: str) -> str:
        names = (f"{recorded_id}#{number}" for number in count())
        return next(name for name in names if self._drawn.of(name, tag) == recorded_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigures:
    """What came of it.

    Attributes:
        tokens: of output.
        busy_s: seconds in which the device ran a member.
        mean_e2e_s: from a request's arrival to its last token, in the mean.
    """

    tokens: int
    busy_s: float
    mean_e2e_s: float


def served(
    tables: ReplayTables, cost: CostModel, policy: Policy, name: str, *, tokens_per_s: float, seed: int
) -> ServedFigures:
    """Serve all requests of a recording to the end.

    Args:
        tables: the recording.
        cost: seconds.
        policy: built for its pool, and new.
        name: of the policy, for errors.
        tokens_per_s: of output that arrivals ask for.
        seed: of arrivals, and of what is modelled.

    Raises:
        PolicyError: the policy broke the contract.
        ArgumentError: what the cost does not know, a policy that needs what the recording does not hold, or one that
            sees ahead.
    """
    workload = PoissonArrivals(tables.trace, tokens_per_s, seed=seed)
    blocks = [None if member.model_free else BLOCKS for member in tables.pool.members]
    recorder = ServingRecorder(tables.pool.names, {"replica": blocks})
    spec = ReplicaSpec(policy=policy, policy_name=name, cost=cost, limits=_limits(tables.pool))
    try:
        serve(workload, tables, [spec], dispatch=_dispatch, recorder=recorder, seed=seed)
    except CostRangeError as error:
        raise error.loaded() from None
    return _figures(recorder.log(ServingAbout(policy="policy", workload="arena", cluster="arena", seed=seed)))


def _figures(log: ServingLog) -> ServedFigures:
    busy_ps = sum(member.busy_ps for replica in log.meta.replicas for member in replica.members)
    e2e_ps = log.requests["ended_at_ps"] - log.requests["arrived_at_ps"]
    return ServedFigures(
        tokens=int(log.requests["emitted_tokens"].sum()),
        busy_s=busy_ps / PS_PER_S,
        mean_e2e_s=float(e2e_ps.mean()) / PS_PER_S,
    )


def _limits(pool: Pool) -> EngineLimits:
    kept = [member.name for member in pool.members if not member.model_free]
    memory = KvLimits(num_blocks=BLOCKS, prefix_cache=False)
    return EngineLimits(max_num_seqs=MOST_RUNNING, token_budget=TOKEN_BUDGET, kv=dict.fromkeys(kept, memory))


def _dispatch(replicas: Sequence[ServedReplica]) -> Dispatcher:
    return Dispatcher(RoundRobin(RouterSetting(num_replicas=1, seed=0)), "round-robin", replicas, 0)
