"""The members that policies take if none are named."""

from ...decoding.pool import Pool

# What policies that take them need of a pool, in words.
A_DRAFTER = "a drafter below the target"
A_SURE_DRAFTER = "a drafter below the target that has probabilities"
A_VERIFIER_BETWEEN = "a drafter, and a verifier between it and the target"


def smallest_model(pool: Pool) -> str:
    """Name of the smallest member that has weights; raises ValueError if that is the target."""
    for member in pool.members[:-1]:
        if not member.model_free:
            return member.name
    raise ValueError("the pool has no model below its target to draft with")


def drafter_of(pool: Pool, draft: str | None) -> str:
    """The drafter a user named, or the smallest model; raises ValueError if it is unknown or not below the target."""
    drafter = smallest_model(pool) if draft is None else draft
    if pool.level(drafter) == pool.target_level:
        raise ValueError(f"draft must be a member below the target, got {drafter!r}")
    return drafter


def lookup_member(pool: Pool, policy: str) -> str:
    """Name of the smallest model-free member; raises ValueError, naming `policy`, if the pool has none."""
    if not pool.members[0].model_free:
        raise ValueError(f"policy {policy} needs a model-free member in the pool; it has {', '.join(pool.names)}")
    return pool.names[0]


def sure_drafter(pool: Pool, draft: str | None, policy: str) -> str:
    """The drafter a user named, or the smallest model that reads the target's tokens.

    Raises:
        ValueError: naming `policy`, one that is not below the target, or that does not say how sure it is of a token.
    """
    if draft is None:
        draft = next((member.name for member in pool.members[:-1] if member.verifies), None)
        if draft is None:
            have = ", ".join(pool.names)
            raise ValueError(f"policy {policy} needs a drafter with probabilities of its own; the pool has {have}")
    drafter = drafter_of(pool, draft)
    if not pool.members[pool.level(drafter)].verifies:
        raise ValueError(f"policy {policy} needs a drafter with probabilities of its own, {drafter!r} has none")
    return drafter


def verifiers_between(pool: Pool, draft: str) -> list[str]:
    """Names of the members between a drafter and the target that can verify, smallest first."""
    return [member.name for member in pool.members[pool.level(draft) + 1 : pool.target_level] if member.verifies]


def middle_verifier(pool: Pool, verifier: str | None, draft: str, policy: str) -> str:
    """The middle member a user named, or the largest one below the target that can verify.

    Raises:
        ValueError: naming `policy`, if there is none, it cannot verify, or it is not between drafter and target.
    """
    return _between(pool, verifier, draft, policy)[-1]


def next_verifier(pool: Pool, verifier: str | None, draft: str, policy: str) -> str:
    """The middle member a user named, or the smallest one above the drafter that can verify; raises as above."""
    return _between(pool, verifier, draft, policy)[0]


def _between(pool: Pool, verifier: str | None, draft: str, policy: str) -> list[str]:
    """All that may stand between, or the one that was named."""
    low, high = pool.level(draft), pool.target_level
    if verifier is None:
        between = verifiers_between(pool, draft)
        if not between:
            have = ", ".join(pool.names)
            raise ValueError(f"policy {policy} needs a verifier between {draft!r} and the target; the pool has {have}")
        return between
    if not low < pool.level(verifier) < high:
        raise ValueError(f"policy {policy} needs a verifier between {draft!r} and {pool.target!r}, got {verifier!r}")
    if not pool.members[pool.level(verifier)].verifies:
        raise ValueError(f"policy {policy} needs a middle member that can verify, {verifier!r} cannot")
    return [verifier]
