"""Logs that servers write while they run: llama.cpp, SGLang, TensorRT-LLM and vLLM.

**llama.cpp.** A request is the lines `prompt eval time = ... ms / N tokens`, `eval time = ... ms / N tokens` and one of
`draft acceptance rate = R (A accepted / D generated)`, with `rate` or without, and since 2026 with `, mean acceptance
length = L, acceptance rate per position = (r, ...)` or `, mean len = L`; then one line `statistics METHOD:
#calls(b,g,a) = ..., #gen drafts = ..., #gen tokens = D, #acc tokens = A` of each drafting method, counted since the
server started. Rates per position are as many as the window. `id S | task T |` separates the lines of several slots.
Targets that cannot drop a part of what they read (recurrent and hybrid ones) repeat a draft that was rejected in part,
and some versions count only what was kept whole in the first of the two lines. So where both exist and differ, the
second holds: its increase since the request before, as long as no two requests ran at once. A line with figures of
drafts or of acceptance in other words is an error: it may be that of a newer version.

**SGLang.** Each `Decode batch` line sums up some forwards of all running requests. It has `#running-req: R` and `accept
len: L`, the tokens that a step emits, the target's own included; since 0.5 also `accept rate: A`, which is (L - 1) / K,
or in older versions L / (K + 1), for K tokens proposed in a step. Lines do not give their number of steps: each is
weighted by its running requests. K is a number that fits all lines; the line with `server_args=` gives the depth of a
tree. SGLang 0.5.23, `managers/scheduler_components/metrics_reporter.py`.

**TensorRT-LLM.** Statistics of iterations (`enable_iter_perf_stats`; GET `/metrics`, `LLM.get_stats`), one object per
iteration: `iter`, `inflightBatchingStats.numGenRequests`, and `specDecodingStats` with `numDraftTokens`,
`numAcceptedTokens`, `numRequestsWithDraftTokens` and `acceptanceLength`, which is (accepted + requests) / requests.
Ranks of attention data parallelism beyond the first repeat its statistics (`attentionDpRank`).

**vLLM.** Each `SpecDecoding metrics` line sums up some seconds of all requests: `Accepted: A tokens, Drafted: D tokens,
Per-position acceptance rate: 0.921, 0.828, ...`. Lines are summed, each weighted by its drafts: A over the sum of its
rates, or D over its positions where nothing was accepted. Where depth is adapted, a line has `Current speculative
depth: K`, and rates of 0 for the positions beyond, which were not drafted and so not rejected: these positions are
known from the other lines. If depth changed within a line's seconds, its drafted tokens are not K for each draft, and
it counts for the positions that drafts of both depths have, that of the line before it and its own.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..rounds.rounds import RoundsRequest
from .engine_totals import request_of
from .format import Format, described
from .importing import MOST_WINDOW, Ongoing
from .reading import Fields, check_agrees, half_of_last_digit, read_objects, text_lines
from .responses import Responses, stem
from .totals import (
    StatedLog,
    check_depth,
    hazard_of_lengths,
    hazards_of_mean,
    hazards_of_rates,
    note_plain,
    note_running,
    note_short_drafts,
    settled_window,
)

_EVAL_TIME = "eval time = ... ms / N tokens"
_DRAFT_FIELD = "draft acceptance"
_SECOND = "requests had their drafts counted otherwise in the line of statistics, which holds"
_ALONE = "answers have no line of drafts among others that do: taken to be the target's alone"

_PROMPT = re.compile(r"prompt eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_ANSWER = re.compile(r"(?<!prompt )eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_TIME = re.compile(r"\beval time *= *\S+ *ms */ *\S+ *tokens")
_LLAMACPP_RATES = r"\((?P<rates>[0-9., a-z-]{0,20000})\)"
_DRAFT = re.compile(
    r"draft acceptance(?: rate)? = *(?P<share>[0-9.a-z-]{1,20}) *"
    r"\( *(?P<accepted>[0-9]{1,10}) accepted / *(?P<drafted>[0-9]{1,10}) generated\)"
    rf"(?:, mean (?:acceptance length|len) = *(?P<mean>[0-9.]{{1,20}}))?"
    rf"(?:, acceptance rate per position = {_LLAMACPP_RATES})?\s*$"
)
_BY_PLACE = re.compile(rf"\bacc per pos = {_LLAMACPP_RATES}\s*$")
_STATISTICS = re.compile(
    r"\bstatistics +(?P<method>[\w.-]{1,100}): #calls"
    r"(?:\(b,g,a\) = *(?P<begun>[0-9]{1,15}) +[0-9]+ +[0-9]+| = *[0-9]+),"
    r" #gen drafts = *(?P<drafts>[0-9]{1,15}), #acc drafts = *[0-9]+,"
    r" #gen tokens = *(?P<drafted>[0-9]{1,15}), #acc tokens = *(?P<accepted>[0-9]{1,15})\b"
)
_LLAMACPP_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_WHOSE = re.compile(r"\bid +([0-9]{1,9}) \| task +(-?[0-9]{1,18}) \|")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_ANY = re.compile(r"eval time|draft|accept|statistics|\bacc\b|\bid +[0-9]+ \| task", re.IGNORECASE)

# What precedes a message: times, a level, and its slot and task.
_BEFORE = re.compile(r"^(?:.*?\| task +-?[0-9]+ \|)?(?:[0-9:.,TZ |+-]*(?: [DEITW] )?)")
_FIGURES = re.compile(
    r"accept(?:ed|ance|s)?\b.*[0-9]|[0-9].*\baccept(?:ed|ance|s)?\b|\bstatistics\b.*[0-9]|\bacc\b.*[0-9]"
    r"|\bdraft(?:s|ed)?\b[ _]*(?:tokens?|rate|ratio|len|hit|count|total).*[0-9]|\bdraft(?:s|ed)? *[=:] *[0-9]"
    r"|\bdrafted\b.*[0-9]|[0-9] +(?:tokens? +)?drafted\b",
    re.IGNORECASE,
)
# llama.cpp's verbose lines on single drafts, on the memory of the drafter, on texts.
_KNOWN = re.compile(
    r"accepted +[0-9]+/ *[0-9]+ draft tokens|accepted +[0-9]+ tokens from +[0-9]+ drafted|n_draft=[0-9]+, accepted="
    r"|low acceptance streak|ignoring small draft|generated +[0-9]+ draft tokens|max possible draft"
    r"|draft size +[0-9]+ exceeds max|adding +[0-9]+ draft tokens|draft(?:: | = )[0-9.]+ [KMG]iB|log_server_r: "
    r"|loading draft model|draft model '|draft context|\b(?:accepted|accepting) connection|LLAMA_ARG_|--spec-"
)


@dataclass(slots=True, kw_only=True)
class _Told:
    place: str  # of its last line
    counts: dict[str, int | float] = field(default_factory=dict)  # by the names in responses
    window: int | None = None  # most tokens drafted in a step, None until a line has it
    drafts: int | None = None  # steps that drafted, by the statistics, None until known
    # (the line of drafts, its mean length as printed, its drafted and accepted tokens), None without
    mean: tuple[str, str, int, int] | None = None
    second: bool = False  # whether the statistics hold, as the request's own line differs

    @property
    def has_answer(self) -> bool:
        return "predicted_n" in self.counts

    @property
    def own(self) -> tuple[int, int]:
        """(drafted, accepted) tokens by the request's own line, 0 without one."""
        return int(self.counts.get("draft_n", 0)), int(self.counts.get("draft_n_accepted", 0))


