"""The pool that was loaded, as policies see it."""

from ..policies.pool import Member, Pool
from .pool import ModelPool


def loaded_pool(pool: ModelPool) -> Pool:
    """Members in level order, names only."""
    return Pool(tuple(Member(name=member.name, model_free=member.model is None) for member in pool.members))
