"""Compare two runs of one policy, step by step: a replay in the simulator and a run of the real models.

Both worlds share the loop and the session, and neither has a clock, so all counts must be equal: the steps of each
request in order, their operations with what prefix caches did in them, and every drafted and committed token. Where a
lossy policy takes the replay out of its record, the comparison ends: modelled steps cannot agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import counted
from ..decoding.results import DRAFT, TREE, OpRecord, StepRecord
from .log import RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExit:
    """The first step of a request that was modelled, or whose committed context the record does not hold."""

    request_id: str  # whose step it is
    step: int  # index among the steps of the request, from 0


def record_exits(log: RunLog) -> tuple[RecordExit, ...]:
    """One for each request that left the record, in the order of the run; none for a run of real models."""
    owners, modelled, emitted, parts = (log.steps[name] for name in ("request", "modelled", "emitted", "part"))
    found: list[tuple[int, RecordExit]] = []
    for request, (request_id, known) in enumerate(
        zip(log.requests["request_id"].tolist(), log.requests["exact_start"].tolist(), strict=True)
    ):
        rows = np.flatnonzero(owners == request)
        # Further parts of an Overlap began with what had been committed before its first one.
        began = np.maximum.accumulate(np.where(parts[rows] == 0, np.arange(len(rows)), 0))
        committed_before = (np.cumsum(emitted[rows]) - emitted[rows])[began]
        off = modelled[rows] > 0
        if known >= 0:
            off |= committed_before >= known
        if off.any():
            step = int(off.argmax())
            found.append((int(rows[step]), RecordExit(request_id=request_id, step=step)))
    return tuple(left for _, left in sorted(found, key=itemgetter(0)))


# Ids of what was drafted, by request and number of the outcome that its policy was told, from 1.
Drafts = Mapping[tuple[str, int], tuple[int, ...]]

AROUND = 12  # tokens that a difference shows on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSide:
    """What one world did where the two differ."""

    did: str  # the step, in words
    tokens: tuple[int, ...]  # what it committed from there on, at most `AROUND` ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step, in the order of the run, that the two worlds did not take alike.

    Where nothing but the operation as a whole differs (its rows, forwards or tokens fed), its first step stands for it.
    """

    request_id: str  # whose step it is
    step: int  # index among the steps of the request, from 0
    num_committed: int  # tokens both worlds had committed to the answer before it
    committed: tuple[int, ...]  # the last of those, at most `AROUND` ids
    replayed: WorldSide  # the simulator's part
    ran: WorldSide  # the runtime's part


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two runs of a policy are the same. What comes after the first difference is not counted."""

    policy: str  # as the runs call it
    num_requests: int  # in both runs
    num_steps: int  # steps that were compared and found alike: those of all operations before the first difference
    num_ops: int  # these operations
    num_tokens: int  # committed tokens that were compared and found alike
    # Of the prefix caches, compared operation by operation and found alike; 0 without these caches.
    num_asked_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int
    num_other_answers: int  # requests whose whole answers are not the same, those that left the record excluded
    difference: Difference | None  # the first one, None if there is none
    num_replayed: int  # steps of the replay, compared or not
    num_left: int  # requests that left the record
    left: RecordExit | None  # the first step outside the record, None if there is none. It ends the comparison
    ahead: str  # how the runtime's members worked at the same time, in `threads` or `turns`; "" where they never did


def joined(agreements: Sequence[Agreement]) -> Agreement:
    """One of all requests, from those of one policy on some requests each, in the order of the runs."""
    counts = [field.name for field in fields(Agreement) if field.name.startswith("num_")]
    sums = {name: sum(getattr(agreement, name) for agreement in agreements) for name in counts}
    difference = next((agreement.difference for agreement in agreements if agreement.difference), None)
    left = next((agreement.left for agreement in agreements if agreement.left), None)
    ahead = next((agreement.ahead for agreement in agreements if agreement.ahead), "")
    return replace(agreements[0], **sums, difference=difference, left=left, ahead=ahead)


# What is compared: all except seconds and `modelled`, which only one world has.
_STEP_FIELDS = tuple(name for name in StepRecord._fields if name not in ("request_id", "modelled", "end_s"))
_OP_FIELDS = tuple(name for name in OpRecord._fields if name not in ("start_s", "duration_s"))


class _Step(NamedTuple):
    """One step of a request: where its operation begins in the log, its own row, and all that is compared.

    Seconds are 0 in the records, and nothing is modelled.
    """

    start: int
    row: int
    tokens: tuple[int, ...]  # committed
    drafted: tuple[int, ...]  # where drafts were noted
    op_index: int  # -1 for a Commit
    record: StepRecord
    op: OpRecord | None  # None for a Commit, which runs nothing


class _Run(NamedTuple):
    """One world's run by request: its steps in order, and why it failed ("" if it did not)."""

    steps: Mapping[str, Sequence[_Step]]
    failed: Mapping[str, str]


