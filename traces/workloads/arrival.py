"""Arrivals of a workload: requests with their times, and what follows them in their sessions.

Times are whole picoseconds since the start of the workload, so that sums of them are exact in any order; those of files
are read from decimal text, never through floats.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...base.errors import ArgumentError, check_least, check_within
from ...base.options import given, opt

# Ids of units of a text, never changed in place. An array, of type "q", is copied and cut without checks of its ids:
# whatever makes one checks that all are in range.
Ids: TypeAlias = "tuple[int, ...] | array[int]"


class Arrival(NamedTuple):
    """One request."""

    request_id: str  # unique in its workload
    # >= 0. Those that a workload yields never go back in time; equal times are in the order of the file.
    arrives_ps: int
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1; the request ends after them, without an end-of-sequence token
    tag: str = ""  # of the requests of a recording that acceptance is drawn from; "" for any of them
    # ids, in [0, 2^63), of the prompt's units of `WorkloadAbout.unit_tokens` each, from its start; an id stands for the
    # text up to and with its unit, so equal ids are equal text. The last unit may be partial; prompt tokens after the
    # last unit are this request's alone. Empty where the text is unknown.
    blocks: Ids = ()
    # what follows after this request's end, or after some of its tokens; None: nothing does
    turns: "Turns | None" = None
    slo: str = ""  # name of its class of service levels; "" for none
    # ids of the units of its text that its answer fills, from the first unit that is not whole in the prompt: unit
    # `prompt_tokens // unit_tokens`. No other request writes text of these ids, and prompts that begin with them follow
    # this request. Empty: no other request reads the answer.
    answer: Ids = ()
    begins: bool = False  # whether it begins a session although it follows a request: the next one of a closed loop

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens of the answer, >= 1, after which other requests follow, ascending."""
        turns = self.turns
        if turns is None or not turns.depths:
            return ()
        return tuple([depth for depth in turns.depths if depth])


class Turns(Protocol):
    """What follows a request in its session, after a tool or a user: after its end, or after some of its tokens.

    The caller reports each event once, in order of time: a request that waits for several others follows the last.
    """

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens of the answer after which others follow, ascending, in [0, output_tokens]; 0: as it arrives."""
        ...

    def reached(self, depth: int, at_ps: int) -> Sequence[Arrival]:
        """Requests that follow one of `depths`, just reached, their `arrives_ps` >= `at_ps`."""
        ...

    def after(self, ended_ps: int) -> Sequence[Arrival]:
        """Requests that follow the end of this one, their `arrives_ps` >= `ended_ps`.

        Those of depths never reached are included: the request was rejected.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAbout:
    """Facts of a workload."""

    name: str  # shown in tables
    files: tuple[str, ...]  # read; empty for a generator
    format: str  # name of the files' format, or the text of the generator
    unit_tokens: int  # tokens of a unit of `Arrival.blocks`, >= 1; 0: no request has any
    num_requests: int | None  # in total, with those of sessions; None where unknown before the end
    notes: tuple[str, ...]  # changes made and what readers must know, a line each
    drawn: bool = False  # whether requests or times depend on a seed
    # of the requests those that follow no other one of a session; None where unknown before the end. Where both numbers
    # are known, all sessions have as many requests.
    num_arrivals: int | None = None


class Workload(Protocol):
    """Requests in the order in which they arrive, read or drawn one by one."""

    @property
    def about(self) -> WorkloadAbout:
        """Its facts; counts in its notes are those of the newest iteration so far."""
        ...

    def __iter__(self) -> Iterator[Arrival]:
        """From the first to the last; each iteration starts again and gives the same.

        Raises:
            TraceFormatError: a file that cannot be read, or breaks its format; names file, line, field and value.
        """
        ...


PS_PER_S = 10**12
AT_ONCE = "sessions begin at once"  # in the notes of a workload without a rate
MOST_PS = 2**62 - 1  # some 53 days: sums and differences of two such times fit 64 bits
MOST_READ_PS = 10**9 * PS_PER_S  # some thirty years: the bound of times in files, before scaling and cutting

