"""Counts of a workload, which `paceline workload` prints."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from .arrival import PS_PER_S, Arrival, Workload, WorkloadAbout, requests_of
from .formats import repeated_id_error
from .workload import one_by_one

Watch = Callable[[Iterable[Arrival]], Iterable[Arrival]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of some numbers, at least one."""

    mean: float  # of them
    p50: float  # percentiles, interpolated linearly
    p90: float  # also
    p99: float  # also
    max: float  # the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Counts of all that was read or drawn."""

    about: WorkloadAbout  # of the workload after that
    num_requests: int  # all, turns of sessions included
    num_arrivals: int  # requests that wait for none of the workload; in closed loops one a session
    num_sessions: int  # arrivals with turns after them
    session_requests: float | None  # mean requests of these sessions; None where there are none
    span_s: float  # from the first arrival to the last; of a session its first request counts
    rate: float | None  # arrivals per second between the first and the last; None where they are at one time
    # coefficient of variation of the gaps between arrivals: 0 is even, 1 is Poisson's; None as `rate`
    gap_cv: float | None
    prompt_tokens: Distribution  # by request
    output_tokens: Distribution  # by request
    total_prompt_tokens: int  # of all requests
    total_output_tokens: int  # of all requests
    # within sessions, from the last thing that a request waits for to its arrival; None where there are none
    wait_s: Distribution | None
    asked_blocks: int  # blocks of all prompts; 0 where texts are unknown
    # of those, leading blocks that an earlier request read or wrote: hits of an unlimited prefix cache, with sessions
    # one after another, and requests of a session as if each ended at once
    shared_blocks: int
    shared_tokens: int  # prompt tokens in these blocks

    @property
    def shared_share(self) -> float | None:
        """Share of prompt tokens in leading blocks that an earlier request had; None where there are no blocks."""
        return self.shared_tokens / self.total_prompt_tokens if self.asked_blocks else None


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Figures kept while requests are read, some 32 bytes each."""

    arrivals: "array[int]" = field(default_factory=lambda: array("q"))
    prompts: "array[int]" = field(default_factory=lambda: array("q"))
    outputs: "array[int]" = field(default_factory=lambda: array("q"))
    waits: "array[int]" = field(default_factory=lambda: array("q"))
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    num_sessions: int = 0
    asked_blocks: int = 0
    shared_blocks: int = 0
    shared_tokens: int = 0
    seen: set[int] = field(default_factory=set)

    def take(self, request: Arrival, unit_tokens: int) -> None:
        self.prompts.append(request.prompt_tokens)
        self.outputs.append(request.output_tokens)
        self.ids.append(hash(request.request_id))
        if request.blocks:
            shared = next((n for n, block in enumerate(request.blocks) if block not in self.seen), len(request.blocks))
            self.asked_blocks += len(request.blocks)
            self.shared_blocks += shared
            self.shared_tokens += min(shared * unit_tokens, request.prompt_tokens)
            self.seen.update(request.blocks[shared:])
        self.seen.update(request.answer)


def summary_of(workload: Workload, *, watch: Watch = iter) -> WorkloadSummary:
    """Read or draw all of a workload and count it; `watch` gets the arrivals and yields them.

    It is iterated once, or twice where ids may be repeated: raises TraceFormatError for an id of two requests.
    """
    counts, unit = _Counts(), workload.about.unit_tokens
    for arrival in watch(one_by_one(workload)):
        counts.arrivals.append(arrival.arrives_ps)
        counts.num_sessions += arrival.turns is not None
        for request, wait_ps in requests_of(arrival):
            counts.take(request, unit)
            if wait_ps is not None:
                counts.waits.append(wait_ps)
    _check_ids(workload, counts.ids)
    if not counts.prompts:
        raise TraceFormatError(workload.about.name, "workload", "must have requests", "none")
    prompts, outputs, waits, arrivals = map(_numbers, (counts.prompts, counts.outputs, counts.waits, counts.arrivals))
    gaps = np.diff(arrivals) / PS_PER_S
    span_s = int(arrivals[-1] - arrivals[0]) / PS_PER_S
    return WorkloadSummary(
        about=workload.about,
        num_requests=len(prompts),
        num_arrivals=len(arrivals),
        num_sessions=counts.num_sessions,
        session_requests=len(waits) / counts.num_sessions + 1 if counts.num_sessions else None,
        span_s=span_s,
        rate=len(gaps) / span_s if span_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span_s else None,
        prompt_tokens=_distribution(prompts),
        output_tokens=_distribution(outputs),
        total_prompt_tokens=int(prompts.sum()),
        total_output_tokens=int(outputs.sum()),
        wait_s=_distribution(waits / PS_PER_S) if len(waits) else None,
        asked_blocks=counts.asked_blocks,
        shared_blocks=counts.shared_blocks,
        shared_tokens=counts.shared_tokens,
    )


def _numbers(found: "array[int]") -> NDArray[np.int64]:
    return np.frombuffer(found, dtype=np.int64) if found else np.zeros(0, np.int64)


def _distribution(numbers: NDArray[np.int64] | NDArray[np.float64]) -> Distribution:
    p50, p90, p99 = np.percentile(numbers, (50, 90, 99))
    return Distribution(
        mean=float(numbers.mean()), p50=float(p50), p90=float(p90), p99=float(p99), max=float(numbers.max())
    )


def _check_ids(workload: Workload, hashes: "array[int]") -> None:
    """Raise TraceFormatError for an id of two requests; reads again only where hashes are equal."""
    values, times = np.unique(_numbers(hashes), return_counts=True)
    suspects = {int(value) for value in values[times > 1]}
    seen: set[str] = set()
    for arrival in one_by_one(workload) if suspects else ():
        for request, _ in requests_of(arrival):
            if hash(request.request_id) in suspects:
                if request.request_id in seen:
                    raise repeated_id_error(workload.about, request.request_id)
                seen.add(request.request_id)
