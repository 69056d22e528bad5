"""TensorRT-LLM's statistics of each response: a histogram of accepted tokens, or only their mean.

One response an object: each choice has `speculative_decoding` with `acceptance_histogram`, `num_spec_steps`,
`total_draft_tokens` and `num_spec_tokens` (the window); or `avg_decoded_tokens_per_iter` alone, whose iterations count
the prefill, and then a window must be given. `usage` counts tokens.
"""

from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..reading.agreement import check_equal, check_mean
from ..reading.fields import Fields
from ..responses import Responses, by_response, completion_tokens, first_choice, usage_of, within
from .counted import Counted, counted_request, of_histogram

_AS_LONG = "answers have no count of tokens of their own: each is taken to be as long as what its steps emit"
_HISTOGRAM, _MEAN = "acceptance_histogram", "avg_decoded_tokens_per_iter"


def _sees(found: Fields) -> bool:
    choice = first_choice(found)
    return choice is not None and (_MEAN in choice or within(choice, "speculative_decoding") is not None)


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    file.drafter()
    request_id, choice = file.name_of(line), first_choice(line)
    if choice is None or not _sees(line):
        rule = f"must have speculative_decoding or {_MEAN}"
        field = "choices" if choice is None else choice.prefix.removeprefix(line.prefix).rstrip(".")
        raise line.error(field, rule, "no choice" if choice is None else "neither")
    statistics = within(choice, "speculative_decoding")
    file.ongoing.findings.note(_AS_LONG, completion_tokens(line) is None)
    counted = _of_mean(line, choice) if statistics is None else _of_statistics(line, statistics)
    file.ongoing.findings.forms.add("request means" if statistics is None else "histograms")
    return counted_request(file, usage_of(line), statistics or choice, request_id, counted)


def _of_statistics(line: Fields, statistics: Fields) -> Counted:
    counted = of_histogram(
        statistics.counts(_HISTOGRAM, least=0),
        num_tokens=completion_tokens(line),
        num_drafted=statistics.known_count("total_draft_tokens", least=0),
        window=statistics.known_count("num_spec_tokens", least=1),
    )
    steps = statistics.count("num_spec_steps", least=0, default=counted.num_steps)
    if steps != counted.num_steps:
        raise statistics.error(_HISTOGRAM, f"must add up to num_spec_steps, {steps}", counted.num_steps)
    accepted = counted.num_accepted
    check_equal(statistics, "total_accepted_draft_tokens", (accepted,), f"the tokens that {_HISTOGRAM} adds up to")
    if drafted := counted.num_drafted:
        why = f"{accepted} accepted of {drafted} drafted tokens"
        check_mean(statistics, "acceptance_rate", accepted / drafted, why)
    return counted


def _of_mean(line: Fields, choice: Fields) -> Counted:
    tokens, mean = completion_tokens(line), choice.rate(_MEAN, most=1e6)
    if tokens is None:
        rule = f"must be there beside {_MEAN}, and of one answer alone (n = 1)"
        raise line.error("usage.completion_tokens", rule, "nothing")
    steps = max(round(tokens / mean) - 1, 0) if mean >= 1 else -1
    if not 0 <= steps <= max(tokens - 1, 0):
        raise choice.error(_MEAN, f"must lie between 1 and the {tokens} tokens of the answer", mean)
    return Counted(num_tokens=tokens, num_steps=steps, num_accepted=max(tokens - 1 - steps, 0))


TRTLLM = Format(**described("trtllm"), read=by_response(_parse), sees=_sees)
