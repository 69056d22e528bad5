"""Samples of a Prometheus text page: names, labels and values, line by line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ...errors import TraceFormatError
from ..reading.lines import text_lines

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+-?[0-9]+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample.

    Attributes:
        place: file and line, as errors name them.
        name: of the metric, without `_total`.
        labels: by name.
        value: finite.
    """

    place: str
    name: str
    labels: dict[str, str]
    value: float


def samples_of(path: Path, prefix: str) -> Iterator[Sample]:
    """The samples of metrics that begin with `prefix`; others are passed over.

    Raises:
        TraceFormatError: a line of such a metric that is no sample, or whose value is no finite number.
    """
    for number, line in text_lines(path):
        if not line.startswith(prefix):
            continue
        place = f"{path}: line {number}"
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            raise TraceFormatError(place, "sample", "must be of the form name{labels} value", line.strip())
        try:
            value = float(found[3])
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise TraceFormatError(place, found[1], "must be a finite number", found[3])
        labels = dict(_LABEL.findall(found[2] or ""))
        yield Sample(place=place, name=found[1].removesuffix("_total"), labels=labels, value=value)
