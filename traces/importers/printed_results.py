"""The block of lines that `vllm bench serve` and SGLang's `bench_serving` print at their end, as their result files.

It begins with a line `==== Serving Benchmark Result ====`. Each line is a name and a number; what names it has that
say something of speculation are read, or refused if they are unknown. Rates are per cent.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from .ongoing import Ongoing
from .reading.fields import Fields
from .reading.lines import lines_of, text_lines
from .reading.objects import JSON_BEGINS

_TITLE = re.compile(r"\s*=+ *Serving Benchmark Result *=+\s*")
_LINE = re.compile(r"\s*([A-Z][^:]{0,80}): +(\S+)\s*")
_HEADING = re.compile(r"\s*(?:-+[A-Z][^:]*-+|=+|[A-Z][^:]{0,80}:)\s*")
_POSITION = re.compile(r"Position (\d{1,4})")
_SPECULATION = re.compile(r"accept|draft|spec|position", re.IGNORECASE)
_RATES = "spec_decode_per_position_acceptance_rates"
_KEYS = {
    "Successful requests": "completed",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Accept length": "accept_length",
    "Accept rate": "accept_rate",
    "Acceptance length": "spec_decode_acceptance_length",
    "Acceptance rate (%)": "spec_decode_acceptance_rate",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
    "Accepted tokens": "spec_decode_accepted_tokens",
}


def prints(label: str, line: str) -> bool:
    """Whether a line of text is the one with that name."""
    return line.lstrip().startswith(f"{label}:")


def result_of(ongoing: Ongoing, path: Path) -> Fields:
    """The result of a file, or of its block of lines; of several the one that the user names."""
    for _, line in lines_of(path):
        if JSON_BEGINS.match(line.lstrip()):
            break
        return ongoing.the_one(path, printed_results(path))
    return ongoing.one_object(path)


def printed_results(path: Path) -> Iterator[Fields]:
    """The blocks of a text, each under the keys of a result file; raises TraceFormatError."""
    values: dict[str, object] = {}
    place = ""
    for number, line in text_lines(path):
        here = f"{path}: line {number}"
        if _TITLE.fullmatch(line):
            if values:
                yield Fields(place, values)
            values, place = {}, here
            continue
        if values and not line.strip().strip("="):
            yield Fields(place, values)
            values, place = {}, ""
        found = _LINE.fullmatch(line)
        if found is None:
            if place and not _HEADING.fullmatch(line) and _SPECULATION.search(line):
                raise Fields(here, {}).error(
                    "line", "must be a name and a number, as in a block of results", line.strip()
                )
            continue
        if place or found[1] in _KEYS:
            place = place or here
            _take(values, here, found[1], found[2])
    if values:
        yield Fields(place, values)


def _take(values: dict[str, object], place: str, label: str, text: str) -> None:
    """Add what a line says."""
    fields = Fields(place, {})
    position = _POSITION.fullmatch(label)
    key = _RATES if position else _KEYS.get(label)
    if key is None:
        if _SPECULATION.search(label):
            raise fields.error(label, f"must be one of {', '.join(_KEYS)}, Position N", text)
        return
    try:
        value: float | int = int(text) if text.isascii() and text.isdigit() else float(text)
    except ValueError:
        raise fields.error(label, "must be a number", text) from None
    if position:
        rates = values.setdefault(key, [])
        assert isinstance(rates, list)
        if int(position[1]) != len(rates):
            raise fields.error(label, f"must follow in order, as Position {len(rates)}", text)
        rates.append(value / 100)
    elif key in values:
        raise fields.error(label, "must stand once in a block", text)
    else:
        values[key] = value
