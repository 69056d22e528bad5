"""Runs as a timeline in Chrome's trace-event format, which Perfetto shows: one file, any number of runs side by side.

A run has a lane for each replica and member that ran, one for each request from its arrival to its end (lanes are used
again), and counters. Simulated and measured runs have the same words. Lines of the file are built column by column: a
run has millions of them. Letters: N operations, M rows, R requests.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..base.files import whole_file
from ..decoding.results import DRAFT, TREE, VERIFY
from ..runs.log import Columns, RunLog
from ..runs.observed import ObservedRun
from ..runs.operations import READ
from ..runs.serving import UNKNOWN, ServingLog
from .panels import AnyPanel, Panel, Series, Span, Spans, over_time

SUFFIXES = (".json", ".json.gz")
PS_PER_NS, NS_PER_S = 1000, 10**9
AT_ONCE = 1 << 18  # lines built at a time
LAST_OPERATIONS = 20  # of the target, behind a point of the acceptance counter
SIMULATED, MEASURED, OBSERVED = "simulated", "measured", "observed"
Ints = NDArray[np.int64]
Output = IO[bytes] | gzip.GzipFile


class Counter(NamedTuple):
    """A number over time: each value is valid from its instant on."""

    replica: int
    name: str
    at_ns: Ints
    values: NDArray[Any]


class Window(NamedTuple):
    """The part of each run that a file holds; what overlaps it is not cut."""

    from_ns: int
    until_ns: int

    @classmethod
    def of(cls, from_s: float, until_s: float) -> "Window":
        """From seconds, `until_s` perhaps infinite."""
        return cls(int(from_s * NS_PER_S), int(min(until_s, 2**33) * NS_PER_S))

    def overlaps(self, start: Ints, end: Ints) -> NDArray[np.bool_]:
        """Which spans do; those that end as it begins count."""
        return (end >= self.from_ns) & (start <= self.until_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRun:
    """What happened in a run of either world. Times are whole nanoseconds since its first event."""

    world: str  # simulated, measured, or observed by a client
    replicas: tuple[str, ...]
    members: tuple[str, ...]  # in level order
    # `[R]` request_id, prompt_tokens, emitted_tokens, outcome; arrived, scheduled, first and ended in ns, UNKNOWN where
    # the event did not happen; with several replicas `replica`, an index
    requests: Columns
    preempted: Columns  # request and at, ns, of each preemption
    ops: Columns | None = None  # `[N]` replica, level, kind, start, end, forwards, new_tokens; None: not kept
    rows: Columns | None = None  # `[M]` operation, request, kind, tokens, accepted, emitted, part
    counters: tuple[Counter, ...] = ()

    @property
    def end_ns(self) -> int:
        """Of the last event."""
        ends = [self.requests[name].max(initial=0) for name in ("arrived", "scheduled", "first", "ended")]
        return int(max([*ends, *([] if self.ops is None else [self.ops["end"].max(initial=0)])]))

    @property
    def ended(self) -> Ints:
        """`[R]` when each request ended; of unfinished ones, the end of the run."""
        return np.where(self.requests["ended"] == UNKNOWN, self.end_ns, self.requests["ended"])

    def counted(self, window: Window) -> tuple[int, int | None]:
        """Requests and operations in a window; None: operations were not kept."""
        num_requests = int(window.overlaps(self.requests["arrived"], self.ended).sum())
        ops = self.ops
        return num_requests, None if ops is None else int(window.overlaps(ops["start"], ops["end"]).sum())


def _ns(seconds: NDArray[Any]) -> Ints:
    """NaN is UNKNOWN."""
    known = np.isfinite(seconds)
    return np.where(known, np.rint(np.where(known, seconds, 0.0) * NS_PER_S), UNKNOWN).astype(np.int64)


def events_of_serving(log: ServingLog) -> TimelineRun:
    """The timeline of a served run; with operations and rows if it kept them."""
    requests, series = log.requests, log.series

    def ns(values: Ints) -> Ints:
        return np.where(values == UNKNOWN, UNKNOWN, values // PS_PER_NS)

    outcome = np.where(requests["rejected"] != "", requests["rejected"], np.where(log.finished, "", "unfinished"))
    times = {"arrived": "arrived_at_ps", "scheduled": "scheduled_at_ps", "first": "first_token_at_ps"}
    times |= {"ended": "ended_at_ps"}
    ops, rows = (None, None) if log.operations is None else (log.operations.ops, log.operations.rows)
    return TimelineRun(
        world=SIMULATED,
        replicas=tuple(replica.name for replica in log.meta.replicas),
        members=log.meta.members,
        requests={
            **{name: requests[name] for name in ("request_id", "replica", "prompt_tokens", "emitted_tokens")},
            "outcome": outcome,
            **{name: ns(requests[column]) for name, column in times.items()},
        },
        preempted={"request": log.preemptions["request"], "at": ns(log.preemptions["at_ps"])},
        ops=None if ops is None else _in_ns(ops),
        rows=None if rows is None else {**rows, "part": np.zeros_like(rows["kind"])},
        counters=tuple(_of_series(log, ns(series["at_ps"]))),
    )


def _in_ns(ops: Columns) -> Columns:
    kept = {name: ops[name] for name in ("replica", "level", "kind", "forwards", "new_tokens")}
    return {**kept, "start": ops["start_ps"] // PS_PER_NS, "end": ops["end_ps"] // PS_PER_NS}


def _of_series(log: ServingLog, at_ns: Ints) -> Iterator[Counter]:
    """Requests of each replica, and keys and values of each of its members that holds some."""
    sizes = _block_tokens(log)
    for index, replica in enumerate(log.meta.replicas):
        own = log.series["replica"] == index
        for name in ("running", "waiting"):
            yield Counter(index, f"{name} requests", at_ns[own], log.series[name][own])
        for level, member in enumerate(replica.members):
            if member.most_blocks:
                name, blocks = log.meta.members[level], log.series["used_blocks"][own, level]
                size = sizes.get(name)
                what = "KV blocks" if size is None else "KV tokens"
                yield Counter(index, f"{what}, {name}", at_ns[own], blocks * (size or 1))


def _block_tokens(log: ServingLog) -> dict[str, int]:
    """Tokens of a block of each member, where the run gives it and all replicas have the same.

    Without members with windows, whose blocks are of one group of layers each.
    """
    found: dict[str, set[int]] = {}
    replicas = log.meta.about.setting.get("replicas")
    for replica in replicas.values() if isinstance(replicas, Mapping) else ():
        limits = replica.get("kv") if isinstance(replica, Mapping) else None
        for name, one in limits.items() if isinstance(limits, Mapping) else ():
            size = one.get("block_tokens") if isinstance(one, Mapping) and "window" not in one else None
            found.setdefault(name, set()).add(size if isinstance(size, int) else 0)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1 and 0 not in sizes}


def events_of_log(log: RunLog) -> TimelineRun:
    """The timeline of a replay or of real models; a `Commit` takes no time and is no event."""
    requests, ops, steps = log.requests, log.ops, log.steps
    begun = np.concatenate([requests["arrived_at_s"], ops["start_s"]])
    zero_s = begun.min() if len(begun) else 0.0
    start = _ns(ops["start_s"] - zero_s)
    ran = np.flatnonzero(steps["op"] >= 0)
    ran = ran[np.argsort(steps["op"][ran], kind="stable")]
    kind = np.where(steps["prefill"] == 1, READ, np.where(steps["kind"] == VERIFY, VERIFY, DRAFT))
    tokens = np.where(steps["kind"] == VERIFY, steps["judged"], steps["drafted"])
    tokens = np.where(steps["prefill"] == 1, requests["prompt_tokens"][steps["request"]], tokens)
    rows = {"operation": steps["op"], "request": steps["request"], "kind": kind, "tokens": tokens}
    rows |= {name: steps[name] for name in ("accepted", "emitted", "part")}
    end = np.maximum(start, _ns(ops["start_s"] + ops["duration_s"] - zero_s))
    ended = _ns(requests["finished_at_s"] - zero_s)
    # Sums of seconds that should be equal may differ by their last bit: so a request ends with its last operation.
    known = ran[ended[steps["request"][ran]] != UNKNOWN]
    np.maximum.at(ended, steps["request"][known], end[steps["op"][known]])
    times = {"arrived": "arrived_at_s", "scheduled": "admitted_at_s", "first": "first_token_at_s"}
    measured = log.meta.get("world") == "runtime"
    found = TimelineRun(
        world=MEASURED if measured else SIMULATED,
        replicas=("models" if measured else "replay",),
        members=tuple(log.meta["members"]),
        requests={
            **{name: requests[name] for name in ("request_id", "prompt_tokens", "emitted_tokens")},
            "outcome": requests["failed"],
            **{name: _ns(requests[column] - zero_s) for name, column in times.items()},
            "ended": ended,
        },
        preempted={"request": np.zeros(0, np.int64), "at": np.zeros(0, np.int64)},
        ops={
            "replica": np.zeros(len(start), np.int64),
            "level": ops["level"],
            "kind": np.where(ops["kind"] == TREE, DRAFT, ops["kind"]),
            "start": start,
            "end": end,
            "forwards": ops["num_forwards"],
            "new_tokens": ops["new_tokens"],
        },
        rows={name: values[ran] for name, values in rows.items()},
    )
    return replace(found, counters=_of_requests(found))


def events_of_observed(run: ObservedRun) -> TimelineRun:
    """The timeline of a server, as its client saw it, without its operations."""
    asked = run.requests
    first = [one.outputs_at_ps[0] if one.outputs_at_ps else UNKNOWN for one in asked]
    ended = [UNKNOWN if one.ended_at_ps is None else one.ended_at_ps for one in asked]
    times = {"arrived": [one.due_at_ps for one in asked], "scheduled": [one.sent_at_ps for one in asked]}
    times |= {"first": first, "ended": ended}
    columns: Columns = {
        name: np.array([UNKNOWN if ps == UNKNOWN else ps // PS_PER_NS for ps in values], dtype=np.int64)
        for name, values in times.items()
    }
    columns["request_id"] = np.array([one.request_id for one in asked], dtype=object)
    columns["prompt_tokens"] = np.array([one.prompt_tokens or 0 for one in asked], dtype=np.int64)
    columns["emitted_tokens"] = np.array([one.output_tokens or 0 for one in asked], dtype=np.int64)
    unfinished = ["" if one.finished else one.failed or "unfinished" for one in asked]
    columns["outcome"] = np.array(unfinished, dtype=object)
    none = np.zeros(0, np.int64)
    found = TimelineRun(
        world=OBSERVED,
        replicas=("server",),
        members=("server",),
        requests=columns,
        preempted={"request": none, "at": none},
    )
    return replace(found, counters=_of_requests(found))


def _of_requests(events: TimelineRun) -> tuple[Counter, ...]:
    """Requests that wait and run, counted from their times."""
    requests, end = events.requests, events.end_ns
    ended = np.where(requests["ended"] == UNKNOWN, end, requests["ended"])
    scheduled = np.where(requests["scheduled"] == UNKNOWN, ended, requests["scheduled"])
    spans = {"running": (scheduled, ended), "waiting": (requests["arrived"], scheduled)}
    return tuple(
        Counter(0, f"{name} requests", *_steps_of(*[(begins, 1), (ends, -1)])) for name, (begins, ends) in spans.items()
    )


def _steps_of(*changes: tuple[Ints, Ints | int]) -> tuple[Ints, Ints]:
    """(instants, value from each on) of a value that begins at 0 and changes at instants by these amounts."""
    at = np.concatenate([instants for instants, _ in changes])
    by = np.concatenate([np.broadcast_to(np.asarray(more), len(instants)) for instants, more in changes])
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(by[order])
    last = np.ones(len(at), dtype=bool)  # of several changes at an instant
    last[:-1] = at[1:] != at[:-1]
    return at[last], total[last]


class Slices(NamedTuple):
    """Lines of a kind, all with the same keys: `[n]` each, or one for all."""

    pid: Any
    tid: Any
    name: Any  # JSON, with its quotes
    start: Ints
    end: Ints | None  # None: counters
    args: Mapping[str, Any]  # JSON by name


def write_timeline(runs: Mapping[str, TimelineRun], path: Path, window: Window) -> dict[str, int]:
    """Write runs, one at least, by their names to .json or .json.gz; the file appears whole or not at all.

    Events that do not overlap the window are left out. Returns how many each run has, by its name.
    """
    counts: dict[str, int] = {}
    with whole_file(path) as part, part.open("wb") as raw:
        if path.name.endswith(".gz"):
            # Without name and time, so that the same runs give the same bytes.
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
                _write(runs, packed, window, counts)
        else:
            _write(runs, raw, window, counts)
    return counts


def _write(runs: Mapping[str, TimelineRun], out: Output, window: Window, counts: dict[str, int]) -> None:
    out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    pid = 1
    for name, events in runs.items():
        counts[name] = 0
        for found in _of_run(events, pid):
            counts[name] += _write_slices(found, out, window)
        for meta in _names(name, events, pid):
            out.write(json.dumps(meta, separators=(",", ":")).encode() + b",\n")
        pid += len(events.replicas) + 1
    # A final event, so that all before it can end in a comma.
    out.write(b'{"ph":"M","name":"trace_end","pid":0,"tid":0,"args":{}}\n]}\n')


def _names(run: str, events: TimelineRun, pid: int) -> Iterator[dict[str, Any]]:
    """Names of processes and lanes: replicas, then the requests."""
    many = len(events.replicas) > 1
    only = "counters" if events.ops is None else "members"
    titles = [f"{run} ({events.world}): {name if many else only}" for name in events.replicas]
    titles.append(f"{run} ({events.world}): requests")
    for place, title in enumerate(titles):
        for what, args in (("process_name", {"name": title}), ("process_sort_index", {"sort_index": pid + place})):
            yield {"ph": "M", "name": what, "pid": pid + place, "tid": 0, "args": args}
    if events.ops is not None:
        for replica, level in np.unique(np.stack([events.ops["replica"], events.ops["level"]]), axis=1).T.tolist():
            lane = {"pid": pid + replica, "tid": level + 1}
            yield {"ph": "M", "name": "thread_name", **lane, "args": {"name": events.members[level]}}
            # The target on top, since others wait for it.
            yield {"ph": "M", "name": "thread_sort_index", **lane, "args": {"sort_index": len(events.members) - level}}


def _of_run(events: TimelineRun, pid: int) -> Iterator[Slices]:
    """Outer slices before those within them, as Perfetto needs for slices that begin together."""
    lanes, parts = _lanes(events), 1
    if events.rows is not None:
        parts += int(events.rows["part"].max(initial=0))
    yield from _of_each_request(events, pid + len(events.replicas), lanes * parts + 1)
    if events.ops is not None and events.rows is not None:
        yield _of_operations(events, events.ops, events.rows, pid)
        yield from _of_rows(events, events.ops, events.rows, pid + len(events.replicas), lanes * parts + 1)
        yield from _acceptance(events, events.ops, events.rows, pid)
        yield _text_tokens(events, events.ops, events.rows, pid)
    for counter in events.counters:
        what = "blocks" if "blocks" in counter.name else "tokens" if "tokens" in counter.name else "requests"
        yield Slices(pid + counter.replica, 0, json.dumps(counter.name), counter.at_ns, None, {what: counter.values})


def _lanes(events: TimelineRun) -> Ints:
    """`[R]` the first free lane at each request's arrival; the request has it until its end."""
    requests = events.requests
    ended = events.ended.tolist()
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    found, most = np.zeros(len(ended), dtype=np.int64), 0
    for index in np.argsort(requests["arrived"], kind="stable").tolist():
        arrived = int(requests["arrived"][index])
        while taken and taken[0][0] <= arrived:
            heappush(free, heappop(taken)[1])
        if free:
            lane = heappop(free)
        else:
            lane, most = most, most + 1
        found[index] = lane
        heappush(taken, (ended[index], lane))
    return found


