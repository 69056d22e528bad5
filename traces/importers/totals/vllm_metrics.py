"""vLLM's Prometheus counters (`curl .../metrics`): how many drafts kept the token at each position.

Counters `vllm:spec_decode_num_drafts_total`, `..._num_draft_tokens_total`, `..._num_accepted_tokens_total` and
`..._num_accepted_tokens_per_pos_total{position="0"}`, summed over engines and models. `vllm:request_success_total`,
`vllm:generation_tokens_total` and `vllm:prompt_tokens_total` tell the requests; without them the load
that is stated does.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.lines import text_lines
from .stated import Lengths, StatedLog, drafting_share, even_lengths, hazards_of_rates, note_short_drafts

_SPEC = "vllm:spec_decode_num_"
_DRAFTS, _DRAFTED, _ACCEPTED = f"{_SPEC}drafts", f"{_SPEC}draft_tokens", f"{_SPEC}accepted_tokens"
_POSITIONS = f"{_ACCEPTED}_per_pos"
_REQUESTS, _TOKENS, _PROMPTS = "vllm:request_success", "vllm:generation_tokens", "vllm:prompt_tokens"
_MOST_POSITIONS = 1024
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+-?[0-9]+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def _sees_line(line: str) -> bool:
    return line.startswith(_SPEC)


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of one page of counters."""
    log = StatedLog(files, ongoing)
    totals, positions = _counted(log.path)
    fields = Fields(str(log.path), totals)
    drafts, accepted = totals.get(_DRAFTS, 0.0), totals.get(_ACCEPTED, 0.0)
    if drafts <= 0:
        raise fields.error(f"{_DRAFTS}_total", "must count a draft", drafts)
    most = float(positions.max(initial=0.0))
    if most > drafts:
        raise fields.error(f"{_POSITIONS}_total", f"must be at most the {drafts:g} drafts", most)
    hazards = hazards_of_rates(fields, f"{_POSITIONS}_total", positions / drafts)
    note_short_drafts(ongoing, drafted=totals.get(_DRAFTED, 0.0), drafts=drafts, window=len(hazards))
    lengths = _lengths(fields, totals)
    drafting = drafting_share(ongoing, lengths, drafts, accepted)
    yield from log.requests(fields, lengths, hazards, window=len(hazards), drafting=drafting)


def _counted(path: Path) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Totals by name without `_total`, and accepted tokens by position, of metrics of vLLM."""
    totals: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    for number, line in text_lines(path):
        if not line.startswith("vllm:"):
            continue
        place = f"{path}: line {number}"
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            raise TraceFormatError(place, "sample", "must be of the form name{labels} value", line.strip())
        name, value = found[1].removesuffix("_total"), _value(place, found[1], found[3])
        if name == _POSITIONS:
            positions[_position(place, name, dict(_LABEL.findall(found[2] or "")))] += value
        else:
            totals[name] += value
    counts = np.array([positions[place] for place in range(max(positions, default=-1) + 1)], dtype=np.float64)
    return dict(totals), counts


def _value(place: str, metric: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise TraceFormatError(place, metric, "must be a finite number", text)
    if value < 0:
        raise TraceFormatError(place, metric.removesuffix("_total"), "must be >= 0", value)
    return value


def _position(place: str, name: str, labels: dict[str, str]) -> int:
    text = labels.get("position", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < _MOST_POSITIONS):
        raise Fields(place, {}).error(f"{name}.position", f"must be a whole number below {_MOST_POSITIONS}", text)
    return int(text)


def _lengths(fields: Fields, totals: dict[str, float]) -> Lengths | None:
    """The requests that the page counts, None if it counts none."""
    requests, tokens, prompts = (round(totals.get(key, 0.0)) for key in (_REQUESTS, _TOKENS, _PROMPTS))
    if not requests or not tokens:
        return None
    return even_lengths(fields, requests, tokens, prompts)


VLLM_METRICS = Format(**described("vllm-metrics"), read=_read, sees_line=_sees_line)