# Of statistics: requests begun, rounds that drafted, and tokens.
_COUNTED = ("begun", "drafts", "drafted", "accepted")


class _Statistics:
    """The increase by each request of counts since the server started. Final."""

    def __init__(self) -> None:
        self._methods: dict[str, dict[str, int]] = {}
        self._of: _Told | None = None  # the request whose lines are read
        self._before: dict[str, int] | None = None  # counts at the end of the request before
        self._ended = 0
        self._slots: set[str] = set()
        self._unplaced: list[tuple[tuple[int, int], dict[str, int]]] = []

    def take(self, told: _Told, slot: str, found: re.Match[str]) -> None:
        """Take a line at the end of a request."""
        if told is not self._of:
            self.settle()
        self._of = told
        self._slots.add(slot)
        now = {name: int(found[name] or 0) for name in _COUNTED}
        before = self._methods.get(found["method"], dict.fromkeys(_COUNTED, 0))
        if now["begun"] < before["begun"] or now["drafted"] < before["drafted"]:  # the server was restarted
            self._methods, self._before, self._ended = {}, None, 0
        self._methods[found["method"]] = now

    def settle(self) -> None:
        """Use the statistics after all lines of a request, where they count that request alone."""
        told, self._of = self._of, None
        if told is None:
            return
        self._ended += 1
        each = self._methods.values()
        now = {name: (max if name == "begun" else sum)(one[name] for one in each) for name in _COUNTED}
        before = dict.fromkeys(_COUNTED, 0) if self._before is None and now["begun"] == 1 else self._before
        self._before = now
        if before is None:  # the log begins after the server's start
            return
        more = {name: now[name] - before[name] for name in _COUNTED}
        one_by_one = len(self._slots) == 1 or now["begun"] == self._ended
        if more["begun"] != 1 or not one_by_one:
            self._unplaced.append((told.own, more))
            return
        told.drafts = more["drafts"] or None
        if (more["drafted"], more["accepted"]) != told.own:
            told.counts |= {"draft_n": more["drafted"], "draft_n_accepted": more["accepted"]}
            told.second = True

    def check(self, place: str) -> None:
        """Raise TraceFormatError where by their own lines requests rejected nothing, and by the statistics they did."""
        drafted, accepted = (sum(own[part] for own, _ in self._unplaced) for part in (0, 1))
        counted = [sum(more[name] for _, more in self._unplaced) for name in ("drafted", "accepted")]
        if drafted and drafted == accepted and counted[1] < counted[0]:
            rule = (
                "must not be all that was drafted where statistics show rejections; requests ran at once, so that "
                "they cannot be told apart: serve them one by one"
            )
            told = f"{accepted} of {drafted}, statistics {counted[1]} of {counted[0]}"
            raise TraceFormatError(place, _DRAFT_FIELD, rule, told)


