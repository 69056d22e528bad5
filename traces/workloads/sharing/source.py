"""Sessions that are drawn one after another; the same seed gives the same ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from random import Random

from ..arrival import Arrival, WorkloadAbout
from ..changes import ps_of_option
from ..formats.format import Tally
from ..generated.processes import Poisson
from .session_kind import Place, SessionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSource:
    """A `Source` that draws sessions.

    Attributes:
        text: of the generator.
        kind: what is drawn.
        rate: sessions per second, which begin as a Poisson process; None: all at 0.
        sessions: most of them; None: as many as `seconds` holds, and there is a rate.
        seconds: no session begins at this time or later; None: there is no such time.
        unit_tokens: of blocks.
        tag: of all requests.
        slo: of all requests.
        seed: >= 0. Times and sessions are drawn apart.
    """

    text: str
    kind: SessionKind
    rate: float | None
    sessions: int | None
    seconds: float | None
    unit_tokens: int
    tag: str
    slo: str
    seed: int

    @property
    def about(self) -> WorkloadAbout:
        """See `Source`."""
        begin = "at once" if self.rate is None else f"as a Poisson process, {self.rate:g} sessions/s"
        number, sessions = self.kind.num_requests, None if self.seconds else self.sessions
        return WorkloadAbout(
            name=self.text.partition(":")[0],
            files=(),
            format=self.text,
            unit_tokens=self.unit_tokens,
            num_requests=None if number is None or sessions is None else number * sessions,
            num_arrivals=sessions,
            notes=(f"drawn, seed {self.seed}", f"sessions begin {begin}"),
            drawn=True,
        )

    @property
    def timed(self) -> bool:
        """See `Source`."""
        return True

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; the first request of each session, called by its number, from 1."""
        times = repeat(0) if self.rate is None else Poisson(rate=self.rate).times(Random(f"{self.seed}/times"))
        drawn = Random(f"{self.seed}/lengths")
        end_ps = None if self.seconds is None else ps_of_option(self.seconds)
        for number, at_ps in enumerate(islice(times, self.sessions), start=1):
            if end_ps is not None and at_ps >= end_ps:
                return
            yield self.kind.begin(Place(number, at_ps, self.unit_tokens, self.tag, self.slo), drawn)
