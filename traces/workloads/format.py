"""What a format of workloads is: how its files are told, and who reads them.

The objects of a file that holds one a line, as Fields with their places; numbers with a point are exact decimals.

Fields that requests of our own lines have, wherever they stand.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from ...base.errors import repeated
from ...base.files import decode_json, kind_of_json
from ..errors import TraceFormatError
from ..importers.reading import lines_of
from .arrival import MOST_COUNT, MOST_PS, MOST_READ_PS, PS_PER_S, Arrival, WorkloadOptions, ps_of_decimal

MOST_ID = 2**62
FIRST_LOCAL = MOST_ID + 1  # of ids that no file may say; above it the line, then the unit
LOCAL_BITS = 24


@dataclass(slots=True, kw_only=True)
class Tally:
    """What an iteration has met so far.

    Attributes:
        dropped: requests without a token of prompt or output, left out.
        served_as_one: such requests, served with one token.
        cut_prompts: prompts that were cut.
        cut_outputs: outputs that were cut.
        late_requests: of sessions begun before it that would arrive at the horizon or later; who waits for them never
            comes and is not counted.
        remarks: what a format has to say of what it met, by text: how often.
    """

    dropped: int = 0
    served_as_one: int = 0
    cut_prompts: int = 0
    cut_outputs: int = 0
    late_requests: int = 0
    remarks: dict[str, int] = field(default_factory=dict)

    def remark(self, text: str) -> None:
        """Count what a format has to say."""
        self.remarks[text] = self.remarks.get(text, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One file while it is read.

    Attributes:
        path: the file.
        options: what becomes of requests without tokens.
        tally: mutated.
        number: of the file among those of the workload, from 0.
        first: the first object of the workload's first file; empty for tables.
    """

    path: Path
    options: WorkloadOptions
    tally: Tally
    number: int = 0
    first: Mapping[str, Any] = field(default_factory=dict)

    def place(self, line: int) -> str:
        """As errors name it."""
        return f"{self.path}: line {line}"

    def error(self, line: int, field: str, rule: str, value: object) -> TraceFormatError:
        """What to raise of a field that breaks `rule`."""
        return TraceFormatError(self.place(line), field, rule, value)

    def lengths(self, line: int, prompt: int, output: int, *, names: Sequence[str]) -> tuple[int, int] | None:
        """(tokens of the prompt, of the output), each >= 1; None for a request that is dropped.

        Args:
            line: where they stand.
            prompt: tokens, >= 0.
            output: tokens, >= 0.
            names: of the two fields.

        Raises:
            TraceFormatError: one is 0, and the options do not say what becomes of that.
        """
        if prompt and output:
            return prompt, output
        if self.options.zero_tokens == "drop":
            self.tally.dropped += 1
            return None
        if self.options.zero_tokens == "one":
            self.tally.served_as_one += 1
            return prompt or 1, output or 1
        rule = "must be >= 1 (with `zero_tokens` such requests are dropped, or served with one token)"
        raise self.error(line, names[bool(prompt)], rule, 0)

    def time(self, line: int, field: str, found: int | None, value: object, *, most_ps: int) -> int:
        """A time or a wait, checked.

        Args:
            line: where it stands.
            field: its name.
            found: picoseconds; None where `value` is no time.
            value: as it stands there.
            most_ps: that it may be.
        """
        if found is None or not 0 <= found <= most_ps:
            raise self.error(line, field, f"must be a time in [0, {most_ps // PS_PER_S:,}] s", value)
        return found


def whole(value: object, least: int = 0, most: int = MOST_COUNT) -> bool:
    """Whether a decoded value is a whole number in [least, most]."""
    return type(value) is int and least <= value <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFormat:
    """One format of files.

    Attributes:
        name: as `WorkloadAbout.format` has it.
        keys: what tells its files, for error messages.
        sees: whether an object with these keys, or a head of these columns, could be of such a file.
        read: (line, arrival) of each request of a file; raises TraceFormatError.
        unit_tokens: of a file whose first object is given; of a format without blocks 0.
        notes: what its reader has to know.
        timed: whether a file whose first object is given says when requests arrive; else all that it holds begins
            together.
        many: whether several files are one workload.
        is_json: whether its files hold an object a line; else they are tables.
    """

    name: str
    keys: tuple[str, ...]
    sees: Callable[[frozenset[str]], bool]
    read: Callable[[Reading], Iterator[tuple[int, Arrival]]]
    unit_tokens: Callable[[Mapping[str, Any]], int] = lambda _: 0
    notes: tuple[str, ...] = ()
    timed: Callable[[Mapping[str, Any]], bool] = lambda _: True
    many: bool = False
    is_json: bool = False


