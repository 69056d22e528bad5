"""vLLM's log: its `SpecDecoding metrics` lines, each of which sums up some seconds of all requests.

A line has `Accepted: A tokens, Drafted: D tokens, Per-position acceptance rate: 0.921, 0.828, ...`. Lines are summed,
each weighed by its drafts: A over the sum of its rates, or D over its positions where nothing was accepted.

Where depth is adapted, a line has `Current speculative depth: K`, and rates of 0 for the positions beyond, which were
not drafted and so were not refused: these positions are known from the other lines. Drafts of a line may be of several
depths, if depth changed within its seconds. Then its drafted tokens are not K for each draft, and it tells of the
positions that drafts of both depths have, that of the line before it and its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.agreement import check_agrees, half_of_last_digit
from ..reading.fields import Fields
from ..reading.lines import text_lines
from .stated import StatedLog, hazards_of_rates, note_short_drafts

_LINE, _RATES_WORDS = "SpecDecoding metrics:", "Per-position acceptance rate"
_OTHER_LINE = "Avg generation throughput:"  # of every server's log
_ROUNDING = 0.0005  # vLLM prints rates with three decimals, each at most so far from what it was
_COUNTS = re.compile(r"Accepted: ([0-9]{1,15}) tokens, Drafted: ([0-9]{1,15}) tokens")
_RATES = re.compile(r"Per-position acceptance rate: ((?:[01]\.[0-9]{1,9}(?:, )?){1,1024})")
_MEAN = re.compile(r"Mean acceptance length: ([0-9]{1,9}(?:\.[0-9]{1,9})?)(?![0-9.])")
_SHARE = re.compile(r"Avg Draft acceptance rate: ([0-9]{1,3}(?:\.[0-9]{1,9})?)%")
_DEPTH = re.compile(r"Current speculative depth: ([0-9]{1,6})\b")
_ADAPTED = "depth was adapted, from {} to {} tokens: a position counts for the drafts that had it"
_UNDRAFTED = "no draft had the positions from {} on: they are left out"


class _Line(NamedTuple):
    """What one line says.

    Attributes:
        place: file and line.
        rates: `[W]` shares of its drafts.
        depth: tokens of a draft when it was written.
        known: positions that all of its drafts had.
        drafts: as they follow from rounded rates.
        fewest: drafts that there were at least.
        drafted: tokens.
    """

    place: str
    rates: NDArray[np.float64]
    depth: int
    known: int
    drafts: float
    fewest: float
    drafted: int


def _sees_line(line: str) -> bool:
    return _LINE in line or _OTHER_LINE in line


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """As many requests as the user states."""
    log = StatedLog(files, ongoing)
    fields = Fields(str(log.path), {})
    lines: list[_Line] = []
    for found in _lines(log.path):
        if lines and len(found.rates) != len(lines[0].rates):
            rule = f"must hold {len(lines[0].rates)} positions, as the lines before it"
            raise TraceFormatError(found.place, _RATES_WORDS, rule, f"{len(found.rates)} positions")
        hazards_of_rates(Fields(found.place, {}), _RATES_WORDS, found.rates)
        lines.append(found)
    if not lines:
        raise fields.error(
            "log", f"must have a line `{_LINE}` with drafts: speculative decoding is off, or its metrics are", "none"
        )
    _remark(ongoing, lines)
    hazards = _hazards(lines)
    yield from log.requests(fields, None, hazards, window=len(hazards))


def _hazards(lines: Sequence[_Line]) -> tuple[float, ...]:
    """`[W]` share of the drafts that had a position and were kept up to it, that kept it as well."""
    hazards = []
    for place in range(max(line.known for line in lines)):
        told = [line for line in lines if line.known > place]
        reached = sum(line.drafts * (line.rates[place - 1] if place else 1.0) for line in told)
        kept = sum(line.drafts * line.rates[place] for line in told)
        hazards.append(float(min(kept / reached, 1.0)) if reached else 0.0)
    return tuple(hazards)


def _remark(ongoing: Ongoing, lines: Sequence[_Line]) -> None:
    depths, known = [line.depth for line in lines], max(line.known for line in lines)
    if len(set(depths)) > 1:
        ongoing.findings.remark(_ADAPTED.format(min(depths), max(depths)))
    if known < len(lines[0].rates):
        ongoing.findings.remark(_UNDRAFTED.format(known + 1))
    if any(line.drafted < line.fewest * line.known for line in lines):
        drafts, drafted = sum(line.drafts for line in lines), sum(line.drafted for line in lines)
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=max(depths))


def _lines(path: Path) -> Iterator[_Line]:
    """The lines that tell of drafts."""
    before: int | None = None
    for place, line in _numbered(path):
        counts, rates, depth, told = (
            _COUNTS.search(line), _RATES.search(line), _DEPTH.search(line), line.strip()[-80:]
        )  # fmt: skip
        if counts is None:
            raise TraceFormatError(place, _LINE, "must have Accepted: A tokens, Drafted: D tokens", told)
        accepted, drafted = int(counts[1]), int(counts[2])
        if not drafted:
            continue
        if rates is None:
            rule = "must be there (older vLLM gives only a mean: take /metrics)"
            raise TraceFormatError(place, _RATES_WORDS, rule, "nothing")
        texts = rates[1].rstrip(", ").split(", ")
        found = np.array([float(rate) for rate in texts])
        if found.max() > 1 or accepted > drafted:
            raise TraceFormatError(place, _LINE, "must have rates in [0, 1] and no more accepted than drafted", told)
        _check(place, line, texts, accepted, drafted)
        now = len(found) if depth is None else int(depth[1])
        if not 1 <= now <= len(found):
            rule = f"must lie between 1 and the {len(found)} positions of a line that drafted"
            raise TraceFormatError(place, "Current speculative depth", rule, now)
        yield _line(place, found, accepted, drafted, now, now if before is None else before)
        before = now


def _check(place: str, line: str, rates: Sequence[str], accepted: int, drafted: int) -> None:
    """Refuse a mean or rates that the line's counts cannot have: drafts have 1 to W tokens, whichever they are."""
    kept, rounding = sum(map(float, rates)), sum(map(half_of_last_digit, rates))
    least, most = accepted / drafted, accepted / drafted * len(rates)
    of_counts = f"{accepted} accepted of {drafted} drafted tokens, at most {len(rates)} a draft"
    if mean := _MEAN.search(line):
        field, by_rates = "Mean acceptance length", f"1 and the sum of the {len(rates)} rates per position"
        check_agrees(place, field, mean[1], 1 + kept - rounding, 1 + kept + rounding, by_rates)
        check_agrees(place, field, mean[1], 1 + least, 1 + most, of_counts)
    check_agrees(place, f"{_RATES_WORDS} (sum)", f"{kept:.9f}", least - rounding, most + rounding, of_counts)
    if share := _SHARE.search(line):
        field, percent = "Avg Draft acceptance rate", 100 * accepted / drafted
        check_agrees(place, field, share[1], percent, percent, f"{accepted} accepted of {drafted} drafted tokens")


def _line(place: str, rates: NDArray[np.float64], accepted: int, drafted: int, depth: int, depth_before: int) -> _Line:
    total = float(rates.sum())
    drafts = accepted / total if total else drafted / depth
    rounding = _ROUNDING * len(rates)
    fewest = accepted / (total + rounding) if total else drafts
    most = accepted / max(total - rounding, total / 2) if total else drafts
    all_of_depth = fewest * depth <= drafted <= most * depth
    known = depth if all_of_depth else min(depth, depth_before)
    return _Line(place, rates, depth, known, drafts, fewest, drafted)


def _numbered(path: Path) -> Iterable[tuple[str, str]]:
    return ((f"{path}: line {number}", line) for number, line in text_lines(path) if _LINE in line)


VLLM_LOG = Format(**described("vllm-log"), read=_read, sees_line=_sees_line)
