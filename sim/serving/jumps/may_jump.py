"""Which replicas may jump; of any other one can say why it goes step by step."""

from ....policies.about import runs_target_alone
from ...cost.context_line import why_unlined
from ..engine.replica_spec import ReplicaSpec


def why_stepwise(spec: ReplicaSpec, *, keeps_outputs: bool) -> str:
    """Why a replica has to go step by step, in words; "" if it may jump.

    Args:
        spec: of the replica.
        keeps_outputs: whether the tokens of answers are asked for.
    """
    limits = spec.limits
    if not runs_target_alone(spec.policy):
        return f"policy {spec.policy_name} does not say that it runs the target alone"
    if spec.decide_s:
        return f"policy {spec.policy_name} takes time to decide"
    if keeps_outputs:
        return "tokens of answers are asked for"
    if spec.limits.shared_prefix is not None:
        return "rows share the reading of a common prefix"
    if spec.make_world is not None:
        return "its operations are carried out elsewhere, one by one"
    if limits.token_budget < limits.max_num_seqs:
        return f"token_budget {limits.token_budget} is below max_num_seqs {limits.max_num_seqs}"
    return why_unlined(spec.cost)