def objects_of(reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of each; raises TraceFormatError for a line that is none."""
    for line, text in lines_of(reading.path):
        yield line, object_of(reading, line, text)


def object_of(reading: Reading, line: int, text: bytes) -> dict[str, Any]:
    """The object that a line holds; raises TraceFormatError."""
    rule = "must be one JSON object a line"
    try:
        found = decode_json(text, decimals=True, constants=True)
    except ValueError as error:
        raise reading.error(line, "JSON", rule, str(error)) from None
    if not isinstance(found, dict):
        raise reading.error(line, "JSON", rule, kind_of_json(found))
    return found


def check_keys(
    reading: Reading, line: int, found: dict[str, Any], needed: Collection[str], known: Collection[str], *, of: str = ""
) -> None:
    """Raise TraceFormatError for keys that are missing or unknown; `of` names what the object is within."""
    for key in found:
        if key not in known:
            raise reading.error(line, f"{of}{key}"[:100], f"must be one of {', '.join(known)}", "an unknown key")
    for key in needed:
        if found.get(key) is None:
            raise reading.error(line, f"{of}{key}", "must be there", "null" if key in found else "nothing")


def count_of(reading: Reading, line: int, field: str, value: object) -> int:
    """A whole number; what becomes of 0 is left to `Reading.lengths`."""
    if whole(value):
        assert isinstance(value, int)
        return value
    raise reading.error(line, field, f"must be a whole number in [1, {MOST_COUNT}]", shown(value))


def time_of(reading: Reading, line: int, field: str, value: object, *, unit_ps: int = PS_PER_S) -> int:
    """Picoseconds of an arrival in units of time, in [0, 1e9] seconds."""
    return reading.time(line, field, _ps_of(value, unit_ps), shown(value), most_ps=MOST_READ_PS)


def wait_of(reading: Reading, line: int, field: str, value: object, *, unit_ps: int = PS_PER_S) -> int:
    """Picoseconds of a time within a session, of which the clock of a run has to hold every one."""
    return reading.time(line, field, _ps_of(value, unit_ps), shown(value), most_ps=MOST_PS)


def _ps_of(value: object, unit_ps: int) -> int | None:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return ps_of_decimal(value, unit_ps=unit_ps)
    return None


def ids_of(reading: Reading, line: int, field: str, value: object) -> tuple[int, ...]:
    """Ids of blocks: whole numbers, none twice, since an id stands for all the text before it as well."""
    if not isinstance(value, list):
        raise reading.error(line, field, "must be a list", kind_of_json(value))
    if set(map(type, value)) - {int} or (value and not 0 <= min(value) <= max(value) <= MOST_ID):
        place, wrong = next((place, one) for place, one in enumerate(value) if not whole(one, 0, MOST_ID))
        raise reading.error(line, f"{field}[{place}]", f"must be a whole number in [0, {MOST_ID}]", shown(wrong))
    twice = repeated(value)
    if twice:
        raise reading.error(line, field, "must not hold an id twice: it stands for all the text before it", twice[0])
    return tuple(value)


def shown(value: object) -> object:
    """A value of a file as errors show it."""
    if isinstance(value, (dict, list)):
        return kind_of_json(value)
    return float(value) if isinstance(value, Decimal) else value


_MOST_TEXT = 200


def blocks_of(reading: Reading, line: int, field: str, value: object, prompt: int, unit: int) -> tuple[int, ...]:
    """Ids for all of a prompt, its last unit full or begun, or none at all."""
    blocks = ids_of(reading, line, field, value)
    if blocks and not unit:
        raise reading.error(line, field, "must be left out where the first line has no unit_tokens", len(blocks))
    if blocks and len(blocks) not in (prompt // unit, -(-prompt // unit)):
        rule = f"must be one for each {unit} tokens of prompt_tokens {prompt}, whether the last is full or begun"
        raise reading.error(line, field, rule, len(blocks))
    return blocks


def request_id_of(reading: Reading, line: int, field: str, value: object) -> str:
    """The id of a request; raises TraceFormatError."""
    if name := text_of(reading, line, field, value):
        return name
    raise reading.error(line, field, "must not be empty", value)


def text_of(reading: Reading, line: int, field: str, value: object) -> str:
    """A text that may stand in a line; raises TraceFormatError."""
    if isinstance(value, str) and value.isprintable() and len(value) <= _MOST_TEXT:
        return value
    raise reading.error(line, field, f"must be printable text of at most {_MOST_TEXT} characters", shown(value))
