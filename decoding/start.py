"""How a request begins: with the target's prefill, as in engines, or with a draft on the bare prompt."""

from enum import StrEnum

from .pool import Pool


class Start(StrEnum):
    """Where a request's first token comes from.

    Attributes:
        prefill: the target reads the prompt and writes the first token; drafts come after it. What engines do.
        draft: a policy may draft on the bare prompt; the first verification reads the prompt as well.
        recorded: as each method of an imported log began.
    """

    prefill = "prefill"
    draft = "draft"
    recorded = "recorded"


def prefill_before(start: Start, pool: Pool, *, what: str = "this run") -> tuple[bool, ...]:
    """`[L]` for the sessions of a pool of L members: whether a draft by each comes after the target's prefill.

    Args:
        start: `prefill` or `draft`, the same for every member.
        pool: the members.
        what: is run, for the error.

    Raises:
        ValueError: `recorded`, which only a log can answer.
    """
    if start is Start.recorded:
        raise ValueError(f"start must be prefill or draft for {what}, which holds no start of its own, got {start}")
    return (start is Start.prefill,) * len(pool.members)
