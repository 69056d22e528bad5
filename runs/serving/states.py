"""What replicas hold over time: exact sums over time and maxima of all states, and a series thinned to a size.

Letters: N states, L levels.
"""

from collections.abc import Sequence
from operator import mul
from struct import Struct

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 1024
# States that wait to be added up: a few MB, and enough for numpy to be quick.
_GATHERED = 2**14
# A row: replica, at_ps, running, waiting, then the used blocks of each level.
_HELD = 2


class ReplicaStates:
    """The states of one replica, in order of time; each holds until the next one.

    Every `stride`-th of them is kept, from the first one on: `stride` is the least power of two at which no more than
    `MOST_POINTS` are. A replica may keep its sums itself (`held`): then its states are for the series alone (`sample`).

    Attributes:
        count: states so far.
        sums: `[2 + L]` running, waiting and used blocks, added up over picoseconds until `at_ps`; exact.
        most: `[2 + L]` their maxima.
        at_ps: of the newest one.
        next_sample: number, from 1, of the next state that `sample` wants.
    """

    def __init__(self, num_levels: int) -> None:
        self.count = 0
        self.at_ps = 0
        self.sums = [0] * (2 + num_levels)
        self.most = [0] * (2 + num_levels)
        self._newest = [0] * (2 + num_levels)
        self._stride = 1
        self._kept = np.zeros((0, 3 + num_levels), dtype=np.int64)
        self._sampled: list[tuple[int, ...]] = []
        self.next_sample = 1
        self._holds = True  # the newest state, until the end of the run

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
        self._keep(rows)

    def sample(self, at_ps: int, running: int, waiting: int, level: int, used_blocks: int) -> None:
        """The state of number `next_sample`, for the series alone; only one level uses blocks in it."""
        others = len(self.sums) - _HELD - level - 1
        self._sampled.append((at_ps, running, waiting, *(0,) * level, used_blocks, *(0,) * others))
        if len(self._sampled) > MOST_POINTS:
            del self._sampled[1::2]
            self._stride *= 2
        self.next_sample = len(self._sampled) * self._stride + 1

    def held(self, sums: Sequence[int], most: Sequence[int], count: int) -> None:
        """`[2 + L]` `sums` until the end of the run, and `most`, of so many states: nothing is added up here."""
        self.sums, self.most, self.count, self._holds = list(sums), list(most), count, False

    def grew(self, level: int, block_ps: int, most_blocks: int) -> None:
        """Used blocks of a level rose between states.

        Args:
            level: of the member.
            block_ps: used blocks, added up over picoseconds, beyond what the states say.
            most_blocks: used at once.
        """
        self.sums[_HELD + level] += block_ps
        self.most[_HELD + level] = max(self.most[_HELD + level], most_blocks)

    def until(self, at_ps: int) -> list[int]:
        """`[2 + L]` the sums over time until `at_ps`, the end of the run, which is not before the newest state."""
        if not self._holds:
            return self.sums
        return [total + value * (at_ps - self.at_ps) for total, value in zip(self.sums, self._newest, strict=True)]

    @property
    def kept(self) -> NDArray[np.int64]:
        """`[N, 3 + L]` the thinned series."""
        return np.array(self._sampled, dtype=np.int64) if self._sampled else self._kept

    def _keep(self, rows: NDArray[np.int64]) -> None:
        # The next state to keep is the first one whose number is a multiple of the stride.
        self._kept = np.concatenate([self._kept, rows[-self.count % self._stride :: self._stride]])
        self.count += len(rows)
        while len(self._kept) > MOST_POINTS:
            self._kept = self._kept[::2].copy()
            self._stride *= 2


class States:
    """The states of all replicas, packed as they come and added up many at a time."""

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

    def of(self, replica: int) -> ReplicaStates:
        """Those of one replica, for whoever keeps its sums."""
        return self._replicas[replica]

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
