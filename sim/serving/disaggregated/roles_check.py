"""Whether the replicas of a run can hand over to one another."""

from collections import Counter
from collections.abc import Iterable

from ....arguments import ArgumentError
from ..engine.replica_spec import ReplicaSpec
from ..roles import Role, Transfer


def check_roles(replicas: Iterable[ReplicaSpec], transfer: Transfer | None) -> None:
    """Raise ArgumentError if nobody takes over, nobody hands over, or there is no link between them."""
    specs = list(replicas)
    found = Counter(spec.role for spec in specs)
    for one, other in ((Role.prefill, Role.decode), (Role.decode, Role.prefill)):
        if found[one] and not found[other]:
            raise ArgumentError(f"`replicas` must hold one of role {other} where one is of role {one}, got none")
    if found[Role.prefill] and transfer is None:
        raise ArgumentError("`transfer` must be given where replicas prefill for others, got None")
    if transfer is not None and not found[Role.prefill]:
        raise ArgumentError(f"`transfer` must be None where no replica prefills for others, got {transfer}")
    if any(spec.role == Role.decode and spec.limits.offload is not None for spec in specs):
        raise ArgumentError("`replicas` of role decode must offload nothing: what they lack is sent to them")
    if found[Role.prefill] and any(spec.make_world is not None for spec in specs):
        raise ArgumentError("`replicas` that hand over must be simulated: their keys and values are nowhere else")
