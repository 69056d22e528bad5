"""The quality of a run's texts beside the target's own: what a lossy policy changed (docs/glossary.md)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import COMMIT
from ..runs.log import QUALITY_FIELDS, Columns, RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Figures of the texts of requests with known quality; None: unknown or meaningless."""

    lossy: bool  # whether the policy may commit other text than the target's, or did
    requests: int  # that finished and whose texts are known
    tokens: int  # of their answers
    known_share: float  # share of these tokens with a known log-probability, 0 to 1
    num_divergences: int | None  # tokens that the target would not have written in their context
    divergences_per_1000: float | None  # of tokens whose context is known
    text_agreement: float | None  # share of positions at which the two texts are the same, 0 to 1
    prefix_agreement: float | None  # the same up to each text's first difference
    log_prob_per_token: float | None  # the target's, of known tokens, nats
    own_log_prob_per_token: float | None  # the target's, of its own texts, nats
    # answers_right, answers_own, answers_total: right answers, right ones of the target alone, and requests that have
    # an expected answer
    answers_right: int | None
    answers_own: int | None
    answers_total: int | None


def quality_of(log: RunLog, *, tag: str | None = None) -> Quality | None:
    """The quality of a run's texts, of one tag or of all (None); None if it is unknown."""
    chosen = (log.requests["failed"] == "") & (log.requests["trunk_tokens"] >= 0)
    if tag is not None:
        chosen &= log.requests["tag"] == tag
    if not chosen.any():
        return None
    rows = {name: log.requests[name][chosen] for name in (*QUALITY_FIELDS, "emitted_tokens")}
    tokens, scored = _total(rows["emitted_tokens"]), _total(rows["scored_tokens"])
    divergences = _known_total(rows["divergences"])
    # In texts of different lengths, positions that only one has count as different.
    positions = _total(np.maximum(rows["emitted_tokens"], rows["trunk_tokens"]))
    same, start = (_known_total(rows[name]) for name in ("same_tokens", "same_start"))
    right, own, total = _answers(rows)
    return Quality(
        lossy=is_lossy(log),
        requests=int(chosen.sum()),
        tokens=tokens,
        known_share=scored / tokens if tokens else 0.0,
        num_divergences=divergences,
        divergences_per_1000=_per(divergences, _total(rows["seen_tokens"]), 1000),
        text_agreement=_per(same, positions),
        prefix_agreement=_per(start, positions),
        log_prob_per_token=_per(float(rows["log_prob"].sum()), scored),
        own_log_prob_per_token=_per(float(rows["trunk_log_prob"].sum()), _total(rows["trunk_tokens"])),
        answers_right=right,
        answers_own=own,
        answers_total=total,
    )


def is_lossy(log: RunLog) -> bool:
    """Whether the policy of a run says that it is lossy, took a lossy step, or committed other text."""
    said = log.meta.get("lossless") is False or bool(log.meta.get("lossy_steps"))
    return said or bool((log.steps["kind"] == COMMIT).any() or (log.requests["divergent_tokens"] > 0).any())


def _answers(rows: Columns) -> tuple[int | None, int | None, int | None]:
    """(right answers, right ones of the target alone, expected ones); three None if none is expected."""
    expected = rows["right"] >= 0
    if not expected.any():
        return None, None, None
    return _total(rows["right"][expected]), _total(rows["trunk_right"][expected]), int(expected.sum())


def _total(counts: NDArray[np.int64]) -> int:
    return int(counts.sum())


def _known_total(counts: NDArray[np.int64]) -> int | None:
    """The sum; None if one is unknown."""
    return None if (counts < 0).any() else _total(counts)


def _per(part: float | None, whole: int, of: int = 1) -> float | None:
    return of * part / whole if part is not None and whole else None