def _of_each_request(events: TimelineRun, pid: int, tid: Ints) -> Iterator[Slices]:
    """Each request, its waits, and, where operations were not kept, its prefill and the rest."""
    requests = events.requests
    arrived, scheduled, first = requests["arrived"], requests["scheduled"], requests["first"]
    ended = events.ended
    names = _quoted(requests["request_id"])
    told: dict[str, Any] = {name: requests[name] for name in ("prompt_tokens", "emitted_tokens")}
    replica = requests.get("replica")
    if replica is not None:
        told["replica"] = _quoted(np.array(events.replicas, dtype=object)[replica])
    told["outcome"] = _quoted(np.where(requests["outcome"] == "", "finished", requests["outcome"]))
    yield Slices(pid, tid, names, arrived, ended, told)
    begun = np.where(scheduled == UNKNOWN, ended, scheduled)
    waits = begun > arrived
    yield Slices(pid, tid[waits], '"wait"', arrived[waits], begun[waits], {})
    if events.rows is None:
        reads = scheduled != UNKNOWN
        until = np.where(first == UNKNOWN, ended, first)
        yield Slices(pid, tid[reads], '"prefill"', scheduled[reads], until[reads], {})
        writes = first != UNKNOWN
        yield Slices(pid, tid[writes], '"decode"', first[writes], ended[writes], {})
    back = events.preempted
    if len(back["request"]):
        yield Slices(pid, tid[back["request"]], '"put back"', back["at"], _back_again(events), {})


