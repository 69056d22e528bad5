"""Remarks below a table: what its reader has to know of what was asked, a line each."""

from ..counted import counted
from ..traces.rounds.recording import RoundsRecording
from ..traces.tries.recording import TrieRecording

ROUNDING = "in half precision rounding changes with a forward's width, and a near tie may go the other way"


def remarks_on(recording: TrieRecording | RoundsRecording, *, batch: int) -> list[str]:
    """What the reader of a comparison has to know of its recording and of how it was replayed."""
    batch_told = batch_remarks(batch, len(recording.requests), of="recording")
    return batch_told if isinstance(recording, RoundsRecording) else [*batch_told, *_half_precision(recording)]


def _half_precision(recording: TrieRecording) -> list[str]:
    """What an exact share means where rounding decides choices."""
    meta = recording.meta
    if meta.exact:
        return []
    ties = meta.trunk_near_ties
    told = "near ties of the trunk not known" if ties is None else ties.words
    return [
        f"recorded in {meta.dtype}, {told}: an exact share of 1 says that the recording was replayed, not that a run "
        f"writes the same text; {ROUNDING}"
    ]


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
        f"--batch {batch:,}: the {of} has {counted(num_requests, 'request')}, so at most {num_requests:,} run together"
    ]
