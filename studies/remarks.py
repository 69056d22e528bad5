"""Remarks below a table: what its reader has to know of what was asked, a line each."""

from ..counted import counted
from ..traces.recording import Recording


def remarks_on(recording: Recording, *, batch: int) -> list[str]:
    """What the reader of a comparison has to know of its recording and of how it was replayed."""
    return [*batch_remarks(batch, len(recording.requests), of="recording"), *recording.about.remarks]


def batch_remarks(batch: int, num_requests: int, *, of: str) -> list[str]:
    """That fewer requests than asked for run together, where there are not as many.

    Args:
        batch: as asked for.
        num_requests: that there are.
        of: what they are requests of.
    """
    if batch <= num_requests:
        return []
    return [
        f"`batch` {batch:,}: the {of} has {counted(num_requests, 'request')}, so at most {num_requests:,} run together"
    ]
