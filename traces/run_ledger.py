"""Collects a run log while a loop runs; it fits `policies.loop.Ledger` by shape."""

from struct import Struct
from typing import Any

import numpy as np

from .run_log import COMMIT, OP_FIELDS, REQUEST_FIELDS, STEP_FIELDS, Columns, RunLog, to_columns


class RunLedger:
    """Appends one tuple per operation and per step; `finish` turns them into columns."""

    __slots__ = ("_indices", "_last_op", "_ops", "_pack_op", "_pack_step", "_requests", "_steps")

    def __init__(self) -> None:
        # Packed rows: smaller than tuples, and quicker to append to than an array.array.
        self._ops = bytearray()
        self._steps = bytearray()
        self._pack_op = _packer(OP_FIELDS).pack
        self._pack_step = _packer(STEP_FIELDS).pack
        self._last_op = -1
        self._requests: list[tuple[Any, ...]] = []
        self._indices: dict[str, int] = {}

    def note_admitted(self, request_id: str, *, tag: str, num_prompt: int, arrived_at_s: float, now_s: float) -> None:
        """A request starts; its index in `steps` is the order of admission."""
        self._indices[request_id] = len(self._requests)
        self._requests.append((request_id, tag, num_prompt, arrived_at_s, now_s))

    def note_op(
        self,
        verify: bool,
        level: int,
        num_rows: int,
        num_forwards: int,
        new_tokens: int,
        start_s: float,
        duration_s: float,
    ) -> None:
        """An operation finished."""
        self._last_op += 1
        self._ops += self._pack_op(verify, level, num_rows, num_forwards, new_tokens, start_s, duration_s)

    def note_step(
        self,
        request_id: str,
        verify: bool,
        level: int,
        asked: int,
        drafted: int,
        judged: int,
        accepted: int,
        own: int,
        emitted: int,
        modelled: int,
        end_s: float,
    ) -> None:
        """A step of one request finished; it belongs to the latest operation."""
        request = self._indices[request_id]
        self._steps += self._pack_step(
            self._last_op, request, verify, level, asked, drafted, judged, accepted, own, emitted, modelled, end_s
        )

    def note_commit(self, request_id: str, level: int, emitted: int, end_s: float) -> None:
        """Pending tokens were taken as they were."""
        request = self._indices[request_id]
        self._steps += self._pack_step(-1, request, COMMIT, level, 0, 0, 0, 0, 0, emitted, 0, end_s)

    def finish(self, meta: dict[str, Any], *, reanchored: dict[str, int], divergent: dict[str, int]) -> RunLog:
        """The run log.

        Args:
            meta: what was run.
            reanchored: per request, times replay resumed on the trunk after leaving the record.
            divergent: per request, committed tokens that differ from the target's own text at their position.
        """
        steps = _unpacked(STEP_FIELDS, self._steps)
        num_requests = len(self._requests)
        emitted = np.bincount(steps["request"], weights=steps["emitted"], minlength=num_requests).astype(np.int64)
        first = np.full(num_requests, np.nan)
        last = np.full(num_requests, np.nan)
        commits = np.flatnonzero(steps["emitted"] > 0)
        # Steps are in order of time: writing backwards leaves each request's first commit.
        first[steps["request"][commits][::-1]] = steps["end_s"][commits][::-1]
        last[steps["request"][commits]] = steps["end_s"][commits]
        rows = [
            (
                request_id,
                tag,
                num_prompt,
                int(emitted[index]),
                arrived,
                admitted,
                float(first[index]),
                float(last[index]),
                reanchored.get(request_id, 0),
                divergent.get(request_id, 0),
            )
            for index, (request_id, tag, num_prompt, arrived, admitted) in enumerate(self._requests)
        ]
        requests = to_columns(REQUEST_FIELDS, rows)
        return RunLog(meta=meta, ops=_unpacked(OP_FIELDS, self._ops), steps=steps, requests=requests)


def _packer(fields: tuple[str, ...]) -> Struct:
    """Rows of 64-bit integers, and of doubles for durations and instants."""
    return Struct("=" + "".join("d" if field.endswith("_s") else "q" for field in fields))


def _unpacked(fields: tuple[str, ...], rows: bytearray) -> Columns:
    """Columns from packed rows."""
    kinds = [(field, "=f8" if field.endswith("_s") else "=i8") for field in fields]
    table = np.frombuffer(rows, dtype=np.dtype(kinds))
    return {field: table[field].copy() for field in fields}
