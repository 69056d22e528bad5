"""The format of a file, told by its first line: the keys of an object, or the columns of a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TraceFormatError
from ...importers.reading.lines import lines_of, refuse_pipe
from ..options import WorkloadOptions
from . import mooncake, tables
from .agent_sessions import AGENTS
from .bench_details import BENCH_DETAILS
from .format import Reading, Tally, WorkloadFormat
from .llmservingsim import LLMSERVINGSIM
from .objects import object_of
from .paceline_lines import PACELINE

FORMATS: tuple[WorkloadFormat, ...] = (
    *tables.FORMATS,
    *mooncake.FORMATS,
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
        first = object_of(reading, line, text)
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
        return tables.head_of(text)
    except UnicodeDecodeError as error:
        raise reading.error(line, "row", "must be UTF-8", f"byte 0x{text[error.start]:02x}") from None
    except ValueError as error:
        raise reading.error(line, "row", "must be cells with commas between", str(error)) from None
