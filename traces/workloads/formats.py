"""Workloads in files, read row by row, so that memory does not follow their length; the first line tells the format.

Here: our own lines, tables of others (the CSV files of Azure, vidur, BurstGPT and splitwise-sim), and results of `vllm
bench serve --save-detailed`, one object with the lengths and starts of all requests.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from ...base.errors import ArgumentError, repeated
from ...base.files import kind_of_json
from ..errors import TraceFormatError
from ..importers.reading import by_request, lines_of, refuse_pipe
from . import mooncake
from .arrival import (
    MOST_COUNT,
    MOST_READ_PS,
    PS_PER_S,
    Arrival,
    Workload,
    WorkloadAbout,
    WorkloadOptions,
    ps_of_moment,
    ps_of_seconds,
    requests_of,
)
from .format import MOST_ID, Reading, Row, Tally, WorkloadFormat, row_of, rows_of, whole
from .graph_files import AGENTS, graph_of
from .mooncake import LLMSERVINGSIM
from .sessions import Turn, TurnsLeft, runs_of
from .workload import is_closed

_HEAD = ("workload", "unit_tokens")
_NEEDED = ("arrives_s", "prompt_tokens", "output_tokens")
_KNOWN = ("request_id", *_NEEDED, "tag", "blocks", "slo", "turns", "graph", "at")
_TOKENS = ("prompt_tokens", "output_tokens")
_TURN_NEEDED = ("wait_s", "prompt_tokens", "output_tokens")
_TURN_KNOWN = ("request_id", *_TURN_NEEDED, "blocks")


def read_lines(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file; one without `request_id` is called by its line, a turn by that and its number."""
    rows = rows_of(reading)
    if _is_head(reading.first):
        head = next(rows)
        head.check_keys((), _HEAD)
        head.printable("workload", head.values.get("workload", ""))
        if not whole(head.values.get("unit_tokens", 0)):
            raise head.error("unit_tokens", f"must be a whole number in [0, {MOST_COUNT}]", head.values["unit_tokens"])
    unit = unit_of(reading.first)
    for row in rows:
        row.check_keys(_NEEDED, _KNOWN)
        arrives_ps = row.time("arrives_s")
        tag, slo = (row.printable(key, row.values.get(key, "")) for key in ("tag", "slo"))
        name = row.name("request_id", str(row.line))
        if "graph" in row.values:
            if "turns" in row.values:
                raise row.error("turns", "must be left out beside graph", kind_of_json(row.values["turns"]))
            yield row.line, graph_of(row, name=name, unit=unit, tag=tag, slo=slo).begin(arrives_ps)
            continue
        if "at" in row.values:
            raise row.error("at", "must be left out where there is no graph", row.values["at"])
        turns = [*_turns(row, name, unit)]
        if turns:
            yield row.line, TurnsLeft(turns=tuple(turns), tag=tag, slo=slo).begin(arrives_ps)


def unit_of(first: Mapping[str, Any]) -> int:
    """Tokens of a unit of the blocks that a file holds, as its first line says; 0 where it does not."""
    unit = first.get("unit_tokens", 0) if _is_head(first) else 0
    return unit if isinstance(unit, int) and whole(unit) else 0


def lines_of_workload(workload: Workload, arrivals: Iterable[Arrival] | None = None) -> Iterator[str]:
    """A workload as lines of this format, without line ends; `arrivals` are written in place of all of its own.

    Raises ArgumentError for a session that is no line of turns, and for a closed loop, which has no times.
    """
    about = workload.about
    if is_closed(workload):
        raise ArgumentError(f"lines must be of a workload with times of arrival, got the closed loop {about.format}")
    yield json.dumps({"workload": about.name, "unit_tokens": about.unit_tokens})
    for arrival in workload if arrivals is None else arrivals:
        turns = [f'{{"wait_s": {_seconds(wait_ps)}, {_fields(turn)}}}' for turn, wait_ps in _turns_of(arrival)]
        texts = {key: text for key, text in (("tag", arrival.tag), ("slo", arrival.slo)) if text}
        more = "".join(f", {json.dumps(key)}: {json.dumps(text)}" for key, text in texts.items())
        more += f', "turns": [{", ".join(turns)}]' if turns else ""
        yield f'{{"arrives_s": {_seconds(arrival.arrives_ps)}, {_fields(arrival)}{more}}}'


