"""Which replicas may jump; of any other one can say why it goes step by step."""

from ...cost.context_line import why_unlined
from ..engine.replica_spec import ReplicaSpec


def why_stepwise(spec: ReplicaSpec) -> str:
    """Why a replica that runs the target alone has to go step by step, in words; "" if it may jump."""
    limits = spec.limits
    if limits.token_budget < limits.max_num_seqs:
        return f"token_budget {limits.token_budget} is below max_num_seqs {limits.max_num_seqs}"
    return why_unlined(spec.cost)
