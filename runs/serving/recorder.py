"""What an engine tells of a serving run while it runs.

An engine calls this once per step and several times per request, so a call packs integers and does nothing else; no
object is made per token. All times are whole picoseconds since the start of the workload.
"""

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from ...traces.workloads.arrival import Arrival
from ..log import Columns
from .arrived_requests import ArrivedRequests
from .log import GAP_FIELDS, PREEMPTION_FIELDS, REQUEST_FIELDS, UNKNOWN, ServingLog
from .meta import (
    STEP_BY_STEP,
    HostTotals,
    LevelTotals,
    Lookups,
    MemberTotals,
    ReplicaTotals,
    ServingAbout,
    ServingMeta,
    TransferTotals,
)
from .states import ReplicaStates, States
from .validate import check_log

_GAP = Struct(f"={len(GAP_FIELDS)}q")
# Requests for which room is made at a time.
_ROOM = 2**12


class ServingRecorder:
    """Gathers requests, gaps between outputs, states of replicas and sums; `log` makes a `ServingLog` of them.

    Letter: L levels. Calls but `arrived` check nothing: what they were told is checked as a whole by `log`.
    """

    def __init__(self, members: Sequence[str], replicas: Mapping[str, Sequence[int | None]]) -> None:
        """Begin with no request.

        Args:
            members: `[L]` names of the pool, in level order.
            replicas: by name, in the order of their indices, `[L]` the KV blocks of each member; None for a member
                whose blocks nobody counts.
        """
        levels = len(members)
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
        self._lookups = [[[0, 0, 0, 0] for _ in members] for _ in replicas]
        self._states = States(len(replicas), levels)
        self._paths: dict[int, str] = {}
        self._stopped: tuple[int, str] | None = None
        self._hosts: dict[int, HostTotals] = {}
        self._transfers: TransferTotals | None = None

    def arrived(self, arrival: Arrival, replica: int) -> int:
        """A request came and was given to a replica; its serial, which names it in every other call.

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
        """It enters the batch for the first time.

        Args:
            serial: of the request.
            at_ps: when.
            cached_tokens: `[L]` of its prompt, that each member's prefix cache held; empty where none held any.
        """
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
        """How many tokens of one that has not ended are out; to be told of each that has its first, at the end."""
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
        """A member judged `drafted` tokens of `rows` requests together; `accepted` stayed, and it added `own` itself.

        One that has nothing to judge and writes a token of its own is among them; a prefill is not.
        """
        sums = self._judged[level]
        sums[0] += rows
        sums[1] += drafted
        sums[2] += accepted
        sums[3] += own

    def state(self, replica: int, at_ps: int, running: int, waiting: int, used_blocks: Sequence[int]) -> None:
        """What a replica holds from `at_ps` until its next state; `[L]` used blocks; never back in time."""
        self._states.add(replica, at_ps, running, waiting, used_blocks)

    def states_of(self, replica: int) -> ReplicaStates:
        """For a replica that keeps its sums itself: it samples states for the series, and says once what it held."""
        return self._states.of(replica)

    def path(self, replica: int, words: str) -> None:
        """How the steps of a replica are worked out; not empty."""
        self._paths[replica] = words

    def busy(self, replica: int, level: int, duration_ps: int, forwards: int = 1) -> None:
        """A member ran on its device, for so many forwards."""
        sums = self._busy[replica][level]
        sums[0] += duration_ps
        sums[1] += forwards

    def looked_up(self, replica: int, level: int, asked: tuple[int, int], found: tuple[int, int]) -> None:
        """A member's prefix cache was asked for (blocks, tokens) and held (blocks, tokens): of one look-up, or many."""
        sums = self._lookups[replica][level]
        sums[0] += asked[0]
        sums[1] += found[0]
        sums[2] += asked[1]
        sums[3] += found[1]

    def stopped(self, at_ps: int, reason: str) -> None:
        """The run ends before all of its requests have; `reason` is not empty."""
        self._stopped = at_ps, reason

    def offloaded(self, replica: int, totals: HostTotals) -> None:
        """What host memory did for a replica, in all."""
        self._hosts[replica] = totals

    @property
    def stopped_by(self) -> str:
        """Why the run ended before all of its requests have; "" if it has not."""
        return self._stopped[1] if self._stopped is not None else ""

    def transferred(self, totals: TransferTotals) -> None:
        """What crossed the link between replicas, in all."""
        self._transfers = totals

    def log(self, about: ServingAbout) -> ServingLog:
        """All of it so far; the recorder can go on.

        Raises:
            TraceFormatError: what it was told does not go together; one line.
        """
        requests = self._requests()
        ended_at_ps, reason = self._stopped or (int(requests["ended_at_ps"].max(initial=0)), "")
        meta = ServingMeta(
            about=about,
            members=self._members,
            replicas=self._replicas(ended_at_ps),
            levels=tuple(LevelTotals(**_named(LevelTotals, sums)) for sums in self._judged),
            ended_at_ps=ended_at_ps,
            stopped=reason,
            transfers=self._transfers,
        )
        log = ServingLog(
            meta=meta,
            requests=requests,
            preemptions=self._preemptions(requests["replica"]),
            series=self._series(),
            gaps=_columns(np.frombuffer(self._gaps, dtype=np.int64), GAP_FIELDS),
        )
        check_log(log, Path("run"), ids_are_unique=True)
        return log

    def _make_room(self) -> None:
        """For what happens to the next requests."""
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
        """In order of time, and of replicas at one instant, whichever was let run first."""
        columns = _columns(np.array(self._preempted, dtype=np.int64), PREEMPTION_FIELDS)
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
                    lookups=Lookups(**_named(Lookups, lookups[level])),
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
    """A copy of the first so many, since the column may grow on."""
    return np.frombuffer(column, dtype=np.int64)[:count].copy()


def _columns(packed: NDArray[np.int64], fields: Sequence[str]) -> Columns:
    """Columns of rows that stand one behind the other."""
    rows = packed.reshape(-1, len(fields))
    return {name: rows[:, place].copy() for place, name in enumerate(fields)}


def _named(record: type[LevelTotals | Lookups], sums: list[int]) -> dict[str, int]:
    return dict(zip(record.model_fields, sums, strict=True))
