"""A workload in use: the requests of its source, scaled and cut by its options, every change counted.

A closed loop keeps a number of sessions open; when one has ended the next begins. A request that nothing follows is a
session of one, so with plain requests this is the concurrency of engines' benchmark clients: as many requests are in
the system, as long as there are more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from random import Random
from typing import Protocol

from ...base.errors import ArgumentError, counted
from ..errors import TraceFormatError
from .arrival import AT_ONCE, MOST_PS, PS_PER_S, Arrival, Turns, Workload, WorkloadAbout, WorkloadOptions
from .format import Tally

ONE = Fraction(1)
FEWER = "the closed loop never holds the {} asked for: the workload has fewer"
CUT_TURNS = "prompts of later turns cut to {} tokens: turns of a session then have one text, which a prefix cache finds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes to each request."""

    source: str  # file or generator, for errors
    options: WorkloadOptions  # that define the changes
    unit_tokens: int  # of the workload's blocks
    arrivals: Fraction  # factor of times of arrival, > 0
    waits: Fraction  # factor of waits within sessions, > 0
    tally: Tally  # mutated

    @property
    def none(self) -> bool:
        """Whether no request is changed."""
        asked = self.options
        cuts = (asked.horizon_s, asked.max_prompt_tokens, asked.max_output_tokens, asked.max_wait_s, asked.tag)
        return self.arrivals == self.waits == ONE and cuts == (None,) * len(cuts)

    def of(self, arrival: Arrival) -> Arrival | None:
        """A request with its own arrival; None where that is too late."""
        return self._cut(arrival, scaled(arrival.arrives_ps, self.arrivals))

    def begun(self, arrival: Arrival, at_ps: int) -> Arrival | None:
        """A request of a closed loop that begins at `at_ps` in place of its own time; None where that is too late.

        Raises:
            ArgumentError: it has a session, but the loop counts requests.
            TraceFormatError: see `check`.
        """
        if self.options.concurrency is not None and arrival.turns is not None:
            rule = "must be left out where the workload has sessions (`active_sessions` keeps a number of them open)"
            raise ArgumentError(f"`concurrency` {rule}, got one of request {arrival.request_id}")
        found = self._cut(arrival, at_ps)
        if found is not None:
            self.check(found)
        return found

    def of_turn(self, arrival: Arrival, ended_ps: int) -> Arrival | None:
        """A request that follows what ended at `ended_ps`; None where it arrives too late, as do all after it.

        Raises:
            TraceFormatError: see `check`.
        """
        wait_ps, most_s = scaled(arrival.arrives_ps - ended_ps, self.waits), self.options.max_wait_s
        if most_s is not None and wait_ps > (most_ps := ps_of_option(most_s)):
            self.tally.cut_waits += 1
            wait_ps = most_ps
        found = self._cut(arrival, ended_ps + wait_ps)
        self.tally.late_requests += found is None
        if found is not None:
            self.check(found)
            if found.prompt_tokens < arrival.prompt_tokens:
                self.tally.remark(CUT_TURNS.format(found.prompt_tokens))
        return found

    def check(self, arrival: Arrival) -> None:
        """Raise TraceFormatError for a request that arrives later than `MOST_PS`."""
        if arrival.arrives_ps > MOST_PS:
            rule = f"must be at most {MOST_PS // PS_PER_S:,} s after the start, once scaled and cut"
            place = f"{self.source}: request {arrival.request_id}"
            raise TraceFormatError(place, "arrival", rule, arrival.arrives_ps / PS_PER_S)

    def _cut(self, arrival: Arrival, arrives_ps: int) -> Arrival | None:
        asked, tally = self.options, self.tally
        if asked.horizon_s is not None and arrives_ps >= ps_of_option(asked.horizon_s):
            return None
        prompt, output, blocks = arrival.prompt_tokens, arrival.output_tokens, arrival.blocks
        if asked.max_prompt_tokens is not None and prompt > asked.max_prompt_tokens:
            tally.cut_prompts += 1
            prompt = asked.max_prompt_tokens
            # An id means a unit's whole text, so a unit that was cut has none.
            blocks = blocks[: prompt // self.unit_tokens] if blocks else blocks
        if asked.max_output_tokens is not None and output > asked.max_output_tokens:
            tally.cut_outputs += 1
            output = asked.max_output_tokens
            depths = () if arrival.turns is None else arrival.turns.depths
            if depths and depths[-1] > output:  # after which another request follows
                rule = f"must leave the {depths[-1]} tokens of request {arrival.request_id} that others continue from"
                raise TraceFormatError(self.source, "max_output_tokens", rule, output)
        turns = None if arrival.turns is None else ChangedTurns(inner=arrival.turns, changes=self)
        tag = arrival.tag if asked.tag is None else asked.tag
        answer = arrival.answer
        if answer and (prompt, output) != (arrival.prompt_tokens, arrival.output_tokens):
            # After a cut prompt the answer is another text; of a cut answer the rest is not written.
            whole = prompt == arrival.prompt_tokens
            answer = answer[: (prompt + output) // self.unit_tokens - prompt // self.unit_tokens] if whole else ()
        return Arrival(arrival.request_id, arrives_ps, prompt, output, tag, blocks, turns, arrival.slo, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTurns:
    """Turns with the same changes; implements `Turns`."""

    inner: Turns
    changes: Changes

    @property
    def depths(self) -> tuple[int, ...]:
        return self.inner.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        return self._changed(self.inner.reached(depth, at_ps), at_ps)

    def after(self, ended_ps: int) -> list[Arrival]:
        return self._changed(self.inner.after(ended_ps), ended_ps)

    def _changed(self, found: Sequence[Arrival], at_ps: int) -> list[Arrival]:
        return [turn for one in found if (turn := self.changes.of_turn(one, at_ps)) is not None]


class ClosedArrivals:
    """A run of the loop. Mutated by `begin`, `next` and its requests' `Turns`.

    Args:
        arrivals: the requests that begin, in order, without their times; read as they begin.
        changes: applied to each request.
        most: sessions at any time, >= 1.
    """

    def __init__(self, arrivals: Iterable[Arrival], changes: Changes, most: int) -> None:
        self._arrivals = iter(arrivals)
        self.changes = changes
        self._most = most

    def begin(self) -> Iterator[Arrival]:
        """The first request of each session that begins at 0; the others follow ends."""
        for begun in range(self._most):
            found = self.next(0)
            if found is None:
                self.changes.tally.remarks[FEWER.format(self._most)] = begun
                return
            yield found

    def next(self, at_ps: int) -> Arrival | None:
        """The next session, which begins now; None where there is none left, or it would be too late."""
        arrival = next(self._arrivals, None)
        found = None if arrival is None else self.changes.begun(arrival, at_ps)
        if arrival is None or found is None:
            return None
        return found._replace(turns=LoopTurns(_Session(self), arrival.turns))


class _Session:
    __slots__ = ("loop", "open")

    def __init__(self, loop: ClosedArrivals) -> None:
        self.loop = loop
        self.open = 1  # its requests that have not ended, future ones included


class LoopTurns:
    """What follows a request of a closed loop: its session, or after the last of that the next; implements `Turns`."""

    __slots__ = ("_inner", "_session", "depths")

    def __init__(self, session: _Session, inner: Turns | None) -> None:
        self._session = session
        self._inner = inner
        self.depths: tuple[int, ...] = () if inner is None else inner.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        return [] if self._inner is None else self._followed(self._inner.reached(depth, at_ps), at_ps)

    def after(self, ended_ps: int) -> list[Arrival]:
        session = self._session
        found = [] if self._inner is None else self._followed(self._inner.after(ended_ps), ended_ps)
        session.open -= 1
        if not session.open and (begun := session.loop.next(ended_ps)) is not None:
            found.append(begun._replace(begins=True))
        return found

    def _followed(self, turns: Sequence[Arrival], at_ps: int) -> list[Arrival]:
        """The turns, changed; one that a horizon leaves out still keeps its session open."""
        self._session.open += len(turns)
        changed = ((one, self._session.loop.changes.of_turn(one, at_ps)) for one in turns)
        return [new._replace(turns=LoopTurns(self._session, one.turns)) for one, new in changed if new is not None]


def scaled(ps: int, factor: Fraction) -> int:
    """A time times a factor, rounded to the nearest picosecond, halves up."""
    if factor is ONE:
        return ps
    return (2 * ps * factor.numerator + factor.denominator) // (2 * factor.denominator)


def exact(number: float) -> Fraction:
    """The number as written: the shortest decimal of a float."""
    return Fraction(repr(number))


def ps_of_option(seconds: float) -> int:
    """Whole picoseconds of an option in seconds."""
    return scaled(PS_PER_S, exact(seconds))


def notes_of(changes: Changes) -> list[str]:
    """The changes, a line each, with counts so far."""
    asked, tally = changes.options, changes.tally
    done: list[str] = []
    if asked.limit is not None:
        done.append(f"limited to the first {asked.limit:,} arrivals")
    if asked.time_scale is not None:
        done.append(f"all times are scaled by {asked.time_scale:g}")
    if asked.horizon_s is not None:
        done.append(f"what would arrive at {asked.horizon_s:g} s or later is left out")
    counts = {
        f"prompts cut to {asked.max_prompt_tokens} tokens": tally.cut_prompts,
        f"outputs cut to {asked.max_output_tokens} tokens": tally.cut_outputs,
        f"waits within sessions cut to {asked.max_wait_s or 0:g} s": tally.cut_waits,
        "requests of sessions that the horizon leaves out, and what waits for them": tally.late_requests,
        "requests without a token of prompt or output dropped": tally.dropped,
        "requests without a token of prompt or output served with one": tally.served_as_one,
        **tally.remarks,
    }
    return done + [f"{text}: {count:,}" for text, count in counts.items() if count]


class Source(Protocol):
    """A source of requests."""

    @property
    def about(self) -> WorkloadAbout:
        """Facts known before reading."""
        ...

    @property
    def timed(self) -> bool:
        """Whether requests have times; else all begin together."""
        ...

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """All from the first; counts go into `tally`."""
        ...


class OpenedWorkload:
    """A source with its options; implements `Workload`.

    With a rate, a source with times is read once to measure its own rate, unless it draws its times at that rate
    already (`rate_drawn`); raises ArgumentError for arrivals that are all at one time.
    """

    def __init__(self, source: Source, options: WorkloadOptions, *, rate_drawn: bool = False) -> None:
        self._source = source
        self._options = options
        self._has_rate = source.timed and not rate_drawn and options.most_at_once is None
        scales = options.rate is not None and self._has_rate
        self._own_rate = _mean_rate(source, options) if scales else None
        self._changes = self._new_changes()

    @property
    def about(self) -> WorkloadAbout:
        about, asked = self._source.about, self._options
        requests, arrivals = about.num_requests, about.num_arrivals
        if asked.horizon_s is not None:
            requests = arrivals = None
        elif asked.limit is not None and arrivals is not None and asked.limit < arrivals:
            requests = None if requests is None else requests * asked.limit // arrivals
            arrivals = asked.limit
        notes = (*about.notes, *self._started(), *notes_of(self._changes))
        spread = not self._source.timed and asked.rate is not None
        drawn = about.drawn or spread
        return replace(about, num_requests=requests, num_arrivals=arrivals, notes=notes, drawn=drawn)

    def own_rate(self) -> float | None:
        """Mean arrivals a second by its own times, which `WorkloadOptions.rate` scales; None of one without such times.

        Raises:
            ArgumentError: arrivals that are all at one time.
        """
        return float(_mean_rate(self._source, self._options)) if self._has_rate else None

    def __iter__(self) -> Iterator[Arrival]:
        most = self._options.most_at_once
        if most is None:
            return self.one_by_one()
        self._changes = changes = self._new_changes()
        return ClosedArrivals(islice(self._source.arrivals(changes.tally), self._options.limit), changes, most).begin()

    @property
    def is_closed(self) -> bool:
        """Whether it is a closed loop, in which requests begin as others end."""
        return self._options.most_at_once is not None

    def one_by_one(self) -> Iterator[Arrival]:
        """As iteration, but of a closed loop, where few begin by themselves, all that begin, at meaningless times.

        Raises ArgumentError where there is no request.
        """
        self._changes = changes = self._new_changes()
        arrivals = islice(self._source.arrivals(changes.tally), self._options.limit)
        none, found = changes.none, False
        for arrival in arrivals if self._source.timed else self._spread(arrivals):
            changed = arrival if none else changes.of(arrival)
            if changed is None:  # later ones are too late as well
                break
            changes.check(changed)
            found = True
            yield changed
        if not found:
            raise ArgumentError(f"`workload` must have a request in its time, {changes.source} has none")

    def _new_changes(self) -> Changes:
        asked = self._options
        waits = ONE if asked.time_scale is None else exact(asked.time_scale)
        arrivals = waits
        if self._own_rate is not None and asked.rate is not None:
            arrivals = self._own_rate / exact(asked.rate)
        about = self._source.about
        source = about.files[0] if about.files else about.format
        unit = about.unit_tokens
        return Changes(source=source, options=asked, unit_tokens=unit, arrivals=arrivals, waits=waits, tally=Tally())

    def _spread(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """Sessions without times: at once, or as a Poisson process of the given rate."""
        if self._options.rate is None:
            yield from arrivals
            return
        draw, start_ps = Random(f"{self._options.seed}/starts"), 0
        for arrival in arrivals:
            yield arrival._replace(arrives_ps=arrival.arrives_ps + start_ps)
            start_ps += scaled(PS_PER_S, Fraction(draw.expovariate(self._options.rate)))

    def _started(self) -> Iterator[str]:
        """The options of times of arrival, in words."""
        rate, most = self._options.rate, self._options.most_at_once
        if most is not None:
            what = "session" if self._options.concurrency is None else "request"
            yield f"closed loop: {counted(most, what)} at any time, the next of which begins when one has ended"
        elif not self._source.timed:
            drawn = f"sessions begin as a Poisson process, {rate or 0:g} sessions/s, seed {self._options.seed}"
            yield AT_ONCE if rate is None else drawn
        elif rate is not None and self._own_rate is not None:
            by = float(self._changes.arrivals)
            yield f"times of arrival are scaled by {by:.6g}, from {float(self._own_rate):.6g}/s to {rate:g}/s"


def is_closed(workload: Workload) -> bool:
    """Whether a workload is a closed loop; see `OpenedWorkload.is_closed`."""
    return isinstance(workload, OpenedWorkload) and workload.is_closed


def one_by_one(workload: Workload) -> Iterator[Arrival]:
    """All that begins in a workload, to look at without serving; see `OpenedWorkload.one_by_one`."""
    return workload.one_by_one() if isinstance(workload, OpenedWorkload) else iter(workload)


def _mean_rate(source: Source, options: WorkloadOptions) -> Fraction:
    """Arrivals a second between the first and the last, as far as the limit reaches."""
    count = first_ps = last_ps = 0
    for arrival in islice(source.arrivals(Tally()), options.limit):
        first_ps = arrival.arrives_ps if not count else first_ps
        last_ps = arrival.arrives_ps
        count += 1
    if last_ps == first_ps:
        told = f"{count} of them at one time" if count else "none"
        raise ArgumentError(f"`rate` must be left out: arrivals have to be spread over time to be scaled, got {told}")
    return Fraction((count - 1) * PS_PER_S, last_ps - first_ps)
