"""The figures of one serving run: of all its requests, of each class, member and replica, of host memory and the link.

docs/glossary.md defines each. Letters: N runs of gaps, K ranks, R requests.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.log import Columns
from ..runs.serving import UNKNOWN, ReplicaTotals, ServingLog, total_gaps, total_ps
from ..traces.workloads.arrival import MOST_PS, PS_PER_S
from .summary import PERCENTILES, Spread, spread_over

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def gap_percentiles(gaps: Columns, percents: Sequence[int]) -> list[float]:
    """Percentiles in picoseconds, interpolated linearly between neighbours in order of size, as numpy's default.

    `gaps` are runs in the form of `runs.serving.ServingLog`, at least one; `percents` are whole numbers in [0, 100].
    """
    last = total_gaps(gaps) - 1
    places = [divmod(percent * last, 100) for percent in percents]
    ranks = sorted({rank for place, _ in places for rank in (place, min(place + 1, last))})
    found = dict(zip(ranks, _Runs(gaps).by_size(ranks), strict=True))
    ends = [(found[place], found[min(place + 1, last)], rest) for place, rest in places]
    return [low + (high - low) * rest / 100 for low, high, rest in ends]


class _Runs:
    """Rising runs of gaps.

    `[N]` each: `low` and `high`, the least and the greatest gap of a run; `step` between its gaps, >= 1, meaningless in
    runs of one; `count` of its different gaps; `rows`, how often each of them occurred.
    """

    def __init__(self, gaps: Columns) -> None:
        first, increment, count, rows = (gaps[name] for name in ("first_ps", "increment_ps", "count", "rows"))
        last = first + increment * (count - 1)
        level = increment == 0
        self.low, self.high = np.minimum(first, last), np.maximum(first, last)
        self.step = np.where(level, 1, np.abs(increment))
        self.count = np.where(level, 1, count)
        self.rows = np.where(level, rows * count, rows)

    def by_size(self, ranks: Sequence[int]) -> list[int]:
        """`[K]` the gaps of these ranks, 0 for the least one."""
        # If each gap were the least of its run, no rank's gap would be longer; conversely with the greatest.
        least, most = self._as_if_all(self.low, ranks), self._as_if_all(self.high, ranks)
        return [self._of_rank(rank, *ends) for rank, *ends in zip(ranks, least, most, strict=True)]

    def _as_if_all(self, values: Integers, ranks: Sequence[int]) -> list[int]:
        order = np.argsort(values)
        up_to = np.cumsum((self.count * self.rows)[order])
        found: list[int] = values[order[np.searchsorted(up_to, ranks, side="right")]].tolist()
        return found

    def _of_rank(self, rank: int, least: int, most: int) -> int:
        """The gap of a rank, which is in [least, most], by bisection."""
        below = int((self.count * self.rows)[self.high < least].sum())
        open_to_both = (self.high >= least) & (self.low <= most)
        low, step, count, rows = (part[open_to_both] for part in (self.low, self.step, self.count, self.rows))
        while least < most:
            middle = (least + most) // 2
            up_to = np.clip((middle - low) // step + 1, 0, count)
            if below + int((up_to * rows).sum()) > rank:
                most = middle
            else:
                least = middle + 1
        return least


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetrics:
    """One member; shares are between 0 and 1; None where nothing was looked up, judged or counted."""

    name: str
    forwards: int  # batched forwards it ran
    busy_s: float  # seconds of them
    verifications: int  # one per request and forward in which it judged, or wrote a token of its own; prefills are none
    acceptance_length: float | None  # tokens a verification leaves: accepted ones and its own
    accepted_per_verification: float | None  # the same without its own token
    acceptance_rate: float | None  # accepted over judged tokens; without own tokens
    kv_use_mean: float | None  # used over available KV blocks, over time
    kv_use_max: float | None  # the largest such share of any replica
    hit_share_blocks: float | None  # full blocks that its prefix cache held, over those looked up
    hit_share_tokens: float | None  # the same of tokens
    # prompt tokens that it held when their request was first scheduled, over all of those
    cached_prompt_share: float | None


def ratio(part: float, whole: float) -> float | None:
    """A share or a rate; None for a `whole` of 0."""
    return part / whole if whole else None


def _of_member(log: ServingLog, level: int, duration_ps: int) -> MemberMetrics:
    parts = [replica.members[level] for replica in log.meta.replicas]
    judged = log.meta.levels[level]
    lookups = [part.lookups for part in parts]
    blocks = [part.num_blocks for part in parts if part.num_blocks is not None]
    counted = len(blocks) == len(parts)
    scheduled = log.requests["scheduled_at_ps"] != UNKNOWN
    return MemberMetrics(
        name=log.meta.members[level],
        forwards=sum(part.forwards for part in parts),
        busy_s=sum(part.busy_ps for part in parts) / PS_PER_S,
        verifications=judged.verifications,
        acceptance_length=ratio(judged.accepted + judged.own, judged.verifications),
        accepted_per_verification=ratio(judged.accepted, judged.verifications),
        acceptance_rate=ratio(judged.accepted, judged.judged),
        kv_use_mean=ratio(sum(part.block_ps for part in parts), sum(blocks) * duration_ps) if counted else None,
        kv_use_max=max(part.most_blocks / most for part, most in zip(parts, blocks, strict=True)) if counted else None,
        hit_share_blocks=ratio(sum(one.found_blocks for one in lookups), sum(one.asked_blocks for one in lookups)),
        hit_share_tokens=ratio(sum(one.found_tokens for one in lookups), sum(one.asked_tokens for one in lookups)),
        cached_prompt_share=ratio(
            int(np.sum(log.requests["cached_tokens"][scheduled, level])),
            int(np.sum(log.requests["prompt_tokens"][scheduled])) if any(one.asked_tokens for one in lookups) else 0,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetrics:
    """Host memory of all replicas together."""

    # stored, loaded, dropped: blocks by member: copied to it, read back, and evicted
    stored: dict[str, int]
    loaded: dict[str, int]
    dropped: dict[str, int]
    most_bytes: int  # the most that a replica used at once
    load_s: float  # that loading added to steps

    @property
    def words(self) -> str:
        """All of it in a line."""
        parts = [
            f"{name} {self.stored[name]:,} there, {self.loaded[name]:,} back, {self.dropped[name]:,} dropped"
            for name in self.stored
            if self.stored[name]
        ]
        took = f"{self.most_bytes / 1e9:,.3f} GB at most, {self.load_s:,.3f} s for what came back"
        return f"blocks to host memory: {'; '.join(parts) or 'none'}; {took}"


def host_metrics(log: ServingLog) -> HostMetrics | None:
    """The host memory's figures; None where no replica has any."""
    hosts = [replica.host for replica in log.meta.replicas if replica.host is not None]
    if not hosts:
        return None
    return HostMetrics(
        stored=_sums([host.stored for host in hosts]),
        loaded=_sums([host.loaded for host in hosts]),
        dropped=_sums([host.dropped for host in hosts]),
        most_bytes=max(host.most_bytes for host in hosts),
        load_s=sum(host.load_ps for host in hosts) / PS_PER_S,
    )


