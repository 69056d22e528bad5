"""vLLM's acceptance of each request, step by step (`--per-request-spec-decode-metrics detailed`, vLLM PR 48915).

One object a line: a response (or its last chunk), whose `metrics.speculative_decoding` has `per_step_accepted` and
`per_step_drafted`, or that object alone, or as `speculative_decoding` or `spec_decode_metrics`; or a response whose
first choice has it as `speculative_decoding_stats`, as the drafts of that change did. `usage` gives prompt and output
tokens, `id` or `request_id` the name. A histogram alone (`summary`) does not say in which order steps came: it is
refused here, and `vllm-summary` reads it.

A step in which nothing was drafted (a *plain* one) emits one token and is not listed. An answer of known length says
how many there were: its tokens less those of the listed steps. Nothing says where. Every order of listed and plain
steps is taken to be equally likely, which assumes the least; what stands where is drawn, and marked as placed.
"""

import numpy as np
from numpy.typing import NDArray

from ...rounds.rounds import Rounds, RoundsRequest
from ..format import Format, described
from ..reading.fields import Fields
from ..responses import Responses, by_response, usage_of
from ..step_rounds import check_drafted, rounds_at, starts_of
from ..vllm_responses import ACCEPTED, alone, check_steps, is_plain, metrics_of

MOST_PLAIN = 2**24  # of one answer: more is no answer, and would fill the memory
_DRAFTED = "per_step_drafted"
_UNLISTED = "steps drafted nothing and are not listed; they were placed by a draw"
_ALONE = "steps drafted nothing and are not listed, in answers that list no step"


def _sees(found: Fields) -> bool:
    metrics = metrics_of(found)
    return is_plain(found) if metrics is None else ACCEPTED in metrics


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id, metrics = file.name_of(line), metrics_of(line)
    if metrics is None:
        return alone(line, request_id)
    if ACCEPTED not in metrics:
        rule = "must be there (`detailed`): a histogram does not say in which order steps came (take vllm-summary)"
        raise metrics.error(ACCEPTED, rule, "nothing")
    return request_of_steps(file, metrics, usage_of(line), request_id)


def request_of_steps(file: Responses, metrics: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response that lists its steps; None if its answer has no token.

    Args:
        file: of the response.
        metrics: the object that lists the steps.
        usage: the object that counts the tokens of its prompt and answer; either may be missing.
        request_id: of the response.

    Raises:
        TraceFormatError: steps and tokens that contradict each other.
    """
    if usage.known_count("completion_tokens", least=0) == 0:
        return None
    name, after_first = file.drafter(), _tokens_after_first(usage, metrics)
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=usage.count("prompt_tokens", least=0, default=0),
        num_tokens={name: after_first + 1},
        rounds={name: _rounds(file, metrics, request_id, name, after_first)},
    )


def _tokens_after_first(usage: Fields, metrics: Fields) -> int:
    """Tokens of the answer but for the prefill's; raises TraceFormatError for a number that does not fit the steps."""
    accepted = metrics.counts(ACCEPTED, least=0)
    explained = int(accepted.sum()) + len(accepted)
    told = usage.count("completion_tokens", least=0) - 1 if "completion_tokens" in usage else explained
    if explained and told <= explained - int(accepted[-1]) - 1:
        rule = f"must be at least what its steps emit, {explained + 1} with the prefill's, but for the last step"
        raise usage.error("completion_tokens", rule, told + 1)
    if told - explained > MOST_PLAIN:
        rule = f"must be at most {MOST_PLAIN} more than what its steps emit, {explained + 1} with the prefill's"
        raise usage.error("completion_tokens", rule, told + 1)
    return max(told, 0)


def _rounds(file: Responses, metrics: Fields, request_id: str, name: str, after_first: int) -> Rounds:
    """The listed steps, and among them the plain ones that the tokens of the answer tell of."""
    accepted, drafted = metrics.counts(ACCEPTED, least=0), metrics.counts(_DRAFTED, least=0)
    check_drafted(metrics, accepted, drafted)
    check_steps(metrics, accepted, drafted)
    num_plain = max(after_first - int(accepted.sum()) - len(accepted), 0)
    file.ongoing.findings.note(_UNLISTED if len(accepted) else _ALONE, num_plain)
    placed = None
    if num_plain and len(accepted):
        placed = place_plain_steps(len(accepted), num_plain, file.ongoing.generator(request_id))
    plain = np.arange(len(accepted) + num_plain) >= len(accepted) if placed is None else placed
    accepted, drafted = with_plain_steps(accepted, plain), with_plain_steps(drafted, plain)
    start, length = starts_of(accepted + 1) + 1, after_first + 1
    return rounds_at(file.ongoing, name, metrics, start, accepted, length=length, drafted=drafted, placed=placed)


def place_plain_steps(num_listed: int, num_plain: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """`[R + P]` which of R listed and P plain steps are plain, all orders equally likely.

    Args:
        num_listed: R.
        num_plain: P, 0 to 2^24.
        generator: draws the order.
    """
    size = num_listed + num_plain
    plain = np.zeros(size, np.bool_)
    plain[generator.permutation(size)[:num_plain]] = True
    return plain


def with_plain_steps(counts: NDArray[np.int64], plain: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`[R + P]` counts of all steps, 0 in plain ones, from `[R]` those of the listed ones."""
    spread = np.zeros(len(plain), np.int64)
    spread[~plain] = counts
    return spread


VLLM_DETAILED = Format(**described("vllm-detailed"), read=by_response(_parse), sees=_sees)
