"""The pool that was loaded, as policies see it."""

from ...decoding.pool import Member, Pool
from .loaded_members import LoadedMembers


def loaded_pool(pool: LoadedMembers) -> Pool:
    """Members in level order: names, and what they cannot do."""
    return Pool(
        tuple(
            Member(name=member.name, model_free=member.model is None, drafts_only=member.tokenizer is not None)
            for member in pool.members
        )
    )
