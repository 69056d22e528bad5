"""The default drafter."""

from .pool import Pool


def smallest_model(pool: Pool) -> str:
    """Name of the smallest member that has weights; raises ValueError if that is the target."""
    for member in pool.members[:-1]:
        if not member.model_free:
            return member.name
    raise ValueError("the pool has no model below its target to draft with")
