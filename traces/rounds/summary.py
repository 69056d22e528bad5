"""What an imported recording holds, as plain data: for `paceline trace inspect`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..folder import ROUNDS_FILES, size_of
from ..recording import Summary, by_tag
from .meta import DrafterInfo, RoundsMeta
from .rounds import TARGET_ALONE, Rounds, RoundsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """What was recorded of one method on some requests: a drafter with the target, or the target alone.

    Attributes:
        num_requests: that the method ran on.
        num_rounds: recorded, plain steps (nothing drafted) among them; 0 for the target alone.
        num_plain: of those, plain steps.
        num_placed: of those, rounds of which the log does not say where they stood.
        tokens_per_round: mean tokens accepted in a recorded round, plus the target's own, counted as logs count: also
            where it no longer stands in the text; None without rounds.
        censored_share: share of rounds that drafted whose draft was kept whole, 0 to 1; None without any.
        known_share: share of output positions that some round speaks of that was not placed, 0 to 1: where a round
            starts, if acceptance depends on that, else where one says whether the drafter writes the target's token;
            None without rounds.
        token_s: measured seconds of whole answers per output token; None if not measured.
        draft_s: mean seconds of drafting per round, over rounds that know them; None if none does.
        verify_s: mean seconds of the target's forward per round, over rounds that know them; None if none does.
    """

    num_requests: int
    num_rounds: int = 0
    num_plain: int = 0
    num_placed: int = 0
    tokens_per_round: float | None = None
    censored_share: float | None = None
    known_share: float | None = None
    token_s: float | None = None
    draft_s: float | None = None
    verify_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsGroup:
    """Requests of one tag, or of all tags.

    Attributes:
        num_requests: in the group.
        num_prompt_tokens: all together, as far as they are known.
        num_output_tokens: all together: the target's own text, or the first method's where the target never ran alone.
        methods: by drafter in level order; "" is the target alone, last, where its seconds were measured.
    """

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    methods: dict[str, MethodSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsSummary(Summary[RoundsMeta, RoundsGroup]):
    """An imported recording at a glance.

    Attributes:
        num_texts: requests whose output tokens are known.
    """

    num_texts: int


def summary_of(meta: RoundsMeta, requests: Sequence[RoundsRequest], path: Path | None) -> RoundsSummary:
    """Count and average an imported recording; `path` is where it was read from, if it was."""
    return RoundsSummary(
        meta=meta,
        total=_summarise_group(meta, requests),
        by_tag={tag: _summarise_group(meta, group) for tag, group in by_tag(requests).items()},
        num_texts=sum(1 for request in requests if request.output),
        size_bytes=size_of(path, ROUNDS_FILES),
    )


def acceptance_lengths(rounds: Rounds, length: int) -> NDArray[np.int32]:
    """`[R]` tokens of each round in a text of `length` tokens, the target's own counted even where the end drops it."""
    tokens: NDArray[np.int32] = np.minimum(rounds.accepted, length - rounds.start) + 1
    return tokens


def _summarise_group(meta: RoundsMeta, requests: Sequence[RoundsRequest]) -> RoundsGroup:
    methods = {drafter.name: _summarise_drafter(drafter, requests) for drafter in meta.drafters}
    alone = _token_s(TARGET_ALONE, requests)
    if alone is not None:
        measured = sum(1 for request in requests if TARGET_ALONE in request.num_tokens)
        methods[TARGET_ALONE] = MethodSummary(num_requests=measured, token_s=alone)
    return RoundsGroup(
        num_requests=len(requests),
        num_prompt_tokens=sum(request.prompt_tokens for request in requests),
        num_output_tokens=sum(request.length(TARGET_ALONE) for request in requests),
        methods=methods,
    )


def _summarise_drafter(drafter: DrafterInfo, requests: Sequence[RoundsRequest]) -> MethodSummary:
    name = drafter.name
    ran = [(request.rounds[name], request.length(name)) for request in requests if name in request.rounds]
    num_rounds = sum(len(rounds.start) for rounds, _ in ran)
    positions = sum(length for _, length in ran)
    tokens = sum(int(acceptance_lengths(rounds, length).sum()) for rounds, length in ran)
    plain = sum(int((rounds.drafted == 0).sum()) for rounds, _ in ran)
    censored = sum(int((rounds.censored(drafter.window) & (rounds.drafted != 0)).sum()) for rounds, _ in ran)
    known = sum(_num_known(drafter, rounds, length) for rounds, length in ran)
    return MethodSummary(
        num_requests=sum(1 for request in requests if name in request.rounds or name in request.num_tokens),
        num_rounds=num_rounds,
        num_plain=plain,
        num_placed=sum(int(rounds.where_placed.sum()) for rounds, _ in ran),
        tokens_per_round=tokens / num_rounds if num_rounds else None,
        censored_share=censored / (num_rounds - plain) if num_rounds > plain else None,
        known_share=known / positions if num_rounds else None,
        token_s=_token_s(name, requests),
        draft_s=_mean([rounds.draft_s for rounds, _ in ran]),
        verify_s=_mean([rounds.verify_s for rounds, _ in ran]),
    )


def _num_known(drafter: DrafterInfo, rounds: Rounds, length: int) -> int:
    """Output positions the rounds speak of, each counted once."""
    told = ~rounds.where_placed
    if drafter.by_start:
        return int(told.sum())
    starts, judged = rounds.start[told], (rounds.accepted + ~rounds.censored(drafter.window))[told]
    ends = np.minimum(starts + judged, length)
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1])) if len(ends) else ends
    return int(np.maximum(ends - np.maximum(starts, before), 0).sum())


def _token_s(method: str, requests: Sequence[RoundsRequest]) -> float | None:
    """Seconds of the measured answers over their tokens."""
    measured = [request for request in requests if method in request.wall_s]
    tokens = sum(request.num_tokens[method] for request in measured)
    return sum(request.wall_s[method] for request in measured) / tokens if measured else None


def _mean(parts: Sequence[NDArray[np.float64] | None]) -> float | None:
    """Mean over what is known."""
    known = [values[~np.isnan(values)] for values in parts if values is not None]
    count = sum(len(values) for values in known)
    return sum(float(values.sum()) for values in known) / count if count else None
