"""From a run log to the figures people compare; every one is defined in docs/glossary.md."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.ledger import VERIFY
from ..runs.log import RunLog
from .quality import Quality, quality_of
from .rejection import rejection_rate

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A latency over requests: mean and percentiles, seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """What one pool member did in a run.

    Attributes:
        name: of the member.
        forwards: batched forwards it ran.
        duration_s: seconds of its operations.
        share_of_seconds: of all operations' seconds, 0 to 1.
        drafted: tokens it drafted.
        judged: pending tokens it looked at as a verifier.
        accepted: of those, how many stayed; its own tokens are not among them.
        refused: verifications in which it refused a token (at most one each).
        own: tokens it added itself as a verifier (corrections and bonuses).
    """

    name: str
    forwards: int
    duration_s: float
    share_of_seconds: float
    drafted: int
    judged: int
    accepted: int
    refused: int
    own: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy's run; the metrics' formulas stand in docs/glossary.md."""

    policy: str
    requests: int
    output_tokens: int
    duration_s: float
    output_tokens_per_s: float
    mean_request_tokens_per_s: float
    requests_per_s: float
    acceptance_length: float
    draft_acceptance_rate: float
    rejection_rate: float
    accepted_histogram: tuple[int, ...]
    target_calls_per_token: float
    wasted_tokens: int
    exact_share: float
    reanchored: int
    divergent_tokens: int
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    failed: int
    preempted: int
    thrashed: int
    policy_s: float
    policy_share: float
    levels: tuple[LevelSummary, ...]
    quality: Quality | None


def summarise_run(log: RunLog) -> Summary:
    """The figures of one run; raises ValueError for a run without a finished request."""
    finished = log.requests["failed"] == ""
    num_finished = int(finished.sum())
    if not num_finished:
        raise ValueError("no request finished in this run")
    requests = log.requests
    steps = log.steps
    if num_finished < len(finished):  # what was emitted for a request that failed answers nobody
        steps = {name: column[finished[steps["request"]]] for name, column in steps.items()}
    target = len(log.meta["members"]) - 1
    by_target = (steps["kind"] == VERIFY) & (steps["level"] == target)
    closing = by_target & (steps["prefill"] == 0)
    tokens = int(steps["emitted"].sum())
    target_calls, rounds = int(by_target.sum()), int(closing.sum())
    judged = int(steps["judged"][by_target].sum())
    accepted = steps["accepted"][closing]
    duration_s = float(requests["finished_at_s"].max() - requests["arrived_at_s"].min())
    written = int(steps["drafted"].sum() + steps["own"][~by_target].sum())
    first_s = (requests["first_token_at_s"] - requests["arrived_at_s"])[finished]
    whole_s = (requests["finished_at_s"] - requests["arrived_at_s"])[finished]
    emitted = requests["emitted_tokens"][finished]
    later = emitted > 1
    per_token = (whole_s - first_s)[later] / (emitted[later] - 1)
    policy_s = _policy_s(log)
    return Summary(
        policy=log.meta["policy"],
        requests=num_finished,
        output_tokens=tokens,
        duration_s=duration_s,
        output_tokens_per_s=tokens / duration_s,
        mean_request_tokens_per_s=_mean_speed(emitted, whole_s),
        requests_per_s=num_finished / duration_s,
        acceptance_length=_ratio(tokens - (target_calls - rounds), rounds),  # a prefill writes one token
        draft_acceptance_rate=_ratio(int(accepted.sum()), judged),
        rejection_rate=rejection_rate(steps),
        accepted_histogram=tuple(np.bincount(accepted).tolist()) if rounds else (),
        target_calls_per_token=target_calls / tokens,
        wasted_tokens=written - (tokens - int(steps["own"][by_target].sum())),
        exact_share=_exact_share(log),
        reanchored=int(requests["reanchored"].sum()),
        divergent_tokens=int(requests["divergent_tokens"].sum()),
        ttft_s=_spread(first_s),
        tpot_s=_spread(per_token),
        e2e_s=_spread(whole_s),
        failed=len(finished) - num_finished,
        preempted=int(requests["preempted"].sum()),
        thrashed=int((requests["times_plain"] > 1.0).sum()),
        policy_s=policy_s,
        policy_share=_ratio(policy_s, duration_s),
        levels=_levels(log),
        quality=quality_of(log),
    )


def _policy_s(log: RunLog) -> float:
    """Seconds spent deciding: measured, or in the simulator what each step's decision was charged."""
    measured = log.meta.get("policy_s")
    if measured is not None:
        return float(measured)
    return float(log.meta.get("decide_s", 0.0)) * int((log.steps["prefill"] == 0).sum())  # nobody decides on a prefill


def _exact_share(log: RunLog) -> float:
    """Share of token decisions replayed rather than modelled.

    A decision is a drafted token, a judged token up to and including the first refused one, or a verifier's own token;
    also that a model-free drafter finds nothing, where that had to be modelled. The token of a prefill is none: it is
    the target's whatever is known of drafts.
    """
    steps = log.steps
    looked_at = np.minimum(steps["accepted"] + 1, steps["judged"])
    own = steps["own"] * (steps["prefill"] == 0)
    per_step = np.maximum(steps["drafted"] + looked_at + own, steps["modelled"])
    decisions = int(per_step.sum()) + int(log.requests["reanchored"].sum())
    modelled = int(steps["modelled"].sum()) + int(log.requests["reanchored"].sum())
    return 1.0 - _ratio(modelled, decisions)


def _levels(log: RunLog) -> tuple[LevelSummary, ...]:
    steps, ops = log.steps, log.ops
    names: list[str] = log.meta["members"]
    verifies = steps["kind"] == VERIFY
    refusals = verifies & (steps["accepted"] < steps["judged"])
    durations = _per_level(ops["level"], ops["duration_s"], len(names))
    total_s = float(durations.sum())
    columns = {
        name: _per_level(steps["level"], steps[name], len(names)) for name in ("drafted", "judged", "accepted", "own")
    }
    refused = _per_level(steps["level"], refusals, len(names))
    forwards = _per_level(ops["level"], ops["num_forwards"], len(names))
    return tuple(
        LevelSummary(
            name=name,
            forwards=int(forwards[level]),
            duration_s=float(durations[level]),
            share_of_seconds=_ratio(float(durations[level]), total_s),
            drafted=int(columns["drafted"][level]),
            judged=int(columns["judged"][level]),
            accepted=int(columns["accepted"][level]),
            refused=int(refused[level]),
            own=int(columns["own"][level]),
        )
        for level, name in enumerate(names)
    )


def _per_level(levels: NDArray[Any], values: NDArray[Any], count: int) -> NDArray[np.float64]:
    return np.bincount(levels, weights=values, minlength=count).astype(np.float64)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean_speed(tokens: NDArray[np.int64], seconds: NDArray[np.float64]) -> float:
    """Mean over requests of tokens per second; 0 if none took any time."""
    took = seconds > 0
    return float((tokens[took] / seconds[took]).mean()) if took.any() else 0.0


def _spread(values: NDArray[np.float64]) -> Spread:
    if not len(values):
        return Spread(mean=0.0, p50=0.0, p90=0.0, p95=0.0, p99=0.0)
    p50, p90, p95, p99 = np.percentile(values, PERCENTILES)
    return Spread(mean=float(values.mean()), p50=float(p50), p90=float(p90), p95=float(p95), p99=float(p99))
