"""Workloads that are drawn, request by request; the same seed gives the same ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from ....arguments import ArgumentError
from ...recording import Recording
from ..arrival import Arrival, WorkloadAbout
from ..changes import ps_of_option
from ..formats.format import Tally
from .lengths import RecordedLengths, recorded_lengths
from .spec import GeneratorSpec

Draw = Callable[[Random], tuple[int, int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A `Source` that draws.

    Attributes:
        spec: what is drawn.
        seed: >= 0. Times and lengths are drawn apart: another process meets the same lengths.
        drawn_from: requests of the recording that lengths are drawn from; empty where the spec gives both.
        recording: its name, "" for none.
    """

    spec: GeneratorSpec
    seed: int
    drawn_from: tuple[RecordedLengths, ...]
    recording: str

    @property
    def about(self) -> WorkloadAbout:
        """See `Source`."""
        notes = [f"drawn, seed {self.seed}"]
        if self.drawn_from:
            what = [name for name in ("prompt", "output") if getattr(self.spec, name) is None]
            notes.append(f"lengths of {' and '.join(what)} are those of requests of {self.recording}, drawn")
        requests = self.spec.requests if self.spec.seconds is None else None
        return WorkloadAbout(
            name=self.spec.text.partition(":")[0],
            files=(),
            format=self.spec.text,
            unit_tokens=0,
            num_requests=requests,
            num_arrivals=requests,
            notes=tuple(notes),
            drawn=True,
        )

    @property
    def timed(self) -> bool:
        """See `Source`."""
        return True

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; requests are called by their number, from 1."""
        times = self.spec.process.times(Random(f"{self.seed}/times"))
        lengths, draw = Random(f"{self.seed}/lengths"), self._draw()
        end_ps = None if self.spec.seconds is None else ps_of_option(self.spec.seconds)
        for number, at_ps in enumerate(islice(times, self.spec.requests), start=1):
            if end_ps is not None and at_ps >= end_ps:
                return
            prompt, output, tag = draw(lengths)
            yield Arrival(str(number), at_ps, prompt, output, tag, slo=self.spec.slo)

    def _draw(self) -> Draw:
        """(tokens of the prompt, of the output, tag) of one request after another."""
        spec, rows = self.spec, self.drawn_from
        prompt, output = spec.prompt, spec.output
        if not rows:
            assert prompt is not None
            assert output is not None
            return lambda rng: (prompt.draw(rng), output.draw(rng), spec.tag)

        def draw(rng: Random) -> tuple[int, int, str]:
            row = rows[rng.randrange(len(rows))]
            return (
                row.prompt_tokens if prompt is None else prompt.draw(rng),
                row.output_tokens if output is None else output.draw(rng),
                spec.tag or row.tag,
            )

        return draw


def make_generator(spec: GeneratorSpec, seed: int, lengths_from: Recording | None) -> Generator:
    """A generator, with the recording that its lengths are drawn from.

    Raises:
        ArgumentError: lengths are neither given nor in a recording, or the recording's log does not know those of
            prompts, or has no request of the tag.
    """
    if spec.prompt is not None and spec.output is not None:
        return Generator(spec=spec, seed=seed, drawn_from=(), recording="")
    missing = "prompt" if spec.prompt is None else "output"
    if lengths_from is None:
        raise ArgumentError(f"{missing} must be in {spec.text!r} where no recording has lengths, got none")
    rows = recorded_lengths(lengths_from)
    if spec.tag:
        rows = tuple(row for row in rows if row.tag == spec.tag)
    name = lengths_from.about.name
    if not rows:
        raise ArgumentError(f"tag must be of the requests of {name}, got {spec.tag!r}")
    unknown = next((row for row in rows if spec.prompt is None and not row.prompt_tokens), None)
    if unknown is not None:
        raise ArgumentError(
            f"prompt must be in {spec.text!r}: {name} does not say that of request {unknown.request_id}"
        )
    return Generator(spec=spec, seed=seed, drawn_from=rows, recording=name)
