"""SGLang's counts of each request (`meta_info` of its responses): a histogram of accepted tokens, or only their mean.

One response an object: `meta_info`, or that of the first choice, has `spec_verify_ct` (steps), `completion_tokens`, and
`spec_correct_drafts_histogram`, which older versions call `spec_accept_histogram`. What was drafted is
`spec_num_proposed_drafts` (older `spec_draft_token_num`, or `spec_proposed_drafts`), or by step
`spec_proposed_drafts_histogram`, which holds where depth is adapted: there the others count the greatest depth for
every step. For chains the window is that by
the step. A tree proposes more tokens than its deepest path has: where the histogram ends before the tokens proposed in
a step, it may be one (or a chain that no step kept whole), and a stated window has to say how deep drafts were. Without
a histogram nothing shows a tree: drafts are chains unless the window is less than what was proposed. A response without
`spec_verify_ct` is one of the target alone.
"""

from dataclasses import replace

import numpy as np

from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..responses import Responses, by_response, first_choice, usage_of, within
from .counted import Counted, counted_request, of_histogram
from .drawing import Ints

_STEPS, _TOKENS = "spec_verify_ct", "completion_tokens"
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_TREES = "requests were proposed more tokens than chains of --window have: trees, of which the deepest path counts"
_UNSTATED = (
    "must be stated, `windows` {}=K, since the histogram ends at {}: a tree was proposed, or a chain that no step kept "
    "whole"
)
_PROPOSED = "spec_proposed_drafts_histogram"
_DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num", "spec_proposed_drafts")


def _sees(found: Fields) -> bool:
    meta = _meta(found)
    return meta is not None and _STEPS in meta


def _meta(line: Fields) -> Fields | None:
    return within(line, "meta_info") or within(first_choice(line), "meta_info")


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    meta = _meta(line)
    if meta is None:
        raise line.error("meta_info", "must be there, in the response or in its first choice", "nothing")
    request_id = file.name_of(line, meta)
    counting = meta if _TOKENS in meta else usage_of(line)
    tokens = counting.count(_TOKENS, least=0)
    if not tokens:
        return None
    steps = meta.count(_STEPS, least=0, default=0)
    drafted = next((meta.count(key, least=0) for key in _DRAFTED if key in meta), None)
    if steps:
        counted = _counted(file.ongoing, file.drafter(), meta, tokens, steps, drafted)
        return counted_request(file, counting, meta, request_id, counted)
    prompt_tokens = counting.count("prompt_tokens", least=0, default=0)
    return RoundsRequest(
        request_id=request_id, prompt_tokens=prompt_tokens, num_tokens={TARGET_ALONE: tokens}, rounds={}
    )


def _counted(ongoing: Ongoing, name: str, meta: Fields, tokens: int, steps: int, drafted: int | None) -> Counted:
    """What was counted; the window is what was drafted in a step, if that is one and the same in all and no tree's."""
    proposed = _proposed(meta)
    window: int | None
    if proposed is not None:
        window, drafted = len(proposed) - 1, int(proposed @ np.arange(len(proposed)))
    else:
        window = drafted // steps if drafted and not drafted % steps else None
    stated = ongoing.options.windows.get(name)
    most = drafted if proposed is None or window is None else window * steps
    if stated is not None and most is not None and most > stated * steps:
        ongoing.findings.note(_TREES)
        drafted = proposed = None
    key = next((key for key in _HISTOGRAMS if key in meta), None)
    if key is None:
        ongoing.findings.forms.add("request means")
        if tokens - 1 < steps:
            raise meta.error(_STEPS, f"must be less than the {tokens} tokens of the answer", steps)
        return Counted(
            num_tokens=tokens, num_steps=steps, num_accepted=tokens - 1 - steps, num_drafted=drafted, window=window
        )
    ongoing.findings.forms.add("histograms")
    histogram = meta.counts(key, least=0)
    counted = of_histogram(histogram, num_tokens=tokens, num_drafted=drafted, window=window)
    counted = replace(counted, drafted_histogram=proposed)
    if counted.num_steps != steps:
        raise meta.error(key, f"must add up to the {steps} steps of {_STEPS}", counted.num_steps)
    if stated is None and window is not None and window >= len(histogram):
        raise meta.error("window", _UNSTATED.format(name, len(histogram) - 1), f"{window} tokens proposed in a step")
    return counted


def _proposed(meta: Fields) -> Ints | None:
    """`[W + 1]` steps that were proposed 0, 1, ... tokens, None if the response does not say."""
    found = meta.counts(_PROPOSED, least=0) if _PROPOSED in meta else np.zeros(0, np.int64)
    some = np.flatnonzero(found)
    return found[: some[-1] + 1] if len(some) and some[-1] else None


SGLANG_META = Format(**described("sglang-meta"), read=by_response(_parse), sees=_sees)
