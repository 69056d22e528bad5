"""Acceptance that a log states for all its requests together: rates per position or a mean, and requests to run it on.

Letters: W the window.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...meta import MOST
from ...rounds.meta import StatedAcceptance
from ...rounds.rounds import RoundsRequest
from ..drafters import DRAFTER
from ..ongoing import Ongoing
from ..options import MOST_REQUESTS
from ..reading.agreement import check_equal
from ..reading.fields import Fields
from ..responses import EMPTY, stem
from .drawing import constant_hazard

_ROUNDED = 0.0006  # logs round rates to three decimals, so that two that are equal may seem to rise
_PLAIN = "{:.2%} of the steps drafted nothing, as tokens, drafts and accepted tokens have it: drawn as often"
_TREE = "steps were proposed more tokens than chains of {} have: trees, of which the deepest path counts"
_SHORT = "drafts were {:.2f} tokens long on average, of {}: each is drawn as a whole one, and a refusal may be an end"


# Of each request the tokens of its prompt, 0 if unknown, and of its answer; one without any is left out.
Lengths = Sequence[tuple[int, int]]


def even_lengths(fields: Fields, requests: int, output_tokens: int, prompt_tokens: int) -> Lengths:
    """So many requests that have these tokens in all, each as many as any other; raises TraceFormatError."""
    if requests > MOST_REQUESTS:
        raise fields.error("requests", f"must be at most {MOST_REQUESTS}", requests)
    if max(output_tokens, prompt_tokens) > MOST * requests:
        rule = f"must be at most {MOST} of each of the {requests} requests"
        raise fields.error("tokens", rule, max(output_tokens, prompt_tokens))
    return list(zip(_even(prompt_tokens, requests), _even(output_tokens, requests), strict=True))


def lengths_of_benchmark(run: Fields) -> Lengths | None:
    """Lengths that the result of a serving benchmark has: each by itself, or all alike from totals; None if neither.

    Raises:
        TraceFormatError: lists of unequal length, counts that are none.
    """
    if "output_lens" in run:
        outputs = run.counts("output_lens", least=0).tolist()
        prompts = run.counts("input_lens", least=0).tolist() if "input_lens" in run else [0] * len(outputs)
        check_equal(run, "total_output_tokens", (sum(outputs),), "the sum of output_lens")
        if run.count("completed", least=0, default=0) > len(outputs):
            raise run.error(
                "completed", f"must be at most the {len(outputs)} answers of output_lens", run.values["completed"]
            )
        if len(prompts) != len(outputs):
            raise run.error("input_lens", f"must hold one entry for each of the {len(outputs)} answers", len(prompts))
        return list(zip(prompts, outputs, strict=True))
    requests = run.count("completed", least=0, default=0)
    tokens = run.known_count("total_output_tokens", least=0)
    if not requests or not tokens:
        return None
    return even_lengths(run, requests, tokens, run.count("total_input_tokens", least=0, default=0))


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
        rule = f"must not exceed the rate before it, {rates[place - 1]:g}: drafts are kept from their beginning"
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
        raise fields.error(key, f"must lie between 1 and the window and one, {window + 1} (`windows`)", length)
    return (constant_hazard(length - 1, np.array([window])),)


def drafting_share(ongoing: Ongoing, lengths: Lengths | None, drafts: float | None, accepted: float | None) -> float:
    """Share of the steps after the prefill that drafted anything, 1 where the log does not say; noted if it is not all.

    Args:
        ongoing: takes note.
        lengths: of the requests; the prefill gives one token of each answer.
        drafts: steps that drafted.
        accepted: drafted tokens that stayed.
    """
    if lengths is None or not drafts or accepted is None:
        return 1.0
    plain = sum(tokens - 1 for _, tokens in lengths if tokens) - accepted - drafts
    if plain <= 0:
        return 1.0
    note_plain(ongoing, plain / (plain + drafts))
    return drafts / (plain + drafts)


def note_plain(ongoing: Ongoing, share: float) -> None:
    """Note the share of the steps that drafted nothing."""
    ongoing.findings.remark(_PLAIN.format(share))


def settled_window(
    ongoing: Ongoing, name: str, fields: Fields, proposed: frozenset[int] | None, depth: int | None
) -> int:
    """Tokens on the deepest path of a draft, as the user or else the log says.

    Args:
        ongoing: takes note of a tree.
        name: of the drafter.
        fields: where all of it stood, for errors.
        proposed: numbers of tokens that a step may have proposed, by the log's rates; None: it has none.
        depth: as the log's settings or counts have it; None: it does not say.

    Raises:
        TraceFormatError: nobody says, or the log and the user contradict each other.
    """
    if depth is None and proposed is not None and len(proposed) == 1:
        (depth,) = proposed
    most = depth if proposed is None else max(proposed)
    window = ongoing.drafters.window_of(name, fields, depth)
    if most is not None and window > most:
        raise fields.error("window", f"must be at most the {most} tokens that a step proposed (`windows`)", window)
    if (proposed is not None and window not in proposed) or (depth is not None and window < depth):
        ongoing.findings.remark(_TREE.format(window))
    return window


def note_short_drafts(ongoing: Ongoing, *, drafted: float, drafts: float, window: int) -> None:
    """Note drafts shorter than the window; their rates are those of drafts, whatever ended them."""
    if drafts > 0 and drafted < drafts * window:
        ongoing.findings.remark(_SHORT.format(drafted / drafts, window))


class StatedLog:
    """A log that states acceptance for all its requests together, of one drafter that is not named.

    Args:
        files: one; raises TraceFormatError for more, since they would be logs of other requests.
        ongoing: takes note.
        several: whether there may be more, which tell of one server in the order of time.
    """

    def __init__(self, files: Sequence[Path], ongoing: Ongoing, *, several: bool = False) -> None:
        if len(files) > 1 and not several:
            raise TraceFormatError(files[1], "file", "must be the only one of this format", f"{len(files)} files")
        self.path = files[-1]
        self.name = ongoing.drafters.name(DRAFTER, *files, prefilled=True, settled=True)
        self._ongoing = ongoing

    def requests(
        self, fields: Fields, lengths: Lengths | None, hazards: tuple[float, ...], *, window: int, drafting: float = 1.0
    ) -> Iterator[RoundsRequest]:
        """Requests without rounds: those of the log, or as many as the user states.

        Args:
            fields: where all of it stood, for errors.
            lengths: of the requests, None if the log does not know them.
            hazards: probability of agreement by depth, among rounds that got there; the last holds for deeper ones.
            window: tokens drafted in a round.
            drafting: share of the steps that draft at all.

        Raises:
            TraceFormatError: another window than the log's own; the log does not know its requests, and nobody
                states them; or there is none with an answer.
        """
        stated = StatedAcceptance(hazards=hazards, drafting=drafting)
        self._ongoing.drafters.state(self.name, fields, stated, window)
        lengths = self._stated_lengths(fields) if lengths is None else lengths
        empty = sum(1 for _, tokens in lengths if not tokens)
        if empty == len(lengths):
            raise fields.error("requests", "must hold an answer of at least one token", empty)
        self._ongoing.findings.note(EMPTY, empty)
        for number, (prompt, output) in enumerate(lengths, start=1):
            if output:
                request_id, num_tokens = f"{stem(self.path)}/{number}", {self.name: output}
                yield RoundsRequest(request_id=request_id, prompt_tokens=prompt, num_tokens=num_tokens, rounds={})

    def _stated_lengths(self, fields: Fields) -> Lengths:
        """Those that the user states."""
        load = self._ongoing.options.load
        if load is None:
            rule = "must be stated, the log does not know them: `requests` N `output_tokens` M"
            raise fields.error("requests", rule, "nothing")
        self._ongoing.findings.mattered.add("load")
        requests = load.requests
        return even_lengths(fields, requests, requests * load.output_tokens, requests * load.prompt_tokens)


def _even(total: int, parts: int) -> list[int]:
    each, more = divmod(total, parts)
    return [each + (part < more) for part in range(parts)]
