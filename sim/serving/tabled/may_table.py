"""Which replicas may be served from what was played once; of any other one can say why it goes step by step."""

from ....policies.about import decides_by_pending
from ...cost.base import OperationCost
from ..engine.replica_spec import ReplicaSpec


def why_stepwise(spec: ReplicaSpec) -> str:
    """Why a replica has to go step by step, in words; "" if its rounds may be played once."""
    if not decides_by_pending(spec.policy):
        return f"policy {spec.policy_name} does not say that pending tokens alone decide"
    if isinstance(spec.cost, OperationCost):
        return f"cost {spec.cost.name} knows operations, not forwards alone"
    return ""
