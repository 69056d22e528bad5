"""One request of which a log knows counts only, as rounds: they meet the counts, and where each stood is drawn.

Letters: R rounds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...rounds.rounds import Rounds, RoundsRequest
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..responses import Responses
from ..step_rounds import rounds_at, starts_of
from .drawing import Ints, draw_accepted, pair, place, spread

MOST_STEPS = 1_000_000  # and tokens of one request: more is no answer of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a log counted of one request.

    Attributes:
        num_tokens: of the answer, >= 1.
        prefilled: whether the first of them is the prefill's own, so that rounds emit the others.
        num_steps: verifications after the prefill that the log counts or that follow from its totals, plain ones
            included; a log that counts those with a draft only has as many plain ones besides as its tokens leave over.
        num_accepted: drafted tokens that stayed in all of them.
        num_drafted: tokens drafted in all of them, None if the log does not say.
        histogram: `[W + 1]` steps that kept 0, 1, ... tokens; None if the log does not say.
        drafted_histogram: steps that drafted 0, 1, ... tokens; None if the log does not say. Only beside `histogram`.
        window: most tokens drafted in a step, None if the log does not say.
        keys: fields of the log that hold the two histograms, for errors.
    """

    num_tokens: int
    num_steps: int
    num_accepted: int
    num_drafted: int | None = None
    histogram: Ints | None = None
    drafted_histogram: Ints | None = None
    window: int | None = None
    prefilled: bool = True
    keys: tuple[str, str] = ("acceptance_histogram", "drafted histogram")

    @property
    def num_emitted(self) -> int:
        """Tokens that the rounds emit."""
        return self.num_tokens - self.prefilled


def of_histogram(histogram: Ints, *, num_tokens: int | None, num_drafted: int | None, window: int | None) -> Counted:
    """The counts that a histogram of accepted tokens adds up to; without `num_tokens`, as many as its steps emit."""
    steps, accepted = int(histogram.sum()), int(histogram @ np.arange(len(histogram)))
    return Counted(
        num_tokens=steps + accepted + 1 if num_tokens is None else num_tokens,
        num_steps=steps,
        num_accepted=accepted,
        num_drafted=num_drafted,
        histogram=histogram,
        window=window,
    )


def draw_steps(ongoing: Ongoing, name: str, fields: Fields, request_id: str, counted: Counted) -> tuple[Ints, Ints]:
    """`[R]` tokens accepted and tokens drafted in steps that meet the counts, in a drawn order.

    Raises:
        TraceFormatError: counts that no rounds can meet, or a window that nobody states.
    """
    window = ongoing.drafters.window_of(name, fields, counted.window)
    _check(fields, counted, window)
    generator = ongoing.generator(request_id)
    accepted, drafted = _draw_counts(counted, window, generator)
    drawn = place(accepted, drafted, num_tokens=counted.num_emitted, generator=generator)
    if drawn is None:
        explained = int(accepted.sum()) + len(accepted) + counted.prefilled
        whose = f"{explained} with the prefill's" if counted.prefilled else f"{explained}"
        rule = f"must be at least what its steps emit, {whose}, but for one step's draft"
        raise fields.error("completion_tokens", rule, counted.num_tokens)
    return drawn


def draw_rounds(ongoing: Ongoing, name: str, fields: Fields, request_id: str, counted: Counted) -> Rounds:
    """Rounds that meet the counts, marked as placed; raises as `draw_steps`."""
    accepted, drafted = draw_steps(ongoing, name, fields, request_id, counted)
    return rounds_at(
        ongoing,
        name,
        fields,
        starts_of(accepted + 1) + counted.prefilled,
        accepted,
        length=counted.num_tokens,
        drafted=drafted,
        placed=np.ones(len(accepted), np.bool_),
    )


