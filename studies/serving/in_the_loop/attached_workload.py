"""A workload whose requests are those of a recording: its times, their prompts and answers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ....arguments import ArgumentError
from ....sim.serving.engine.drawn_requests import DrawnRequests
from ....traces.workloads.arrival import Arrival, Turns, Workload, WorkloadAbout

# Tokens of prompt and answer by recorded request.
Lengths = Mapping[str, tuple[int, int]]


class AttachedWorkload:
    """The arrivals of a workload, each as long as the recorded request that is drawn for it; implements `Workload`.

    Models read and write real text, so nothing can be longer or shorter than that.

    Args:
        workload: when requests arrive, with their tags.
        drawn: which recorded request stands for each.
        lengths: of all recorded requests.
        name: of the recording.
    """

    def __init__(self, workload: Workload, drawn: DrawnRequests, lengths: Lengths, name: str) -> None:
        self._workload = workload
        self._drawn = drawn
        self._lengths = lengths
        self._name = name

    @property
    def about(self) -> WorkloadAbout:
        """See `Workload`."""
        about = self._workload.about
        note = f"prompts and answers are those of recording {self._name}, not as long as the workload says"
        return replace(about, unit_tokens=0, notes=(*about.notes, note))

    def __iter__(self) -> Iterator[Arrival]:
        """See `Workload`."""
        return map(self.attached, self._workload)

    def attached(self, arrival: Arrival) -> Arrival:
        """An arrival with the lengths of its recorded request."""
        prompt, output = self._lengths[self._drawn.of(arrival.request_id, arrival.tag)]
        if arrival.depths and arrival.depths[-1] > output:
            raise ArgumentError(
                f"request {arrival.request_id}: others follow {arrival.depths[-1]} tokens of its answer, "
                f"and that of its recorded request has {output}"
            )
        turns = None if arrival.turns is None else _AttachedTurns(arrival.turns, self)
        return arrival._replace(prompt_tokens=prompt, output_tokens=output, blocks=(), turns=turns, answer=())


class _AttachedTurns:
    """What follows in a session, with lengths likewise; implements `Turns`."""

    def __init__(self, turns: Turns, workload: AttachedWorkload) -> None:
        self._turns = turns
        self._workload = workload

    @property
    def depths(self) -> tuple[int, ...]:
        """See `Turns`."""
        return self._turns.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        """See `Turns`."""
        return [*map(self._workload.attached, self._turns.reached(depth, at_ps))]

    def after(self, ended_ps: int) -> list[Arrival]:
        """See `Turns`."""
        return [*map(self._workload.attached, self._turns.after(ended_ps))]
