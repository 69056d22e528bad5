"""Oracles have no place among real models."""

from ..decoding.policy import Policy
from ..policies.about import about_of
from ..policies.options import PolicyClass
from ..policies.spec import PolicySpec


def refuse_oracle_by_name(name: str) -> None:
    """As `refuse_oracle`, of a policy that is not built yet: no models have to be loaded for that."""
    named = PolicySpec.parse(name).policy_class
    if named is not None:
        refuse_oracle(named, name)


def refuse_oracle(policy: Policy | PolicyClass, name: str) -> None:
    """Raises ValueError, naming the policy, if it, or its class, sees ahead."""
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ValueError(f"policy {name} sees ahead, which only a recording can grant")
