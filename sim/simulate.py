"""One simulated run: a policy over a recording, on one device, with B requests at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import simpy

from ..policies.contract import Policy
from ..policies.loop import Loop
from ..policies.session import Session
from ..traces.fallback import Fallback
from ..traces.run_ledger import RunLedger
from ..traces.run_log import RunLog
from ..traces.trie import RequestRecord
from .cost import CostModel
from .device import device_process
from .paused_collector import paused_collector
from .recorded_pool import recorded_pool
from .replay import ReplayWorld
from .tables import TraceTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What stays the same when policies are compared.

    Attributes:
        tables: the recording.
        cost: seconds.
        batch: requests running at a time, >= 1 (a closed loop: one finishes, the next starts).
        seed: of the fallback's draws.
        strict: refuse contexts outside the record instead of modelling them.
        decide_s: seconds a policy costs per step, >= 0.

    Raises:
        ValueError: batch or decide_s out of range.
    """

    tables: TraceTables
    cost: CostModel
    batch: int = 1
    seed: int = 0
    strict: bool = False
    decide_s: float = 0.0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch must be >= 1, got {self.batch}")
        if not 0 <= self.decide_s < float("inf"):
            raise ValueError(f"decide_s must be >= 0 and finite, got {self.decide_s}")


def simulate(scenario: Scenario, policy: Policy, name: str, *, outputs: dict[str, list[int]] | None = None) -> RunLog:
    """Replay every request of the recording under `policy`.

    Args:
        scenario: what is replayed, and at what cost.
        policy: built for `recorded_pool` of the trace; one object for all requests.
        name: of the policy, for errors and the log.
        outputs: takes the committed tokens of every request by its id; None drops them.

    Raises:
        PolicyError: the policy broke the contract.
        UnrecordedContextError: `strict`, and a context is not recorded.
        CostRangeError: an operation outside what the cost model knows.
    """
    trace = scenario.tables.trace
    pool = recorded_pool(trace.meta)
    fallback = None if scenario.strict else Fallback(trace, seed=scenario.seed)
    world = ReplayWorld(tables=scenario.tables, pool=pool, cost=scenario.cost, fallback=fallback)
    ledger = RunLedger()
    loop = Loop(pool=pool, policy=policy, name=name, world=world, ledger=ledger, decide_s=scenario.decide_s)
    waiting = iter(trace.requests)
    divergent: dict[str, int] = {}

    def admit(count: int, now_s: float) -> None:
        for record in _take(waiting, count):
            ledger.note_admitted(
                record.request_id, tag=record.tag, num_prompt=len(record.prompt), arrived_at_s=now_s, now_s=now_s
            )
            loop.load.num_waiting -= 1
            loop.admit(_session(record, trace.meta.eos_token_id, loop))

    def on_finished(now_s: float) -> None:
        done, loop.finished = loop.finished, []
        for session in done:
            divergent[session.request_id] = _divergent(session, scenario.tables)
            if outputs is not None:
                outputs[session.request_id] = session.emitted
        admit(len(done), now_s)

    loop.load.num_waiting = len(trace.requests)
    admit(scenario.batch, 0.0)
    env = simpy.Environment()
    env.process(device_process(env, loop, world, on_finished=on_finished))
    with paused_collector():
        env.run()
    meta = {
        "world": "sim",
        "policy": name,
        "trace": trace.meta.name,
        "kind": trace.meta.kind,
        "cost": scenario.cost.name,
        "batch": scenario.batch,
        "seed": scenario.seed,
        "decide_s": scenario.decide_s,
        "members": list(pool.names),
    }
    return ledger.finish(meta, reanchored=world.num_reanchored, divergent=divergent)


def _take(waiting: Iterator[RequestRecord], count: int) -> list[RequestRecord]:
    return list(islice(waiting, count))


def _session(record: RequestRecord, eos: int | None, loop: Loop) -> Session:
    return Session(
        pool=loop.pool,
        request_id=record.request_id,
        tag=record.tag,
        prompt=record.prompt,
        budget=record.max_new_tokens,
        eos=eos,
    )


def _divergent(session: Session, tables: TraceTables) -> int:
    """Committed tokens that differ from the trunk at their position; positions beyond either text count too."""
    recorded = tables.of(session.request_id)
    trunk = [recorded.token[node] for node in recorded.trunk[1:]]
    differ = sum(a != b for a, b in zip(trunk, session.emitted, strict=False))
    return differ + abs(len(trunk) - len(session.emitted))
