"""SGLang's log: its `Decode batch` lines, each of which sums up some forwards of all running requests.

A line has `#running-req: R` and `accept len: L`, the tokens that a step emits with the target's own; since 0.5 also
`accept rate: A`, which is (L - 1) / K, or in older versions L / (K + 1), for K tokens proposed in a step. Lines do not
say how many steps they sum up: each is weighed by its running requests. K is what all lines agree on; the line with
`server_args=` settles how deep a tree is. SGLang 0.5.23, `managers/scheduler_components/metrics_reporter.py`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..options import MOST_WINDOW
from ..reading.fields import Fields
from ..reading.lines import text_lines
from .stated import StatedLog, hazards_of_mean, settled_window

_ROUNDING = 0.005  # lengths and rates are printed with two decimals
_BATCH, _LENGTH = "Decode batch", "accept len"
_SHOWN = 160
_NUMBER = r"([0-9]{1,9}\.[0-9]{1,9})(?![0-9.])"
_RUNNING = re.compile(r"#running-req: ?([0-9]{1,9})\b")
_LENGTHS = re.compile(rf"(?<!block )accept len: {_NUMBER}")
_RATES = re.compile(rf"accept rate: {_NUMBER}")
_SETTING = re.compile(r"speculative_(algorithm|num_steps|eagle_topk|num_draft_tokens|adaptive)='?([A-Za-z0-9_]{1,40})")
_TREE_ALGORITHMS = ("NGRAM",)  # whose draft tokens are those of a tree, of no stated depth


class _Line(NamedTuple):
    """What one line says: tokens a step emits, share of proposed tokens that stayed, and running requests."""

    place: str
    running: int
    length: float
    rate: float | None


def _sees_line(line: str) -> bool:
    return _BATCH in line and "#running-req:" in line


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """As many requests as the user states."""
    log = StatedLog(files, ongoing)
    fields = Fields(str(log.path), {})
    settings: dict[str, str] = {}
    lines: list[_Line] = []
    batches = 0
    for number, text in text_lines(log.path):
        settings |= dict(_SETTING.findall(text)) if "server_args" in text else {}
        if _sees_line(text):
            batches += 1
            lines.extend(_line(f"{log.path}: line {number}", text, first=not lines))
    if not lines:
        told = f"{batches} {_BATCH} lines without one: the server ran without speculation" if batches else "no line"
        raise fields.error(_LENGTH, f"must stand in a line of {_BATCH}", told)
    weight = sum(line.running for line in lines)
    if not weight:
        raise fields.error("#running-req", "must be at least 1 in some line", 0)
    if settings.get("adaptive") == "True":
        raise fields.error("speculative_adaptive", "must be off: a mean over changing depths fits no window", "True")
    window = settled_window(ongoing, log.name, fields, _proposed(fields, lines), _depth(settings))
    mean = sum(line.length * line.running for line in lines) / weight
    yield from log.requests(fields, None, hazards_of_mean(fields, _LENGTH, mean, window), window=window)


def _line(place: str, text: str, *, first: bool) -> Iterator[_Line]:
    """What a line says; nothing where the server did not speculate."""
    running, length, rate = _RUNNING.search(text), _LENGTHS.search(text), _RATES.search(text)
    told = text.strip()[-_SHOWN:]
    rest = _RATES.sub("", _LENGTHS.sub("", text))
    if "cap len" in rest:
        rule = "must not be there: drafts were cut before they were checked, so that lengths tell no agreement"
        raise TraceFormatError(place, "cap len", rule, told)
    if re.search("accept|draft", rest) or (length is None) != (_LENGTH not in text):
        raise TraceFormatError(place, _LENGTH, "must be of the form accept len: L, accept rate: A", told)
    if length is None:
        if first:
            return
        raise TraceFormatError(place, _LENGTH, f"must stand in each line of {_BATCH}, as before", told)
    if running is None:
        raise TraceFormatError(place, "#running-req", "must be a whole number", told)
    if not float(length[1]) >= 1 or (rate is not None and float(rate[1]) > 1):
        raise TraceFormatError(place, _LENGTH, "must be at least 1, with an accept rate in [0, 1]", told)
    yield _Line(place, int(running[1]), float(length[1]), None if rate is None else float(rate[1]))


def _proposed(fields: Fields, lines: Sequence[_Line]) -> frozenset[int] | None:
    """How many tokens a step may have proposed, by all lines; None where none has a rate.

    Raises:
        TraceFormatError: lines that no number fits: the depth changed.
    """
    rated = [line for line in lines if line.rate is not None]
    if not rated:
        return None
    drafts = set(range(1, MOST_WINDOW + 1))
    tokens = drafts.copy()  # older versions count the target's own token with the accepted and the proposed ones
    for line in rated:
        assert line.rate is not None
        drafts = {count for count in drafts if _fits(line.length - 1, line.rate, count)}
        tokens = {count for count in tokens if _fits(line.length, line.rate, count + 1)}
        if not drafts and not tokens:
            rule = "must fit one number of tokens proposed in a step with the lines before (does the depth change?)"
            shown = f"accept len: {line.length}, accept rate: {line.rate}"
            raise fields.error("accept rate", rule, f"{shown} in{line.place.removeprefix(fields.place + ':')}")
    return frozenset(drafts | tokens)


def _fits(kept: float, rate: float, proposed: int) -> bool:
    return abs(kept - rate * proposed) <= _ROUNDING * (1 + proposed) + 1e-9


def _depth(settings: dict[str, str]) -> int | None:
    """Of the deepest path that the server drafts, as its settings have it; None where they do not say."""
    counts = {key: int(text) for key, text in settings.items() if text.isdigit() and len(text) < 5}
    if settings.get("algorithm") in _TREE_ALGORITHMS:
        return None
    if counts.get("eagle_topk", 1) > 1:
        return counts.get("num_steps")
    tokens = counts.get("num_draft_tokens", 0)
    return tokens - 1 if tokens > 1 else None


SGLANG_LOG = Format(**described("sglang-log"), read=_read, sees_line=_sees_line)