class _Parting(NamedTuple):
    """Where two runs first differ on one request. They sort in order of reporting: in an operation, a step first."""

    start: int  # row in the log at which the operation begins
    alike: bool  # whether the step itself is the same and its operation as a whole is not
    row: int  # of the step
    request_id: str
    step: int  # index among the request's steps


def compare_runs(
    replayed: RunLog,
    ran: RunLog,
    *,
    replayed_tokens: Mapping[str, Sequence[int]],
    ran_tokens: Mapping[str, Sequence[int]],
    replayed_drafts: Drafts | None = None,
    ran_drafts: Drafts | None = None,
) -> Agreement:
    """Compare the log of a replay with that of a run of the same requests under the same policy.

    The tokens are all that were committed, by request; drafts are compared where both are given. Raises ValueError for
    other requests or members, or for tokens that the log does not account for.
    """
    members, others = list(replayed.meta["members"]), list(ran.meta["members"])
    if members != others:
        raise ValueError(f"both runs must have the same members, got {members} and {others}")
    unshared = set(replayed.requests["request_id"].tolist()) ^ set(ran.requests["request_id"].tolist())
    if unshared:
        raise ValueError(f"both runs must hold the same requests, got {min(unshared)} in one of them")
    ours = _read(replayed, replayed_tokens, replayed_drafts if ran_drafts is not None else None)
    theirs = _read(ran, ran_tokens, ran_drafts if replayed_drafts is not None else None)
    left = record_exits(replayed)
    num_replayed = len(replayed.steps["op"])
    known_end = ours.steps[left[0].request_id][left[0].step].start if left else num_replayed
    parted = [at for name in ours.steps if (at := _parting(name, ours, theirs))]
    if left:
        parted = [at for at in parted if at.start < known_end]
    end = min(parted).start if parted else known_end
    alike = [step for steps in ours.steps.values() for step in steps if step.start < end]
    ops = {step.op_index: step.op for step in alike if step.op}
    return Agreement(
        policy=replayed.meta["policy"],
        num_requests=len(ours.steps),
        num_steps=len(alike),
        num_ops=len(ops),
        num_tokens=sum(len(step.tokens) for step in alike),
        num_asked_tokens=sum(op.asked_tokens for op in ops.values()),
        num_hit_tokens=sum(op.hit_tokens for op in ops.values()),
        num_evicted_blocks=sum(op.evicted_blocks for op in ops.values()),
        num_other_answers=sum(
            _answer(steps) != _answer(theirs.steps[name])
            for name, steps in ours.steps.items()
            if name not in {each.request_id for each in left}
        ),
        difference=_difference(min(parted), ours, theirs, members) if parted else None,
        num_replayed=num_replayed,
        num_left=len(left),
        left=left[0] if left else None,
        ahead=ran.meta.get("overlap", {}).get("used", ""),
    )


