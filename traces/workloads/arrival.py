"""What a workload hands out: requests with their times of arrival, and what follows them in their sessions.

Times are whole picoseconds since the start of the workload, so that sums of them are exact in any order.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

# Ids of units of a text, never changed in place. An array, of type "q", is copied and cut without a look at each id:
# whoever makes one sees to it that all are in range.
Ids: TypeAlias = "tuple[int, ...] | array[int]"


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
        turns: what follows once this request has ended, or has written so much; None: nothing does.
        slo: name of its class of service levels; "" for none.
        answer: ids, likewise, of the units of its text that its answer fills, from the first on that does not lie in
            the prompt in whole: unit `prompt_tokens // unit_tokens`. Nobody else writes text of these ids, and prompts
            that begin with them follow this request. Empty: nobody else reads the answer.
    """

    request_id: str
    arrives_ps: int
    prompt_tokens: int
    output_tokens: int
    tag: str = ""
    blocks: Ids = ()
    turns: "Turns | None" = None
    slo: str = ""
    answer: Ids = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens of the answer, >= 1, with which others follow, ascending."""
        turns = self.turns
        if turns is None or not turns.depths:
            return ()
        return tuple([depth for depth in turns.depths if depth])


class Turns(Protocol):
    """What follows a request in its session, after a tool or a user: once it has ended, or has written so much.

    Whoever serves it tells each thing once, as time goes on: a request that waits for several others follows the last.
    """

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens of the answer with which others follow, ascending, in [0, output_tokens]; 0: as it arrives."""
        ...

    def reached(self, depth: int, at_ps: int) -> Sequence[Arrival]:
        """Requests that follow since one of `depths` was reached, their `arrives_ps` >= `at_ps`."""
        ...

    def after(self, ended_ps: int) -> Sequence[Arrival]:
        """Requests that follow since this one has ended, their `arrives_ps` >= `ended_ps`.

        Those of depths that were never reached are among them: the request was rejected.
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
        num_arrivals: of the requests those that follow no other one; None where that is not known before the end. Where
            both numbers are known, all sessions have as many requests.
    """

    name: str
    files: tuple[str, ...]
    format: str
    unit_tokens: int
    num_requests: int | None
    notes: tuple[str, ...]
    drawn: bool = False
    num_arrivals: int | None = None


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
