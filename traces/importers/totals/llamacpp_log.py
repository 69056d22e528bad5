"""The log of llama.cpp's server: what it counts of each request, in lines that differ between its versions.

A request is the lines `prompt eval time = ... ms / N tokens`, `eval time = ... ms / N tokens` and one of
`draft acceptance rate = R (A accepted / D generated)`, with `rate` or without, and since 2026 with
`, mean acceptance length = L, acceptance rate per position = (r, ...)` or `, mean len = L`; then one line
`statistics METHOD: #calls(b,g,a) = ..., #gen drafts = ..., #gen tokens = D, #acc tokens = A` of each drafting method,
which counts since the server started. Rates per position are as many as the window. Lines of several slots are told
apart by `id S | task T |`.

Targets that cannot forget a part of what they read (recurrent and hybrid ones) repeat a draft that was refused in part,
and some versions count only what was kept whole in the first of the two lines. So where both are there and differ, the
second holds: what it grew by since the request before, as long as no two requests ran at once.

A line that gives figures of drafts or of acceptance in other words is refused: it may be those of a newer version.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.agreement import check_agrees
from ..reading.fields import Fields
from ..reading.lines import text_lines
from ..responses import Responses, stem
from .llamacpp import request_of
from .stated import hazards_of_rates

_EVAL_TIME = "eval time = ... ms / N tokens"
_DRAFT_FIELD = "draft acceptance"
_SECOND = "requests had their drafts counted otherwise in the line of statistics, which holds"
_ALONE = "answers have no line of drafts among others that do: taken to be the target's alone"

_PROMPT = re.compile(r"prompt eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_ANSWER = re.compile(r"(?<!prompt )eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_RATES = r"\((?P<rates>[0-9., a-z-]{0,20000})\)"
_DRAFT = re.compile(
    r"draft acceptance(?: rate)? = *(?P<share>[0-9.a-z-]{1,20}) *"
    r"\( *(?P<accepted>[0-9]{1,10}) accepted / *(?P<drafted>[0-9]{1,10}) generated\)"
    rf"(?:, mean (?:acceptance length|len) = *(?P<mean>[0-9.]{{1,20}}))?"
    rf"(?:, acceptance rate per position = {_RATES})?\s*$"
)
_BY_PLACE = re.compile(rf"\bacc per pos = {_RATES}\s*$")
_STATISTICS = re.compile(
    r"\bstatistics +(?P<method>[\w.-]{1,100}): #calls"
    r"(?:\(b,g,a\) = *(?P<begun>[0-9]{1,15}) +[0-9]+ +[0-9]+| = *[0-9]+),"
    r" #gen drafts = *(?P<drafts>[0-9]{1,15}), #acc drafts = *[0-9]+,"
    r" #gen tokens = *(?P<drafted>[0-9]{1,15}), #acc tokens = *(?P<accepted>[0-9]{1,15})\b"
)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_WHOSE = re.compile(r"\bid +([0-9]{1,9}) \| task +(-?[0-9]{1,18}) \|")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_ANY = re.compile(r"eval time|draft|accept|statistics|\bacc\b|\bid +[0-9]+ \| task", re.IGNORECASE)

# What stands before a message: times, a level, and whose it is.
_BEFORE = re.compile(r"^(?:.*?\| task +-?[0-9]+ \|)?(?:[0-9:.,TZ |+-]*(?: [DEITW] )?)")
_FIGURES = re.compile(
    r"accept(?:ed|ance|s)?\b.*[0-9]|[0-9].*\baccept(?:ed|ance|s)?\b|\bstatistics\b.*[0-9]|\bacc\b.*[0-9]"
    r"|\bdraft(?:s|ed)?\b[ _]*(?:tokens?|rate|ratio|len|hit|count|total).*[0-9]|\bdraft(?:s|ed)? *[=:] *[0-9]"
    r"|\bdrafted\b.*[0-9]|[0-9] +(?:tokens? +)?drafted\b",
    re.IGNORECASE,
)
# What llama.cpp's server says of single drafts when it is asked to say much, of the memory of the drafter, of texts.
_KNOWN = re.compile(
    r"accepted +[0-9]+/ *[0-9]+ draft tokens|accepted +[0-9]+ tokens from +[0-9]+ drafted|n_draft=[0-9]+, accepted="
    r"|low acceptance streak|ignoring small draft|generated +[0-9]+ draft tokens|max possible draft"
    r"|draft size +[0-9]+ exceeds max|adding +[0-9]+ draft tokens|draft(?:: | = )[0-9.]+ [KMG]iB|log_server_r: "
    r"|loading draft model|draft model '|draft context|\b(?:accepted|accepting) connection|LLAMA_ARG_|--spec-"
)


def _sees_line(line: str) -> bool:
    return any(pattern.search(line) for pattern in (_PROMPT, _ANSWER, _DRAFT, _STATISTICS))


@dataclass(slots=True, kw_only=True)
class _Told:
    """What lines told of one request so far.

    Attributes:
        place: of the last of them.
        counts: under the names that responses have.
        window: tokens drafted in a step at most, None while no line says it.
        drafts: steps that drafted, by the statistics, None while they do not say it.
        mean: (the line of drafts, its mean length as printed, its drafted and accepted tokens), None without.
        second: whether the statistics hold, since the line of the request itself says something else.
    """

    place: str
    counts: dict[str, int | float] = field(default_factory=dict)
    window: int | None = None
    drafts: int | None = None
    mean: tuple[str, str, int, int] | None = None
    second: bool = False

    @property
    def has_answer(self) -> bool:
        """Whether the time of its answer was told."""
        return "predicted_n" in self.counts

    @property
    def own(self) -> tuple[int, int]:
        """(drafted, accepted) tokens by the line of the request itself, 0 without one."""
        return int(self.counts.get("draft_n", 0)), int(self.counts.get("draft_n_accepted", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Statistics: requests begun, rounds that drafted, and tokens."""

    begun: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def less(self, other: "_Totals") -> "_Totals":
        return _Totals(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


class _Statistics:
    """Tells what each request added to counts that run since the server started. Final."""

    def __init__(self) -> None:
        self._methods: dict[str, _Totals] = {}
        self._of: _Told | None = None  # whose lines are read
        self._before: _Totals | None = None  # at the end of the request before
        self._ended = 0
        self._slots: set[str] = set()
        self._unplaced: list[tuple[tuple[int, int], _Totals]] = []

    def take(self, told: _Told, slot: str, found: re.Match[str]) -> None:
        """Take a line that stands at the end of a request."""
        if told is not self._of:
            self.settle()
        self._of = told
        self._slots.add(slot)
        counts = {name: int(found[name] or 0) for name in ("begun", "drafts", "drafted", "accepted")}
        now, before = _Totals(**counts), self._methods.get(found["method"], _Totals())
        if now.begun < before.begun or now.drafted < before.drafted:  # the server was started anew
            self._methods, self._before, self._ended = {}, None, 0
        self._methods[found["method"]] = now

    def settle(self) -> None:
        """Once all lines of a request are there: let them hold where they are about that request alone."""
        told, self._of = self._of, None
        if told is None:
            return
        self._ended += 1
        each = self._methods.values()
        now = _Totals(
            begun=max(one.begun for one in each),
            drafts=sum(one.drafts for one in each),
            drafted=sum(one.drafted for one in each),
            accepted=sum(one.accepted for one in each),
        )
        before = _Totals() if self._before is None and now.begun == 1 else self._before
        self._before = now
        if before is None:  # the log begins later than the server
            return
        more = now.less(before)
        one_by_one = len(self._slots) == 1 or now.begun == self._ended
        if more.begun != 1 or not one_by_one:
            self._unplaced.append((told.own, more))
            return
        told.drafts = more.drafts or None
        if (more.drafted, more.accepted) != told.own:
            told.counts |= {"draft_n": more.drafted, "draft_n_accepted": more.accepted}
            told.second = True

    def check(self, place: str) -> None:
        """Raise TraceFormatError where requests say that nothing was refused, and statistics of several otherwise."""
        drafted, accepted = (sum(own[part] for own, _ in self._unplaced) for part in (0, 1))
        counted = sum(more.drafted for _, more in self._unplaced), sum(more.accepted for _, more in self._unplaced)
        if drafted and drafted == accepted and counted[1] < counted[0]:
            rule = (
                "must not be all that was drafted where statistics know of refusals; requests ran at once, so that "
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
        """Take a line; the requests that end with it.

        Raises:
            TraceFormatError: a line that gives figures of drafts and is not known, or stands where it must not.
        """
        whose = _WHOSE.search(line)
        if whose is not None:
            self._whose = (whose[1], whose[2])
        if times := _times(place, line):
            yield from self._timed(place, times)
        elif found := _DRAFT.search(line):
            told = self._drafted(place, line, twice=False)
            told.counts |= {"draft_n_accepted": int(found["accepted"]), "draft_n": int(found["drafted"])}
            told.window = _positions(place, found["rates"])
            told.mean = _checked_line(place, found)
        elif found := _BY_PLACE.search(line):
            self._drafted(place, line, twice=True).window = _positions(place, found["rates"])
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
        """Take a time of a request; those before it in its slot have ended."""
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
        """The request that a line of drafts is about, which had one before it or had not."""
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


def _positions(place: str, rates: str | None) -> int | None:
    """How many positions have a rate; raises TraceFormatError for rates that rise."""
    if not rates or not rates.strip():
        return None
    texts = rates.split(",")
    try:
        hazards_of_rates(Fields(place, {}), "acceptance rate per position", np.array([float(text) for text in texts]))
    except ValueError as error:
        if isinstance(error, TraceFormatError):
            raise
        rule = "must be numbers"
        raise TraceFormatError(place, "acceptance rate per position", rule, rates.strip()[:60]) from None
    return len(texts)


def _checked_line(place: str, found: re.Match[str]) -> tuple[str, str, int, int] | None:
    """(place, mean, drafted, accepted) of a line of drafts; raises TraceFormatError where its share is not theirs."""
    drafted, accepted = int(found["drafted"]), int(found["accepted"])
    if drafted and _NUMBER.fullmatch(found["share"]):
        why = f"{accepted} accepted of {drafted} drafted tokens"
        check_agrees(place, _DRAFT_FIELD, found["share"], accepted / drafted, accepted / drafted, why)
    mean = found["mean"]
    if mean is None or not drafted:
        return None
    if not _NUMBER.fullmatch(mean):
        raise TraceFormatError(place, "mean len", "must be a number", mean)
    return place, mean, drafted, accepted


def _check_mean(told: _Told, window: int) -> None:
    """Refuse a mean length that no number of steps has: each drafts at most the window and emits a token of its own."""
    assert told.mean is not None
    place, mean, drafted, accepted = told.mean
    tokens, fewest = int(told.counts["predicted_n"]), drafted / window
    most = max(tokens - accepted + window, fewest)  # the end of the answer may cut what the last one kept
    why = f"1 and {accepted} accepted tokens by the step, {drafted} drafted, at most {window} a step, {tokens} answered"
    check_agrees(place, "mean len", mean, 1 + accepted / most, 1 + accepted / fewest, why)


def _told_in(path: Path) -> Iterator[_Told]:
    """What the lines of each request say."""
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


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request per answer of the logs."""
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


LLAMACPP_LOG = Format(**described("llamacpp-log"), read=_read, sees_line=_sees_line)
