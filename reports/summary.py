"""From a run log to the figures that policies are compared by; docs/glossary.md defines each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import COMMIT, TREE, VERIFY
from ..runs.log import Columns, RunLog
from .quality import Quality, quality_of

PERCENTILES = (50, 90, 95, 99)
_PIECE = 1 << 16  # steps
_FIRST_LOOK_FIELDS = ("kind", "level", "drafted", "judged", "accepted", "refused", "own", "emitted")
_REFUSAL_FIELDS = ("request", "part", *_FIRST_LOOK_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A latency over requests: mean and percentiles, seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread_over(seconds: NDArray[np.float64]) -> Spread:
    """The spread over one request or more."""
    p50, p90, p95, p99 = np.percentile(seconds, PERCENTILES).tolist()
    return Spread(mean=float(seconds.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """The figures of one pool member in a run."""

    name: str
    forwards: int  # batched forwards it ran
    duration_s: float  # seconds of its operations
    share_of_seconds: float  # of all operations' seconds, 0 to 1
    drafted: int  # tokens it drafted
    judged: int  # pending tokens it read as a verifier, all nodes of a token tree
    accepted: int  # how many of those were accepted; its own tokens are not among them
    refused: int  # verifications in which it rejected a token (at most one each), of a tree all nodes at some depth
    # verifications of token trees: with any, accepted over judged is a share of nodes, not an acceptance rate
    trees: int
    own: int  # tokens it added itself as a verifier (corrections and bonuses)
    # asked_tokens, hit_tokens, evicted_blocks: of its prefix cache, as in `PrefixCounts`; 0 without one
    asked_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy's run; docs/glossary.md has the formulas."""

    policy: str
    requests: int
    output_tokens: int
    duration_s: float
    output_tokens_per_s: float
    mean_request_tokens_per_s: float
    requests_per_s: float
    acceptance_length: float
    draft_acceptance_rate: float | None
    rejection_rate: float
    accepted_histogram: tuple[int, ...]
    target_calls_per_token: float
    wasted_tokens: int
    exact_share: float
    drawn: bool
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
    answered, steps = _finished(log)
    by_target = (steps["kind"] == VERIFY) & (steps["level"] == len(log.meta["members"]) - 1)
    accepted = steps["accepted"][by_target & (steps["prefill"] == 0)]  # by round
    levels, judged = _levels(log), int(steps["judged"][by_target].sum())
    num_answered, tokens, target_calls = len(answered["failed"]), int(steps["emitted"].sum()), int(by_target.sum())
    duration_s = float(log.requests["finished_at_s"].max() - log.requests["arrived_at_s"].min())
    ttft_s, tpot_s, e2e_s = _latencies(answered)
    return Summary(
        policy=log.meta["policy"],
        requests=num_answered,
        output_tokens=tokens,
        duration_s=duration_s,
        output_tokens_per_s=tokens / duration_s,
        mean_request_tokens_per_s=_mean_speed(answered),
        requests_per_s=num_answered / duration_s,
        acceptance_length=_ratio(tokens - (target_calls - len(accepted)), len(accepted)),  # a prefill writes one token
        draft_acceptance_rate=None if levels[-1].trees else _ratio(int(accepted.sum()), judged),
        rejection_rate=rejection_rate(steps),
        accepted_histogram=tuple(np.bincount(accepted).tolist()),
        target_calls_per_token=target_calls / tokens,
        wasted_tokens=int(steps["drafted"].sum() + steps["own"].sum()) - tokens,
        exact_share=(exact_share := _exact_share(log)),
        drawn=bool(log.meta.get("drawn", exact_share < 1)),
        reanchored=int(log.requests["reanchored"].sum()),
        divergent_tokens=int(log.requests["divergent_tokens"].sum()),
        ttft_s=spread_over(ttft_s if len(ttft_s) else np.zeros(1)),
        tpot_s=spread_over(tpot_s if len(tpot_s) else np.zeros(1)),
        e2e_s=spread_over(e2e_s if len(e2e_s) else np.zeros(1)),
        failed=len(log.requests["failed"]) - num_answered,
        preempted=int(log.requests["preempted"].sum()),
        thrashed=int((log.requests["times_plain"] > 1.0).sum()),
        policy_s=_policy_s(log),
        policy_share=_ratio(_policy_s(log), duration_s),
        levels=levels,
        quality=quality_of(log),
    )


