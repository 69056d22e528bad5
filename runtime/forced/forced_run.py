"""Run a policy on a forced pool: the models take the seconds, a recording of others the decisions."""

from collections.abc import Sequence

from ...decoding.policy import Policy
from ...decoding.session import Session
from ...decoding.world import World
from ...runs.log import RunLog
from ...traces.meta import Sampling
from ..fit import check_fit
from ..run import Run
from ..timing.priced_seconds import Prices
from .forced_pool import ForcedPool
from .forced_world import ForcedWorld


def forced_run(
    pool: ForcedPool,
    policy: Policy,
    sessions: Sequence[Session],
    decisions: World,
    *,
    sampling: Sampling,
    trace: str,
    name: str,
    batch: int,
    prices: Prices | None = None,
) -> RunLog:
    """Run every request to its end, `batch` at a time; returns the run log, which says `forced`.

    Args:
        pool: its last member is the target.
        policy: built for `loaded_pool(pool)`; one object for all requests.
        sessions: the requests; mutated, the tokens are in them.
        decisions: what is drafted and accepted.
        sampling: as the decisions were recorded.
        trace: name of the recording that decides, for the log.
        name: of the policy, for errors and the log.
        batch: requests running at a time, >= 1.
        prices: what operations are said to take, to policy and log alike; None measures.

    Raises:
        ArgumentError: a batch whose caches cannot fit into the machine's memory, or a lossy step.
        PolicyError: the policy broke the contract.
        ValueError: a request failed.
    """
    with ForcedWorld(pool=pool, sampling=sampling) as world:
        world.follow(decisions)
        run = Run(world, policy, name=name, prices=prices)
        check_fit(pool, sessions[:batch], world.memory)
        for _ in run.driver.run(sessions, batch):
            pass
    for request_id, error in run.driver.failed.items():
        raise ValueError(f"request {request_id} failed in a forced run: {error}")
    meta = run.meta(pool=pool.name, max_new_tokens=max(session.budget for session in sessions), batch=batch)
    return run.ledger.finish(meta | {"forced": True, "trace": trace}, reanchored={}, divergent={})
