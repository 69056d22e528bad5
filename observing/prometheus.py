"""Prometheus text, as servers give it at /metrics: the values of the series that are asked for."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Sample(NamedTuple):
    """One series at one time.

    Attributes:
        name: of the metric.
        labels: by name.
        value: finite.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def samples_of(text: str) -> list[Sample]:
    """The samples of a page of metrics, in order; comments, and lines that are no finite sample, are passed over."""
    found = []
    for line in text.splitlines():
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            continue
        name, labels, number = matched.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if isfinite(value):
            found.append(Sample(name, {key: _unescaped(text) for key, text in _LABEL.findall(labels or "")}, value))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape[0]], text)