class _Log:
    """Gathers the lines of requests, slot by slot. Final."""

    def __init__(self) -> None:
        self._statistics = _Statistics()
        self._whose = ("", "")  # slot and task of the last line that named them
        self._open: dict[tuple[str, str], _Told] = {}

    def take(self, place: str, line: str) -> Iterator[_Told]:
        """Take a line; yields the requests that end with it.

        Raises:
            TraceFormatError: an unknown line with figures of drafts, or one in a wrong place.
        """
        whose = _WHOSE.search(line)
        if whose is not None:
            self._whose = (whose[1], whose[2])
        if times := _times(place, line):
            yield from self._timed(place, times)
        elif _TIME.search(line):
            raise TraceFormatError(place, "eval time", f"must be of the form {_EVAL_TIME}", line.strip()[-_SHOWN:])
        elif found := _DRAFT.search(line):
            told = self._drafted(place, line, twice=False)
            told.counts |= {"draft_n_accepted": int(found["accepted"]), "draft_n": int(found["drafted"])}
            told.mean = _checked_line(place, found)
            told.window = _positions(place, found["rates"], told)
        elif found := _BY_PLACE.search(line):
            told = self._drafted(place, line, twice=True)
            told.window = _positions(place, found["rates"], told)
        elif found := _STATISTICS.search(line):
            if (told_of := self._open.get(self._whose)) is not None and told_of.has_answer:
                self._statistics.take(told_of, self._whose[0], found)
        elif _FIGURES.search(_BEFORE.sub("", line, count=1)) and not _KNOWN.search(line):
            rule = "must be a known line: this one gives figures of drafts or acceptance in other words"
            raise TraceFormatError(place, "line", rule, line.strip()[-100:])

    def end(self, place: str) -> list[_Told]:
        """The requests that no line has ended; raises TraceFormatError as `_Statistics.check`."""
        self._statistics.settle()
        self._statistics.check(place)
        return [told for told in self._open.values() if told.has_answer]

    def _timed(self, place: str, times: dict[str, int | float]) -> list[_Told]:
        """Take a time of a request; returns those before it in its slot, which have ended."""
        self._statistics.settle()
        now = self._open.get(self._whose)
        if now is not None and not now.has_answer:
            now.place = place
            now.counts |= times
            return []
        before = [self._open.pop(key) for key in [*self._open] if key[0] == self._whose[0]]
        self._open[self._whose] = _Told(place=place, counts=times)
        return [told for told in before if told.has_answer]

    def _drafted(self, place: str, line: str, *, twice: bool) -> _Told:
        """The request of a line of drafts, its second one with `twice`, else its first."""
        told = self._open.get(self._whose)
        if told is None or not told.has_answer or ("draft_n" in told.counts) != twice:
            raise TraceFormatError(place, _DRAFT_FIELD, "must follow the eval time of its request", line.strip()[-60:])
        told.place = place
        return told


def _times(place: str, line: str) -> dict[str, int | float]:
    for pattern, milliseconds, tokens in ((_PROMPT, "prompt_ms", "prompt_n"), (_ANSWER, "predicted_ms", "predicted_n")):
        found = pattern.search(line)
        if found:
            try:
                return {milliseconds: float(found[1]), tokens: int(found[2])}
            except ValueError:
                raise TraceFormatError(place, milliseconds, "must be a number", found[1]) from None
    return {}