def _back_again(events: TimelineRun) -> Ints:
    """When each preempted request runs again: its next row; an instant where rows were not kept."""
    back = events.preempted
    if events.rows is None or events.ops is None:
        return back["at"]
    starts = events.ops["start"][events.rows["operation"]]
    order = np.lexsort((starts, events.rows["request"]))
    owner, starts = events.rows["request"][order], starts[order]
    scale = int(events.end_ns) + 2  # by request, then by time
    place = np.searchsorted(owner * scale + starts, back["request"] * scale + back["at"], side="left")
    is_own = (place < len(owner)) & (owner[np.minimum(place, len(owner) - 1)] == back["request"])
    ended = events.ended[back["request"]]
    return np.where(is_own, starts[np.minimum(place, len(owner) - 1)], ended)


def _of_operations(events: TimelineRun, ops: Columns, rows: Columns, pid: int) -> Slices:
    """Each operation in the lane of its member."""
    count = len(ops["kind"])
    sums = {
        name: np.bincount(rows["operation"][chosen], weights=weights[chosen], minlength=count).astype(np.int64)
        for name, chosen, weights in (
            ("requests", rows["operation"] >= 0, np.ones(len(rows["kind"]))),
            ("reads", rows["kind"] == READ, np.ones(len(rows["kind"]))),
            ("drafted", rows["kind"] == DRAFT, rows["tokens"]),
            ("judged", rows["kind"] == VERIFY, rows["tokens"]),
            ("accepted", rows["kind"] == VERIFY, rows["accepted"]),
        )
    }
    reads, others = sums.pop("reads"), sums["requests"]
    does = np.where(sums["judged"] > 0, '"verify', '"decode')
    does = np.where(reads == 0, does, np.where(reads == others, '"prefill', np.char.add(does, ", prefill")))
    names = np.char.add(np.where(ops["kind"] == DRAFT, '"draft', does), '"').astype(object)
    args = {**sums, "forwards": ops["forwards"], "new_tokens": ops["new_tokens"]}
    return Slices(pid + ops["replica"], ops["level"] + 1, names, ops["start"], ops["end"], args)


