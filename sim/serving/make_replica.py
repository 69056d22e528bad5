"""Which path works out the steps of a replica: the first that nothing is against, and of any other why not."""

from ...policies.about import runs_target_alone
from ...runs.serving.meta import JUMPS, ROUNDS, STEP_BY_STEP
from .disaggregated.decode_replica import DecodeReplica
from .disaggregated.handovers import Handovers
from .disaggregated.prefill_replica import PrefillReplica
from .engine.replica import Replica
from .engine.replica_spec import ReplicaSpec, ServedFrom
from .jumps import may_jump
from .jumps.jumping_replica import JumpingReplica
from .jumps.moment import Moment
from .limits import Admission
from .roles import Role
from .served_replica import ServedReplica
from .steady.steady_replica import SteadyReplica
from .tabled import may_table
from .tabled.superposed.shared_paths import SharedPaths
from .tabled.tabled_replica import TabledReplica


def make_replica(
    index: int,
    spec: ReplicaSpec,
    shared: ServedFrom,
    moment: Moment,
    handovers: Handovers | None,
    paths: SharedPaths,
    *,
    stepwise: bool,
) -> tuple[ServedReplica, str]:
    """A replica, and how it works out its steps, in words.

    Args:
        index: among the replicas of the run.
        spec: what it is.
        shared: what it shares with the others.
        moment: of the run.
        handovers: of the run; None: every replica prefills and decodes.
        paths: of the run.
        stepwise: whether single steps are asked for.
    """
    if stepwise:
        why = "asked for"
    elif spec.only_by_steps:
        why = spec.only_by_steps
    elif shared.outputs is not None:
        why = "tokens of answers are asked for"
    elif spec.make_world is not None:
        why = "its operations are carried out elsewhere, one by one"
    elif runs_target_alone(spec.policy):
        why = may_jump.why_stepwise(spec)
        if not why:
            return JumpingReplica(index, spec, shared, moment), JUMPS
    else:
        why = may_table.why_stepwise(spec)
        if not why:
            return TabledReplica(index, spec, shared, moment, paths), ROUNDS
    if spec.role != Role.both:
        assert handovers is not None, "check_roles"
        kind = PrefillReplica if spec.role == Role.prefill else DecodeReplica
        return kind(index, spec, shared, handovers), f"{STEP_BY_STEP}: {why}"
    # A world that was made elsewhere may be that of others as well, and single steps that are asked for come in turn.
    may_lag = not stepwise and spec.make_world is None
    runs_on = may_lag and spec.limits.admission == Admission.first_chunk  # what is guessed changes at every step
    fast = SteadyReplica if runs_on else Replica
    return fast(index, spec, shared, may_lag=may_lag), f"{STEP_BY_STEP}: {why}"
