"""What a workload hands out: requests with their times of arrival, and what follows them in closed loops.

Times are whole picoseconds since the start of the workload, so that sums of them are exact in any order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """One request.

    Attributes:
        request_id: unique in its workload.
        arrives_ps: >= 0. Those that a workload yields never go back in time; equal times are in the order of the file.
        prompt_tokens: >= 1.
        output_tokens: >= 1; they end the request, not an end-of-sequence token.
        tag: of the requests of a recording that acceptance is drawn from; "" for any of them.
        blocks: ids, in [0, 2^63), of the prompt's units of `WorkloadAbout.unit_tokens` each, from its start; an id
            stands for the text up to and with its unit, so equal ids are equal text. The last unit may be partial;
            prompt tokens after the last unit are this request's alone. Empty where nothing is known of the text.
        turns: what follows once this request has ended; None: nothing does.
        slo: name of its class of service levels; "" for none.
    """

    request_id: str
    arrives_ps: int
    prompt_tokens: int
    output_tokens: int
    tag: str = ""
    blocks: tuple[int, ...] = ()
    turns: "Turns | None" = None
    slo: str = ""


class Turns(Protocol):
    """The rest of a session: its next request waits for the end of the one before, then for a tool or a user."""

    def after(self, ended_ps: int) -> Arrival | None:
        """The next request, its `arrives_ps` >= `ended_ps`; None where the session is over.

        Changes nothing: the same time gives the same request.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAbout:
    """What a workload says of itself.

    Attributes:
        name: shown in tables.
        files: it was read from; empty for a generator.
        format: name of the files' format, or the generator's text.
        unit_tokens: tokens of a unit of `Arrival.blocks`, >= 1; 0: no request has any.
        num_requests: all of them, those of sessions too; None where that is not known before the end.
        notes: what was done to it and what its reader has to know, a line each.
        drawn: whether another seed gives other requests, or other times.
    """

    name: str
    files: tuple[str, ...]
    format: str
    unit_tokens: int
    num_requests: int | None
    notes: tuple[str, ...]
    drawn: bool = False


class Workload(Protocol):
    """Requests in the order in which they arrive, read or drawn one by one."""

    @property
    def about(self) -> WorkloadAbout:
        """What it says of itself; counts in its notes are those of the newest iteration, as far as it has come."""
        ...

    def __iter__(self) -> Iterator[Arrival]:
        """From the first to the last; each iteration starts anew and gives the same.

        Raises:
            TraceFormatError: a file that cannot be read, or breaks its format; names file, line, field and value.
        """
        ...