def _finished(log: RunLog) -> tuple[Columns, Columns]:
    """Requests that finished and their steps: tokens of failed ones are not delivered."""
    finished = log.requests["failed"] == ""
    if not finished.any():
        raise ValueError("no request finished in this run")
    if finished.all():
        return log.requests, log.steps
    kept = finished[log.steps["request"]]
    return (
        {name: column[finished] for name, column in log.requests.items()},
        {name: column[kept] for name, column in log.steps.items()},
    )


def _latencies(requests: Columns) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Seconds to the first token and to the last one of each request, and between tokens, if it has several."""
    first_s, whole_s = (requests[name] - requests["arrived_at_s"] for name in ("first_token_at_s", "finished_at_s"))
    later = requests["emitted_tokens"] > 1
    return first_s, (whole_s - first_s)[later] / (requests["emitted_tokens"][later] - 1), whole_s


def _policy_s(log: RunLog) -> float:
    """Seconds spent deciding: measured, or in the simulator the seconds charged for each decision."""
    measured = log.meta.get("policy_s")
    if measured is not None:
        return float(measured)
    return float(log.meta.get("decide_s", 0.0)) * int(log.decided().sum())


def _exact_share(log: RunLog) -> float:
    """Share of token decisions replayed rather than modelled.

    A decision is a drafted token, a judged token up to and including the first rejected one, or a verifier's own token;
    also a model-free drafter's finding nothing, where that had to be modelled. The token of a prefill is none: it is
    always the target's.
    """
    steps = log.steps
    looked_at = steps["accepted"] + steps["refused"]
    own = steps["own"] * (steps["prefill"] == 0)
    per_step = np.maximum(steps["drafted"] + looked_at + own, steps["modelled"])
    decisions = int(per_step.sum()) + int(log.requests["reanchored"].sum())
    modelled = int(steps["modelled"].sum()) + int(log.requests["reanchored"].sum())
    return 1.0 - _ratio(modelled, decisions)


def rejection_rate(steps: Columns, among: NDArray[np.bool_] | None = None) -> float:
    """Rejections at any level over the drafted tokens that a first verifier judged, >= 0, for chains of any depth.

    A rejection is a verification that rejected a token: at most one each. A drafted token is first judged by the next
    verification of its request by another member than its own; tokens after the first rejected one are not judged, nor
    are those that a Commit took before. Of a token tree the depths count: those of the accepted path, and the next one
    if the tree continues there, which is then rejected. For two levels this is 1 less the acceptance rate per position.
    Above two it may exceed 1, as a middle verifier's own token can be rejected too. 0 if none was judged.

    Args:
        steps: of a run log, each request's in their order; requests of a batch may be interleaved.
        among: `[steps]` which steps count, all of a request or none; None: all.
    """
    order = np.argsort(steps["request"], kind="stable")
    if among is not None:
        order = order[among[order]]
    order = _as_looked_at(steps, order)
    refusals = looked_at = 0
    for rows in _whole_requests(steps["request"], order):
        counted = _refusals({name: steps[name][rows] for name in _REFUSAL_FIELDS})
        refusals, looked_at = refusals + counted[0], looked_at + counted[1]
    return refusals / looked_at if looked_at else 0.0


def _as_looked_at(steps: Columns, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """The rows with the parts of each Overlap in their order on the same tokens.

    Tokens drafted ahead in one step are judged by the smallest verifier in the next; so smaller verifiers come before
    larger ones, and drafts last.
    """
    parts = steps["part"][order]
    if not parts.any():
        return order
    later = np.where(steps["kind"][order] == VERIFY, -parts.astype(np.int64), 1)
    return order[np.lexsort((later, np.cumsum(parts == 0)))]


def _whole_requests(requests: NDArray[Any], order: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """The rows in this order, which is by request, in pieces of whole requests: all at once would fill memory."""
    sorted_requests = requests[order]
    start = 0
    while start < len(order):
        last = sorted_requests[min(start + _PIECE, len(order)) - 1]
        end = int(np.searchsorted(sorted_requests, last, side="right"))
        yield order[start:end]
        start = end


def _refusals(steps: Columns) -> tuple[int, int]:
    """(rejections, drafted tokens that a first verifier judged) of steps in order of requests."""
    requests, drafted = steps["request"], steps["drafted"]
    ends = np.flatnonzero(steps["kind"] == VERIFY)
    judged, accepted, refused = (steps[name][ends].astype(np.int64) for name in ("judged", "accepted", "refused"))
    # Tokens not judged yet were drafted after the request's previous verification, and come last.
    starts = np.searchsorted(requests, requests[ends], side="left")
    starts[1:] = np.maximum(starts[1:], ends[:-1] + 1)
    before = np.concatenate([[0], np.cumsum(drafted)])
    fresh = before[ends] - before[starts]
    looked_at = np.maximum(accepted + refused - (judged - np.minimum(fresh, judged)), 0)
    # Where more were drafted than judged, a Commit took some, or they wait for a later verification.
    apart = np.unique(requests[ends[fresh > judged]])
    apart = apart[~np.isin(apart, requests[steps["part"] > 0])]
    one_by_one = 0
    for first, end in zip(np.searchsorted(requests, apart), np.searchsorted(requests, apart, "right"), strict=True):
        one_by_one += _first_looks({name: steps[name][first:end].tolist() for name in _FIRST_LOOK_FIELDS})
    counted = int(looked_at[~np.isin(requests[ends], apart)].sum())
    return int(refused.sum()), counted + one_by_one


def _first_looks(steps: Mapping[str, list[int]]) -> int:
    """Drafted tokens of one request that a first verifier judged, from its steps one by one."""
    looked_at, pending = 0, list[bool]()  # of each pending token, whether it was drafted and not judged yet
    target = max(steps["level"])
    rows = zip(*(steps[name] for name in _FIRST_LOOK_FIELDS), strict=True)
    for kind, level, drafted, judged, accepted, refused, own, emitted in rows:
        if kind == COMMIT:
            del pending[:emitted]
        elif kind != VERIFY:
            pending += [True] * drafted
        else:
            first = len(pending) - judged
            looked_at += sum(pending[first : first + accepted + refused])
            pending = [] if level == target else [*pending[:first], *[False] * (accepted + own)]
    return looked_at


def _levels(log: RunLog) -> tuple[LevelSummary, ...]:
    steps, ops, names = log.steps, log.ops, log.meta["members"]
    durations = _per_level(ops["level"], ops["duration_s"], len(names))
    counts = {
        name: _per_level(steps["level"], steps[name], len(names))
        for name in ("drafted", "judged", "accepted", "refused", "own")
    }
    for name in ("asked_tokens", "hit_tokens", "evicted_blocks"):
        counts[name] = _per_level(ops["level"], ops[name], len(names))
    counts["forwards"] = _per_level(ops["level"], ops["num_forwards"], len(names))
    counts["trees"] = _per_level(steps["level"], _of_trees(steps), len(names))
    return tuple(
        LevelSummary(
            name=name,
            duration_s=float(durations[level]),
            share_of_seconds=_ratio(float(durations[level]), float(durations.sum())),
            **{count: int(by_level[level]) for count, by_level in counts.items()},
        )
        for level, name in enumerate(names)
    )


def _of_trees(steps: Columns) -> NDArray[np.bool_]:
    """`[steps]` which are verifications of a token tree: only these may follow one in its request."""
    found = np.zeros(len(steps["kind"]), dtype=np.bool_)
    if (steps["kind"] == TREE).any():
        order = np.argsort(steps["request"], kind="stable")
        requests, kinds = steps["request"][order], steps["kind"][order]
        found[order[1:]] = (kinds[1:] == VERIFY) & (kinds[:-1] == TREE) & (requests[1:] == requests[:-1])
    return found


def _per_level(levels: NDArray[Any], values: NDArray[Any], count: int) -> NDArray[np.float64]:
    return np.bincount(levels, weights=values, minlength=count).astype(np.float64)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean_speed(requests: Columns) -> float:
    """Mean over requests of tokens per second; 0 if none took any time."""
    seconds = requests["finished_at_s"] - requests["arrived_at_s"]
    took = seconds > 0
    return float((requests["emitted_tokens"][took] / seconds[took]).mean()) if took.any() else 0.0
