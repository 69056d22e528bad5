"""Oracles have no place among real models."""

from ..policies.about import about_of
from ..policies.contract import Policy


def refuse_oracle(policy: Policy, name: str) -> None:
    """Raises ValueError, naming the policy, if it sees ahead."""
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ValueError(f"policy {name} sees ahead, which only a recording can grant")