def counted_request(
    file: Responses, usage: Fields, fields: Fields, request_id: str, counted: Counted
) -> RoundsRequest | None:
    """The request that a response counted; None if its answer has no token.

    Args:
        file: of the response.
        usage: the object that counts the tokens of its prompt.
        fields: the object that holds the counts, for errors.
        request_id: of the response.
        counted: what it says.
    """
    name = file.drafter()
    if not counted.num_tokens:
        return None
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=usage.count("prompt_tokens", least=0, default=0),
        num_tokens={name: counted.num_tokens},
        rounds={name: draw_rounds(file.ongoing, name, fields, request_id, counted)},
    )


def _check(fields: Fields, counted: Counted, window: int) -> None:
    """Refuse counts that contradict each other."""
    steps, accepted, drafted = counted.num_steps, counted.num_accepted, counted.num_drafted
    if steps + counted.num_tokens > MOST_STEPS:
        raise fields.error("steps", f"must be at most {MOST_STEPS}, with the tokens", steps + counted.num_tokens)
    if accepted > steps * window:
        raise fields.error("accepted", f"must be at most {steps} steps of {window} tokens", accepted)
    if drafted is not None and not accepted <= drafted <= steps * window:
        rule = f"must lie between the {accepted} accepted and {steps} steps of {window} tokens (`windows`)"
        raise fields.error("drafted", rule, drafted)
    _check_histograms(fields, counted, window)
    if steps - counted.num_emitted > accepted:
        raise fields.error("steps", f"must be fewer than the {counted.num_tokens} tokens of the answer", steps)


def _check_histograms(fields: Fields, counted: Counted, window: int) -> None:
    key, drafted_key = counted.keys
    if counted.histogram is not None and np.any(counted.histogram[window + 1 :]):
        longest_kept = int(np.flatnonzero(counted.histogram)[-1])
        rule = (
            f"must be 0: no step keeps {longest_kept} tokens where drafts have at most {window}, the window (`windows`)"
        )
        raise fields.error(f"{key}[{longest_kept}]", rule, int(counted.histogram[longest_kept]))
    if counted.histogram is None or counted.drafted_histogram is None:
        return
    if int(counted.drafted_histogram.sum()) != counted.num_steps:
        rule = f"must add up to the {counted.num_steps} steps of {key}"
        raise fields.error(drafted_key, rule, int(counted.drafted_histogram.sum()))
    # Steps that kept at least so many tokens need as many that drafted them.
    longest = max(len(counted.histogram), len(counted.drafted_histogram))
    kept, drafted = (_at_least(one, longest) for one in (counted.histogram, counted.drafted_histogram))
    if np.any(kept > drafted):
        count = int(np.argmax(kept > drafted))
        rule = f"must hold the {kept[count]} steps of {key} that kept {count} tokens or more"
        raise fields.error(drafted_key, rule, int(drafted[count]))


def _at_least(histogram: Ints, length: int) -> Ints:
    """`[length]` how many there are of 0 or more, 1 or more, ..."""
    padded = np.pad(histogram, (0, length - len(histogram)))
    return np.cumsum(padded[::-1])[::-1]


def _draw_counts(counted: Counted, window: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """(accepted, drafted) tokens of each round, in no order."""
    most: NDArray[np.int64] = np.full(counted.num_steps, window, np.int64)
    total = counted.num_steps * window if counted.num_drafted is None else counted.num_drafted
    if counted.histogram is None:
        drafted = spread(total, np.zeros_like(most), most, generator)
        surplus = counted.num_accepted + counted.num_steps - counted.num_emitted
        return draw_accepted(counted.num_accepted, drafted, generator, one_keeps=max(surplus, 0)), drafted
    accepted = np.repeat(np.arange(len(counted.histogram)), counted.histogram).astype(np.int64)
    if counted.drafted_histogram is not None:
        drafted = np.repeat(np.arange(len(counted.drafted_histogram)), counted.drafted_histogram).astype(np.int64)
        return accepted, pair(accepted, drafted, generator)
    return accepted, spread(total, accepted, most, generator)