def _positions(place: str, rates: str | None, told: _Told) -> int | None:
    """Number of positions with a rate; raises TraceFormatError for rates that rise, or of another mean than told."""
    if not rates or not rates.strip():
        return None
    texts = [text.strip() for text in rates.split(",")]
    try:
        hazards_of_rates(Fields(place, {}), "acceptance rate per position", np.array([float(text) for text in texts]))
    except ValueError as error:
        if isinstance(error, TraceFormatError):
            raise
        rule = "must be numbers"
        raise TraceFormatError(place, "acceptance rate per position", rule, rates.strip()[:60]) from None
    if told.mean is not None and all(map(_LLAMACPP_NUMBER.fullmatch, texts)):
        _check_sum(told.mean[0], "mean len", told.mean[1], texts)
    return len(texts)


def _check_sum(place: str, field: str, mean: str, rates: Sequence[str]) -> None:
    """Raise for a mean length that is not 1 and the sum of the rates per position, all as printed."""
    kept, rounding = sum(map(float, rates)), sum(map(half_of_last_digit, rates))
    why = f"1 and the sum of the {len(rates)} rates per position"
    check_agrees(place, field, mean, 1 + kept - rounding, 1 + kept + rounding, why)


def _checked_line(place: str, found: re.Match[str]) -> tuple[str, str, int, int] | None:
    """(place, mean, drafted, accepted) of a line of drafts; raises TraceFormatError where its rate contradicts them."""
    drafted, accepted = int(found["drafted"]), int(found["accepted"])
    if drafted and _LLAMACPP_NUMBER.fullmatch(found["share"]):
        why = f"{accepted} accepted of {drafted} drafted tokens"
        check_agrees(place, _DRAFT_FIELD, found["share"], accepted / drafted, accepted / drafted, why)
    mean = found["mean"]
    if mean is None or not drafted:
        return None
    if not _LLAMACPP_NUMBER.fullmatch(mean):
        raise TraceFormatError(place, "mean len", "must be a number", mean)
    return place, mean, drafted, accepted


def _check_mean(told: _Told, window: int) -> None:
    """Raise for a mean length of no number of steps: each drafts at most the window and emits a token of its own."""
    assert told.mean is not None
    place, mean, drafted, accepted = told.mean
    tokens, fewest = int(told.counts["predicted_n"]), drafted / window
    most = max(tokens - accepted + window, fewest)  # the end of the answer may cut tokens of the last one
    why = f"1 and {accepted} accepted tokens by the step, {drafted} drafted, at most {window} a step, {tokens} answered"
    check_agrees(place, "mean len", mean, 1 + accepted / most, 1 + accepted / fewest, why)


def _told_in(path: Path) -> Iterator[_Told]:
    log, place, any_told = _Log(), str(path), False
    for number, written in text_lines(path):
        line = _COLOUR.sub("", written)
        if _ANY.search(line):
            place = f"{path}: line {number}"
            for told in log.take(place, line):
                any_told = True
                yield told
    ended = log.end(place)
    yield from ended
    if not any_told and not ended:
        raise TraceFormatError(path, "content", f"must hold {_EVAL_TIME}", "no such line")


