"""A workload whose requests are those of a recording: its times, their prompts and answers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
        turns = None if arrival.turns is None else _AttachedTurns(arrival.turns, self)
        return arrival._replace(prompt_tokens=prompt, output_tokens=output, blocks=(), turns=turns)


class _AttachedTurns:
    """What follows in a session, with lengths likewise; implements `Turns`."""

    def __init__(self, turns: Turns, workload: AttachedWorkload) -> None:
        self._turns = turns
        self._workload = workload

    def after(self, ended_ps: int) -> Arrival | None:
        """See `Turns`."""
        follows = self._turns.after(ended_ps)
        return None if follows is None else self._workload.attached(follows)
