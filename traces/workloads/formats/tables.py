"""Tables of others with a row for each request: Azure's, vidur's, BurstGPT's and splitwise-sim's CSV files."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

from ....arguments import repeated
from ...errors import TraceFormatError
from ...importers.reading.lines import lines_of
from ..arrival import Arrival
from ..exact_seconds import MOST_READ_PS, ps_of_moment, ps_of_seconds
from ..options import MOST_COUNT
from .format import Reading, WorkloadFormat

_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of a format.

    Attributes:
        arrives: of the time of arrival.
        prompt: of the tokens of the prompt.
        output: of the tokens of the output.
        total: of the sum of both, which is checked; "" for none.
        one: of a number that must be 1; "" for none.
        others: that may be there and are not used.
        ps: picoseconds of a time; None for what is none.
        times: what a time is, in words.
        clock: whether times are of a clock, so that the first row's is the start; else they count from the start.
    """

    arrives: str
    prompt: str
    output: str
    total: str = ""
    one: str = ""
    others: tuple[str, ...] = ()
    ps: Callable[[str], int | None] = ps_of_seconds
    times: str = "seconds"
    clock: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that must be there."""
        return self.arrives, self.prompt, self.output

    @property
    def known(self) -> tuple[str, ...]:
        """Columns that may be there."""
        return (*self.needed, *filter(None, [self.total, self.one]), *self.others)


AZURE = Table(
    arrives="TIMESTAMP",
    prompt="ContextTokens",
    output="GeneratedTokens",
    ps=ps_of_moment,
    times="YYYY-MM-DD HH:MM:SS.fraction (UTC)",
    clock=True,
)
VIDUR = Table(
    arrives="arrived_at",
    prompt="num_prefill_tokens",
    output="num_decode_tokens",
    total="num_total_tokens",
    others=("pd_ratio",),
)
BURSTGPT = Table(
    arrives="Timestamp",
    prompt="Request tokens",
    output="Response tokens",
    total="Total tokens",
    others=("Session ID", "Elapsed time", "Model", "Log Type"),
    clock=True,
)
SPLITWISE = Table(
    arrives="arrival_timestamp",
    prompt="prompt_size",
    output="token_size",
    one="batch_size",
    others=("request_id", "request_type", "application_id"),
)


def read_table(table: Table, reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file, called by their line; times count from the first row where they are of a clock."""
    rows = _rows(reading)
    line, head = next(rows)
    check_head(table, reading, line, head)
    arrives, prompts, outputs = (head.index(name) for name in table.needed)
    total, one = (head.index(name) if name in head else None for name in (table.total, table.one))
    start: int | None = None
    for line, cells in rows:
        if len(cells) != len(head):
            raise reading.error(line, "row", f"must have {len(head)} cells as the head has", len(cells))
        moment = cells[arrives]
        found = table.ps(moment)
        if found is None:
            raise reading.error(line, table.arrives, f"must be a time, {table.times}", moment)
        if start is None:
            start = found if table.clock else 0
        prompt = _count(reading, line, table.prompt, cells[prompts])
        output = _count(reading, line, table.output, cells[outputs])
        if one is not None and cells[one] != "1":
            raise reading.error(line, table.one, "must be 1: a row is one request", cells[one])
        if total is not None:
            _check_total(table, reading, line, cells[total], prompt + output)
        tokens = reading.lengths(line, prompt, output, names=(table.prompt, table.output))
        if tokens is not None:
            since = found - start
            if since < 0 and table.clock:
                raise reading.error(line, table.arrives, "must not be before the first row's", moment)
            arrives_ps = reading.time(line, table.arrives, since, moment, most_ps=MOST_READ_PS)
            yield line, Arrival(str(line), arrives_ps, *tokens)


def check_head(table: Table, reading: Reading, line: int, head: list[str]) -> None:
    """Raise TraceFormatError for columns that are missing, unknown or there twice."""
    for twice in repeated(head):
        raise reading.error(line, "columns", "must be there once each", twice)
    for name in head:
        if name not in table.known:
            raise reading.error(line, "columns", f"must be of {', '.join(table.known)}", name)
    missing = [name for name in table.needed if name not in head]
    if missing:
        raise reading.error(line, "columns", f"must have {missing[0]}", ", ".join(head))


def head_of(line: bytes) -> list[str]:
    """The columns that a line names; raises ValueError for what is no line of a table."""
    try:
        return next(csv.reader([line.decode("utf-8")], strict=True))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _rows(reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row, the head first."""
    current = 0

    def texts() -> Iterator[str]:
        nonlocal current
        for number, line in lines_of(reading.path):
            current = number
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                rule = "must be UTF-8"
                raise reading.error(number, "row", rule, f"byte 0x{line[error.start]:02x}") from None

    try:
        for cells in csv.reader(texts(), strict=True):
            yield current, cells
    except csv.Error as error:
        raise reading.error(current, "row", "must be cells with commas between", str(error)) from None


def _count(reading: Reading, line: int, field: str, text: str) -> int:
    count = _count_of(text)
    if count is None:
        raise reading.error(line, field, f"must be a whole number in [1, {MOST_COUNT}]", text)
    return count


@lru_cache(maxsize=2**12)
def _count_of(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and (count := int(text)) <= MOST_COUNT:
        return count
    return None


def _check_total(table: Table, reading: Reading, line: int, text: str, wanted: int) -> None:
    if text != str(wanted) and _count(reading, line, table.total, text) != wanted:
        rule = f"must be the sum of {table.prompt} and {table.output}, {wanted}"
        raise TraceFormatError(reading.place(line), table.total, rule, text)


FORMATS = (
    WorkloadFormat(
        name="azure",
        keys=AZURE.needed,
        sees=lambda columns: bool({AZURE.prompt, AZURE.output} & columns),
        read=partial(read_table, AZURE),
    ),
    WorkloadFormat(
        name="vidur",
        keys=VIDUR.needed,
        sees=lambda columns: bool({VIDUR.prompt, VIDUR.output} & columns),
        read=partial(read_table, VIDUR),
    ),
    WorkloadFormat(
        name="burstgpt",
        keys=BURSTGPT.needed,
        sees=lambda columns: bool({BURSTGPT.prompt, BURSTGPT.output} & columns),
        read=partial(read_table, BURSTGPT),
        notes=("Session ID, Elapsed time, Model and Log Type are not used: each request arrives at its own time",),
    ),
    WorkloadFormat(
        name="splitwise",
        keys=SPLITWISE.needed,
        sees=lambda columns: bool({SPLITWISE.prompt, SPLITWISE.output} & columns),
        read=partial(read_table, SPLITWISE),
        notes=("request_id, request_type and application_id are not used: each request arrives at its own time",),
    ),
)
