"""Chains that together run every member of a pool in all its parts, for operations to be watched."""

from ...decoding.pool import Pool
from ...policies.default_policies import BASELINE


def watched_chains(pool: Pool) -> list[str]:
    """The target alone, short and long drafts of every member, judged by the target or by a member between."""
    target = pool.target
    free = [member.name for member in pool.members if member.model_free]
    below = [member.name for member in pool.members[:-1] if not member.model_free]
    names = [BASELINE, *(f"{name}:{count}/{target}" for name in below for count in (2, 6))]
    names += [f"{below[0]}:2/{judge}:5/{target}" for judge in below[1:]]
    names += [f"{lookup}:3/{target}" for lookup in free]
    return names + [f"{lookup}:5/{judge}:2/{target}" for lookup in free for judge in below[:1]]
