"""Which replicas may be served from what was played once; of any other one can say why it goes step by step."""

from ....policies.about import decides_by_pending
from ...cost.base import OperationCost
from ..engine.replica_spec import ReplicaSpec


def why_stepwise(spec: ReplicaSpec, *, keeps_outputs: bool) -> str:
    """Why a replica has to go step by step, in words; "" if its rounds may be played once.

    Args:
        spec: of the replica.
        keeps_outputs: whether the tokens of answers are asked for.
    """
    if not decides_by_pending(spec.policy):
        return f"policy {spec.policy_name} does not say that pending tokens alone decide"
    if spec.decide_s:
        return f"policy {spec.policy_name} takes time to decide"
    if keeps_outputs:
        return "tokens of answers are asked for"
    if spec.limits.shared_prefix is not None:
        return "rows share the reading of a common prefix"
    if spec.make_world is not None:
        return "its operations are carried out elsewhere, one by one"
    if isinstance(spec.cost, OperationCost):
        return f"cost {spec.cost.name} knows operations, not forwards alone"
    return ""
