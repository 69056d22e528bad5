"""From a run log to the figures people compare, over seeds and by tag; docs/glossary.md defines each.

The seconds of a run are shared out to its requests without a rest, so those of the tags add up to those of the run. A
mean over seeds has its 95% confidence interval by Student's t. The quality of texts is beside that of the target's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import COMMIT, TREE, VERIFY
from ..runs.log import QUALITY_FIELDS, Columns, RunLog, added_seconds

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and the half width, >= 0, of its confidence interval."""

    mean: float
    half_width: float  # >= 0

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends, the lower one first."""
        return self.mean - self.half_width, self.mean + self.half_width


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95% interval; raises ValueError for fewer than two values."""
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, got {count}")
    if min(values) == max(values):  # no rounding error shall look like a spread
        return Interval(mean=values[0], half_width=0.0)
    return Interval(mean=fmean(values), half_width=t_quantile(count - 1) * stdev(values) / sqrt(count))


def t_quantile(degrees: int) -> float:
    """The t with P(|T| <= t) = 0.95 for Student's T of `degrees` >= 1 degrees of freedom."""
    low, high = 0.0, 16.0  # 12.7 at one degree, and less at more
    while low < (middle := (low + high) / 2) < high:
        if _central_prob(middle, degrees) < LEVEL:
            low = middle
        else:
            high = middle
    return high


def _central_prob(t: float, degrees: int) -> float:
    """P(|T| <= t), in closed form for whole degrees (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Texts of the requests of which anything is known; None stands for what is not known or has no meaning."""

    lossy: bool  # whether the policy may commit other text than the target's, or did
    requests: int  # that finished and whose texts are known
    tokens: int  # of their answers
    known_share: float  # of these tokens, how many have a known log-probability, 0 to 1
    num_divergences: int | None  # tokens that the target would not have written in their very context
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
    """The quality of a run's texts, of one tag or of all (None); None if nothing is known of them."""
    chosen = (log.requests["failed"] == "") & (log.requests["trunk_tokens"] >= 0)
    if tag is not None:
        chosen &= log.requests["tag"] == tag
    if not chosen.any():
        return None
    rows = {name: log.requests[name][chosen] for name in (*QUALITY_FIELDS, "emitted_tokens")}
    tokens, scored = _total(rows["emitted_tokens"]), _total(rows["scored_tokens"])
    divergences = _known_total(rows["divergences"])
    # Of two texts of other lengths, positions that only one has are not the same.
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
    """Right answers, right ones of the target alone, and how many are expected; three None if none is."""
    expected = rows["right"] >= 0
    if not expected.any():
        return None, None, None
    return _total(rows["right"][expected]), _total(rows["trunk_right"][expected]), int(expected.sum())


def _total(counts: NDArray[np.int64]) -> int:
    return int(counts.sum())


def _known_total(counts: NDArray[np.int64]) -> int | None:
    """None if one is not known."""
    return None if (counts < 0).any() else _total(counts)


def _per(part: float | None, whole: int, of: int = 1) -> float | None:
    return of * part / whole if part is not None and whole else None


PERCENTILES = (50, 90, 95, 99)
_PIECE = 1 << 16  # steps
_REFUSAL_FIELDS = ("request", "kind", "drafted", "judged", "accepted", "refused")


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
    """What one pool member did in a run."""

    name: str
    forwards: int  # batched forwards it ran
    duration_s: float  # seconds of its operations
    share_of_seconds: float  # of all operations' seconds, 0 to 1
    drafted: int  # tokens it drafted
    judged: int  # pending tokens it looked at as a verifier, all nodes of a token tree
    accepted: int  # of those, how many stayed; its own tokens are not among them
    refused: int  # verifications in which it refused a token (at most one each), of a tree all nodes at some depth
    # verifications of token trees: with any, accepted over judged is a share of nodes, no rate of acceptance
    trees: int
    own: int  # tokens it added itself as a verifier (corrections and bonuses)
    # asked_tokens, hit_tokens, evicted_blocks: of its prefix cache, as in `PrefixCounts`; 0 without one
    asked_tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0


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
    draft_acceptance_rate: float | None
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
        exact_share=_exact_share(log),
        reanchored=int(log.requests["reanchored"].sum()),
        divergent_tokens=int(log.requests["divergent_tokens"].sum()),
        ttft_s=_spread(ttft_s),
        tpot_s=_spread(tpot_s),
        e2e_s=_spread(e2e_s),
        failed=len(log.requests["failed"]) - num_answered,
        preempted=int(log.requests["preempted"].sum()),
        thrashed=int((log.requests["times_plain"] > 1.0).sum()),
        policy_s=_policy_s(log),
        policy_share=_ratio(_policy_s(log), duration_s),
        levels=levels,
        quality=quality_of(log),
    )


