"""Which pools can be recorded."""

from .pool import ModelPool


def check_recordable(pool: ModelPool) -> None:
    """Raises ValueError for a pool with a foreign member: its view of a context is over other tokens."""
    for member in pool.members:
        if member.tokenizer is not None:
            raise ValueError(
                f"a pool to record must share one tokenizer, got member {member.name!r} with its own "
                "(leave it out of the pool file to record the others)"
            )
