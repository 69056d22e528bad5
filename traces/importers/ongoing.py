"""An import that is going on: what its reader has found so far; lines that are skipped leave no trace in it."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..errors import TraceFormatError
from .drafters import Drafters
from .findings import Findings
from .options import ImportOptions
from .reading.bad_lines import BadLines
from .reading.fields import Fields
from .reading.objects import read_objects

Part = TypeVar("Part")
Told = TypeVar("Told")


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

    def request(self, fields: Fields, field: str, request_id: str) -> None:
        """Note the id of a request; raises TraceFormatError if it is empty, or that of another one."""
        if not request_id:
            raise fields.error(field, "must not be empty", request_id)
        if request_id in self._ids:
            raise fields.error(field, "must be unique", request_id)
        self._ids.add(request_id)
        self._new_ids.append(request_id)

    def generator(self, request_id: str) -> np.random.Generator:
        """Random numbers for what the log does not say of a request, the same whatever else is imported."""
        self.findings.mattered.add("--seed")
        key = f"import/{self.options.seed or 0}/{request_id}".encode(errors="surrogatepass")
        return np.random.default_rng(int.from_bytes(blake2b(key, digest_size=16).digest(), "big"))

    def notes(self) -> tuple[str, ...]:
        """What was found, and what was skipped."""
        return (*self.findings.notes(), *self._bad.notes())
