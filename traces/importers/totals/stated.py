"""Acceptance that a log states for all its requests together: rates per position or a mean, and requests to run it on.

Letters: W the window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...rounds.rounds import MOST, RoundsRequest
from ..learned import Learned
from ..options import MOST_REQUESTS
from ..reading.fields import Fields
from ..responses import EMPTY
from .drawing import constant_hazard

_ROUNDED = 0.0006  # logs round rates to three decimals, so that two that are equal may seem to rise
_PLAIN = "{:.2%} of the steps drafted nothing, as tokens, drafts and accepted tokens have it: drawn as often"
_SHORT = "drafts were {:.2f} tokens long on average, of {}: each is drawn as a whole one, and a refusal may be an end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the requests.

    Attributes:
        prompts: tokens of each prompt, 0 if unknown.
        outputs: tokens of each answer; those of an answer without any are left out.
    """

    prompts: Sequence[int]
    outputs: Sequence[int]


def even_lengths(fields: Fields, requests: int, output_tokens: int, prompt_tokens: int) -> Lengths:
    """So many requests that have these tokens in all, each as many as any other; raises TraceFormatError."""
    if requests > MOST_REQUESTS:
        raise fields.error("requests", f"must be at most {MOST_REQUESTS}", requests)
    if max(output_tokens, prompt_tokens) > MOST * requests:
        rule = f"must be at most {MOST} of each of the {requests} requests"
        raise fields.error("tokens", rule, max(output_tokens, prompt_tokens))
    return Lengths(prompts=_even(prompt_tokens, requests), outputs=_even(output_tokens, requests))


def hazards_of_rates(fields: Fields, key: str, rates: NDArray[np.float64]) -> tuple[float, ...]:
    """`[W]` shares of drafts that kept the token at each position, to the share of those that got there.

    Raises:
        TraceFormatError: no rates, or a position that was kept more often than the one before it.
    """
    if not len(rates):
        raise fields.error(key, "must hold a rate for each position", "none")
    rising = np.flatnonzero(rates[1:] > rates[:-1] + _ROUNDED)
    if len(rising):
        place = int(rising[0]) + 1
        rule = "must not exceed the rate before it: drafts are kept from their beginning"
        raise fields.error(f"{key}[{place}]", rule, float(rates[place]))
    before = np.concatenate(([1.0], rates[:-1]))
    hazards = np.divide(np.minimum(rates, before), before, out=np.zeros(len(rates)), where=before > 0)
    return tuple(hazards.tolist())


def hazards_of_mean(fields: Fields, key: str, length: float, window: int) -> tuple[float, ...]:
    """The one probability of all positions with which rounds of the window emit `length` tokens on average.

    Raises:
        TraceFormatError: a length that no round of the window has.
    """
    if not 1 <= length <= window + 1:
        raise fields.error(key, f"must lie between 1 and the window and one, {window + 1} (--window)", length)
    return (constant_hazard(length - 1, np.array([window])),)


def drafting_share(learned: Learned, *, tokens: int, requests: int, drafts: float, accepted: float) -> float:
    """Share of the steps after the prefill that drafted anything, from totals; noted if it is not all.

    Args:
        learned: takes note.
        tokens: of all answers.
        requests: of them, one token each from the prefill.
        drafts: steps that drafted.
        accepted: drafted tokens that stayed.
    """
    plain = tokens - requests - accepted - drafts
    if plain <= 0 or drafts <= 0:
        return 1.0
    learned.remark(_PLAIN.format(plain / (plain + drafts)))
    return drafts / (plain + drafts)


def note_short_drafts(learned: Learned, *, drafted: float, drafts: float, window: int) -> None:
    """Note drafts shorter than the window; their rates are those of drafts, whatever ended them."""
    if drafts > 0 and drafted < drafts * window:
        learned.remark(_SHORT.format(drafted / drafts, window))


def stated_requests(
    learned: Learned, name: str, fields: Fields, stem: str, lengths: Lengths | None
) -> Iterator[RoundsRequest]:
    """Requests without rounds: those of the log, or as many as the user states.

    Raises:
        TraceFormatError: the log does not know its requests, and nobody states them; or there is none with an answer.
    """
    if lengths is None:
        load = learned.options.load
        if load is None:
            rule = "must be stated, the log does not know them: --requests N --output-tokens M"
            raise fields.error("requests", rule, "nothing")
        learned.use_load()
        requests = load.requests
        lengths = even_lengths(fields, requests, requests * load.output_tokens, requests * load.prompt_tokens)
    empty = sum(1 for tokens in lengths.outputs if not tokens)
    if empty == len(lengths.outputs):
        raise fields.error("requests", "must hold an answer of at least one token", empty)
    learned.note(EMPTY, empty)
    for number, (prompt, output) in enumerate(zip(lengths.prompts, lengths.outputs, strict=True), start=1):
        if output:
            yield RoundsRequest(
                request_id=f"{stem}/{number}", tag="", prompt_tokens=prompt, num_tokens={name: output}, rounds={}
            )


def _even(total: int, parts: int) -> list[int]:
    each, more = divmod(total, parts)
    return [each + (part < more) for part in range(parts)]
