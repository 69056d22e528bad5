"""Remarks below a table: what its reader has to know of what was asked, a line each."""

from collections.abc import Mapping
from typing import Any

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


def ahead_remarks(overlap: Mapping[str, Any] | None) -> list[str]:
    """How members of a run worked at the same time, `overlap` of its log's meta; nothing where none did."""
    if overlap is None or not overlap["used"]:
        return []
    threads_s, turns_s = overlap["threads_s"], overlap["turns_s"]
    if overlap["why"]:
        return [f"members worked in turns, not in threads: {overlap['why']}"]
    if threads_s is None or turns_s is None:
        return [f"members worked in {overlap['used']}, as asked"]
    quicker = "threads pay" if threads_s < turns_s else "threads do not pay"
    return [
        f"members worked in {overlap['used']}: {quicker} here, {threads_s * 1e3:.2f} ms a step in threads and "
        f"{turns_s * 1e3:.2f} ms in turns (medians of the first ones)"
    ]
