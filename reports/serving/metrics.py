"""The figures of one serving run; docs/serving-metrics.md defines each.

Letter: R requests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...runs.serving.gap_sums import total_gaps, total_ps
from ...runs.serving.log import UNKNOWN, ServingLog
from ...runs.serving.meta import ReplicaTotals
from ...traces.workloads.exact_seconds import PS_PER_S
from ..summary import PERCENTILES, Spread
from .gap_quantiles import gap_percentiles
from .latencies import latency_spread, spread_of
from .member_metrics import MemberMetrics, member_metrics, ratio
from .moved_kv.host_metrics import HostMetrics, host_metrics
from .moved_kv.transfer_metrics import TransferMetrics, transfer_metrics
from .slo.class_metrics import ClassMetrics, class_metrics
from .slo.promises import Promises


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMetrics:
    """One replica over the run.

    Attributes:
        name: of the replica.
        requests: it was given.
        busy_share: time of its members' forwards over `duration_s`; above 1 only where several devices work at once.
        running_mean, running_max: requests in its batch, over time.
        waiting_mean, waiting_max: requests in its queue, preempted ones among them, over time.
    """

    name: str
    requests: int
    busy_share: float | None
    running_mean: float | None
    running_max: int
    waiting_mean: float | None
    waiting_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """One run. None stands where nothing can be said: no request qualifies, or no time went by.

    Attributes:
        requests: that arrived: finished, rejected and unfinished ones.
        rejected_for: rejected requests by reason.
        prompt_tokens, output_tokens: of finished requests.
        unfinished_tokens: that came out of requests which did not finish.
        output_tokens_per_s: of finished requests, as vLLM and AIPerf count.
        emitted_tokens_per_s: of all, also those that did not finish.
        duration_s: from the first arrival to the end of the run.
        slo_met: requests that finished and met every promise; None where nothing is promised, as of the two after it.
        slo_share: of all that arrived and are promised anything.
        goodput_per_s: of those that met every promise.
        ttft_s, tpot_s, e2e_s, queue_s: over finished requests.
        itl_s: over gaps between outputs.
        in_system_s: mean over all requests that were not rejected, from arrival to end, or to that of the run.
        preemptions: all of them.
        preempted_requests: that were preempted at least once.
        busy_share: mean over replicas.
        running_mean, waiting_mean: sums over replicas.
        running_max, waiting_max: the largest of any replica.
        classes: of service levels, in order of name; empty where no request has one.
        members: in level order.
        replicas: in their order.
        transfers: between replicas; None where every one prefills and decodes.
        host: memory of hosts, of all replicas; None where none has any.
    """

    requests: int
    finished: int
    rejected: int
    unfinished: int
    rejected_for: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    unfinished_tokens: int
    duration_s: float
    requests_per_s: float | None
    output_tokens_per_s: float | None
    emitted_tokens_per_s: float | None
    slo_met: int | None
    slo_share: float | None
    goodput_per_s: float | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    queue_s: Spread | None
    in_system_s: float | None
    preemptions: int
    preempted_requests: int
    busy_share: float | None
    running_mean: float | None
    running_max: int
    waiting_mean: float | None
    waiting_max: int
    classes: tuple[ClassMetrics, ...]
    members: tuple[MemberMetrics, ...]
    replicas: tuple[ReplicaMetrics, ...]
    transfers: TransferMetrics | None = None
    host: HostMetrics | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving-metrics.md): `classes`, `members`, `replicas` by name."""
        found = asdict(self)
        for key in ("transfers", "host"):
            if found[key] is None:
                del found[key]
        for key in ("classes", "members", "replicas"):
            found[key] = {one.pop("name"): one for one in found[key]}
        return found