_PLACES = 12  # of seconds, as picoseconds
_BEYOND_PS = 10**25  # later than any time of a file or a clock
_MOST_DIGITS = 40
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d)(?:\.(\d{1,40}))?(?: ?(Z|UTC|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_SECONDS = re.compile(r"(\d{1,10})(?:\.(\d{0,40}))?", re.ASCII)


def ps_of_seconds(text: str, *, unit_ps: int = PS_PER_S) -> int | None:
    """Seconds, or other units of time, as text, rounded to the nearest picosecond, halves up; None for no number.

    A sign, blanks and an exponent are allowed; sizes far beyond `MOST_READ_PS` may have another value beyond it.
    """
    found = _SECONDS.fullmatch(text) if unit_ps == PS_PER_S else None
    if found is not None:
        return int(found[1]) * PS_PER_S + _fraction(found[2] or "")
    if not text.isascii() or "_" in text or len(text) > _MOST_DIGITS:  # numbers in Python only
        return None
    try:
        return ps_of_decimal(Decimal(text.strip()), unit_ps=unit_ps)
    except InvalidOperation:
        return None


def ps_of_decimal(value: Decimal | int, *, unit_ps: int = PS_PER_S) -> int | None:
    """A number of units of time, rounded to the nearest picosecond, halves up; None for infinity and NaN.

    Sizes far beyond `MOST_READ_PS` may have another value beyond it, of the same sign; a unit is a power of ten.
    """
    if isinstance(value, int):
        return value * unit_ps
    if not value.is_finite():
        return None
    places = len(str(unit_ps)) - 1
    if value.adjusted() + places > 2 * _PLACES:
        return -_BEYOND_PS if value < 0 else _BEYOND_PS
    return int(value.scaleb(places).to_integral_value(ROUND_HALF_UP))


def ps_of_moment(text: str) -> int | None:
    """A calendar time, `2023-11-16 18:17:03.9799600`, in UTC or with its zone, since year 1; None for other texts."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    minute, seconds, fraction, zone = found.groups()
    minutes = _minutes(minute)
    if minutes is None or seconds > "59":
        return None
    if zone and zone not in ("Z", "UTC"):
        hours, rest = zone[1:3], zone[3:].removeprefix(":") or "00"
        if hours > "23" or rest > "59":
            return None
        minutes -= int(f"{zone[0]}1") * (int(hours) * 60 + int(rest))
    return (minutes * 60 + int(seconds)) * PS_PER_S + _fraction(fraction or "")


def names_zone(text: str) -> bool:
    """Whether a text is a calendar time with a zone, Z for UTC."""
    found = _MOMENT.fullmatch(text)
    return found is not None and found[4] is not None


def _fraction(digits: str) -> int:
    """Picoseconds of the digits after a point."""
    if len(digits) <= _PLACES:
        return int(digits.ljust(_PLACES, "0"))
    return int(digits[:_PLACES]) + (digits[_PLACES] >= "5")


@lru_cache(maxsize=64)
def _minutes(text: str) -> int | None:
    """Minutes since year 1 of a day, an hour and a minute."""
    hours, minutes = text[11:13], text[14:16]
    if hours > "23" or minutes > "59":
        return None
    try:
        days = date.fromisoformat(text[:10]).toordinal()
    except ValueError:
        return None
    return (days * 24 + int(hours)) * 60 + int(minutes)


ZERO_TOKENS = ("refuse", "drop", "one")
MOST_COUNT = 2**31 - 1
# Bounds of drawn workloads. Of a workload, all in memory while it is served:
MOST_REQUESTS = 10_000_000
# Of a session:
MOST_TURNS = 10_000  # requests
MOST_UNITS = 4_000_000  # of text, each with an id
# Of one prompt, answer or observation:
MOST_TOKENS = 10_000_000
_MOST_TAG = 200


@dataclass(frozen=True, kw_only=True)
class WorkloadChanges:
    """Scaling and truncation, options of every job under load."""

    time_scale: float | None = opt(None, "Multiply all times by this; not beside --rate.")
    limit: int | None = opt(None, "Keep this many arrivals, the first ones.")
    max_prompt_tokens: int | None = opt(None, "Cut longer prompts to this.")
    max_output_tokens: int | None = opt(None, "Cut longer outputs to this.")
    max_wait_s: float | None = opt(None, "Cut longer waits within sessions to this.", flag="--max-wait-seconds")
    zero_tokens: str = opt("refuse", "What to do with requests without a token.", metavar="|".join(ZERO_TOKENS))
    tag: str | None = opt(None, "Give this tag to all requests.")
    columns: str | None = opt(
        None,
        "Names columns or keys of any log: arrives_at (a date; arrives_s, _ms, _us, _ns: a number), prompt, "
        "output, id, tag; see docs/workloads.md.",
        metavar="NAME=COLUMN,...",
    )


@dataclass(frozen=True, kw_only=True)
class ClosedLoopOptions:
    """Closed loops, which use a workload's requests in order, without its times."""

    concurrency: int | None = opt(
        None, "Closed loop: keep N requests in the system, whatever their times; not beside --rate.", metavar="N"
    )
    active_sessions: int | None = opt(
        None, "Keep N sessions going: the next begins when one has ended; not beside --rate.", metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(WorkloadChanges, ClosedLoopOptions):
    """Scaling and truncation; in this order: zero tokens, limit, rate or time scale, waits, horizon, most tokens.

    None changes nothing.

    Attributes:
        time_scale: > 0; of waits within sessions, too.
        limit: >= 1; a session with all its turns is one arrival.
        max_prompt_tokens: >= 1.
        max_output_tokens: >= 1.
        max_wait_s: >= 0.
        concurrency: in [1, 10,000,000]; not with `time_scale` or sessions.
        active_sessions: in [1, 10,000,000], waits within them included; not with `concurrency`.
        zero_tokens: "refuse" raises, "drop" leaves the request out, "one" serves it with one token.
        tag: in place of theirs.
        columns: as `named_columns` reads them; rows may be in any order then.
    """

    # mean arrivals per second that all times of arrival are scaled to, > 0; of a generator its own rate; of sessions
    # without times, that of the Poisson process that starts them. None: unchanged.
    rate: float | None = None
    horizon_s: float | None = None  # requests that would arrive at this time or later are left out, > 0. None: none is.
    seed: int = 0  # of draws

    def __post_init__(self) -> None:
        for name in ("rate", "time_scale", "horizon_s"):
            if (number := getattr(self, name)) is not None:
                check_within(f"`{name}`", number, "[1e-9, 1e9]")
        for name in ("limit", "max_prompt_tokens", "max_output_tokens"):
            if (count := getattr(self, name)) is not None:
                check_within(f"`{name}`", count, f"[1, {MOST_COUNT}]")
        if self.rate is not None and self.time_scale is not None:
            raise ArgumentError(f"`time_scale` must be left out beside `rate`, got {self.time_scale}")
        if self.max_wait_s is not None:
            check_within("`max_wait_s`", self.max_wait_s, "[0, 1e9]")
        self._check_loops()
        if self.zero_tokens not in ZERO_TOKENS:
            raise ArgumentError(f"`zero_tokens` must be one of {', '.join(ZERO_TOKENS)}, got {self.zero_tokens!r}")
        if self.tag is not None and (len(self.tag) > _MOST_TAG or not self.tag.isprintable()):
            raise ArgumentError(f"`tag` must be printable, at most {_MOST_TAG} characters, got {self.tag!r}")
        check_least("`seed`", self.seed, 0)

    def _check_loops(self) -> None:
        """Raise ArgumentError for a closed loop with options that do not apply to it."""
        unused = {"concurrency": ("rate", "time_scale", "active_sessions"), "active_sessions": ("rate",)}
        for name, others in unused.items():
            most = getattr(self, name)
            if most is None:
                continue
            check_within(f"`{name}`", most, f"[1, {MOST_REQUESTS}]")
            for other in others:
                if (value := getattr(self, other)) is not None:
                    raise ArgumentError(f"`{name}` must be left out beside `{other}`, got {most} and {value:g}")

    @property
    def most_at_once(self) -> int | None:
        """Sessions of a closed loop at any time, a lone request being one; None: an open loop."""
        return self.active_sessions if self.concurrency is None else self.concurrency

    def given(self) -> dict[str, Any]:
        """The options that differ from the default, by name."""
        return given(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text, by the ids of its full units."""

    unit_tokens: int  # of a unit, >= 1
    num_tokens: int = 0  # of the text, >= 0
    ids: tuple[int, ...] = ()  # of its full units, each for the text up to and with it; `num_tokens // unit_tokens`

    def head(self, num_tokens: int) -> "Text":
        """Its first tokens, at most as many as it has."""
        assert 0 <= num_tokens <= self.num_tokens
        return Text(unit_tokens=self.unit_tokens, num_tokens=num_tokens, ids=self.ids[: num_tokens // self.unit_tokens])

    def grown(self, num_tokens: int, new_ids: Iterator[int]) -> "Text":
        """The text with `num_tokens` more, different from any other text; units that they fill get new ids."""
        total = self.num_tokens + num_tokens
        new = islice(new_ids, total // self.unit_tokens - len(self.ids))
        return Text(unit_tokens=self.unit_tokens, num_tokens=total, ids=(*self.ids, *new))


def requests_of(arrival: Arrival) -> Iterator[tuple[Arrival, int | None]]:
    """(request, its wait) of a session, by time; the first has no wait.

    A wait is that after the last thing for which the request waits.
    """
    coming: list[tuple[int, int, Arrival, int | None]] = [(arrival.arrives_ps, 0, arrival, None)]
    count = 0
    while coming:
        now_ps, _, request, wait_ps = heappop(coming)
        yield request, wait_ps
        turns = request.turns
        if turns is None:
            continue
        by_depth = (turns.reached(depth, now_ps) for depth in turns.depths)
        for one in (*chain.from_iterable(by_depth), *turns.after(now_ps)):
            count += 1
            heappush(coming, (one.arrives_ps, count, one, one.arrives_ps - now_ps))