def _read(log: RunLog, tokens: Mapping[str, Sequence[int]], drafts: Drafts | None) -> _Run:
    """The steps of every request in order, each with the tokens it drafted and committed."""
    ids, drafts = log.requests["request_id"].tolist(), drafts or {}
    told = dict.fromkeys(ids, 0)
    steps: dict[str, list[_Step]] = {request_id: [] for request_id in ids}
    done = dict.fromkeys(ids, 0)
    ops = [
        OpRecord(**dict(zip(_OP_FIELDS, row, strict=True)), start_s=0.0, duration_s=0.0)
        for row in _rows(log.ops, _OP_FIELDS)
    ]
    before, begin = -1, 0
    for row, (request, op, *said) in enumerate(_rows(log.steps, ("request", "op", *_STEP_FIELDS))):
        request_id = ids[request]
        record = StepRecord(request_id=request_id, **dict(zip(_STEP_FIELDS, said, strict=True)), modelled=0, end_s=0.0)
        if op < 0 or op != before:
            before, begin = op, row
        num_committed = done[request_id]
        done[request_id] = num_committed + record.emitted
        committed = tuple(tokens[request_id][num_committed : done[request_id]])
        told[request_id] += not record.prefill
        drafted = drafts.get((request_id, told[request_id]), ()) if record.drafted else ()
        steps[request_id].append(_Step(begin, row, committed, drafted, op, record, ops[op] if op >= 0 else None))
    for request_id, count in done.items():
        if count != len(tokens[request_id]):
            raise ValueError(
                f"request {request_id}: the log must account for every committed token, "
                f"got {count} of {len(tokens[request_id])}"
            )
    return _Run(steps, dict(zip(ids, log.requests["failed"].tolist(), strict=True)))


def _rows(columns: Mapping[str, NDArray[Any]], fields: Sequence[str]) -> Iterator[tuple[int, ...]]:
    return zip(*(columns[field].tolist() for field in fields), strict=True)


def _parting(request_id: str, ours: _Run, theirs: _Run) -> _Parting | None:
    """Where the two runs first differ on one request, None if they do not."""
    one, other = ours.steps[request_id], theirs.steps[request_id]
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    index = next((index for index, (step, twin) in pairs if step[2:] != twin[2:]), shorter)
    here = [steps[index] for steps in (one, other) if index < len(steps)]
    if not here:
        return None
    alike = len(here) == 2 and here[0][2:6] == here[1][2:6]  # the step itself; then the operation differs
    return _Parting(min(step.start for step in here), alike, min(step.row for step in here), request_id, index)


def _difference(parting: _Parting, ours: _Run, theirs: _Run, members: Sequence[str]) -> Difference:
    request_id, index = parting.request_id, parting.step
    committed = _answer(ours.steps[request_id][:index])
    return Difference(
        request_id=request_id,
        step=index,
        num_committed=len(committed),
        committed=tuple(committed[-AROUND:]),
        replayed=_side(ours, request_id, index, members),
        ran=_side(theirs, request_id, index, members),
    )


def _answer(steps: Sequence[_Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def _side(run: _Run, request_id: str, index: int, members: Sequence[str]) -> WorldSide:
    steps, failed = run.steps[request_id], run.failed[request_id]
    if index < len(steps):
        did = _told(steps[index], members)
    else:
        did = f"nothing more: the request failed ({failed})" if failed else "nothing more: the request had ended"
    return WorldSide(did=did, tokens=tuple(_answer(steps[index:])[:AROUND]))


def _told(step: _Step, members: Sequence[str]) -> str:
    did = step.record
    if step.op is None:
        return f"commit of {counted(did.emitted, 'pending token')}, unjudged"
    member = members[did.level]
    if did.kind == DRAFT:
        what = f"draft by {member}: {counted(did.drafted, 'token')} of {did.asked} asked for"
        what += f" {list(step.drafted)}" if step.drafted else ""
    elif did.kind == TREE:
        what = f"tree by {member}: {counted(did.drafted, 'node')} of at most {did.asked}"
    elif did.prefill:
        what = f"prefill by {member}: the first token committed"
    else:
        own = "own token added" if did.own else "no own token"
        left = f" ({did.escalated} escalated)" if did.escalated else ""
        what = f"verify by {member}: {did.accepted} of {did.judged} accepted{left}, {own}, {did.emitted} committed"
    rows, forwards, fed = step.op.num_rows, step.op.num_forwards, step.op.new_tokens
    asked, hit, entered, evicted = step.op[-4:]
    found = f", of {asked} tokens {hit} cached, blocks entered {entered}, evicted {evicted}" if asked + entered else ""
    return f"{what} (operation {step.op_index}: rows {rows}, forwards {forwards}, tokens fed {fed}{found})"
