"""An import that is going on: what its reader has found so far, and must tell; skipped lines leave no trace in it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...arguments import with_options
from ..errors import TraceFormatError
from ..rounds.meta import TRUST, Form
from ..shifted_decisions import keyed_generator
from .drafters import Drafters
from .options import ImportOptions
from .reading.fields import Fields
from .reading.objects import read_objects, the_one

Part = TypeVar("Part")
Told = TypeVar("Told")


@dataclass(slots=True, kw_only=True)
class Findings:
    """Filled along the way.

    Attributes:
        counts: words of a note -> how often it happened.
        remarks: notes that are not counted.
        forms: what the log knows of its requests; the recording is as good as the worst of them.
        mattered: options of `ImportOptions` that had an effect, of those that may have none.
    """

    counts: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    forms: set[Form] = field(default_factory=set)
    mattered: set[str] = field(default_factory=set)

    def copy(self) -> "Findings":
        """The same, which later findings leave alone."""
        return Findings(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})

    def note(self, words: str, times: int = 1) -> None:
        """Count something that every reader of the recording must know."""
        if times:
            self.counts[words] += times

    def remark(self, words: str) -> None:
        """Note something once."""
        if words not in self.remarks:
            self.remarks.append(words)

    def form(self, usual: Form) -> Form:
        """What the recording knows: as found, or `usual` of its format."""
        return max(self.forms, key=[*TRUST].index, default=usual)

    def notes(self) -> tuple[str, ...]:
        """What happened how often, and the remarks."""
        return (*(f"{times:,} {words}" for words, times in self.counts.items()), *self.remarks)


class BadLines:
    """Refuses, or counts.

    Args:
        skip: whether to skip them.
    """

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self._first: dict[Path, TraceFormatError] = {}
        self._count = 0

    def refuse(self, path: Path, error: TraceFormatError) -> None:
        """Raise the error of a file's line, or count it."""
        if not self._skip:
            raise error
        self._first.setdefault(path, error)
        self._count += 1

    def check(self, path: Path, *, any_sound: bool) -> None:
        """Raise TraceFormatError if lines of a file were skipped and none of it was sound."""
        first = self._first.get(path)
        if first is not None and not any_sound:
            raise TraceFormatError(first.path, first.field, f"{first.rule} (all lines are bad)", first.value)

    def notes(self) -> tuple[str, ...]:
        """How many were skipped, and the first; a recording keeps them, and so they name options whoever imports."""
        if not self._count:
            return ()
        counted = "1 bad line was" if self._count == 1 else f"{self._count:,} bad lines were"
        first = next(iter(self._first.values()))
        told = TraceFormatError(first.path, first.field, with_options(first.rule, rule=True), first.value)
        return (f"{counted} skipped (--skip-bad-lines); the first: {told}",)


class Ongoing:
    """Filled by a reader along the way, complete once its last request is out.

    Attributes:
        options: what the user said.
        drafters: those seen so far.
        findings: what else was found.
    """

    def __init__(self, options: ImportOptions) -> None:
        self.options = options
        self.drafters = Drafters(options)
        self.findings = Findings()
        self._ids: set[str] = set()
        self._new_ids: list[str] = []
        self._bad = BadLines(skip=options.skip_bad_lines)

    def each(self, path: Path, parse: Callable[[Fields], Iterable[Told]]) -> Iterator[Told]:
        """What `parse` makes of every object of a file; what breaks a rule is skipped whole if the user says so.

        Raises:
            TraceFormatError: the first breach, or only bad lines.
        """
        return self.each_of(path, read_objects(path, partial(self._bad.refuse, path)), parse)

    def each_of(self, path: Path, parts: Iterable[Part], parse: Callable[[Part], Iterable[Told]]) -> Iterator[Told]:
        """What `parse` makes of every part of a file, for what can be read once the whole file is known; as `each`."""
        any_sound = False
        for part in parts:
            drafters, findings = self.drafters.copy(), self.findings.copy()
            self._new_ids.clear()
            try:
                parsed = list(parse(part))
            except TraceFormatError as error:
                self._bad.refuse(path, error)
                self.drafters, self.findings = drafters, findings
                self._ids.difference_update(self._new_ids)  # not copied: there are as many as requests
                continue
            any_sound = True
            yield from parsed
        self._bad.check(path, any_sound=any_sound)

    def one_object(self, path: Path) -> Fields:
        """The object of a file that holds one, or that of the line which the user names; raises TraceFormatError."""
        return self.the_one(path, read_objects(path))

    def the_one(self, path: Path, results: Iterable[Fields]) -> Fields:
        """The same of the results of a file."""
        if self.options.line is not None:
            self.findings.mattered.add("line")
        return the_one(path, results, self.options.line)

    def request(self, fields: Fields, field: str, request_id: str) -> None:
        """Note the id of a request; raises TraceFormatError if it is empty, or that of another one."""
        if not request_id:
            raise fields.error(field, "must not be empty", request_id)
        if request_id in self._ids:
            raise fields.error(field, "must be unique", request_id)
        self._ids.add(request_id)
        self._new_ids.append(request_id)

    def begin_file(self) -> None:
        """Let names of requests come again: another file gives its own, and they are no names of the recording's."""
        self._ids.clear()

    def generator(self, request_id: str) -> np.random.Generator:
        """Random numbers for what the log does not say of a request, the same whatever else is imported."""
        self.findings.mattered.add("seed")
        return keyed_generator(f"import/{self.options.seed or 0}/{request_id}")

    def notes(self) -> tuple[str, ...]:
        """What was found, and what was skipped."""
        return (*self.findings.notes(), *self._bad.notes())