def _of_rows(events: TimelineRun, ops: Columns, rows: Columns, pid: int, tid: Ints) -> Iterator[Slices]:
    """Rounds of each request, and its part in each operation. Later parts of an `Overlap` have lanes of their own."""
    at = rows["operation"]
    start, end, level = ops["start"][at], ops["end"][at], ops["level"][at]
    lane = tid[rows["request"]] + rows["part"]
    target = len(events.members) - 1
    order = np.argsort(rows["request"], kind="stable")
    order = order[rows["part"][order] == 0]
    owner = rows["request"][order]
    closes = (rows["kind"][order] == VERIFY) & (level[order] == target)
    ends_piece = closes | (rows["kind"][order] == READ)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = ends_piece[:-1] | (owner[1:] != owner[:-1])
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(order)) - 1 if len(firsts) else firsts
    whole = closes[lasts] & (lasts > firsts) if len(firsts) else np.zeros(0, dtype=bool)
    from_, to = order[firsts[whole]], order[lasts[whole]]
    judged = {name: rows[column][to] for name, column in (("judged", "tokens"), ("accepted", "accepted"))}
    yield Slices(pid, lane[to], '"round"', start[from_], end[to], {**judged, "emitted": rows["emitted"][to]})
    members = np.array(events.members, dtype=object)
    for kind, word in ((READ, "prefill"), (DRAFT, "draft"), (VERIFY, "verify")):
        chosen = np.flatnonzero(rows["kind"] == kind)
        names = np.array([json.dumps(f"{word}, {name}") for name in members], dtype=object)[level[chosen]]
        args: dict[str, Any] = {"tokens": rows["tokens"][chosen]}
        if kind == VERIFY:
            names = np.where(rows["tokens"][chosen] > 0, names, '"decode"')
            args = {"judged": rows["tokens"][chosen], "accepted": rows["accepted"][chosen]}
        if kind != DRAFT:
            args["emitted"] = rows["emitted"][chosen]
        yield Slices(pid, lane[chosen], names, start[chosen], end[chosen], args)


