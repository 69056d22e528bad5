"""Workloads in files: read row by row, so that memory does not follow their length."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TraceFormatError
from .arrival import Arrival, WorkloadAbout
from .exact_seconds import PS_PER_S
from .formats.detect import detect
from .formats.format import Reading, Tally, WorkloadFormat
from .options import WorkloadOptions
from .walk import requests_of

_SUFFIXES = (".gz", ".jsonl", ".json", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """The requests of one file, or of several that are one workload; a `Source`.

    Attributes:
        name: of the workload.
        paths: of the files, in order.
        known: their format.
        first: the first object of the first file.
        options: what becomes of requests without tokens.
    """

    name: str
    paths: tuple[Path, ...]
    known: WorkloadFormat
    first: Mapping[str, Any]
    options: WorkloadOptions

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