def _turns_of(arrival: Arrival) -> Iterator[tuple[Arrival, int]]:
    """(turn, its wait) of a session, in order; raises ArgumentError for one that is no line of turns."""
    before = arrival
    while True:
        turns = before.turns
        following = () if turns is None else turns.after(before.arrives_ps)
        own = max(before.blocks, default=0) > MOST_ID  # ids of texts that only this reader knows
        if own or before.answer or len(following) > 1 or (turns is not None and turns.depths):
            rule = "must be of sessions that are lines of turns whose answers nobody reads"
            raise ArgumentError(f"lines {rule}, got request {before.request_id}")
        if not following:
            return
        (turn,) = following
        yield turn, turn.arrives_ps - before.arrives_ps
        before = turn


def _is_head(first: Mapping[str, Any]) -> bool:
    """Whether a first line is on the workload, and no request."""
    return any(key in first for key in _HEAD)


def _turns(row: Row, name: str, unit: int) -> Iterator[Turn]:
    """The request of a line, and those that follow it; one that is dropped hands on its wait, but for the first."""
    held_ps, begun = 0, False
    for place, one in enumerate(chain([row], row.rows("turns"))):
        if place:
            one.check_keys(_TURN_NEEDED, _TURN_KNOWN)
            held_ps += one.wait("wait_s")
        counts = [one.tokens(key) for key in _TOKENS]
        blocks = one.blocks("blocks", counts[0], unit)
        tokens = one.lengths(counts, _TOKENS)
        if tokens is not None:
            yield Turn(
                request_id=one.name("request_id", f"{name}/{place}") if place else name,
                wait_ps=held_ps if begun else 0,
                prompt_tokens=tokens[0],
                output_tokens=tokens[1],
                new_blocks=runs_of(blocks),
            )
            held_ps, begun = 0, True


def _fields(arrival: Arrival) -> str:
    found: dict[str, Any] = {"request_id": arrival.request_id, "prompt_tokens": arrival.prompt_tokens}
    found["output_tokens"] = arrival.output_tokens
    if arrival.blocks:
        found["blocks"] = tuple(arrival.blocks)
    return json.dumps(found)[1:-1]


def _seconds(ps: int) -> str:
    """Exact, without trailing zeros."""
    whole_s, rest = divmod(ps, PS_PER_S)
    return f"{whole_s}.{rest:012d}".rstrip("0").rstrip(".")


PACELINE = WorkloadFormat(
    name="paceline",
    keys=_NEEDED,
    sees=lambda keys: bool({*_HEAD, "arrives_s", "prompt_tokens"} & keys),
    read=read_lines,
    unit_tokens=unit_of,
    many=True,
    is_json=True,
)


