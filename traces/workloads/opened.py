"""A workload as it is used: what its source holds or draws, scaled and cut as its options ask for."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from random import Random
from typing import Protocol

from ...arguments import ArgumentError
from .arrival import Arrival, WorkloadAbout
from .changes import ONE, Changes, exact, notes_of, scaled
from .exact_seconds import PS_PER_S
from .formats.format import Tally
from .options import WorkloadOptions


class Source(Protocol):
    """Where requests come from."""

    @property
    def about(self) -> WorkloadAbout:
        """What is known before anything is read."""
        ...

    @property
    def timed(self) -> bool:
        """Whether it says when requests arrive; else all begin together."""
        ...

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """Anew from the first; what is met on the way is counted in `tally`."""
        ...


class OpenedWorkload:
    """A source with its options; implements `Workload`.

    Args:
        source: of the requests.
        options: what is done to them. With a rate, a source that has times is read once to measure its own.
        rate_drawn: whether the source draws its times at that rate already.

    Raises:
        ArgumentError: a rate for arrivals that are all at one time.
        TraceFormatError: a rate, and the source cannot be read.
    """

    def __init__(self, source: Source, options: WorkloadOptions, *, rate_drawn: bool = False) -> None:
        self._source = source
        self._options = options
        scales = options.rate is not None and source.timed and not rate_drawn
        self._own_rate = _mean_rate(source, options) if scales else None
        self._changes = self._anew()

    @property
    def about(self) -> WorkloadAbout:
        """See `Workload`."""
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

    def __iter__(self) -> Iterator[Arrival]:
        """See `Workload`."""
        self._changes = changes = self._anew()
        arrivals = islice(self._source.arrivals(changes.tally), self._options.limit)
        none = changes.none
        for arrival in arrivals if self._source.timed else self._spread(arrivals):
            changed = arrival if none else changes.of(arrival)
            if changed is None:  # all that follow are later still
                return
            changes.check(changed)
            yield changed

    def _anew(self) -> Changes:
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
        """Sessions without times: at once, or as a Poisson process of the rate asked for."""
        if self._options.rate is None:
            yield from arrivals
            return
        draw, start_ps = Random(f"{self._options.seed}/starts"), 0
        for arrival in arrivals:
            yield arrival._replace(arrives_ps=arrival.arrives_ps + start_ps)
            start_ps += scaled(PS_PER_S, Fraction(draw.expovariate(self._options.rate)))

    def _started(self) -> Iterator[str]:
        """What the options say of times of arrival, in words."""
        rate = self._options.rate
        if not self._source.timed:
            how = "at once" if rate is None else f"as a Poisson process, {rate:g} sessions/s, seed {self._options.seed}"
            yield f"sessions begin {how}"
        elif rate is not None and self._own_rate is not None:
            by = float(self._changes.arrivals)
            yield f"times of arrival are scaled by {by:.6g}, from {float(self._own_rate):.6g}/s to {rate:g}/s"


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