def _acceptance(events: TimelineRun, ops: Columns, rows: Columns, pid: int) -> Iterator[Slices]:
    """Share of drafted tokens that the target accepted, over the last operations in which it judged some."""
    own = (rows["kind"] == VERIFY) & (ops["level"][rows["operation"]] == len(events.members) - 1)
    at, count = rows["operation"][own], len(ops["kind"])
    judged, accepted = (np.bincount(at, weights=rows[name][own], minlength=count) for name in ("tokens", "accepted"))
    for replica in range(len(events.replicas)):
        chosen = np.flatnonzero((ops["replica"] == replica) & (judged > 0))
        sums = [np.concatenate([[0.0], np.cumsum(values[chosen])]) for values in (judged, accepted)]
        last = np.arange(1, len(chosen) + 1)
        before = np.maximum(last - LAST_OPERATIONS, 0)
        shares = (sums[1][last] - sums[1][before]) / (sums[0][last] - sums[0][before])
        name = json.dumps(f"acceptance, last {LAST_OPERATIONS} operations")
        yield Slices(pid + replica, 0, name, ops["end"][chosen], None, {"share": np.round(shares, 4)})


def _text_tokens(events: TimelineRun, ops: Columns, rows: Columns, pid: int) -> Slices:
    """Prompts and answers of requests that were admitted and have not ended."""
    requests = events.requests
    begun = requests["scheduled"] != UNKNOWN
    ended = requests["ended"] != UNKNOWN
    out = rows["emitted"] > 0
    gone = requests["prompt_tokens"] + np.bincount(
        rows["request"], weights=rows["emitted"], minlength=len(begun)
    ).astype(np.int64)
    at, values = _steps_of(
        (requests["scheduled"][begun], requests["prompt_tokens"][begun]),
        (ops["end"][rows["operation"][out]], rows["emitted"][out]),
        (requests["ended"][begun & ended], -gone[begun & ended]),
    )
    return Slices(pid + len(events.replicas), 0, '"tokens of texts"', at, None, {"tokens": values})