_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """The columns of a format."""

    arrives: str  # of the time of arrival
    prompt: str  # of the tokens of the prompt
    output: str  # of the tokens of the output
    total: str = ""  # of the sum of both, which is checked; "" for none
    one: str = ""  # of a number that must be 1; "" for none
    others: tuple[str, ...] = ()  # that may be there and are not used
    ps: Callable[[str], int | None] = ps_of_seconds  # picoseconds of a time; None for what is none
    times: str = "seconds"  # what a time is, in words
    # whether times are of a clock, so that the first row's is the start; else they count from the start
    clock: bool = False
    notes: tuple[str, ...] = ()  # what a reader has to know

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that must be there."""
        return self.arrives, self.prompt, self.output

    @property
    def known(self) -> tuple[str, ...]:
        """Columns that may be there."""
        return (*self.needed, *filter(None, [self.total, self.one]), *self.others)


def read_table(table: TableFormat, reading: Reading) -> Iterator[tuple[int, Arrival]]:
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


def check_head(table: TableFormat, reading: Reading, line: int, head: list[str]) -> None:
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


def _check_total(table: TableFormat, reading: Reading, line: int, text: str, wanted: int) -> None:
    if text != str(wanted) and _count(reading, line, table.total, text) != wanted:
        rule = f"must be the sum of {table.prompt} and {table.output}, {wanted}"
        raise TraceFormatError(reading.place(line), table.total, rule, text)


def _any_of(needed: Sequence[str], columns: frozenset[str]) -> bool:
    return not columns.isdisjoint(needed)


_TABLES = {
    "azure": TableFormat(
        arrives="TIMESTAMP",
        prompt="ContextTokens",
        output="GeneratedTokens",
        ps=ps_of_moment,
        times="YYYY-MM-DD HH:MM:SS.fraction (UTC)",
        clock=True,
    ),
    "vidur": TableFormat(
        arrives="arrived_at",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        total="num_total_tokens",
        others=("pd_ratio",),
    ),
    "burstgpt": TableFormat(
        arrives="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        total="Total tokens",
        others=("Session ID", "Elapsed time", "Model", "Log Type"),
        clock=True,
        notes=("Session ID, Elapsed time, Model and Log Type are not used: each request arrives at its own time",),
    ),
    "splitwise": TableFormat(
        arrives="arrival_timestamp",
        prompt="prompt_size",
        output="token_size",
        one="batch_size",
        others=("request_id", "request_type", "application_id"),
        notes=("request_id, request_type and application_id are not used: each request arrives at its own time",),
    ),
}
TABLE_FORMATS = tuple(
    WorkloadFormat(
        name=name,
        keys=table.needed,
        sees=partial(_any_of, table.needed[1:]),
        read=partial(read_table, table),
        notes=table.notes,
    )
    for name, table in _TABLES.items()
)


_LISTS = ("input_lens", "output_lens", "start_times")
# vLLM's pull request 32667 has them saved; those of other programs of this form, such as SGLang's, have none.
_SAVED = "must be there: vllm bench serve writes it with --save-result --save-detailed"
_MISSING = {
    **dict.fromkeys(_LISTS, _SAVED),
    "start_times": f"{_SAVED} since January 2026, and nothing else says when requests were sent",
}


def read_details(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file by their starts, called by their number; the first start is 0."""
    for row in rows_of(reading):
        if row.line != 1:
            raise row.error("file", "must hold one result", "another line")
        lists = by_request(row, _LISTS, missing=_MISSING)
        starts = [row.time_of(f"start_times[{number}]", start) for number, start in enumerate(lists["start_times"])]
        for number in sorted(range(len(starts)), key=lambda one: (starts[one], one)):
            fields = [f"{key}[{number}]" for key in _LISTS[:2]]
            counts = [row.tokens_of(field, lists[key][number]) for field, key in zip(fields, _LISTS, strict=False)]
            tokens = row.lengths(counts, fields)
            if tokens is not None:
                yield row.line, Arrival(str(number + 1), starts[number] - min(starts), *tokens)


BENCH_DETAILS = WorkloadFormat(
    name="vllm-bench",
    keys=_LISTS,
    sees=lambda keys: bool({"input_lens", "output_lens", "total_input_tokens"} & keys) and "completed" in keys,
    read=read_details,
    notes=("starts are those of the benchmark's own load, seconds of answers and texts are not used",),
    is_json=True,
)


FORMATS: tuple[WorkloadFormat, ...] = (
    *TABLE_FORMATS,
    *mooncake.MOONCAKE_FORMATS,
    LLMSERVINGSIM,
    BENCH_DETAILS,
    AGENTS,
    PACELINE,
)


def detect(path: Path) -> tuple[WorkloadFormat, Mapping[str, Any]]:
    """(format, first object) of a file; the object is empty for tables.

    Raises:
        TraceFormatError: a file that cannot be read or read twice, is empty, or whose first line tells no format.
    """
    refuse_pipe(path)
    reading = Reading(path=path, options=WorkloadOptions(), tally=Tally())
    line, text = next(lines_of(path), (0, b""))
    if not text:
        raise TraceFormatError(path, "file", "must hold a workload", "nothing")
    first: Mapping[str, Any] = {}
    if text.lstrip()[:1] in (b"{", b"["):
        first = row_of(reading, line, text).values
        names = frozenset(first)
    else:
        names = frozenset(_head(reading, line, text))
    fitting = [known for known in FORMATS if known.is_json == bool(first) and known.sees(names)]
    if len(fitting) == 1:
        return fitting[0], first
    nearest = max(FORMATS, key=lambda known: len(names.intersection(known.keys)) / len(known.keys))
    near = f"nearest is {nearest.name}, by {', '.join(nearest.keys)}; " if names.intersection(nearest.keys) else ""
    rule = f"must be told by keys or columns ({near}all are in docs/workloads.md)"
    raise reading.error(line, "format", rule, ", ".join(sorted(names))[:100])


