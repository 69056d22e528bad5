"""What a format of workloads is: how its files are told, and who reads them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import TraceFormatError
from ..arrival import Arrival
from ..exact_seconds import PS_PER_S
from ..options import MOST_COUNT, WorkloadOptions

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