# -- lines


def _quoted(texts: NDArray[Any]) -> NDArray[Any]:
    """Texts as JSON; each different one is built once."""
    known = {text: json.dumps(str(text)) for text in dict.fromkeys(texts.tolist())}
    return np.array([known[text] for text in texts.tolist()], dtype=object)


def _write_slices(found: Slices, out: Output, window: Window) -> int:
    """Write the slices that overlap the window; returns their number."""
    # A counter's value holds until its next one.
    ends = np.append(found.start, np.iinfo(np.int64).max)[1:] if found.end is None else found.end
    chosen = np.flatnonzero(window.overlaps(found.start, ends))
    for begin in range(0, len(chosen), AT_ONCE):
        picked = chosen[begin : begin + AT_ONCE]
        parts: list[Any] = ['{"ph":"X","pid":' if found.end is not None else '{"ph":"C","pid":']
        parts += [_text(found.pid, picked), ',"tid":', _text(found.tid, picked), ',"name":', _text(found.name, picked)]
        parts += [',"ts":', _microseconds(found.start[picked])]
        if found.end is not None:
            parts += [',"dur":', _microseconds(found.end[picked] - found.start[picked])]
        opening = ',"args":{"'
        for name, values in found.args.items():
            parts += [f'{opening}{name}":', _text(values, picked)]
            opening = ',"'
        parts.append("}},\n" if found.args else "},\n")
        out.write(_bytes_of(pc.binary_join_element_wise(*parts, "")))
    return len(chosen)


