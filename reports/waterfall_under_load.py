"""Explains a gain under load: the terms of `waterfall`, for the time that requests are in the system.

A request waits in a queue, its prompt is read, and then it is in rounds until it ends. Seconds of rounds are those of
all operations that its replica runs meanwhile, with or without it: each request waits for all of them.

Letters: N operations, T tokens of rounds, C forwards of the target, one for each request in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import VERIFY
from ..runs.log import Columns
from ..runs.operations import READ, KeptOperations
from ..runs.serving import ServingLog
from ..traces.workloads.arrival import PS_PER_S
from .waterfall import LOSSES, SpentInRounds, Waterfall, sums_before, waterfall

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
# Seconds of a forward of the target by new tokens, and tokens held by each row.
StepS = Callable[[int, Sequence[int]], float]

# Losses in words, in the order of subtraction.
LOSSES_UNDER_LOAD = {
    **{loss: LOSSES[loss] for loss in ("acceptance", "drafting", "width")},
    "batch": "the target's steps have other rows, prompts and host time in them than alone",
    "rest": "deciding, and waiting between operations",
    "prompts": "reading prompts, or handing requests over, takes longer",
    "queue": "requests wait longer for a place",
}
UNKNOWN_UNDER_LOAD = "not known where a request was rejected or did not finish, or no round is run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentUnderLoad(SpentInRounds):
    """Counts of a run, and the seconds of all its requests together, by cause; those of members are of `rounds_s`."""

    queue_s: float  # from arrival until a request is scheduled
    prompts_s: float  # from there to its first token; where another replica decodes, until it is in a step there
    rounds_s: float  # from there to its end
    width_s: float  # of `target_s`, seconds saved if each row fed one token

    @property
    def in_system_s(self) -> float:
        """From arrival to end."""
        return self.queue_s + self.prompts_s + self.rounds_s

    @classmethod
    def of(cls, log: ServingLog, steps_s: Sequence[StepS]) -> Self | None:
        """For a run whose operations were kept; `steps_s` by replica. None where a request did not finish."""
        kept, columns, target = log.operations, log.requests, len(log.meta.members) - 1
        if kept is None or not log.finished.all():
            return None
        arrived, scheduled, ended = (columns[f"{what}_at_ps"] for what in ("arrived", "scheduled", "ended"))
        replica, first = _begun(kept, columns)
        width_s = _width_s(kept, _held(log), target, steps_s)
        at_target = kept.ops["level"] == target
        lasted = (kept.ops["end_ps"] - kept.ops["start_ps"]) / PS_PER_S
        met = {
            name: _met_s(kept.ops, seconds, replica, first, ended)
            for name, seconds in (
                ("target_s", np.where(at_target, lasted, 0.0)),
                ("width_s", width_s),
                ("below_s", np.where(at_target, 0.0, lasted)),
            )
        }
        return cls(
            in_rounds=int((columns["emitted_tokens"] - 1).sum()),
            calls=log.meta.levels[target].verifications,
            judged=log.meta.levels[target].judged,
            accepted=log.meta.levels[target].accepted,
            queue_s=int((scheduled - arrived).sum()) / PS_PER_S,
            prompts_s=int((first - scheduled).sum()) / PS_PER_S,
            rounds_s=int((ended - first).sum()) / PS_PER_S,
            **met,
        )


def waterfall_under_load(run: SpentUnderLoad | None, alone: SpentUnderLoad | None) -> Waterfall | None:
    """Where the gain of a run over the target alone on the same requests goes; None if unknown.

    The gain is the time in the system of the target alone over the run's. A run is priced eight times, as by
    `waterfall_of`, and the decrease of the gain at a price is the loss by what it adds:

    - perfect: requests wait and are read as alone, and the target is called T / (1 + (judged + committed) / C) times,
      each for what a call alone took.
    - acceptance: it is called as often as it was.
    - drafting: the members below take what they took.
    - width: steps take what they took longer for several tokens of a row than for one.
    - batch: they take what they took.
    - rest: rounds take what they took.
    - prompts, queue: so does all before.
    """
    if run is None or alone is None or not (run.calls and alone.calls):
        return None
    each_s = alone.target_s / alone.calls
    before_s = alone.queue_s + alone.prompts_s
    called_s = before_s + each_s * run.calls
    prices = (
        before_s + run.perfect_s(each_s),
        called_s,
        called_s + run.below_s,
        called_s + run.below_s + run.width_s,
        before_s + run.below_s + run.target_s,
        before_s + run.rounds_s,
        alone.queue_s + run.prompts_s + run.rounds_s,
        run.in_system_s,
    )
    return waterfall([alone.in_system_s / seconds for seconds in prices], LOSSES_UNDER_LOAD)


def _begun(kept: KeptOperations, columns: Columns) -> tuple[Times, Times]:
    """`[R]` the replica where a request is in rounds, and since when: one handed over from its first step there."""
    rows = kept.rows
    replica, first = columns["replica"].copy(), columns["first_token_at_ps"].copy()
    where, starts_ps = (kept.ops[name][rows["operation"]] for name in ("replica", "start_ps"))
    moved = np.flatnonzero(where != replica[rows["request"]])[::-1]  # the earliest of a request is assigned last
    request = rows["request"][moved]
    replica[request], first[request] = where[moved], starts_ps[moved]
    return replica, first


def _met_s(ops: Columns, seconds: Floats, replicas: Times, first: Times, ended: Times) -> float:
    """Of `[N]` seconds of operations, those that all requests wait through, from `first` to `ended`, per replica."""
    total = 0.0
    for replica in np.unique(replicas).tolist():
        here, own = ops["replica"] == replica, replicas == replica
        met = _Met(ops["start_ps"][here], ops["end_ps"][here], seconds[here])
        total += float((met.until(ended[own]) - met.until(first[own])).sum())
    return total


class _Met:
    """Seconds of operations that have passed at a time, spread evenly over each operation."""

    def __init__(self, start_ps: Times, end_ps: Times, seconds: Floats) -> None:
        lasts = end_ps > start_ps
        rate = seconds[lasts] / (end_ps - start_ps)[lasts]
        at_ps = np.concatenate([start_ps[lasts], end_ps[lasts]])
        order = np.argsort(at_ps, kind="stable")
        self._at_ps = at_ps[order]
        rates = np.cumsum(np.concatenate([rate, -rate])[order])
        self._passed = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(self._at_ps))])

    def until(self, at_ps: Times) -> Floats:
        """The seconds that have passed at each time."""
        if not len(self._at_ps):
            return np.zeros(len(at_ps))
        passed: Floats = np.interp(at_ps, self._at_ps, self._passed)
        return passed


def _width_s(kept: KeptOperations, held: Times, target: int, steps_s: Sequence[StepS]) -> Floats:
    """`[N]` seconds that each forward of the target takes longer than with one token per row, prompts aside."""
    ops, rows = kept.ops, kept.rows
    reads, judges = rows["kind"] == READ, rows["kind"] == VERIFY
    size = len(ops["kind"])
    read_tokens = np.bincount(rows["operation"], weights=np.where(reads, rows["tokens"], 0), minlength=size)
    num_judged = np.bincount(rows["operation"], weights=judges, minlength=size)
    narrow = (num_judged + read_tokens).astype(np.int64)
    begins = np.searchsorted(rows["operation"], np.arange(size + 1))
    found = np.zeros(size)
    wide = (ops["level"] == target) & (ops["new_tokens"] > narrow) & (num_judged > 0)
    for place in np.flatnonzero(wide).tolist():
        step_s, each = steps_s[int(ops["replica"][place])], held[begins[place] : begins[place + 1]].tolist()
        found[place] = step_s(int(ops["new_tokens"][place]), each) - step_s(int(narrow[place]), each)
    return found


def _held(log: ServingLog) -> Times:
    """`[M]` tokens that the target holds of each row's request.

    What a request reads, at first or after a preemption, ends with its text, so that hits in the prefix cache are what
    is not read. Of one preempted before that, hits are those of its first admission.
    """
    kept, requests = log.operations, log.requests
    assert kept is not None
    rows, request = kept.rows, kept.rows["request"]
    text = requests["prompt_tokens"][request] + sums_before(request, rows["emitted"])
    admission = _admissions(log, kept)
    read = np.where(rows["kind"] == READ, rows["tokens"], 0)
    before = sums_before(admission, read)
    _, place = np.unique(admission, return_inverse=True)
    of_admission = np.bincount(place, weights=read).astype(np.int64)[place]
    is_whole = np.bincount(place, weights=rows["emitted"])[place] > 0
    hits = np.where(is_whole, text - of_admission, requests["cached_tokens"][request, -1])
    return np.where(rows["kind"] == READ, hits + before, text - 1)


def _admissions(log: ServingLog, kept: KeptOperations) -> Times:
    """`[M]` a number for each stay of a request in the batch: a preemption ends one."""
    size, num_preempted = len(kept.rows["request"]), len(log.preemptions["request"])
    request = np.concatenate([kept.rows["request"], log.preemptions["request"]])
    at_ps = np.concatenate([kept.ops["start_ps"][kept.rows["operation"]], log.preemptions["at_ps"]])
    ends = np.arange(len(request)) >= size
    order = np.lexsort((~ends, at_ps, request))
    found = np.empty(len(request), dtype=np.int64)
    found[order] = np.cumsum(ends[order])
    return (request * (num_preempted + 1) + found)[:size]