def _head(reading: Reading, line: int, text: bytes) -> list[str]:
    try:
        return head_of(text)
    except UnicodeDecodeError as error:
        raise reading.error(line, "row", "must be UTF-8", f"byte 0x{text[error.start]:02x}") from None
    except ValueError as error:
        raise reading.error(line, "row", "must be cells with commas between", str(error)) from None


_SUFFIXES = (".gz", ".jsonl", ".json", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """The requests of one file, or of several that are one workload; a `Source`."""

    name: str  # of the workload
    paths: tuple[Path, ...]  # of the files, in order
    known: WorkloadFormat  # their format
    first: Mapping[str, Any]  # the first object of the first file
    options: WorkloadOptions  # what becomes of requests without tokens

    @property
    def about(self) -> WorkloadAbout:
        """See `Source`."""
        return WorkloadAbout(
            name=self.name,
            files=tuple(map(str, self.paths)),
            format=self.known.name,
            unit_tokens=self.known.unit_tokens(self.first),
            num_requests=None,
            notes=self.known.notes,
        )

    @property
    def timed(self) -> bool:
        """See `Source`."""
        return self.known.timed(self.first)

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; raises TraceFormatError."""
        some = False
        for number, path in enumerate(self.paths):
            reading = Reading(path=path, options=self.options, tally=tally, number=number, first=self.first)
            before_ps = 0
            for line, arrival in self.known.read(reading):
                if arrival.arrives_ps < before_ps:
                    rule = f"must not go back in time, after one at {_in_words(before_ps)}"
                    raise reading.error(line, "arrival", rule, _in_words(arrival.arrives_ps))
                before_ps = arrival.arrives_ps
                some = True
                yield arrival
        if not some:
            raise TraceFormatError(self.paths[0], "file", "must hold requests", f"none, {tally.dropped} dropped")


def repeated_id_error(about: WorkloadAbout, request_id: str) -> TraceFormatError:
    """The error for an id that two requests of a workload have; reads the files again to name both lines."""
    rule, places = "must be unique in the workload", _places(about, request_id)
    if len(places) < 2:
        return TraceFormatError(about.name, "request_id", rule, request_id)
    return TraceFormatError(places[1], "request_id", f"{rule}, and is that of {places[0]}", request_id)


def _places(about: WorkloadAbout, request_id: str) -> list[str]:
    """Files and lines of the first two requests of that id; none of what is drawn."""
    options, found = WorkloadOptions(zero_tokens="one"), list[str]()
    paths = tuple(map(Path, about.files))
    for number, path in enumerate(paths):
        known, first = detect(paths[0])
        reading = Reading(path=path, options=options, tally=Tally(), number=number, first=first)
        for line, arrival in known.read(reading):
            found += [reading.place(line) for one, _ in requests_of(arrival) if one.request_id == request_id]
            if len(found) > 1:
                return found[:2]
    return found


def open_files(path: Path, options: WorkloadOptions) -> FileSource:
    """The workload in a file, plain or .gz, or in the files of a folder in order of their names.

    Raises:
        TraceFormatError: nothing is there, no format is told, or one of which several files are no workload.
    """
    folder = path.is_dir()
    paths = tuple(sorted(found for found in path.iterdir() if found.is_file())) if folder else (path,)
    if not paths:
        raise TraceFormatError(path, "folder", "must hold the files of a workload", "nothing")
    known, first = detect(paths[0])
    if folder and not known.many:
        raise TraceFormatError(path, "file", f"must be one file of format {known.name}", "a folder")
    for other in paths[1:]:
        found, _ = detect(other)
        if found is not known:
            raise TraceFormatError(other, "format", f"must be {known.name} as the files before it", found.name)
    called = first.get("workload")
    return FileSource(
        name=called if isinstance(called, str) else _stem(path), paths=paths, known=known, first=first, options=options
    )


def _stem(path: Path) -> str:
    name = path.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name or path.name


def _in_words(ps: int) -> str:
    return f"{ps / PS_PER_S:.12g} s"