def _sums(parts: list[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferMetrics:
    """Requests that were prefilled on one replica and decoded on another."""

    handed_over: int  # requests
    sent: int  # transfers that reached the link; a text in the other prefix cache needs none
    unfinished: int  # of these, those waiting at the end of the run, or cut by it
    bytes: int  # that were sent by then
    busy_share: float | None  # time of the link for them, over `duration_s`
    # queued_s_mean, queued_s_max: that a transfer waited behind others
    queued_s_mean: float | None
    queued_s_max: float
    held_s_mean: float | None  # from the end of a prefill until blocks and a place were there for the request

    @property
    def words(self) -> str:
        """All of it in a line."""
        queued = "-" if self.queued_s_mean is None else f"{1e3 * self.queued_s_mean:,.3f} ms"
        held = "-" if self.held_s_mean is None else f"{1e3 * self.held_s_mean:,.3f} ms"
        busy = "-" if self.busy_share is None else f"{self.busy_share:.1%}"
        cut = f" ({self.unfinished:,} transfers not to their end)" if self.unfinished else ""
        return (
            f"{self.handed_over:,} requests handed over, {self.bytes / 1e9:,.3f} GB sent{cut}; link busy {busy}, queue "
            f"at it {queued} (mean), {1e3 * self.queued_s_max:,.3f} ms (most); before it {held} (mean) for blocks"
        )


def transfer_metrics(log: ServingLog, duration_ps: int) -> TransferMetrics | None:
    """The transfers' figures; None where every replica prefills and decodes."""
    found = log.meta.transfers
    if found is None:
        return None
    return TransferMetrics(
        handed_over=found.handed_over,
        sent=found.sent,
        unfinished=found.unfinished,
        bytes=found.bytes,
        busy_share=ratio(found.busy_ps, duration_ps),
        queued_s_mean=ratio(found.queued_ps / PS_PER_S, found.sent),
        queued_s_max=found.most_queued_ps / PS_PER_S,
        held_s_mean=ratio(found.held_ps / PS_PER_S, found.handed_over),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    """The longest times that meet a promise (SLO), seconds > 0; None: no promise."""

    ttft: float | None = None  # to the first token
    tpot: float | None = None  # for each token after the first, the request's mean. A request of one token meets any
    e2e: float | None = None  # to the last token
    queue: float | None = None  # until the request is first scheduled

    @property
    def promised(self) -> dict[str, float]:
        """The promised seconds, by name."""
        return {name: seconds for name, seconds in asdict(self).items() if seconds is not None}

    def met(self, log: ServingLog) -> Mask:
        """`[R]` whether each request finished and met all of them; a time that equals its bound meets it."""
        columns, met = log.requests, log.finished
        for name, seconds in self.promised.items():
            since, until = ENDS[name]
            took = columns[f"{until}_at_ps"] - columns[f"{since}_at_ps"]
            if name == "tpot":
                took = -(-took // np.maximum(columns["output_tokens"] - 1, 1))  # rounded up, as whole as the bound
            met = met & (took <= round(min(seconds * PS_PER_S, MOST_PS)))
        return met


# By latency, the times of a request at its start and end.
ENDS = {
    "ttft": ("arrived", "first_token"),
    "tpot": ("first_token", "ended"),
    "e2e": ("arrived", "ended"),
    "queue": ("arrived", "scheduled"),
}


def latency_seconds(log: ServingLog, name: str, among: Mask) -> NDArray[np.float64]:
    """A latency (a key of `ENDS`) of the finished requests of `among` `[R]` in order of arrival.

    For TPOT only requests with several tokens.
    """
    since, until = (f"{end}_at_ps" for end in ENDS[name])
    kept = log.finished & among
    if name == "tpot":
        kept &= log.requests["output_tokens"] > 1
    seconds: NDArray[np.float64] = (log.requests[until] - log.requests[since])[kept] / PS_PER_S
    return seconds / (log.requests["output_tokens"][kept] - 1) if name == "tpot" else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Service levels by class. A class with levels of its own has none of the others'."""

    others: ServiceLevels = field(default_factory=ServiceLevels)  # for requests whose class has none of its own
    classes: Mapping[str, ServiceLevels] = field(default_factory=dict)  # by name

    @property
    def any(self) -> bool:
        """Whether there is any promise."""
        return bool(self.others.promised) or any(levels.promised for levels in self.classes.values())

    def of(self, name: str) -> ServiceLevels:
        """The levels of a class; "" for requests without one."""
        return self.classes.get(name, self.others)

    def met(self, log: ServingLog) -> Mask:
        """`[R]` whether each request finished and met all promises to its class; False without promises."""
        met = np.zeros(len(log.finished), np.bool_)
        for name, of_class in by_class(log).items():
            if self.of(name).promised:
                met |= of_class & self.of(name).met(log)
        return met

    def made(self, log: ServingLog) -> Mask:
        """`[R]` whether each request has a promise."""
        made = np.zeros(len(log.finished), np.bool_)
        for name, of_class in by_class(log).items():
            if self.of(name).promised:
                made |= of_class
        return made

    def in_words(self) -> str:
        """The promises for a title; empty without any."""
        named = [("", self.others)] if self.others.promised else []
        named += [(f"{name}: ", levels) for name, levels in self.classes.items()]
        if len(named) > 1 and self.others.promised:
            named = [*named[1:], ("others: ", self.others)]
        parts = [before + ", ".join(f"{one} {s:g} s" for one, s in levels.promised.items()) for before, levels in named]
        return f"SLO {'; '.join(parts)}" if parts else ""

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/glossary.md)."""
        by_name = {name: levels.promised for name, levels in self.classes.items()}
        return {"slo": self.others.promised, "slo_by_class": by_name}


def by_class(log: ServingLog) -> dict[str, Mask]:
    """By class of service levels, in order of name, `[R]` whether each request has it; "" for those without one."""
    column = np.asarray(log.requests["slo"])
    return {name: column == name for name in sorted(set(column.tolist()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of some requests of a run. None: no request qualifies, or no time passed."""

    requests: int  # that arrived: finished, rejected and unfinished ones
    finished: int
    rejected: int
    unfinished: int
    output_tokens: int  # of finished requests
    # requests that finished and met every promise; None without promises, as the next two
    slo_met: int | None
    slo_share: float | None  # of all that arrived and have a promise
    goodput_per_s: float | None  # of those that met every promise
    # ttft_s, tpot_s, e2e_s, queue_s: over finished requests
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    queue_s: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics(Figures):
    """One class; the `name` "" is for requests without one."""

    name: str


def class_metrics(log: ServingLog, promised: Promises, duration_s: float) -> tuple[ClassMetrics, ...]:
    """The figures of each class, in order of name; empty where no request has one."""
    classes = by_class(log)
    if not any(classes):
        return ()
    met, made = promised.met(log), promised.made(log)
    return tuple(
        ClassMetrics(name=name, **_figures(log, among, met if promised.of(name).promised else None, made, duration_s))
        for name, among in classes.items()
    )


def _figures(log: ServingLog, among: Mask, met: Mask | None, made: Mask, duration_s: float) -> dict[str, Any]:
    """The fields of `Figures`, by `[R]` requests: those that count, that met their promises, that have promises."""
    columns, finished = log.requests, log.finished & among
    kept = None if met is None else int((met & among).sum())
    seconds = {f"{name}_s": latency_seconds(log, name, among) for name in ENDS}
    return {
        "requests": int(among.sum()),
        "finished": int(finished.sum()),
        "rejected": int((among & (columns["rejected"] != "")).sum()),
        "unfinished": int((among & (columns["ended_at_ps"] == UNKNOWN)).sum()),
        "output_tokens": int(columns["output_tokens"][finished].sum()),
        "slo_met": kept,
        "slo_share": None if kept is None else ratio(kept, int((made & among).sum())),
        "goodput_per_s": None if kept is None else ratio(kept, duration_s),
        **{name: spread_over(own) if len(own) else None for name, own in seconds.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMetrics:
    """One replica over the run."""

    name: str
    requests: int  # routed to it
    # time of its members' forwards over `duration_s`; above 1 only where several devices run at once
    busy_share: float | None
    # running_mean, running_max: requests in its batch, over time
    running_mean: float | None
    running_max: int
    # waiting_mean, waiting_max: requests in its queue, preempted ones among them, over time
    waiting_mean: float | None
    waiting_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics(Figures):
    """One run: the figures of all its requests, and of what served them."""

    rejected_for: dict[str, int]  # rejected requests by reason
    prompt_tokens: int  # of finished requests
    unfinished_tokens: int  # emitted by requests that did not finish
    duration_s: float  # from the first arrival to the end of the run
    requests_per_s: float | None
    output_tokens_per_s: float | None  # of finished requests, as vLLM and AIPerf count
    emitted_tokens_per_s: float | None  # of all, also those that did not finish
    itl_s: Spread | None  # over gaps between outputs
    # mean over all requests that were not rejected, from arrival to end, or to that of the run
    in_system_s: float | None
    preemptions: int  # all of them
    preempted_requests: int  # that were preempted at least once
    busy_share: float | None  # mean over replicas
    # running_mean, waiting_mean: sums over replicas
    running_mean: float | None
    # running_max, waiting_max: the largest of any replica
    running_max: int
    waiting_mean: float | None
    waiting_max: int
    classes: tuple[ClassMetrics, ...]  # of service levels, in order of name; empty where no request has one
    members: tuple[MemberMetrics, ...]  # in level order
    replicas: tuple[ReplicaMetrics, ...]  # in their order
    transfers: TransferMetrics | None = None  # between replicas; None where every one prefills and decodes
    host: HostMetrics | None = None  # memory of hosts, of all replicas; None where none has any
    # from the arrival of a session's first request to the end of its last; over sessions of several requests
    session_s: Spread | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/glossary.md): `classes`, `members`, `replicas` by name."""
        found = asdict(self)
        for key in ("transfers", "host", "session_s"):
            if found[key] is None:
                del found[key]
        for key in ("classes", "members", "replicas"):
            found[key] = {one.pop("name"): one for one in found[key]}
        return found


def metrics_of(log: ServingLog, promised: Promises) -> ServingMetrics:
    """The figures of a run."""
    columns, finished = log.requests, log.finished
    duration_ps = log.meta.ended_at_ps - int(columns["arrived_at_ps"].min(initial=log.meta.ended_at_ps))
    duration_s = duration_ps / PS_PER_S
    met = promised.met(log) if promised.any else None
    figures = _figures(log, np.ones_like(finished), met, promised.made(log), duration_s)
    unfinished_tokens = int(columns["emitted_tokens"][~finished].sum())
    replicas = _replicas(log, duration_ps)
    return ServingMetrics(
        **figures,
        rejected_for=dict(Counter(columns["rejected"][columns["rejected"] != ""].tolist())),
        prompt_tokens=int(columns["prompt_tokens"][finished].sum()),
        unfinished_tokens=unfinished_tokens,
        duration_s=duration_s,
        requests_per_s=ratio(figures["finished"], duration_s),
        output_tokens_per_s=ratio(figures["output_tokens"], duration_s),
        emitted_tokens_per_s=ratio(figures["output_tokens"] + unfinished_tokens, duration_s),
        itl_s=_gap_spread(log),
        in_system_s=_in_system_s(log),
        preemptions=len(log.preemptions["request"]),
        preempted_requests=len(np.unique(log.preemptions["request"])),
        **_of_all(replicas),
        classes=class_metrics(log, promised, duration_s),
        members=tuple(_of_member(log, level, duration_ps) for level in range(len(log.meta.members))),
        replicas=replicas,
        transfers=transfer_metrics(log, duration_ps),
        session_s=spread_over(np.array(took) / PS_PER_S) if (took := log.meta.sessions_ps) else None,
        host=host_metrics(log),
    )


def _in_system_s(log: ServingLog) -> float | None:
    """Unlike E2E not too low if a run was stopped, and then still comparable between policies."""
    served = log.requests["rejected"] == ""
    ended = np.where(log.requests["ended_at_ps"] == UNKNOWN, log.meta.ended_at_ps, log.requests["ended_at_ps"])
    return float(np.mean((ended - log.requests["arrived_at_ps"])[served] / PS_PER_S)) if served.any() else None


def _gap_spread(log: ServingLog) -> Spread | None:
    count = total_gaps(log.gaps)
    if not count:
        return None
    p50, p90, p95, p99 = (ps / PS_PER_S for ps in gap_percentiles(log.gaps, PERCENTILES))
    return Spread(mean=total_ps(log.gaps) / count / PS_PER_S, p50=p50, p90=p90, p95=p95, p99=p99)


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
    means = {name: [getattr(one, name) for one in replicas] for name in ("busy_share", "running_mean", "waiting_mean")}
    found = {name: None if None in values else sum(values) for name, values in means.items()}
    found["busy_share"] = None if found["busy_share"] is None else found["busy_share"] / len(replicas)
    most = {name: max(getattr(one, name) for one in replicas) for name in ("running_max", "waiting_max")}
    return {**found, **most}
