"""vLLM's log: its `SpecDecoding metrics` lines, each of which sums up some seconds of all requests.

A line has `Accepted: A tokens, Drafted: D tokens, Per-position acceptance rate: 0.921, 0.828, ...`. Lines are summed,
each weighed by its drafts: A over the sum of its rates, or D over its positions where nothing was accepted.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.lines import text_lines
from .stated import StatedLog, hazards_of_rates, note_short_drafts

_LINE, _RATES_WORDS = "SpecDecoding metrics:", "Per-position acceptance rate"
_ROUNDING = 0.0005  # vLLM prints rates with three decimals, each at most so far from what it was
_COUNTS = re.compile(r"Accepted: ([0-9]{1,15}) tokens, Drafted: ([0-9]{1,15}) tokens")
_RATES = re.compile(r"Per-position acceptance rate: ((?:[01]\.[0-9]{1,9}(?:, )?){1,1024})")


class _Line(NamedTuple):
    """What one line says.

    Attributes:
        place: file and line.
        rates: `[W]` shares of its drafts.
        drafts: as they follow from rounded rates.
        fewest: drafts that there were at least.
        drafted: tokens.
    """

    place: str
    rates: NDArray[np.float64]
    drafts: float
    fewest: float
    drafted: int


def _sees_line(line: str) -> bool:
    return _LINE in line


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """As many requests as the user states."""
    log = StatedLog(files, ongoing)
    fields = Fields(str(log.path), {})
    lines: list[_Line] = []
    for found in _lines(log.path):
        if lines and len(found.rates) != len(lines[0].rates):
            rule = f"must hold {len(lines[0].rates)} positions, as the lines before it"
            raise TraceFormatError(found.place, _RATES_WORDS, rule, f"{len(found.rates)} positions")
        lines.append(found)
    drafts = sum(line.drafts for line in lines)
    if not drafts:
        raise fields.error(_LINE, "must tell of a draft in some line", "none")
    window, drafted = len(lines[0].rates), sum(line.drafted for line in lines)
    kept: NDArray[np.float64] = sum((line.rates * line.drafts for line in lines), np.zeros(window))
    hazards = hazards_of_rates(fields, _RATES_WORDS, kept / drafts)
    if drafted < sum(line.fewest for line in lines) * window:
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=window)
    yield from log.requests(fields, None, hazards, window=window)


def _lines(path: Path) -> Iterator[_Line]:
    """The lines that tell of drafts."""
    for number, line in text_lines(path):
        if not _sees_line(line):
            continue
        place = f"{path}: line {number}"
        counts, rates, told = _COUNTS.search(line), _RATES.search(line), line.strip()[-80:]
        if counts is None:
            raise TraceFormatError(place, _LINE, "must have Accepted: A tokens, Drafted: D tokens", told)
        accepted, drafted = int(counts[1]), int(counts[2])
        if not drafted:
            continue
        if rates is None:
            rule = "must be there (older vLLM gives only a mean: take /metrics)"
            raise TraceFormatError(place, _RATES_WORDS, rule, "nothing")
        found = np.array([float(rate) for rate in rates[1].rstrip(", ").split(", ")])
        if found.max() > 1 or accepted > drafted:
            raise TraceFormatError(place, _LINE, "must have rates in [0, 1] and no more accepted than drafted", told)
        total = float(found.sum())
        drafts = accepted / total if total else drafted / len(found)
        fewest = accepted / (total + _ROUNDING * len(found)) if total else drafts
        yield _Line(place, found, drafts, fewest, drafted)


VLLM_LOG = Format(**described("vllm-log"), read=_read, sees_line=_sees_line)