def _read_llamacpp(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    answers = {"with drafts": 0, "alone": 0}
    for path in files:
        file = Responses(path, ongoing)
        for number, told in enumerate(_told_in(path), start=1):
            found, request_id = Fields(told.place, told.counts), f"{stem(path)}/{number}"
            ongoing.request(found, "request", request_id)
            ongoing.findings.note(_SECOND, told.second)
            answers["with drafts" if "draft_n" in told.counts else "alone"] += 1
            request = request_of(file, found, request_id, window=told.window, drafts=told.drafts)
            if request is not None and told.mean is not None:
                _check_mean(told, ongoing.drafters.window_of(file.drafter(), found, told.window))
            yield from file.answered(request)
    if answers["with drafts"]:
        ongoing.findings.note(_ALONE, answers["alone"])


LLAMACPP_LOG = Format(
    **described("llamacpp-log"),
    read=_read_llamacpp,
    sees_line=lambda line: any(pattern.search(line) for pattern in (_PROMPT, _ANSWER, _DRAFT, _STATISTICS)),
)


_SGLANG_ROUNDING = 0.005  # lengths and rates are printed with two decimals
_BATCH, _LENGTH = "Decode batch", "accept len"
# What a log without speculation is good for.
_PLAIN_STEP = "; a plain log gives seconds of plain steps, {} by {} throughput, for costs of your own (docs/costs.md)"
_SHOWN = 160
_SGLANG_NUMBER = r"([0-9]{1,9}\.[0-9]{1,9})(?![0-9.])"
_SGLANG_OTHER = re.compile(r"\bacc(?:ept\w*)?\b|draft|\bspec")
_RUNNING = re.compile(r"#running-req: ?([0-9]{1,9})\b")
_LENGTHS = re.compile(rf"(?<!block )accept len: {_SGLANG_NUMBER}")
_SGLANG_RATES = re.compile(rf"accept rate: {_SGLANG_NUMBER}")
_SETTING = re.compile(
    r"""speculative_(algorithm|num_steps|eagle_topk|num_draft_tokens|adaptive)["']?\s?[=:]\s?["']?([A-Za-z0-9_]{1,40})"""
)
_TREE_ALGORITHMS = ("NGRAM",)  # draft tokens are those of a tree, without a stated depth


class _SglangLine(NamedTuple):
    """One line: tokens emitted per step, share of proposed tokens that were accepted, and running requests."""

    place: str
    running: int
    length: float
    rate: float | None


def _sees_sglang_line(line: str) -> bool:
    return _BATCH in line and "#running-req:" in line


def _read_sglang(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    fields = log.fields
    settings: dict[str, str] = {}
    lines: list[_SglangLine] = []
    batches = 0
    for number, text in text_lines(log.path):
        if "server_args" in text:
            for setting, value in _SETTING.findall(text):
                if value != "None" and settings.setdefault(setting, value) != value:
                    rule = f"must be {settings[setting]}, as before: keep the lines of one server"
                    raise TraceFormatError(f"{log.path}: line {number}", f"speculative_{setting}", rule, value)
        if _sees_sglang_line(text):
            batches += 1
            lines.extend(_sglang_line(f"{log.path}: line {number}", text, first=not lines))
    if not lines:
        told = f"{batches} {_BATCH} lines without one: the server ran without speculation" if batches else "no line"
        rule = f"must stand in a line of {_BATCH}{_PLAIN_STEP.format('#running-req', 'gen') if batches else ''}"
        raise fields.error(_LENGTH, rule, told)
    running = [line.running for line in lines]
    weight = sum(running)
    if not weight:
        raise fields.error("#running-req", "must be at least 1 in some line", 0)
    stated = ongoing.options.windows.get(log.name)
    depth, proposed, trees = depth_of(fields, settings), _proposed(fields, lines, stated), drafts_trees(settings)
    if trees is False and proposed is not None and depth is not None and depth not in proposed:
        rule = f"must fit chains of {depth} tokens, as server_args has it (speculative_num_draft_tokens less 1)"
        raise fields.error("accept rate", rule, f"rates of {', '.join(map(str, sorted(proposed)))} proposed tokens")
    window = settled_window(ongoing, log.name, fields, proposed, depth, trees=trees)
    mean = sum(line.length * line.running for line in lines) / weight
    note_running(ongoing, running, "lines")
    yield from log.requests(None, hazards_of_mean(fields, _LENGTH, mean, window), window=window, either=True)


def _sglang_line(place: str, text: str, *, first: bool) -> Iterator[_SglangLine]:
    """Figures of a line; none where the server did not speculate."""
    told = text.strip()[-_SHOWN:]
    text = text.partition(_BATCH)[2]  # before it may be names of any words
    running, length, rate = _RUNNING.search(text), _LENGTHS.search(text), _SGLANG_RATES.search(text)
    rest = _SGLANG_RATES.sub("", _LENGTHS.sub("", text))
    if "cap len" in rest:
        rule = "must not be there: drafts were cut before they were checked, so that lengths tell no agreement"
        raise TraceFormatError(place, "cap len", rule, told)
    if _SGLANG_OTHER.search(rest) or (length is None) != (_LENGTH not in text):
        raise TraceFormatError(place, _LENGTH, "must be of the form accept len: L, accept rate: A", told)
    if length is None:
        if first:
            return
        raise TraceFormatError(place, _LENGTH, f"must stand in each line of {_BATCH}, as before", told)
    if running is None:
        raise TraceFormatError(place, "#running-req", "must be a whole number", told)
    if not float(length[1]) >= 1 or (rate is not None and float(rate[1]) > 1):
        raise TraceFormatError(place, _LENGTH, "must be at least 1, with an accept rate in [0, 1]", told)
    yield _SglangLine(place, int(running[1]), float(length[1]), None if rate is None else float(rate[1]))


def _proposed(fields: Fields, lines: Sequence[_SglangLine], stated: int | None) -> frozenset[int] | None:
    """Possible numbers of tokens proposed in a step, by all lines; None where none has a rate."""
    rated = [line for line in lines if line.rate is not None]
    if not rated:
        return None
    drafts = set(range(1, MOST_WINDOW + 1))
    tokens = drafts.copy()  # older versions count the target's own token as accepted and proposed
    for line in rated:
        assert line.rate is not None
        drafts = {count for count in drafts if _fits(line.length - 1, line.rate, count)}
        tokens = {count for count in tokens if _fits(line.length, line.rate, count + 1)}
        if not drafts and not tokens:
            rule = "must fit one number of tokens proposed in a step with the lines before"
            if stated is not None:
                line = next((one for one in rated if not _fits(one.length - 1, one.rate or 0.0, stated)), line)
                rule = f"must be {(line.length - 1) / stated:.2f} for the {stated} tokens of `windows`"
            rule = f"{rule}; where the depth changes, no mean fits: save responses (sglang-meta)"
            shown = f"accept len: {line.length}, accept rate: {line.rate}"
            raise fields.error("accept rate", rule, f"{shown} in{line.place.removeprefix(fields.place + ':')}")
    return frozenset(drafts | tokens)


def _fits(kept: float, rate: float, proposed: int) -> bool:
    return abs(kept - rate * proposed) <= _SGLANG_ROUNDING * (1 + proposed) + 1e-9


def drafts_trees(settings: Mapping[str, str]) -> bool | None:
    """Whether drafts are trees, by the settings of a server of SGLang as `depth_of` takes them; None: unknown."""
    if settings.get("algorithm") in _TREE_ALGORITHMS:
        return True
    branches = settings.get("eagle_topk", "")
    return branches != "1" if branches.isdigit() else None


def depth_of(fields: Fields, settings: Mapping[str, str]) -> int | None:
    """Depth of the deepest path that a server of SGLang drafts, by its settings; None where they lack it.

    Settings are texts by name without `speculative_`; raises TraceFormatError for depths that adapt.
    """
    if settings.get("adaptive", "").lower() == "true":
        rule = "must be off: a mean over changing depths fits no window"
        raise fields.error("speculative_adaptive", rule, settings["adaptive"])
    counts = {key: int(text) for key, text in settings.items() if text.isdigit() and len(text) < 5}
    if settings.get("algorithm") in _TREE_ALGORITHMS:
        return None
    if counts.get("eagle_topk", 1) > 1:
        return counts.get("num_steps")
    tokens = counts.get("num_draft_tokens", 0)
    return tokens - 1 if tokens > 1 else None


SGLANG_LOG = Format(**described("sglang-log"), read=_read_sglang, sees_line=_sees_sglang_line)


_STATS = "specDecodingStats"
_TRTLLM_ROUNDING = 1e-3
_RANKS = "iterations of further ranks were left out: they repeat the statistics of the first"


@dataclass(slots=True, kw_only=True)
class _Sums:
    requests: int = 0  # with a draft, counted per iteration
    accepted: int = 0  # drafted tokens that were accepted
    generating: list[int] = field(default_factory=list[int])  # requests in generation, by iteration with some
    # number of drafts by length; those of one iteration are taken to be as even as possible
    lengths: Counter[int] = field(default_factory=Counter[int])
    # number of drafts that kept the token at each position, from 1, while one request drafted at a time
    kept: Counter[int] = field(default_factory=Counter[int])
    risked: Counter[int] = field(default_factory=Counter[int])  # drafts with a token there that kept all before it
    alone: bool = True  # whether one request drafted at a time


def _sees(found: Fields) -> bool:
    return _STATS in found.values or ("iterLatencyMS" in found and "iter" in found)


def _read_trtllm(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    fields = log.fields
    sums, seen = _Sums(), set[int]()
    for found in read_objects(log.path):
        if "iter" in found:  # with all else the same it is one iteration, not one of a later start
            told = hash(json.dumps(found.values, sort_keys=True))
            if told in seen:
                raise found.error("iter", "must be there once: these statistics stand above", found.values["iter"])
            seen.add(told)
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
    if sums.alone:
        check_depth(ongoing, log.name, fields, deepest=max(+sums.kept, default=0), longest=longest)
    window = settled_window(ongoing, log.name, fields, None, longest)
    drafting = 1.0
    if (generating := sum(sums.generating)) > sums.requests:
        drafting = sums.requests / generating
        note_plain(ongoing, 1 - drafting)
    note_running(ongoing, sums.generating, "iterations")
    hazards = _trtllm_hazards(fields, ongoing, sums, window)
    yield from log.requests(None, hazards, window=window, drafting=drafting, either=True)
    if window == longest:
        note_short_drafts(ongoing, drafted=drafted, drafts=sums.requests, window=window)


def _trtllm_hazards(fields: Fields, ongoing: Ongoing, sums: _Sums, window: int) -> tuple[float, ...]:
    """By position where each iteration is one draft, else one for all positions."""
    if sums.alone:
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
        generating = found.nested("inflightBatchingStats").count("numGenRequests", least=0, default=0)
        sums.generating += [generating] if generating else []
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
        if abs(told - wanted) > _TRTLLM_ROUNDING * wanted:
            raise stats.error("acceptanceLength", f"must be (accepted + requests) / requests, {wanted:.4f}", told)
    each, more = divmod(drafted, requests)
    sums.lengths.update({length: times for length, times in ((each + 1, more), (each, requests - more)) if times})
    sums.requests += requests
    sums.accepted += accepted
    sums.alone = sums.alone and requests == 1
    if sums.alone:
        sums.kept.update(range(1, accepted + 1))
        sums.risked.update(range(1, min(accepted + 1, drafted) + 1))


TRTLLM_ITERATIONS = Format(
    **described("trtllm-iterations"),
    read=_read_trtllm,
    sees=_sees,
    sees_line=lambda line: f"'{_STATS}'" in line or "'iterLatencyMS'" in line,  # as Python prints a dict
)


_LINE, _RATES_WORDS = "SpecDecoding metrics:", "Per-position acceptance rate"
_LINE_BEFORE_V1 = "Speculative metrics: Draft acceptance rate:"
# What a line has beside the figures that are read: throughputs, and what is computed from those.
_FIELD = re.compile(r"([A-Z][A-Za-z -]{2,60}):")
_FIELDS = frozenset(
    {
        *("Mean acceptance length", "Accepted throughput", "Drafted throughput", "Accepted", "Drafted", _RATES_WORDS),
        *("Avg Draft acceptance rate", "Draft acceptance rate", "Current speculative depth"),
    }
)
_OTHER_LINE = "Avg generation throughput:"  # of every server's log, just before that of its drafts
_RUNS = re.compile(r"Running: ([0-9]{1,9}) reqs")
_OF_SEVERAL = "Engines Aggregated:"
_VLLM_ROUNDING = 0.0005  # most rounding error of vLLM's rates, printed with three decimals
_COUNTS = re.compile(r"Accepted: ([0-9]{1,15}) tokens, Drafted: ([0-9]{1,15}) tokens")
_VLLM_RATES = re.compile(r"Per-position acceptance rate: ((?:[01]\.[0-9]{1,9}(?:, )?){1,1024})")
_MEAN = re.compile(r"Mean acceptance length: ([0-9]{1,9}(?:\.[0-9]{1,9})?)(?![0-9.])")
_SHARE = re.compile(r"Avg Draft acceptance rate: ([0-9]{1,3}(?:\.[0-9]{1,9})?)%")
_DEPTH = re.compile(r"Current speculative depth: ([0-9]{1,6})\b")
_ADAPTED = "depth was adapted, from {} to {} tokens: a position counts for the drafts that had it"
_UNDRAFTED = "no draft had the positions from {} on: they are left out"


class _VllmLine(NamedTuple):
    place: str  # file and line
    rates: NDArray[np.float64]  # `[W]` shares of drafts
    depth: int  # tokens of a draft when the line was written
    known: int  # positions that all its drafts had
    drafts: float  # by the rounded rates
    fewest: float  # lower bound of the drafts
    drafted: int  # tokens
    running: int | None = None  # requests, by the line before it; None: not known


def _read_vllm(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    fields = log.fields
    lines: list[_VllmLine] = []
    for found in _lines(log.path):
        if lines and len(found.rates) != len(lines[0].rates):
            rule = f"must hold {len(lines[0].rates)} positions, as the lines before it"
            raise TraceFormatError(found.place, _RATES_WORDS, rule, f"{len(found.rates)} positions")
        hazards_of_rates(Fields(found.place, {}), _RATES_WORDS, found.rates)
        lines.append(found)
    if not lines:
        rule = f"must have a line `{_LINE}` with drafts: speculative decoding is off, or its metrics are"
        raise fields.error("log", f"{rule}{_PLAIN_STEP.format('Running', 'generation')}", "none")
    _remark(ongoing, lines)
    hazards = list[float]()  # `[W]` by position, of the drafts that had it and were kept up to it, the share kept there
    for place in range(max(line.known for line in lines)):
        told = [line for line in lines if line.known > place]
        reached = sum(line.drafts * (line.rates[place - 1] if place else 1.0) for line in told)
        kept = sum(line.drafts * line.rates[place] for line in told)
        hazards.append(float(min(kept / reached, 1.0)) if reached else 0.0)
    yield from log.requests(None, tuple(hazards), window=len(hazards))


def _remark(ongoing: Ongoing, lines: Sequence[_VllmLine]) -> None:
    depths, known = [line.depth for line in lines], max(line.known for line in lines)
    if len(set(depths)) > 1:
        ongoing.findings.remark(_ADAPTED.format(min(depths), max(depths)))
    if known < len(lines[0].rates):
        ongoing.findings.remark(_UNDRAFTED.format(known + 1))
    if any(line.drafted < line.fewest * line.known for line in lines):
        drafts, drafted = sum(line.drafts for line in lines), sum(line.drafted for line in lines)
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=max(depths))
    note_running(ongoing, [line.running for line in lines if line.running is not None], "lines")


def _lines(path: Path) -> Iterator[_VllmLine]:
    before = running = None
    for number, line in text_lines(path):
        if _OTHER_LINE in line:
            told = None if _OF_SEVERAL in line else _RUNS.search(line)
            running = None if told is None else int(told[1])
        if _LINE_BEFORE_V1 in line:
            rule = "must be of vLLM 1 (`SpecDecoding metrics:`): version 0 prints a share of tokens alone, no positions"
            raise TraceFormatError(f"{path}: line {number}", "Speculative metrics", rule, line.strip()[-80:])
        if _LINE not in line:
            continue
        try:
            found = _line_of(f"{path}: line {number}", line, before)
        except TraceFormatError as error:
            if line.endswith(("\n", "\r")):
                raise
            rule = f"{error.rule} (the file's last line: is it cut?)"
            raise TraceFormatError(error.path, error.field, rule, error.value) from None
        if found is not None:
            yield found._replace(running=running)
            before = found.depth


def _line_of(place: str, line: str, before: int | None) -> _VllmLine | None:
    """A line of metrics, after one of depth `before`; None where nothing was drafted."""
    counts, rates, depth, told = (
        _COUNTS.search(line), _VLLM_RATES.search(line), _DEPTH.search(line), line.strip()[-80:]
    )  # fmt: skip
    if counts is None:
        raise TraceFormatError(place, _LINE, "must have Accepted: A tokens, Drafted: D tokens", told)
    if (other := _other_figure(line.partition(_LINE)[2])) is not None:
        rule = f"must be a known figure of `{_LINE}`: what it says of drafts is not known"
        raise TraceFormatError(place, other, rule, told)
    accepted, drafted = int(counts[1]), int(counts[2])
    if not drafted:
        return None
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
    total, rounding = float(found.sum()), _VLLM_ROUNDING * len(found)
    drafts = accepted / total if total else drafted / now
    fewest = accepted / (total + rounding) if total else drafts
    most = accepted / max(total - rounding, total / 2) if total else drafts
    all_of_depth = fewest * now <= drafted <= most * now
    known = now if all_of_depth or before is None else min(now, before)
    return _VllmLine(place, found, now, known, drafts, fewest, drafted)


def _other_figure(figures: str) -> str | None:
    """The first unknown figure; behind the last known one only after a comma, as others may add words to a line."""
    found = list(_FIELD.finditer(figures))
    last = max((one.start() for one in found if one[1] in _FIELDS), default=0)
    other = next((one for one in found if one[1] not in _FIELDS), None)
    if other is None or (other.start() > last and not figures[: other.start()].rstrip().endswith((",", ";"))):
        return None
    return other[1]


def _check(place: str, line: str, rates: Sequence[str], accepted: int, drafted: int) -> None:
    """Raise for a mean or rates that contradict the line's counts, whatever lengths from 1 to W its drafts have."""
    kept, rounding = sum(map(float, rates)), sum(map(half_of_last_digit, rates))
    least, most = accepted / drafted, accepted / drafted * len(rates)
    of_counts = f"{accepted} accepted of {drafted} drafted tokens, at most {len(rates)} a draft"
    if mean := _MEAN.search(line):
        field = "Mean acceptance length"
        _check_sum(place, field, mean[1], rates)
        check_agrees(place, field, mean[1], 1 + least, 1 + most, of_counts)
    check_agrees(place, f"{_RATES_WORDS} (sum)", f"{kept:.9f}", least - rounding, most + rounding, of_counts)
    if share := _SHARE.search(line):
        field, percent = "Avg Draft acceptance rate", 100 * accepted / drafted
        check_agrees(place, field, share[1], percent, percent, f"{accepted} accepted of {drafted} drafted tokens")


VLLM_LOG = Format(**described("vllm-log"), read=_read_vllm, sees_line=lambda line: _LINE in line or _OTHER_LINE in line)
