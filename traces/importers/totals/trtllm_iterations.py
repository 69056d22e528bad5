"""TensorRT-LLM's statistics of iterations (`enable_iter_perf_stats`; GET `/metrics`, `LLM.get_stats`).

One object an iteration: `iter`, `inflightBatchingStats.numGenRequests`, and `specDecodingStats` with `numDraftTokens`,
`numAcceptedTokens`, `numRequestsWithDraftTokens` and `acceptanceLength`, which is (accepted + requests) / requests.
Ranks of attention data parallelism beyond the first repeat its statistics (`attentionDpRank`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.objects import read_objects
from .drawing import hazard_of_lengths
from .stated import StatedLog, note_plain, note_short_drafts, settled_window

_STATS = "specDecodingStats"
_ROUNDING = 1e-3
_RANKS = "iterations of further ranks were left out: they repeat the statistics of the first"


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Of all iterations.

    Attributes:
        requests: those with a draft, each once an iteration.
        accepted: drafted tokens that stayed.
        generating: requests in generation, each once an iteration.
        lengths: how many drafts had so many tokens; of an iteration they are as even as they can be.
        kept: how many drafts kept the token at each place, from 1, while one request drafted at a time.
        risked: how many had one there, and kept all before it.
        alone: whether one request drafted at a time.
    """

    requests: int = 0
    accepted: int = 0
    generating: int = 0
    lengths: Counter[int] = field(default_factory=Counter[int])
    kept: Counter[int] = field(default_factory=Counter[int])
    risked: Counter[int] = field(default_factory=Counter[int])
    alone: bool = True


def _sees(found: Fields) -> bool:
    return _STATS in found.values or ("iterLatencyMS" in found and "iter" in found)


def _sees_line(line: str) -> bool:
    return f"'{_STATS}'" in line or "'iterLatencyMS'" in line


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """As many requests as the user states."""
    log = StatedLog(files, ongoing)
    fields = Fields(str(log.path), {})
    sums = _Sums()
    for found in read_objects(log.path):
        if "rank" in found:
            rule = "must be left out: TLLM_METRICS_ALL_RANKS counts each iteration once a rank"
            raise found.error("rank", rule, found.values["rank"])
        if found.count("attentionDpRank", least=0, default=0):
            ongoing.findings.note(_RANKS)
        else:
            _take(sums, found)
    if not sums.requests:
        rule = "must tell of a draft in some iteration, with numRequestsWithDraftTokens"
        raise fields.error(_STATS, rule, "none: the server ran without speculation")
    longest, drafted = max(sums.lengths), sum(length * times for length, times in sums.lengths.items())
    window = settled_window(ongoing, log.name, fields, None, longest)
    drafting = 1.0
    if sums.generating > sums.requests:
        drafting = sums.requests / sums.generating
        note_plain(ongoing, 1 - drafting)
    yield from log.requests(fields, None, _hazards(fields, ongoing, sums, window), window=window, drafting=drafting)
    if window == longest:
        note_short_drafts(ongoing, drafted=drafted, drafts=sums.requests, window=window)


def _hazards(fields: Fields, ongoing: Ongoing, sums: _Sums, window: int) -> tuple[float, ...]:
    """By place where each iteration is one draft, else the one of all places."""
    if sums.alone and window == max(sums.lengths):
        ongoing.findings.forms.add("rates")
        return tuple(sums.kept[place] / max(sums.risked[place], 1) for place in range(1, window + 1))
    most = sums.requests * window
    if sums.accepted > most:
        raise fields.error("numAcceptedTokens", f"must be at most {most}, {window} a draft (`windows`)", sums.accepted)
    lengths = {min(length, window): 0 for length in sums.lengths}
    for length, times in sums.lengths.items():
        lengths[min(length, window)] += times
    counts = np.array([*lengths.values()], np.float64)
    return (hazard_of_lengths(sums.accepted / sums.requests, np.array([*lengths]), counts / counts.sum()),)


def _take(sums: _Sums, found: Fields) -> None:
    """Add an iteration; raises TraceFormatError for counts that contradict each other."""
    if "inflightBatchingStats" in found:
        sums.generating += found.nested("inflightBatchingStats").count("numGenRequests", least=0, default=0)
    if _STATS not in found:
        if not _sees(found):
            raise found.error(_STATS, "must be there, null in an iteration without drafts", "nothing")
        return
    stats = found.nested(_STATS)
    drafted, accepted = (stats.count(key, least=0) for key in ("numDraftTokens", "numAcceptedTokens"))
    if not drafted:
        if accepted:
            raise stats.error("numAcceptedTokens", "must be at most numDraftTokens, 0", accepted)
        return
    requests = stats.count("numRequestsWithDraftTokens", least=1)
    for key, least, most in (("numDraftTokens", requests, None), ("numAcceptedTokens", 0, drafted)):
        value = stats.count(key, least=0)
        if value < least or (most is not None and value > most):
            rule = f"must be at least {least}, one a request" if most is None else f"must be at most the {most} drafted"
            raise stats.error(key, rule, value)
    if "acceptanceLength" in stats:
        told, wanted = stats.rate("acceptanceLength", most=1e6), (accepted + requests) / requests
        if abs(told - wanted) > _ROUNDING * wanted:
            raise stats.error("acceptanceLength", f"must be (accepted + requests) / requests, {wanted:.4f}", told)
    each, more = divmod(drafted, requests)
    sums.lengths.update({length: times for length, times in ((each + 1, more), (each, requests - more)) if times})
    sums.requests += requests
    sums.accepted += accepted
    sums.alone = sums.alone and requests == 1
    if sums.alone:
        sums.kept.update(range(1, accepted + 1))
        sums.risked.update(range(1, min(accepted + 1, drafted) + 1))


TRTLLM_ITERATIONS = Format(**described("trtllm-iterations"), read=_read, sees=_sees, sees_line=_sees_line)
