"""Which policies may run where seconds are studied: refused is, before anything is measured, what would be later."""

from collections.abc import Iterable

from ...arguments import ArgumentError
from ...decoding.policy import Policy
from ...policies.about import about_of, check_tags
from ...runtime.no_oracles import refuse_oracle


def check_runnable(policy: Policy, name: str, *, forced: bool, tags: Iterable[str], where: str) -> None:
    """Refuse a policy that cannot run on these models and requests.

    Args:
        policy: as built.
        name: of the policy, for the message.
        forced: whether a recording decides what is accepted, which holds no text but the target's.
        tags: of the requests.
        where: the requests, as in "the prompts".

    Raises:
        ArgumentError: it sees ahead, names a tag that no request has, or says that it is lossy on a forced pool.
    """
    refuse_oracle(policy, name)
    about = about_of(policy)
    if forced and about is not None and not about.lossless:
        raise ArgumentError(f"`policies` must be lossless on a forced pool, got {name}")
    check_tags(policy, name, tags, where)
