"""`--lossless`: only policies that commit what the target alone would write."""

from typing import Annotated

import typer

from ...decoding.contract import Policy
from ...policies.about import about_of
from ...policies.combined.only_lossless import OnlyLossless
from ...policies.registry import own_policies

LosslessOption = Annotated[
    bool, typer.Option("--lossless", help="Refuse policies that may commit other text than the target's.")
]


def admitted(policy: Policy, name: str, *, lossless: bool) -> Policy:
    """The policy, if it may run.

    One of ours is known by what it says of itself; any other is looked at step by step as well.

    Args:
        policy: as built.
        name: of the policy, for the message.
        lossless: whether only lossless ones were asked for.

    Raises:
        ValueError: they were, and it is not.
    """
    if not lossless:
        return policy
    about = about_of(policy)
    if about is not None and not about.lossless:
        raise ValueError(f"policy {name} is lossy, and --lossless was asked for")
    if about is not None and type(policy) in own_policies().values():
        return policy
    return OnlyLossless(policy, about)
