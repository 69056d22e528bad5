"""Oracles have no place among real models."""

from ..arguments import ArgumentError
from ..policies.about import about_of


def refuse_oracle(policy: object, name: str) -> None:
    """Raises ArgumentError, naming the policy, if it sees ahead; its class can be asked before models are loaded."""
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ArgumentError(f"policy {name} sees ahead, which only a recording can grant")
