"""Scaling and truncation of requests one by one, as the options ask for; every change is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..errors import TraceFormatError
from .arrival import Arrival, Turns
from .exact_seconds import MOST_PS, PS_PER_S
from .formats.format import Tally
from .options import WorkloadOptions

ONE = Fraction(1)
CUT_TURNS = "prompts of later turns cut to {} tokens: turns of a session then have one text, which a prefix cache finds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What becomes of each request.

    Attributes:
        source: file or generator, which errors name.
        options: ask for it.
        unit_tokens: of the workload's blocks.
        arrivals: factor of times of arrival, > 0.
        waits: factor of waits within sessions, > 0.
        tally: mutated.
    """

    source: str
    options: WorkloadOptions
    unit_tokens: int
    arrivals: Fraction
    waits: Fraction
    tally: Tally

    @property
    def none(self) -> bool:
        """Whether all requests stay as they are."""
        asked = self.options
        cuts = (asked.horizon_s, asked.max_prompt_tokens, asked.max_output_tokens, asked.tag)
        return self.arrivals == self.waits == ONE and cuts == (None,) * len(cuts)

    def of(self, arrival: Arrival) -> Arrival | None:
        """A request that arrives by itself; None where that is too late."""
        return self._cut(arrival, scaled(arrival.arrives_ps, self.arrivals))

    def of_turn(self, arrival: Arrival, ended_ps: int) -> Arrival | None:
        """A request that follows what was then; None where it arrives too late, and so all after it.

        Raises:
            TraceFormatError: see `check`.
        """
        found = self._cut(arrival, ended_ps + scaled(arrival.arrives_ps - ended_ps, self.waits))
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
            # An id stands for a unit's whole text, so one that was cut into has none.
            blocks = blocks[: prompt // self.unit_tokens] if blocks else blocks
        if asked.max_output_tokens is not None and output > asked.max_output_tokens:
            tally.cut_outputs += 1
            output = asked.max_output_tokens
            self._check_depths(arrival, output)
        turns = None if arrival.turns is None else ChangedTurns(inner=arrival.turns, changes=self)
        tag = arrival.tag if asked.tag is None else asked.tag
        answer = arrival.answer
        if answer and (prompt, output) != (arrival.prompt_tokens, arrival.output_tokens):
            # Of a prompt that was cut the answer is another text, of an answer that was cut the rest is not written.
            whole = prompt == arrival.prompt_tokens
            answer = answer[: (prompt + output) // self.unit_tokens - prompt // self.unit_tokens] if whole else ()
        return Arrival(arrival.request_id, arrives_ps, prompt, output, tag, blocks, turns, arrival.slo, answer)

    def _check_depths(self, arrival: Arrival, output: int) -> None:
        """Raise TraceFormatError for an answer that is cut above a depth with which another request follows."""
        depths = () if arrival.turns is None else arrival.turns.depths
        if depths and depths[-1] > output:
            rule = f"must leave the {depths[-1]} tokens of request {arrival.request_id} that others go on from"
            raise TraceFormatError(self.source, "max_output_tokens", rule, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTurns:
    """Turns with the same changes; implements `Turns`."""

    inner: Turns
    changes: Changes

    @property
    def depths(self) -> tuple[int, ...]:
        """See `Turns`."""
        return self.inner.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        """See `Turns`."""
        return self._changed(self.inner.reached(depth, at_ps), at_ps)

    def after(self, ended_ps: int) -> list[Arrival]:
        """See `Turns`."""
        return self._changed(self.inner.after(ended_ps), ended_ps)

    def _changed(self, found: Sequence[Arrival], at_ps: int) -> list[Arrival]:
        return [turn for one in found if (turn := self.changes.of_turn(one, at_ps)) is not None]


def scaled(ps: int, factor: Fraction) -> int:
    """A time times a factor, rounded to the nearest picosecond, halves up."""
    if factor is ONE:
        return ps
    return (2 * ps * factor.numerator + factor.denominator) // (2 * factor.denominator)


def exact(number: float) -> Fraction:
    """The number that somebody wrote: the shortest decimal that a float is read from."""
    return Fraction(repr(number))


def ps_of_option(seconds: float) -> int:
    """Whole picoseconds of an option in seconds."""
    return scaled(PS_PER_S, exact(seconds))


def notes_of(changes: Changes) -> list[str]:
    """What was done, a line each, with counts of what was met so far."""
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
        "requests of sessions that the horizon leaves out, and what waits for them": tally.late_requests,
        "requests without a token of prompt or output dropped": tally.dropped,
        "requests without a token of prompt or output served with one": tally.served_as_one,
        **tally.remarks,
    }
    return done + [f"{text}: {count:,}" for text, count in counts.items() if count]
