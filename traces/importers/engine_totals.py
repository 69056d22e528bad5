"""Engines' counts of each request: llama.cpp's totals, histograms or means of SGLang and TensorRT-LLM.

llama.cpp's `timings` have `predicted_n` tokens of the answer, `prompt_n` and `cache_n` of the prompt, `draft_n`,
`draft_n_accepted`, `prompt_ms`, `predicted_ms`; its server's log has the same in lines. They lack the number of steps,
but every step emits the accepted tokens and one token of the target's own, and the prefill emits the first: steps =
tokens - 1 - accepted. Where drafts of a window would not fit into so few steps, there were more of them and the last
one was cut by the end of the answer. The window is `--spec-draft-n-max` of the server. A request without a field of
drafts or acceptance is one of the target alone; other names of fields are an error: they may be those of another
version.

SGLang's `meta_info`, of the response or its first choice, has `spec_verify_ct` (steps), `completion_tokens`, and
`spec_correct_drafts_histogram`, which older versions call `spec_accept_histogram`. The drafted tokens are
`spec_num_proposed_drafts` (older `spec_draft_token_num`, or `spec_proposed_drafts`), or by step
`spec_proposed_drafts_histogram`, which counts where depth is adapted: there the others count the greatest depth for
every step. For chains the window is the largest per step of any response of the file: servers may draft less sometimes.
A tree proposes more tokens than its deepest path has: where every histogram of the file ends before the tokens proposed
in a step, it may be one (or a chain that no step kept whole), and a stated window must give the depth of drafts.
Without a histogram nothing shows a tree: drafts are chains unless the window is less than the proposed tokens. A
response without `spec_verify_ct` is one of the target alone. Chat completions may have the same in
`sglext.spec_tokens_details`. Drafts of DSpark may be cut before they are checked: `spec_cap_lens_histogram` counts what
was left, and the target's own token. `e2e_latency` has the seconds of the answer, from its
arrival, and `response_sent_to_client_ts` its end.

TensorRT-LLM's choices have `speculative_decoding` with `acceptance_histogram`, `num_spec_steps`, `total_draft_tokens`
and `num_spec_tokens` (the window); or `avg_decoded_tokens_per_iter` alone, whose iterations count the prefill, and then
a window must be given. `usage` counts tokens.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import TraceFormatError
from ..rounds.rounds import TARGET_ALONE, TREES, RoundsRequest
from .format import Format, described
from .importing import Ongoing
from .reading import Fields, read_objects, refuse_pipe
from .responses import (
    LOADED,
    Parse,
    Responses,
    answers_of,
    by_response,
    completion_tokens,
    first_choice,
    read_responses,
    usage_of,
    within,
)
from .totals import Counted, Ints, counted_request, draw_rounds, of_histogram

_LONGEST_MS = 1e12  # of a prompt or an answer: some thirty years
_OF_DRAFTS = re.compile("draft|accept|spec", re.IGNORECASE)


def _sees_llamacpp(found: Fields) -> bool:
    timings = within(found, "timings")
    return timings is not None and "predicted_n" in timings


def _parse_llamacpp(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id = file.name_of(line)
    timings = line.nested("timings")
    tokens = (timings.count("predicted_n", least=0),)
    for place, key in ((usage_of(line), "completion_tokens"), (line, "tokens_predicted")):
        place.check_equal(key, tokens, "by timings.predicted_n")
    return request_of(file, timings, request_id)


def request_of(
    file: Responses, timings: Fields, request_id: str, *, window: int | None = None, drafts: int | None = None
) -> RoundsRequest | None:
    """The request of timings, of the target alone if nothing was drafted; None for an answer of no token.

    Timings have the names of responses. `window` is the most tokens drafted in a step, and `drafts` counts the steps
    that drafted: None if unknown, so that all are taken to.
    """
    tokens = timings.count("predicted_n", least=0)
    if not tokens:
        return None
    prompt_tokens = sum(timings.count(key, least=0, default=0) for key in ("prompt_n", "cache_n"))
    drafted = timings.known_count("draft_n", least=0)
    accepted = 0 if drafted is None else timings.count("draft_n_accepted", least=0)
    prompt_ms, answer_ms = (
        timings.rate(key, most=_LONGEST_MS) if key in timings else 0.0 for key in ("prompt_ms", "predicted_ms")
    )
    method, rounds = TARGET_ALONE, {}
    if drafted is None:
        for key in timings.values:
            if key in timings and _OF_DRAFTS.search(key):
                rule = "must stand beside draft_n and draft_n_accepted, which say what was drafted"
                raise timings.error(key, rule, "alone")
    else:
        method = file.drafter()
        if accepted > drafted:
            raise timings.error("draft_n_accepted", f"must be at most draft_n, {drafted}", accepted)
        window = file.ongoing.drafters.window_of(method, timings, window)
        steps = max(tokens - 1 - accepted, -(-drafted // window)) if drafts is None else drafts
        counted = Counted(num_tokens=tokens, num_steps=steps, num_accepted=accepted, num_drafted=drafted, window=window)
        rounds = {method: draw_rounds(file.ongoing, method, timings, request_id, counted)}
    measured = prompt_ms > 0 and answer_ms > 0
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=prompt_tokens,
        num_tokens={method: tokens},
        rounds=rounds,
        wall_s={method: (prompt_ms + answer_ms) / 1e3} if measured else {},
        prefill_s={method: prompt_ms / 1e3} if measured else {},
    )


LLAMACPP_TIMINGS = Format(**described("llamacpp-timings"), read=by_response(_parse_llamacpp), sees=_sees_llamacpp)


_STEPS, _TOKENS = "spec_verify_ct", "completion_tokens"
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_UNSTATED = (
    "must be stated, `windows` {}=K, since no histogram of the file goes beyond {}: a tree was proposed, or a chain "
    "that no step kept whole"
)
_BY_STEP, _CAPS = "spec_proposed_drafts_histogram", "spec_cap_lens_histogram"
_MEAN_LENGTH, _RATE = "spec_accept_length", "spec_accept_rate"
_KEPT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_ROUNDED = 0.01  # of a mean: versions print it with two decimals or all
_PLAIN_STEPS = "steps drafted nothing: answers have more tokens than the steps that are counted give"
_DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num", "spec_proposed_drafts")
_LATENCY, _SENT = "e2e_latency", "response_sent_to_client_ts"
_BESIDE = f"answers ran beside others, by {_SENT} and {_LATENCY}: their seconds hold what those took"


class _Proposed(NamedTuple):
    # proposed tokens per step of the request with most, if that is a whole number; None otherwise
    window: int | None
    longest: int | None  # most tokens that a step can keep, by the length of histograms; None without any
    beside: int  # answers that ran beside others, by the times of those that have them


def _proposed(path: Path) -> _Proposed:
    """Of a file that will be read again, which then raises for broken rules."""
    refuse_pipe(path)
    most: tuple[float, int] = 0.0, 0
    longest, spans = -1, []
    for line in read_objects(path, lambda _: None):
        try:
            metas = [meta for answer in answers_of(line) if (meta := _meta(answer)) is not None]
            for meta in metas:
                steps, drafted = meta.count(_STEPS, least=0, default=0), _first(meta, _DRAFTED)
                longest = max(longest, -1 if (found := _histogram(meta)) is None else len(found[1]) - 1)
                by_step = _by_step(meta)
                if by_step is not None:
                    most = max(most, (len(by_step) - 1, len(by_step) - 1))
                elif steps and drafted:
                    most = max(most, (drafted / steps, drafted // steps))
                spans += [] if (span := _span(meta)) is None else [span]
        except TraceFormatError:
            continue
    per_step, window = most
    window = window if window == per_step else 0
    return _Proposed(window or None, longest if longest >= 0 else None, _num_beside(spans))


def _first(meta: Fields, keys: Sequence[str]) -> int | None:
    """The count that versions call by one of these keys."""
    return next((meta.count(key, least=0) for key in keys if key in meta), None)


def _by_step(meta: Fields) -> Ints | None:
    """`[W + 1]` steps with 0, 1, ... proposed tokens, None if unknown.

    Where drafts are cut before they are checked, the lengths of what is left count: with the target's own token.
    """
    if meta.values.get("spec_cap_length") and not meta.values.get(_CAPS):
        raise meta.error(_CAPS, "must be there: drafts were cut before they were checked (spec_cap_length)", "nothing")
    found = meta.counts(_BY_STEP, least=0) if _BY_STEP in meta else np.zeros(0, np.int64)
    if _CAPS in meta and len(caps := meta.counts(_CAPS, least=0)):
        found = caps[1:]
    some = np.flatnonzero(found)
    return found[: some[-1] + 1] if len(some) and some[-1] else None


def _histogram(meta: Fields) -> tuple[str, Ints] | None:
    """(its key, `[W + 1]` steps that kept 0, 1, ... tokens), None without one."""
    return next(((key, meta.counts(key, least=0)) for key in _HISTOGRAMS if meta.values.get(key)), None)


def _sees_sglang(found: Fields) -> bool:
    meta = _meta(found)
    return meta is not None and _STEPS in meta


def _meta(line: Fields) -> Fields | None:
    found = within(line, "meta_info") or within(first_choice(line), "meta_info")
    return found or within(line, "sglext", "spec_tokens_details")


def _parse_sglang(proposed: _Proposed, file: Responses, line: Fields) -> RoundsRequest | None:
    meta = _meta(line)
    if meta is None:
        choice = first_choice(line)
        place = "meta_info" if choice is None else f"{choice.prefix.removeprefix(line.prefix)}meta_info"
        raise line.error(place, "must be there, it holds spec_verify_ct and completion_tokens", "nothing")
    request_id = file.name_of(line, meta)
    usage = usage_of(line)
    tokens = (meta if _TOKENS in meta else usage).count(_TOKENS, least=0)
    if not tokens:
        return None
    counting = meta if "prompt_tokens" in meta else usage
    steps = meta.count(_STEPS, least=0, default=0)
    if steps:
        counted = _counted(file.ongoing, file.drafter(), meta, tokens, steps, proposed)
        _check_mean(meta, _MEAN_LENGTH, counted)
        file.ongoing.findings.note(_PLAIN_STEPS, _num_plain(counted))
        return _timed(file, meta, counted_request(file, counting, meta, request_id, counted))
    for key in (*_HISTOGRAMS, *_DRAFTED, _MEAN_LENGTH, _RATE, *_KEPT):
        told = meta.values.get(key)
        if any(told) if isinstance(told, list) else told:
            raise meta.error(key, f"must stand beside {_STEPS}, the steps that it is of", told)
    prompt_tokens = counting.count("prompt_tokens", least=0, default=0)
    num_tokens = {TARGET_ALONE: tokens}
    alone = RoundsRequest(request_id=request_id, prompt_tokens=prompt_tokens, num_tokens=num_tokens, rounds={})
    return _timed(file, meta, alone)


def _timed(file: Responses, meta: Fields, request: RoundsRequest | None) -> RoundsRequest | None:
    """The request of one method with the seconds of its answer, if known."""
    if request is None or _LATENCY not in meta:
        return request
    _span(meta)  # raises
    file.ongoing.findings.remark(LOADED)
    return replace(request, wall_s=dict.fromkeys(request.num_tokens, meta.seconds(_LATENCY)))


def _span(meta: Fields) -> tuple[float, float] | None:
    """(begin, end) of an answer, None if unknown; raises TraceFormatError for a broken stamp or latency."""
    if _SENT not in meta or _LATENCY not in meta:
        return None
    sent = meta.rate(_SENT, most=_LONGEST_MS)
    return sent - meta.seconds(_LATENCY), sent


def _num_beside(spans: Sequence[tuple[float, float]]) -> int:
    """How many of these (begin, end) have a part in common with another."""
    beside, latest, last = set[int](), -inf, -1
    for number, (begin, end) in enumerate(sorted(spans)):
        if begin < latest:
            beside |= {last, number}
        if end > latest:
            latest, last = end, number
    return len(beside)


def _check_mean(fields: Fields, key: str, counted: Counted, *, of_others: bool = False) -> None:
    """Refuse a mean of another number of tokens than the steps gave or the answer has, which its end may cut.

    It is less if it is `of_others` beside the steps, which wrote one token each.
    """
    if key not in fields:
        return
    told, steps, given = fields.rate(key, most=1e6), counted.num_steps, counted.num_steps + counted.num_accepted
    least, most = min(counted.num_tokens, given) - 1, max(counted.num_tokens, given) + 1
    is_less = told * steps < least * (1 - _ROUNDED) and not of_others
    if told and (is_less or told * steps > most * (1 + _ROUNDED)):
        about = f"{'at most' if of_others else 'about'} {counted.num_tokens / steps:.4g}"
        rule = f"must be {about}, {counted.num_tokens} tokens by {steps} steps"
        raise fields.error(key, rule, told)


def _num_plain(counted: Counted) -> int:
    """Steps beyond those that a log counts, which verified nothing."""
    return max(counted.num_emitted - counted.num_steps - counted.num_accepted, 0)


def _counted(ongoing: Ongoing, name: str, meta: Fields, tokens: int, steps: int, proposed: _Proposed) -> Counted:
    """The counts of a response, with the window of the file."""
    drafted, window, by_step = _first(meta, _DRAFTED), proposed.window, _by_step(meta)
    found, kept = _histogram(meta), _first(meta, _KEPT)
    if found is not None:
        kept = int(found[1] @ np.arange(len(found[1])))
        for told in _KEPT:
            meta.check_equal(told, (kept,), f"the tokens that {found[0]} adds up to")
    if kept is not None and drafted:
        meta.check_mean(_RATE, kept / drafted, f"{kept} correct of {drafted} proposed tokens")
    deepest = None if drafted is None else drafted / steps
    if by_step is not None:
        drafted, deepest = int(by_step @ np.arange(len(by_step))), len(by_step) - 1
        window = len(by_step) - 1 if window is None else window
    stated = ongoing.options.windows.get(name)
    if stated is not None and deepest is not None and deepest > stated:
        ongoing.findings.remark(TREES.format(name))
        drafted = by_step = None
    if found is None:
        ongoing.findings.forms.add("request means")
        if tokens - 1 < steps:
            raise meta.error(_STEPS, f"must be less than the {tokens} tokens of the answer", steps)
        kept = kept or tokens - 1 - steps  # 0.5.5 counts none of its n-grams'
        return Counted(num_tokens=tokens, num_steps=steps, num_accepted=kept, num_drafted=drafted, window=window)
    ongoing.findings.forms.add("histograms")
    key, histogram = found
    counted = of_histogram(histogram, num_tokens=tokens, num_drafted=drafted, window=window)
    counted = replace(counted, drafted_histogram=by_step, keys=(key, _CAPS if meta.values.get(_CAPS) else _BY_STEP))
    if counted.num_steps != steps:
        rule = f"must count each of the {steps} steps of {_STEPS} once, by the tokens that it kept"
        raise meta.error(key, rule, f"{counted.num_steps} steps")
    if stated is None and window is not None and proposed.longest is not None and window > proposed.longest:
        raise meta.error("window", _UNSTATED.format(name, proposed.longest), f"{window} tokens proposed in a step")
    return counted


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """A file is read twice, since only all of it shows the window, and which answers ran together."""

    def parse_of(path: Path) -> Parse:
        proposed = _proposed(path)
        ongoing.findings.note(_BESIDE, proposed.beside)
        return partial(_parse_sglang, proposed)

    return read_responses(files, ongoing, parse_of)


SGLANG_META = Format(**described("sglang-meta"), read=_read, sees=_sees_sglang)


_AS_LONG = "answers have no count of tokens of their own: each is taken to be as long as what its steps emit"
_HISTOGRAM, _MEAN = "acceptance_histogram", "avg_decoded_tokens_per_iter"


def _sees_trtllm(found: Fields) -> bool:
    choice = first_choice(found)
    return choice is not None and (_MEAN in choice or within(choice, "speculative_decoding") is not None)


def _parse_trtllm(any_statistics: bool, file: Responses, line: Fields) -> RoundsRequest | None:
    file.drafter()
    request_id, choice = file.name_of(line), first_choice(line)
    if choice is None or not _sees_trtllm(line):
        rule = f"must have speculative_decoding or {_MEAN}"
        field = "choices" if choice is None else choice.prefix.removeprefix(line.prefix).rstrip(".")
        raise line.error(field, rule, "no choice" if choice is None else "neither")
    statistics = within(choice, "speculative_decoding")
    file.ongoing.findings.note(_AS_LONG, completion_tokens(line) is None)
    counted = _of_mean(line, choice) if statistics is None else _of_statistics(line, statistics)
    if statistics is not None:
        _check_mean(choice, _MEAN, counted, of_others=True)
    if silent := statistics is None and any_statistics and not counted.num_accepted:
        counted = replace(counted, num_drafted=0, window=1)  # statistics are left out where nothing was drafted
    file.ongoing.findings.note(_PLAIN_STEPS, _num_plain(counted))
    file.ongoing.findings.forms.add("histograms" if silent or statistics is not None else "request means")
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
    statistics.check_equal("total_accepted_draft_tokens", (accepted,), f"the tokens that {_HISTOGRAM} adds up to")
    if drafted := counted.num_drafted:
        why = f"{accepted} accepted of {drafted} drafted tokens"
        statistics.check_mean("acceptance_rate", accepted / drafted, why)
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


def _read_trtllm(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """A file is read twice, since only all of it shows whether its server gives statistics."""

    def parse_of(path: Path) -> Parse:
        refuse_pipe(path)
        choices = (first_choice(line) for line in read_objects(path, lambda _: None))
        return partial(_parse_trtllm, any(within(choice, "speculative_decoding") for choice in choices))

    return read_responses(files, ongoing, parse_of)


TRTLLM = Format(**described("trtllm"), read=_read_trtllm, sees=_sees_trtllm)