def metrics_of(log: ServingLog, promised: Promises) -> ServingMetrics:
    """The figures of a run."""
    columns, finished = log.requests, log.finished
    rejected = columns["rejected"][columns["rejected"] != ""].tolist()
    duration_ps = log.meta.ended_at_ps - int(columns["arrived_at_ps"].min(initial=log.meta.ended_at_ps))
    duration_s = duration_ps / PS_PER_S
    output_tokens = int(columns["output_tokens"][finished].sum())
    unfinished_tokens = int(columns["emitted_tokens"][~finished].sum())
    replicas = _replicas(log, duration_ps)
    return ServingMetrics(
        requests=len(finished),
        finished=int(finished.sum()),
        rejected=len(rejected),
        unfinished=int((columns["ended_at_ps"] == UNKNOWN).sum()),
        rejected_for=dict(Counter(rejected)),
        prompt_tokens=int(columns["prompt_tokens"][finished].sum()),
        output_tokens=output_tokens,
        unfinished_tokens=unfinished_tokens,
        duration_s=duration_s,
        requests_per_s=ratio(int(finished.sum()), duration_s),
        output_tokens_per_s=ratio(output_tokens, duration_s),
        emitted_tokens_per_s=ratio(output_tokens + unfinished_tokens, duration_s),
        **_promises(log, promised, duration_s),
        ttft_s=latency_spread(log, "ttft", finished),
        tpot_s=latency_spread(log, "tpot", finished),
        itl_s=_gap_spread(log),
        e2e_s=latency_spread(log, "e2e", finished),
        queue_s=latency_spread(log, "queue", finished),
        in_system_s=_in_system_s(log),
        preemptions=len(log.preemptions["request"]),
        preempted_requests=len(np.unique(log.preemptions["request"])),
        **_of_all(replicas),
        classes=class_metrics(log, promised, duration_s),
        members=member_metrics(log, duration_ps),
        replicas=replicas,
        transfers=transfer_metrics(log, duration_ps),
        host=host_metrics(log),
    )


def _promises(log: ServingLog, promised: Promises, duration_s: float) -> dict[str, Any]:
    if not promised.any:
        return {"slo_met": None, "slo_share": None, "goodput_per_s": None}
    count, made = int(promised.met(log).sum()), int(promised.made(log).sum())
    return {"slo_met": count, "slo_share": ratio(count, made), "goodput_per_s": ratio(count, duration_s)}


def _in_system_s(log: ServingLog) -> float | None:
    """Unlike E2E not too good where a run was stopped, and there comparable between policies as well."""
    served = log.requests["rejected"] == ""
    ended = np.where(log.requests["ended_at_ps"] == UNKNOWN, log.meta.ended_at_ps, log.requests["ended_at_ps"])
    return float(np.mean((ended - log.requests["arrived_at_ps"])[served] / PS_PER_S)) if served.any() else None


def _gap_spread(log: ServingLog) -> Spread | None:
    count = total_gaps(log.gaps)
    if not count:
        return None
    percentiles = [ps / PS_PER_S for ps in gap_percentiles(log.gaps, PERCENTILES)]
    return spread_of(total_ps(log.gaps) / count / PS_PER_S, percentiles)


def _replicas(log: ServingLog, duration_ps: int) -> tuple[ReplicaMetrics, ...]:
    given = np.bincount(log.requests["replica"], minlength=len(log.meta.replicas)).tolist()
    return tuple(_replica(one, count, duration_ps) for one, count in zip(log.meta.replicas, given, strict=True))


def _replica(totals: ReplicaTotals, requests: int, duration_ps: int) -> ReplicaMetrics:
    return ReplicaMetrics(
        name=totals.name,
        requests=requests,
        busy_share=ratio(sum(member.busy_ps for member in totals.members), duration_ps),
        running_mean=ratio(totals.running_ps, duration_ps),
        running_max=totals.most_running,
        waiting_mean=ratio(totals.waiting_ps, duration_ps),
        waiting_max=totals.most_waiting,
    )


def _of_all(replicas: Sequence[ReplicaMetrics]) -> dict[str, Any]:
    """Their figures together."""
    means = {name: [getattr(one, name) for one in replicas] for name in ("busy_share", "running_mean", "waiting_mean")}
    found = {name: None if None in values else sum(values) for name, values in means.items()}
    found["busy_share"] = None if found["busy_share"] is None else found["busy_share"] / len(replicas)
    most = {name: max(getattr(one, name) for one in replicas) for name in ("running_max", "waiting_max")}
    return {**found, **most}
