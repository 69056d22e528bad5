"""Collects a run log while a loop runs; it fits `decoding.ledger.Ledger` by shape."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple
from math import nan
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.ledger import COMMIT, OpRecord, StepRecord
from .log import OP_FIELDS, REQUEST_FIELDS, STEP_FIELDS, Columns, RunLog, to_columns
from .text_quality import TextQuality

# Of integers that do not take four bytes: small ones, and tokens fed to a batch.
_CODES = {"kind": "b", "prefill": "b", "part": "b", "refused": "b", "level": "h", "own": "h", "new_tokens": "q"}


class RunLedger:
    """Packs one row per operation and per step; `finish` turns them into columns."""

    def __init__(self) -> None:
        # Packed rows: smaller than tuples, and quicker to append to than an array.array.
        self._ops = bytearray()
        self._steps = bytearray()
        self._pack_op = _packer(OP_FIELDS).pack
        self._pack_step = _packer(STEP_FIELDS).pack
        self._last_op = -1
        self._requests: list[tuple[Any, ...]] = []
        self._indices: dict[str, int] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._preempted: Counter[str] = Counter()

    def note_admitted(self, request_id: str, *, tag: str, num_prompt: int, arrived_at_s: float, now_s: float) -> None:
        """A request starts; its index in `steps` is the order of admission."""
        self._indices[request_id] = len(self._requests)
        self._requests.append((request_id, tag, num_prompt, arrived_at_s, now_s))

    def note_op(self, record: OpRecord) -> None:
        """An operation finished."""
        self._last_op += 1
        self._ops += self._pack_op(*record)

    def note_step(self, record: StepRecord) -> None:
        """A step of one request finished; it belongs to the latest operation, unless it is a Commit."""
        op = -1 if record.kind == COMMIT else self._last_op
        self._steps += self._pack_step(op, self._indices[record.request_id], *record[1:])

    def note_block(self, ops: Columns, steps: Columns) -> None:
        """Operations that finished one after another, and their steps.

        Args:
            ops: `[N]` by OP_FIELDS; what is left out is 0, as it is of `steps`.
            steps: `[M]` by STEP_FIELDS; `op` counts from the first of these operations, -1 is a Commit.
        """
        first = self._last_op + 1
        self._last_op += len(ops["kind"])
        self._ops += _packed(OP_FIELDS, ops)
        self._steps += _packed(STEP_FIELDS, steps | {"op": np.where(steps["op"] < 0, -1, steps["op"] + first)})

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """A request ended unfinished, for the reason `error`; raises ValueError for an empty reason."""
        if not error:
            raise ValueError(f"request {request_id}: failed must give a reason, got ''")
        self._failed[request_id] = (error, end_s)

    def note_preempted(self, request_id: str) -> None:
        """A step of a request was put off."""
        self._preempted[request_id] += 1

    def finish(
        self,
        meta: dict[str, Any],
        *,
        reanchored: Mapping[str, int],
        divergent: Mapping[str, int],
        times_plain: Mapping[str, float] | None = None,
    ) -> RunLog:
        """The run log. Changes nothing, so that `times_plain` can be worked out from a first one.

        Its columns are views of what was written down: nothing more can be noted as long as they are held.

        What is known of the texts' quality is added by `log.with_quality`.

        Args:
            meta: what was run.
            reanchored: per request, times replay resumed on the trunk after leaving the record.
            divergent: per request, committed tokens that differ from the target's own text at their position.
            times_plain: per request, its seconds per token over those of plain decoding, where known.
        """
        steps = _unpacked(STEP_FIELDS, self._steps)
        first, last = _first_and_last(steps, len(self._requests))
        emitted = np.bincount(steps["request"], weights=steps["emitted"], minlength=len(self._requests))
        rows = []
        quality = astuple(TextQuality())
        for index, (request_id, tag, num_prompt, arrived, admitted) in enumerate(self._requests):
            failed, finished = self._failed.get(request_id, ("", float(last[index])))
            row = (request_id, tag, num_prompt, int(emitted[index]), arrived, admitted, float(first[index]), finished)
            counts = (reanchored.get(request_id, 0), divergent.get(request_id, 0))
            ratio = nan if times_plain is None else times_plain.get(request_id, nan)
            rows.append((*row, *counts, failed, self._preempted[request_id], ratio, *quality))
        requests = to_columns(REQUEST_FIELDS, rows)
        return RunLog(meta=meta, ops=_unpacked(OP_FIELDS, self._ops), steps=steps, requests=requests)


def _first_and_last(steps: Columns, num_requests: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each request's first and last step that emitted ended, seconds; NaN for one that never did."""
    first = np.full(num_requests, np.nan)
    last = np.full(num_requests, np.nan)
    commits = np.flatnonzero(steps["emitted"] > 0)
    # Steps are in order of time: writing backwards leaves each request's first commit.
    first[steps["request"][commits][::-1]] = steps["end_s"][commits][::-1]
    last[steps["request"][commits]] = steps["end_s"][commits]
    return first, last


def _codes(fields: tuple[str, ...]) -> list[str]:
    """Of each field: a double for durations and instants, else an integer of as many bytes as it needs."""
    return ["d" if field.endswith("_s") else _CODES.get(field, "i") for field in fields]


def _packer(fields: tuple[str, ...]) -> Struct:
    """Rows laid out as a compiler would, so that columns can be looked at where they lie."""
    return Struct("@" + "".join(_codes(fields)) + "0d")


def _row_type(fields: tuple[str, ...]) -> np.dtype[np.void]:
    """The same layout to numpy."""
    return np.dtype(list(zip(fields, _codes(fields), strict=True)), align=True)


def _packed(fields: tuple[str, ...], columns: Columns) -> bytes:
    """Rows of columns, of which the first is there; others that are left out are 0."""
    table = np.zeros(len(columns[fields[0]]), _row_type(fields))
    for field in columns.keys() & set(fields):
        table[field] = columns[field]
    return table.tobytes()


def _unpacked(fields: tuple[str, ...], rows: bytearray) -> Columns:
    """Columns of packed rows, not copied: a long run is not to be held twice."""
    table = np.frombuffer(rows, dtype=_row_type(fields))
    return {field: table[field] for field in fields}
