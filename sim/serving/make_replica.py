"""Which path works out the steps of a replica: the first that nothing is against, and of any other why not."""

from ...runs.serving.meta import JUMPS, STEP_BY_STEP
from .engine.replica import Replica
from .engine.replica_spec import ReplicaSpec, ServedFrom
from .jumps.jumping_replica import JumpingReplica
from .jumps.may_jump import why_stepwise
from .jumps.moment import Moment
from .served_replica import ServedReplica


def make_replica(
    index: int, spec: ReplicaSpec, shared: ServedFrom, moment: Moment, *, stepwise: bool
) -> tuple[ServedReplica, str]:
    """A replica, and how it works out its steps, in words.

    Args:
        index: among the replicas of the run.
        spec: what it is.
        shared: what it shares with the others.
        moment: of the run.
        stepwise: whether single steps are asked for.
    """
    why = "asked for" if stepwise else why_stepwise(spec, keeps_outputs=shared.outputs is not None)
    if why:
        return Replica(index, spec, shared), f"{STEP_BY_STEP}: {why}"
    return JumpingReplica(index, spec, shared, moment), JUMPS