def _finished(log: RunLog) -> tuple[Columns, Columns]:
    """Requests that finished and their steps: what was emitted for one that failed answers nobody."""
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
    """Seconds spent deciding: measured, or in the simulator what each step's decision was charged."""
    measured = log.meta.get("policy_s")
    if measured is not None:
        return float(measured)
    return float(log.meta.get("decide_s", 0.0)) * int(log.decided().sum())


def _exact_share(log: RunLog) -> float:
    """Share of token decisions replayed rather than modelled.

    A decision is a drafted token, a judged token up to and including the first refused one, or a verifier's own token;
    also that a model-free drafter finds nothing, where that had to be modelled. The token of a prefill is none: it is
    the target's whatever is known of drafts.
    """
    steps = log.steps
    looked_at = steps["accepted"] + steps["refused"]
    own = steps["own"] * (steps["prefill"] == 0)
    per_step = np.maximum(steps["drafted"] + looked_at + own, steps["modelled"])
    decisions = int(per_step.sum()) + int(log.requests["reanchored"].sum())
    modelled = int(steps["modelled"].sum()) + int(log.requests["reanchored"].sum())
    return 1.0 - _ratio(modelled, decisions)


def rejection_rate(steps: Columns, among: NDArray[np.bool_] | None = None) -> float:
    """Refusals at any level over the drafted tokens that a first verifier looked at, >= 0, for chains of any depth.

    A refusal is a verification that refused a token: at most one each. A drafted token is looked at first by the
    verification that comes next in its request; those after the first refused one are not looked at, nor are those
    that a Commit took before. Of a token tree the depths are looked at: those of the path that stays, and the next
    one if the tree goes on there, which is refused then. For two levels this is 1 less the rate of acceptance per
    position. Above two it may exceed 1, as a middle verifier's own token can be refused too. 0 if none was looked at.

    Args:
        steps: of a run log, each request's in their order; requests of a batch may lie between one another.
        among: `[steps]` which steps count, all of a request or none; None for all.
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
    """The rows with the parts of each Overlap as they follow one another on the same tokens.

    What was drafted ahead in one step is looked at by the smallest verifier in the next; so smaller verifiers come
    before larger ones, and what is drafted last.
    """
    parts = steps["part"][order]
    if not parts.any():
        return order
    later = np.where(steps["kind"][order] == VERIFY, -parts.astype(np.int64), 1)
    return order[np.lexsort((later, np.cumsum(parts == 0)))]


def _whole_requests(requests: NDArray[Any], order: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """The rows in this order, which goes by request, in pieces that hold all of theirs: the whole fills memory."""
    sorted_requests = requests[order]
    start = 0
    while start < len(order):
        last = sorted_requests[min(start + _PIECE, len(order)) - 1]
        end = int(np.searchsorted(sorted_requests, last, side="right"))
        yield order[start:end]
        start = end


def _refusals(steps: Columns) -> tuple[int, int]:
    """(refusals, drafted tokens that a first verifier looked at) of steps that go by request."""
    requests, drafted = steps["request"], steps["drafted"]
    ends = np.flatnonzero(steps["kind"] == VERIFY)
    judged, accepted, refused = (steps[name][ends].astype(np.int64) for name in ("judged", "accepted", "refused"))
    # What nobody has judged was drafted after the request's verification before this one, and stands last.
    starts = np.searchsorted(requests, requests[ends], side="left")
    starts[1:] = np.maximum(starts[1:], ends[:-1] + 1)
    before = np.concatenate([[0], np.cumsum(drafted)])
    fresh = np.minimum(before[ends] - before[starts], judged)
    looked_at = int(np.maximum(accepted + refused - (judged - fresh), 0).sum())
    return int(refused.sum()), looked_at


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
    """`[steps]` which are verifications of a token tree: that is all that may follow one in its request."""
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


def _spread(values: NDArray[np.float64]) -> Spread:
    if not len(values):
        return Spread(mean=0.0, p50=0.0, p90=0.0, p95=0.0, p99=0.0)
    p50, p90, p95, p99 = np.percentile(values, PERCENTILES)
    return Spread(mean=float(values.mean()), p50=float(p50), p90=float(p90), p95=float(p95), p99=float(p99))


@dataclass(frozen=True, slots=True, kw_only=True)
class TagShare:
    """One tag's part in a run."""

    requests: int  # of this tag that finished
    output_tokens: int  # tokens they emitted
    duration_s: float  # seconds shared out to the requests of this tag, failed ones among them, > 0

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens per second spent on this tag; 0 if none of its requests finished."""
        return self.output_tokens / self.duration_s


TagShares = Mapping[str, TagShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTag:
    """Runs of several policies by tag, each at its first seed."""

    baseline: TagShares | None  # the target alone; None if its seconds are unknown
    policies: Mapping[str, TagShares]  # by name, in the order of the comparison; all hold the same tags

    @property
    def tags(self) -> list[str]:
        """In the order of the first policy."""
        return list(next(iter(self.policies.values())))

    def speed_ups(self, policy: str) -> dict[str, float] | None:
        """By tag, against the target alone on the same requests; None if its seconds are unknown."""
        return None if self.baseline is None else tag_speed_ups(self.policies[policy], self.baseline)

    def to_json(self) -> list[dict[str, Any]]:
        """The documented form (docs/compare.md): one object per policy."""
        return [{"policy": policy, "tags": self._tags_to_json(policy)} for policy in self.policies]

    def _tags_to_json(self, policy: str) -> dict[str, Any]:
        speed_ups = self.speed_ups(policy)
        return {
            tag: {
                **asdict(share),
                "output_tokens_per_s": share.output_tokens_per_s,
                "speed_up": None if speed_ups is None else speed_ups[tag],
            }
            for tag, share in self.policies[policy].items()
        }


def tag_shares(log: RunLog) -> dict[str, TagShare]:
    """A run by tag, tags in alphabetical order."""
    tags = log.requests["tag"]
    seconds = request_seconds(log)
    finished = log.requests["failed"] == ""
    shares = {}
    for tag in sorted(set(tags.tolist())):
        here = tags == tag
        shares[tag] = TagShare(
            requests=int((here & finished).sum()),
            output_tokens=int(log.requests["emitted_tokens"][here & finished].sum()),
            duration_s=float(seconds[here].sum()),
        )
    return shares


def tag_speed_ups(shares: TagShares, baseline: TagShares) -> dict[str, float]:
    """By tag, tokens per second over those of the baseline, the target alone under the same scenario.

    Raises:
        ValueError: the runs do not hold the same tags, or the baseline finished no request of one.
    """
    if set(shares) != set(baseline):
        raise ValueError(f"tags must be those of the baseline ({', '.join(baseline)}), got {', '.join(shares)}")
    idle = [tag for tag, share in baseline.items() if not share.output_tokens]
    if idle:
        raise ValueError(f"baseline must have finished a request of every tag, got none of {idle[0]}")
    return {tag: share.output_tokens_per_s / baseline[tag].output_tokens_per_s for tag, share in shares.items()}


def request_seconds(log: RunLog) -> NDArray[np.float64]:
    """`[R]` seconds of a run shared out to its requests; they add up to the `duration_s` of its summary.

    The requests of an operation share its seconds evenly, whatever each was fed: in a batch one forward serves all.
    Parts of an `Overlap` that ran at the same time count once (`added_seconds`). What is left of the run, such as
    deciding, goes by the number of steps that were decided. At batch 1 that is the time a request ran.
    """
    steps, ops, requests = log.steps, log.ops, log.requests
    num_requests = len(requests["request_id"])
    ran = steps["op"] >= 0
    op, request = steps["op"][ran], steps["request"][ran]
    rows = np.bincount(op, minlength=len(ops["duration_s"]))
    seconds = np.bincount(request, weights=added_seconds(log)[op] / rows[op], minlength=num_requests)
    rest_s = float(requests["finished_at_s"].max() - requests["arrived_at_s"].min()) - seconds.sum()
    decided = log.decided()
    if not decided.any():  # nothing was left to decide, nor any time but what rounding leaves
        decided = ~decided
    num_steps = np.bincount(steps["request"][decided], minlength=num_requests)
    shared: NDArray[np.float64] = seconds + rest_s * num_steps / num_steps.sum()
    return shared
