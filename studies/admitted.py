"""Whether a policy may run where only policies are asked for that commit what the target alone would write."""

from ..arguments import ArgumentError
from ..decoding.policy import Policy
from ..policies.about import about_of
from ..policies.combined.only_lossless import OnlyLossless
from ..policies.registry import own_policies


def admitted(policy: Policy, name: str, *, lossless: bool) -> Policy:
    """The policy, if it may run.

    One of ours is known by what it says of itself; any other is looked at step by step as well.

    Args:
        policy: as built.
        name: of the policy, for the message.
        lossless: whether only lossless ones were asked for.

    Raises:
        ArgumentError: they were, and it is not.
    """
    if not lossless:
        return policy
    about = about_of(policy)
    if about is not None and not about.lossless:
        raise ArgumentError(f"policy {name} is lossy, and `lossless` was asked for")
    if about is not None and type(policy) in own_policies().values():
        return policy
    return OnlyLossless(policy, about)
