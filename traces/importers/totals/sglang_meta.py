"""SGLang's counts of each request (`meta_info` of its responses): a histogram of accepted tokens, or only their mean.

One response an object: `meta_info`, or that of the first choice, has `spec_verify_ct` (steps), `completion_tokens`, and
`spec_correct_drafts_histogram`, which older versions call `spec_accept_histogram`. What was drafted is
`spec_num_proposed_drafts` (older `spec_draft_token_num`, or `spec_proposed_drafts`), or by step
`spec_proposed_drafts_histogram`, which holds where depth is adapted: there the others count the greatest depth for
every step. For chains the window is that by the step, at most in any response of the file: servers may draft less now
and then. A tree proposes more tokens than its
deepest path has: where every histogram of the file ends before the tokens proposed in a step, it may be one (or a chain
that no step kept whole), and a stated window has to say how deep drafts were. Without a histogram nothing shows a tree:
drafts are chains unless the window is less than what was proposed. A response without `spec_verify_ct` is one of the
target alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import TraceFormatError
from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.lines import refuse_pipe
from ..reading.objects import read_objects
from ..responses import Responses, answers_of, first_choice, read_responses, usage_of, within
from .counted import Counted, counted_request, of_histogram
from .drawing import Ints

_STEPS, _TOKENS = "spec_verify_ct", "completion_tokens"
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_TREES = "requests were proposed more tokens than chains of --window have: trees, of which the deepest path counts"
_UNSTATED = (
    "must be stated, `windows` {}=K, since no histogram of the file goes beyond {}: a tree was proposed, or a chain "
    "that no step kept whole"
)
_BY_STEP = "spec_proposed_drafts_histogram"
_DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num", "spec_proposed_drafts")


class _Proposed(NamedTuple):
    """What all responses of a file show of drafts.

    Attributes:
        window: most tokens that one proposed by the step, if that is as many in each of its steps; None if not.
        longest: most tokens that a step can have kept by the length of a histogram; None without any.
    """

    window: int | None
    longest: int | None


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request an answer; a file is gone through twice, since only all of it shows the window."""
    return read_responses(files, ongoing, lambda path: partial(_parse, _proposed(path)))


def _proposed(path: Path) -> _Proposed:
    """Of a file that will be read again; what breaks a rule is left to whoever does."""
    refuse_pipe(path)
    most: tuple[float, int] = 0.0, 0
    longest = -1
    for line in read_objects(path, lambda _: None):
        try:
            metas = [meta for answer in answers_of(line) if (meta := _meta(answer)) is not None]
            for meta in metas:
                steps, drafted, key = meta.count(_STEPS, least=0, default=0), _drafted(meta), _histogram_key(meta)
                longest = max(longest, -1 if key is None else len(meta.counts(key, least=0)) - 1)
                by_step = _by_step(meta)
                if by_step is not None:
                    most = max(most, (len(by_step) - 1, len(by_step) - 1))
                elif steps and drafted:
                    most = max(most, (drafted / steps, drafted // steps))
        except TraceFormatError:
            continue
    per_step, window = most
    return _Proposed(window if window == per_step and window else None, longest if longest >= 0 else None)


def _drafted(meta: Fields) -> int | None:
    return next((meta.count(key, least=0) for key in _DRAFTED if key in meta), None)


def _by_step(meta: Fields) -> Ints | None:
    """`[W + 1]` steps that were proposed 0, 1, ... tokens, None if the response does not say."""
    found = meta.counts(_BY_STEP, least=0) if _BY_STEP in meta else np.zeros(0, np.int64)
    some = np.flatnonzero(found)
    return found[: some[-1] + 1] if len(some) and some[-1] else None


def _histogram_key(meta: Fields) -> str | None:
    return next((key for key in _HISTOGRAMS if key in meta), None)


def _sees(found: Fields) -> bool:
    meta = _meta(found)
    return meta is not None and _STEPS in meta


def _meta(line: Fields) -> Fields | None:
    return within(line, "meta_info") or within(first_choice(line), "meta_info")


def _parse(proposed: _Proposed, file: Responses, line: Fields) -> RoundsRequest | None:
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
        return counted_request(file, counting, meta, request_id, counted)
    prompt_tokens = counting.count("prompt_tokens", least=0, default=0)
    return RoundsRequest(
        request_id=request_id, prompt_tokens=prompt_tokens, num_tokens={TARGET_ALONE: tokens}, rounds={}
    )


def _counted(ongoing: Ongoing, name: str, meta: Fields, tokens: int, steps: int, proposed: _Proposed) -> Counted:
    """What was counted; the window is that of the file."""
    drafted, window, by_step = _drafted(meta), proposed.window, _by_step(meta)
    deepest = None if drafted is None else drafted / steps
    if by_step is not None:
        drafted, deepest = int(by_step @ np.arange(len(by_step))), len(by_step) - 1
        window = len(by_step) - 1 if window is None else window
    stated = ongoing.options.windows.get(name)
    if stated is not None and deepest is not None and deepest > stated:
        ongoing.findings.note(_TREES)
        drafted = by_step = None
    key = _histogram_key(meta)
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
    counted = replace(counted, drafted_histogram=by_step, keys=(key, _BY_STEP))
    if counted.num_steps != steps:
        rule = f"must count each of the {steps} steps of {_STEPS} once, by the tokens that it kept"
        raise meta.error(key, rule, f"{counted.num_steps} steps")
    if stated is None and window is not None and proposed.longest is not None and window > proposed.longest:
        raise meta.error("window", _UNSTATED.format(name, proposed.longest), f"{window} tokens proposed in a step")
    return counted


SGLANG_META = Format(**described("sglang-meta"), read=_read, sees=_sees)
