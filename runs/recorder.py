"""What an engine reports while a serving run runs: requests that arrive, what happens to them, and states.

An engine calls this once per step and several times per request, so a call only packs integers and makes no object per
token. Columns are made of many requests at a time. States of replicas over time become exact sums and maxima, and a
series thinned to a size. Times are whole picoseconds since the start of the workload. Letters: N states, L levels.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from ..traces.workloads.arrival import MOST_PS, Arrival
from .log import Columns, from_packed
from .operations import OperationRecorder
from .serving import (
    GAP_FIELDS,
    PREEMPTION_FIELDS,
    REQUEST_FIELDS,
    STEP_BY_STEP,
    UNKNOWN,
    HostTotals,
    LevelTotals,
    Lookups,
    MemberTotals,
    ReplicaTotals,
    ServingAbout,
    ServingLog,
    ServingMeta,
    TransferTotals,
    check_log,
)

_AT_ONCE = 2**6  # few: until then the ids of their texts stay in memory, and new ones are allocated in cold memory


class WrongArrivalError(ValueError):
    """An impossible arrival; the message names the request and says why."""


class RepeatedIdError(WrongArrivalError):
    """A request with the id of another one, `request_id`."""

    def __init__(self, request_id: str) -> None:  # its only argument: simpy makes errors again from their arguments
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"request {self.request_id}: request_id must be unique in the workload, got it twice"


class ArrivedRequests:
    """Each request's data from the workload, by serial, and its replica."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._newest: list[Arrival] = []
        self._texts: dict[str, list[str]] = {"request_id": [], "tag": [], "slo": []}
        self._counts = {name: array("q") for name in ("replica", "prompt_tokens", "output_tokens", "arrived_at_ps")}

    def add(self, arrival: Arrival, replica: int) -> int:
        """A request came; returns its serial.

        Raises:
            WrongArrivalError: it comes too late for a clock of 64 bits, or one before it had its id.
        """
        if arrival.arrives_ps > MOST_PS:
            raise WrongArrivalError(
                f"request {arrival.request_id}: arrives_ps must be at most {MOST_PS}, got {arrival.arrives_ps}"
            )
        known, replicas = self._known, self._counts["replica"]
        serial = len(replicas)
        known.add(arrival.request_id)
        if len(known) == serial:  # the id is known
            raise RepeatedIdError(arrival.request_id)
        replicas.append(replica)
        self._newest.append(arrival)
        if len(self._newest) == _AT_ONCE:
            self._take_in()
        return serial

    def columns(self) -> Columns:
        """By name, in the order of serials."""
        self._take_in()
        texts = {name: np.array(column, dtype=object) for name, column in self._texts.items()}
        return {**texts, **{name: np.array(column) for name, column in self._counts.items()}}

    def _take_in(self) -> None:
        newest, texts, counts = self._newest, self._texts, self._counts
        texts["request_id"] += [arrival.request_id for arrival in newest]
        texts["tag"] += [arrival.tag for arrival in newest]
        texts["slo"] += [arrival.slo for arrival in newest]
        counts["prompt_tokens"].extend([arrival.prompt_tokens for arrival in newest])
        counts["output_tokens"].extend([arrival.output_tokens for arrival in newest])
        counts["arrived_at_ps"].extend([arrival.arrives_ps for arrival in newest])
        newest.clear()


MOST_POINTS = 1024
# States to gather before they are added up: a few MB, and enough for numpy to be fast.
_GATHERED = 2**14
# A row: replica, at_ps, running, waiting, then the used blocks of each level.
_HELD = 2


