"""Open a workload: a file of any known format, a folder of sessions, or a generator's text."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.by_name import CLASS_OF_FILE
from ...base.errors import ArgumentError, known_are
from ...base.options import takes
from ..recording import Recording
from .arrival import Workload, WorkloadOptions
from .drawn_arrivals import KINDS, make_generator
from .drawn_sessions import SESSION_KINDS, parse_sessions
from .formats import open_files
from .registered import WORKLOADS, foreign_text, workload_of_class
from .workload import OpenedWorkload


@takes(WorkloadOptions)
def open_workload(
    text: str | os.PathLike[str],
    *,
    lengths_from: Recording | None = None,
    **options: Any,  # noqa: ANN401 - see `WorkloadOptions`
) -> Workload:
    """A workload that each iteration reads or draws again; nothing is scaled or cut by default.

    `text` is a path, its format told by its content, or a generator: poisson, gamma, constant, diurnal, closed,
    tree-rollouts, persistent-agent, shared-workers, react, rewoo or one of another package, a colon and options, or a
    class as file.py:Class,options (docs/workloads.md). `options` are those of `WorkloadOptions`. Of `lengths_from`, a
    recording, a generator draws the lengths that its text does not give.

    Raises:
        ArgumentError: an option out of its range, or one that does not fit the workload.
        TraceFormatError: a file that cannot be read or whose first line fits no format. Rows are read later, by the
            iteration, except with a rate, for which all are read here.
    """
    return with_options(text, WorkloadOptions(**options), lengths_from)


def with_options(
    text: str | os.PathLike[str], options: WorkloadOptions, lengths_from: Recording | None = None
) -> Workload:
    """The same, with all options as a record."""
    named = str(text)
    if not named:  # an empty path would be the current folder
        raise ArgumentError("`workload` must name a file or a generator, got ''")
    kind = named.partition(":")[0]
    foreign = None if kind in KINDS or kind in SESSION_KINDS else foreign_text(named)
    if not (kind in KINDS or kind in SESSION_KINDS or foreign):
        path = Path(named)
        if ":" in named and not path.exists():
            known = known_are(kind, WORKLOADS.names(), CLASS_OF_FILE)
            raise ArgumentError(f"`workload` must be a file, or a generator and a colon ({known}), got {named!r}")
        return OpenedWorkload(open_files(path, options), options)
    for name, usual in (("zero_tokens", "refuse"), ("columns", None)):
        if (asked := getattr(options, name)) != usual:
            raise ArgumentError(f"`{name}` is for files, got {asked!r} for {named!r}")
    if foreign:
        return OpenedWorkload(workload_of_class(WORKLOADS.parse(foreign), options.seed, named), options)
    if kind in SESSION_KINDS:
        if options.concurrency is not None:
            rule = "must be left out where the workload has sessions (`active_sessions` keeps a number of them open)"
            raise ArgumentError(f"`concurrency` {rule}, got {options.concurrency} for {named!r}")
        source = parse_sessions(named, options.rate, options.seed, options.active_sessions)
        return OpenedWorkload(source, options, rate_drawn=True)
    for name in ("active_sessions", "max_wait_s"):
        if (number := getattr(options, name)) is not None:
            raise ArgumentError(f"`{name}` is for sessions, got {number:g} for {named!r}")
    drawn = make_generator(named, options.rate, options.concurrency, options.seed, lengths_from)
    return OpenedWorkload(drawn, replace(options, concurrency=drawn.concurrency), rate_drawn=True)
