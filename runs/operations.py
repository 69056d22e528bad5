"""Every operation of a served run and the requests in it, where they are kept (`simulate --events`).

Times are whole picoseconds since the start of the workload. Letters: N operations, M rows, a row being one request in
one operation.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..decoding.results import DRAFT, VERIFY
from ..traces.folder import Rule
from .log import Columns, from_packed, within

OPERATION_FIELDS = ("replica", "level", "kind", "start_ps", "end_ps", "forwards", "new_tokens")
ROW_FIELDS = ("operation", "request", "kind", "tokens", "accepted", "emitted")
OPERATIONS, ROWS = (f"{name}.parquet" for name in ("operations", "rows"))
SCHEMAS = {
    file: pa.schema([pa.field(name, pa.int64(), nullable=False) for name in fields])
    for file, fields in {OPERATIONS: OPERATION_FIELDS, ROWS: ROW_FIELDS}.items()
}
# A row in which the target reads a request's text; other rows have the kinds of steps, DRAFT and VERIFY.
READ = 4
ROW_KINDS = (DRAFT, VERIFY, READ)


class RanRow(NamedTuple):
    """The result of one request in an operation."""

    request: int  # its serial
    kind: int  # of ROW_KINDS
    tokens: int  # that were drafted, judged or read
    accepted: int = 0  # how many of the judged tokens were accepted
    emitted: int = 0  # tokens of its answer that were committed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOperations:
    """All operations of a run."""

    # one row each (OPERATION_FIELDS), of one replica in order of time. `kind` is DRAFT or VERIFY, a step of the target
    # being VERIFY; one that the end of the run cuts ends there, and its rows have no tokens
    ops: Columns
    rows: Columns  # one row each (ROW_FIELDS), in the order of `operation`; `request` is an index into the requests


class OperationRecorder:
    """Gathers operations as they end."""

    def __init__(self) -> None:
        self._ops, self._rows = array("q"), array("q")
        self._count = 0

    def ran(
        self,
        replica: int,
        level: int,
        kind: int,
        span_ps: tuple[int, int],
        fed: tuple[int, int],
        rows: Sequence[RanRow],
    ) -> None:
        """An operation ended: level of its member, kind, (start, end), (forwards, tokens fed), and its rows."""
        self._ops.extend((replica, level, kind, *span_ps, *fed))
        for row in rows:
            self._rows.extend((self._count, *row))
        self._count += 1

    def all(self) -> KeptOperations:
        """What ended so far; more may come."""
        return KeptOperations(ops=from_packed(self._ops, OPERATION_FIELDS), rows=from_packed(self._rows, ROW_FIELDS))


def rules_of_operations(found: KeptOperations, *, replicas: int, levels: int, end_ps: int) -> Iterator[Rule]:
    """What must hold of `ops`; `replicas` and `levels` are their numbers, `end_ps` the end of the run."""
    ops = found.ops
    yield within(ops, "replica", 0, replicas - 1)
    yield within(ops, "level", 0, levels - 1)
    yield Rule("kind", ~np.isin(ops["kind"], (DRAFT, VERIFY)), f"must be {DRAFT} or {VERIFY}", ops["kind"])
    yield Rule("start_ps", (ops["start_ps"] < 0), "must be >= 0", ops["start_ps"])
    yield Rule("end_ps", ops["end_ps"] < ops["start_ps"], "must not be before start_ps", ops["end_ps"])
    yield Rule("end_ps", ops["end_ps"] > end_ps, "must not be after the end of the run", ops["end_ps"])
    for field in ("forwards", "new_tokens"):
        yield Rule(field, ops[field] < 0, "must be >= 0", ops[field])


def rules_of_rows(found: KeptOperations, *, requests: int) -> Iterator[Rule]:
    """What must hold of `rows`; `requests` is their number."""
    rows, num_ops = found.rows, len(found.ops["kind"])
    yield within(rows, "operation", 0, num_ops - 1)
    yield within(rows, "request", 0, requests - 1)
    yield Rule("operation", np.diff(rows["operation"], prepend=0) < 0, "must be in order", rows["operation"])
    words = f"must be one of {', '.join(map(str, ROW_KINDS))}"
    yield Rule("kind", ~np.isin(rows["kind"], ROW_KINDS), words, rows["kind"])
    for field in ("tokens", "emitted"):
        yield Rule(field, rows[field] < 0, "must be >= 0", rows[field])
    outside = (rows["accepted"] < 0) | (rows["accepted"] > rows["tokens"])
    yield Rule("accepted", outside, "must be in [0, tokens]", rows["accepted"])