def _bytes_of(lines: pa.Array) -> memoryview:
    """All texts of an array, one after the other, not copied."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _text(values: Any, picked: Ints) -> Any:  # noqa: ANN401 - one for all, or an array
    """Values as text: the picked ones of an array; JSON is unchanged."""
    if isinstance(values, str):
        return values
    if not isinstance(values, np.ndarray):
        return str(values)
    chosen = values[picked]
    return pa.array(chosen, type=pa.string()) if chosen.dtype == object else pa.array(chosen).cast(pa.string())


def _microseconds(ns: Ints) -> pa.Array:
    """Nanoseconds as microseconds with three decimals, exactly."""
    whole, rest = pa.array(ns // 1000).cast(pa.string()), pa.array(ns % 1000).cast(pa.string())
    return pc.binary_join_element_wise(whole, pc.utf8_lpad(rest, 3, "0"), ".")


STAGES = ("wait", "prefill", "decode")
WORK = ("prefill", "draft", "verify", "decode", "verify, prefill", "decode, prefill")
MOST_LANES = 16  # requests
MOST_OPERATIONS = 240
MOST_REPLICAS = 4


def swim_lanes(run: str, events: TimelineRun) -> list[AnyPanel]:
    """The slowest request and those that arrived around it, and the members' operations during that time.

    Empty for a run in which no request ended.
    """
    requests = events.requests
    took = np.where(requests["ended"] == UNKNOWN, -1, requests["ended"] - requests["arrived"])
    took[requests["outcome"] != ""] = -1
    if not len(took) or took.max() < 0:
        return []
    slowest = int(took.argmax())
    order = np.argsort(requests["arrived"], kind="stable")
    place = int(np.flatnonzero(order == slowest)[0])
    first = max(0, min(place - MOST_LANES // 2, len(order) - MOST_LANES))
    chosen = order[first : first + MOST_LANES]
    names = tuple(
        f"{requests['request_id'][index]}{' (slowest)' if index == slowest else ''}" for index in chosen.tolist()
    )
    found: list[AnyPanel] = [
        Spans(
            title=f"{run}: the slowest request and those that arrived around it",
            x_label="s since the start of the run",
            rows=names,
            spans=tuple(span for row, index in enumerate(chosen.tolist()) for span in _stages(events, row, index)),
            kinds=STAGES,
        )
    ]
    if events.ops is not None and events.rows is not None and len(events.ops["kind"]):
        begun = int(requests["scheduled"][slowest])
        window = Window(max(begun, 0), int(requests["ended"][slowest]))
        found += _lanes_of_members(run, events, events.ops, events.rows, window, str(requests["request_id"][slowest]))
    return found


def _stages(events: TimelineRun, row: int, index: int) -> Iterator[Span]:
    """The stages of a request from its arrival to its end; the last one reached lasts until its end."""
    requests = events.requests
    at = [int(requests[name][index]) for name in ("arrived", "scheduled", "first", "ended")]
    end = events.end_ns if at[3] == UNKNOWN else at[3]
    arrived, scheduled, first = (end if instant == UNKNOWN else instant for instant in at[:3])
    for kind, since, until in zip(STAGES, (arrived, scheduled, first), (scheduled, first, end), strict=True):
        if until > since:
            yield Span(row, since / NS_PER_S, until / NS_PER_S, kind)


def _lanes_of_members(
    run: str, events: TimelineRun, ops: Columns, rows: Columns, window: Window, request: str
) -> list[AnyPanel]:
    """The first operations of every member in a window of time, ns, during which a request was there."""
    ran = _of_operations(events, ops, rows, 0)
    within = np.flatnonzero((ops["end"] > window[0]) & (ops["start"] < window[1]) & (ops["end"] > ops["start"]))
    within = within[np.argsort(ops["start"][within], kind="stable")][:MOST_OPERATIONS]
    if not len(within):
        return []
    lanes = {
        lane: row
        for row, lane in enumerate(sorted({(int(ops["replica"][op]), -int(ops["level"][op])) for op in within}))
    }
    several = len({replica for replica, _ in lanes}) > 1
    return [
        Spans(
            title=f"{run}: what members did while {request} was there, {len(within):,} operations",
            x_label="s since the start of the run",
            rows=tuple(
                f"{events.replicas[replica]}: {events.members[-level]}" if several else events.members[-level]
                for replica, level in lanes
            ),
            spans=tuple(
                Span(
                    lanes[int(ops["replica"][op]), -int(ops["level"][op])],
                    float(ops["start"][op]) / NS_PER_S,
                    float(ops["end"][op]) / NS_PER_S,
                    str(json.loads(ran.name[op])),
                )
                for op in within.tolist()
            ),
            kinds=WORK,
        )
    ]


def counter_panels(runs: Mapping[str, TimelineRun]) -> list[AnyPanel]:
    """Every counter over time, one panel for each, with a line for each run and replica."""
    series: dict[str, list[Series]] = {}
    for run, events in runs.items():
        for counter in events.counters:
            if counter.replica >= MOST_REPLICAS or not len(counter.at_ns):
                continue
            parts = [run] if len(runs) > 1 else []
            parts += [events.replicas[counter.replica]] if len(events.replicas) > 1 else []
            line = over_time(", ".join(parts) or counter.name, counter.at_ns / NS_PER_S, counter.values)
            series.setdefault(counter.name, []).append(line)
    most = (
        f", first {MOST_REPLICAS} replicas" if any(len(one.replicas) > MOST_REPLICAS for one in runs.values()) else ""
    )
    return [
        Panel(
            title=f"{name[:1].upper()}{name[1:]}{most}",
            x_label="s since the start of the run",
            y_label=name.partition(",")[0],
            series=tuple(lines),
            kind="steps",
        )
        for name, lines in series.items()
    ]