class ReplicaStates:
    """The states of one replica, in order of time; each holds until the next one.

    Every `stride`-th of them is kept, from the first one on: `stride` is the least power of two at which no more than
    `MOST_POINTS` are.

    Attributes:
        count: states so far.
        sums: `[2 + L]` running, waiting and used blocks, added up over picoseconds until `at_ps`; exact.
        most: `[2 + L]` their maxima.
        at_ps: of the newest one.
        kept: `[N, 3 + L]` the thinned series.
    """

    def __init__(self, num_levels: int) -> None:
        self.count = 0
        self.at_ps = 0
        self.sums = [0] * (2 + num_levels)
        self.most = [0] * (2 + num_levels)
        self._newest = [0] * (2 + num_levels)
        self._stride = 1
        self.kept = np.zeros((0, 3 + num_levels), dtype=np.int64)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Add states `[N, 3 + L]`: at_ps, running, waiting, used blocks by level; raises ValueError out of order."""
        spans = np.diff(rows[:, 0], prepend=self.at_ps)
        if (spans < 0).any():
            place = int(np.argmax(spans < 0))
            before = int(rows[place - 1, 0]) if place else self.at_ps
            raise ValueError(f"a state must not be before the one before it, at {before} ps, got {rows[place, 0]} ps")
        lasted = spans.tolist()
        for column in range(len(self.sums)):
            values = rows[:, 1 + column].tolist()
            # Blocks times picoseconds outgrow 64 bits, so these are Python's whole numbers.
            self.sums[column] += sum(map(mul, [self._newest[column], *values], lasted))
            self.most[column] = max(self.most[column], *values)
            self._newest[column] = values[-1]
        self.at_ps = int(rows[-1, 0])
        # The next state to keep is the first one whose number is a multiple of the stride.
        self.kept = np.concatenate([self.kept, rows[-self.count % self._stride :: self._stride]])
        self.count += len(rows)
        while len(self.kept) > MOST_POINTS:
            self.kept = self.kept[::2].copy()
            self._stride *= 2

    def grew(self, level: int, block_ps: int, most_blocks: int) -> None:
        """Used blocks of a level rose between states: by `block_ps`, added up over time, to `most_blocks` at once."""
        self.sums[_HELD + level] += block_ps
        self.most[_HELD + level] = max(self.most[_HELD + level], most_blocks)

    def until(self, at_ps: int) -> list[int]:
        """`[2 + L]` the sums over time until `at_ps`, the end of the run, which is not before the newest state."""
        return [total + value * (at_ps - self.at_ps) for total, value in zip(self.sums, self._newest, strict=True)]


class States:
    """The states of all replicas, packed one by one and added up many at a time."""

    def __init__(self, num_replicas: int, num_levels: int) -> None:
        self._replicas = tuple(ReplicaStates(num_levels) for _ in range(num_replicas))
        self._row = Struct(f"={_HELD + 2 + num_levels}q")
        self._packed = bytearray()
        self._most_bytes = self._row.size * _GATHERED

    def add(self, replica: int, at_ps: int, running: int, waiting: int, used_blocks: Sequence[int]) -> None:
        """A state of a replica, from `at_ps` on."""
        self._packed += self._row.pack(replica, at_ps, running, waiting, *used_blocks)
        if len(self._packed) >= self._most_bytes:
            self._add_up()

    def grew(self, replica: int, level: int, block_ps: int, most_blocks: int) -> None:
        """`ReplicaStates.grew` of one replica."""
        self._replicas[replica].grew(level, block_ps, most_blocks)

    def all(self) -> tuple[ReplicaStates, ...]:
        """By replica, with every state so far."""
        self._add_up()
        return self._replicas

    def _add_up(self) -> None:
        rows = np.frombuffer(self._packed, dtype=np.int64).reshape(-1, self._row.size // 8)
        order = np.argsort(rows[:, 0], kind="stable")
        owners, starts = np.unique(rows[order, 0], return_index=True)
        for owner, part in zip(owners.tolist(), np.split(order, starts[1:]), strict=False):
            if not 0 <= owner < len(self._replicas):
                raise ValueError(f"replica must be in [0, {len(self._replicas) - 1}], got {owner}")
            self._replicas[owner].add(rows[part, 1:])
        self._packed = bytearray()


_GAP = Struct(f"={len(GAP_FIELDS)}q")
# Requests that arrays grow by at a time: few, as a search makes many short runs.
_ROOM = 2**8


class ServingRecorder:
    """Gathers requests, gaps between outputs, states of replicas and sums; `log` makes a `ServingLog` of them.

    Letter: L levels. All calls except `arrived` check nothing: `log` checks the whole. `members` are `[L]` names of the
    pool, in level order; `replicas` have by name, in the order of their indices, `[L]` the KV blocks of each member;
    None for a member whose blocks are not counted. With `events` every operation is kept as well, in `operations`, and
    replicas run step by step for it.
    """

    def __init__(
        self, members: Sequence[str], replicas: Mapping[str, Sequence[int | None]], *, events: bool = False
    ) -> None:
        levels = len(members)
        self.operations = OperationRecorder() if events else None
        self._members = tuple(members)
        self._blocks = {name: tuple(blocks) for name, blocks in replicas.items()}
        self._arrived = ArrivedRequests()
        self._emitted, self._scheduled, self._first, self._ended = (array("q") for _ in range(4))
        self._cached = array("q")
        self._levels = levels
        self._rejected: dict[int, str] = {}
        self._preempted = array("q")
        self._gaps = bytearray()
        self._judged = [[0, 0, 0, 0] for _ in members]
        self._busy = [[[0, 0] for _ in members] for _ in replicas]
        self._lookups = [[Lookups()] * len(members) for _ in replicas]
        self._states = States(len(replicas), levels)
        self._paths: dict[int, str] = {}
        self._stopped: tuple[int, str] | None = None
        self._hosts: dict[int, HostTotals] = {}
        self._transfers: TransferTotals | None = None
        self._sessions: tuple[int, ...] = ()

    def arrived(self, arrival: Arrival, replica: int) -> int:
        """A request came and was given to a replica; returns its serial, which names it in every other call.

        Raises:
            WrongArrivalError: it comes too late for a clock of 64 bits, or one before it had its id.
        """
        serial = self._arrived.add(arrival, replica)
        if serial == len(self._ended):
            self._make_room()
        return serial

    def rejected(self, serial: int, at_ps: int, reason: str) -> None:
        """It will never be served; `reason` is not empty."""
        self._ended[serial] = at_ps
        self._rejected[serial] = reason

    def scheduled(self, serial: int, at_ps: int, cached_tokens: Sequence[int]) -> None:
        """It enters the batch for the first time, with `[L]` tokens of its prompt cached; empty where none are."""
        self._scheduled[serial] = at_ps
        place = serial * self._levels
        for level, tokens in enumerate(cached_tokens):
            self._cached[place + level] = tokens

    def preempted(self, serial: int, at_ps: int) -> None:
        """It leaves the batch for lack of memory and waits again; of one replica never back in time."""
        self._preempted.append(serial)
        self._preempted.append(at_ps)

    def first_token(self, serial: int, at_ps: int) -> None:
        """Its first token is out."""
        self._first[serial] = at_ps

    def finished(self, serial: int, at_ps: int) -> None:
        """Its last token is out, and with it as many as it asked for."""
        self._ended[serial] = at_ps

    def emitted(self, serial: int, num_tokens: int) -> None:
        """Tokens so far of a request that has not ended; to be called at the end for each that has its first token."""
        self._emitted[serial] = num_tokens

    def gaps(self, first_ps: int, increment_ps: int, count: int, rows: int) -> None:
        """`rows` requests each saw `count` gaps between outputs: `first_ps`, `first_ps + increment_ps`, ...

        A step's tokens come out together: a gap is between outputs, not tokens. The first one is after the first token.
        """
        self._gaps += _GAP.pack(first_ps, increment_ps, count, rows)

    def single_gaps(self, gaps_ps: Sequence[int], rows: int) -> None:
        """`rows` requests each saw these gaps between outputs."""
        count = len(gaps_ps)
        packed = [0] * (len(GAP_FIELDS) * count)
        packed[0::4], packed[2::4], packed[3::4] = gaps_ps, [1] * count, [rows] * count
        self._gaps += array("q", packed).tobytes()

    def judged(self, level: int, drafted: int, accepted: int, own: int, rows: int) -> None:
        """A member judged `drafted` tokens of `rows` requests together; it accepted `accepted` and added `own` itself.

        A row with nothing to judge and an own token counts too; a prefill does not.
        """
        sums = self._judged[level]
        sums[0] += rows
        sums[1] += drafted
        sums[2] += accepted
        sums[3] += own

    def state(self, replica: int, at_ps: int, running: int, waiting: int, used_blocks: Sequence[int]) -> None:
        """What a replica holds from `at_ps` until its next state; `[L]` used blocks; never back in time."""
        self._states.add(replica, at_ps, running, waiting, used_blocks)

    def grew(self, replica: int, level: int, block_ps: int, most_blocks: int) -> None:
        """Used blocks of a member rose since its replica's latest state, block by block.

        `block_ps` are blocks beyond those of that state, added up over the time until the next one; `most_blocks` were
        used at once.
        """
        self._states.grew(replica, level, block_ps, most_blocks)

    def path(self, replica: int, words: str) -> None:
        """How the steps of a replica are computed, in words; not empty."""
        self._paths[replica] = words

    def busy(self, replica: int, level: int, duration_ps: int, forwards: int = 1) -> None:
        """A member ran on its device, for `forwards` forwards."""
        sums = self._busy[replica][level]
        sums[0] += duration_ps
        sums[1] += forwards

    def looked_up(self, replica: int, level: int, lookups: Lookups) -> None:
        """All look-ups in a member's prefix cache."""
        self._lookups[replica][level] = lookups

    def stopped(self, at_ps: int, reason: str) -> None:
        """The run ends before all of its requests have; `reason` is not empty."""
        self._stopped = at_ps, reason

    def offloaded(self, replica: int, totals: HostTotals) -> None:
        """A replica's totals of host memory."""
        self._hosts[replica] = totals

    @property
    def stopped_by(self) -> str:
        """Why the run ended before all of its requests have; "" if it has not."""
        return self._stopped[1] if self._stopped is not None else ""

    def transferred(self, totals: TransferTotals) -> None:
        """The totals of the link between replicas."""
        self._transfers = totals

    def sessions(self, took: Iterable[tuple[int, int]]) -> None:
        """Sessions of several requests that have ended, by the instants of arrival and end."""
        self._sessions = tuple(ended_ps - began_ps for began_ps, ended_ps in sorted(took))

    def log(self, about: ServingAbout) -> ServingLog:
        """The log so far; more can be recorded afterwards.

        Raises:
            TraceFormatError: what was recorded is inconsistent; one line.
        """
        requests = self._requests()
        ended_at_ps, reason = self._stopped or (int(requests["ended_at_ps"].max(initial=0)), "")
        names = LevelTotals.model_fields
        meta = ServingMeta(
            about=about,
            members=self._members,
            replicas=self._replicas(ended_at_ps),
            levels=tuple(LevelTotals(**dict(zip(names, sums, strict=True))) for sums in self._judged),
            ended_at_ps=ended_at_ps,
            stopped=reason,
            transfers=self._transfers,
            sessions_ps=self._sessions,
        )
        log = ServingLog(
            meta=meta,
            requests=requests,
            preemptions=self._preemptions(requests["replica"]),
            series=self._series(),
            gaps=from_packed(np.frombuffer(self._gaps, dtype=np.int64), GAP_FIELDS),
            operations=None if self.operations is None else self.operations.all(),
        )
        check_log(log, Path("run"), ids_are_unique=True)
        return log

    def _make_room(self) -> None:
        for times in (self._scheduled, self._first, self._ended):
            times.extend([UNKNOWN] * _ROOM)
        self._emitted.extend([0] * _ROOM)
        self._cached.extend([0] * (_ROOM * self._levels))

    def _requests(self) -> Columns:
        columns = self._arrived.columns()
        count = len(columns["replica"])
        rejected = np.full(count, "", dtype=object)
        for serial, reason in self._rejected.items():
            rejected[serial] = reason
        times = {"scheduled": self._scheduled, "first_token": self._first, "ended": self._ended}
        columns |= {f"{name}_at_ps": _whole_numbers(column, count) for name, column in times.items()}
        finished = (columns["ended_at_ps"] != UNKNOWN) & (rejected == "")
        emitted = np.where(finished, columns["output_tokens"], _whole_numbers(self._emitted, count))
        cached = _whole_numbers(self._cached, count * self._levels).reshape(-1, self._levels)
        columns |= {"emitted_tokens": emitted, "rejected": rejected, "cached_tokens": cached}
        return {name: columns[name] for name in REQUEST_FIELDS}

    def _preemptions(self, replicas: NDArray[np.int64]) -> Columns:
        """In order of time, then of replicas, so that the order of calls at one instant does not matter."""
        columns = from_packed(self._preempted, PREEMPTION_FIELDS)
        order = np.lexsort((replicas[columns["request"]], columns["at_ps"]))
        return {name: column[order] for name, column in columns.items()}

    def _replicas(self, ended_at_ps: int) -> tuple[ReplicaTotals, ...]:
        found = []
        for index, ((name, blocks), states, busy, lookups) in enumerate(
            zip(self._blocks.items(), self._states.all(), self._busy, self._lookups, strict=True)
        ):
            (running, waiting, *blocks_ps) = states.until(ended_at_ps)
            (most_running, most_waiting, *most_blocks) = states.most
            members = tuple(
                MemberTotals(
                    num_blocks=blocks[level],
                    most_blocks=most_blocks[level],
                    block_ps=blocks_ps[level],
                    busy_ps=busy[level][0],
                    forwards=busy[level][1],
                    lookups=lookups[level],
                )
                for level in range(len(self._members))
            )
            found.append(
                ReplicaTotals(
                    name=name,
                    path=self._paths.get(index, STEP_BY_STEP),
                    states=states.count,
                    most_running=most_running,
                    running_ps=running,
                    most_waiting=most_waiting,
                    waiting_ps=waiting,
                    members=members,
                    host=self._hosts.get(index),
                )
            )
        return tuple(found)

    def _series(self) -> Columns:
        kept = [states.kept for states in self._states.all()]
        rows = np.concatenate(kept)
        return {
            "replica": np.repeat(np.arange(len(kept)), [len(part) for part in kept]),
            "at_ps": rows[:, 0].copy(),
            "running": rows[:, 1].copy(),
            "waiting": rows[:, 2].copy(),
            "used_blocks": rows[:, 3:].copy(),
        }


def _whole_numbers(column: "array[int]", count: int) -> NDArray[np.int64]:
    """A copy of the first `count`, since the column may still grow."""
    return np.frombuffer(column, dtype=np.int64)[:count].copy()
