"""The crowd at other batches and in less memory: where sharing changes how many requests run side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ...traces.tries.recording import TrieRecording
from ..findings.table import Cell as TableCell
from ..findings.table import Rows, cell, table
from .interaction import Interaction, interaction
from .loads import CROWD
from .serving import BLOCK_TOKENS, CACHE, KV_BYTES, OFF, PLAIN, TWO, Cell, Server, served

BATCHES = (1, 4, 16, 64)
MEMORIES_GB = (2, 4, 8, 16)
CROWDED = 64  # requests in a batch at most, where it is memory that bounds it
MEMBERS = {PLAIN: ("target",), TWO: ("draft", "target")}


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSize:
    """The crowd on a server of one size.

    Attributes:
        size: requests in a batch at most, or gigabytes for keys and values of all members of a chain.
        cells: by chain and sharing, one run for each seed.
    """

    size: int
    cells: Mapping[tuple[str, str], Sequence[Cell]]

    @property
    def interaction(self) -> Interaction:
        """Of `TWO` and the prefix cache."""
        keys = ((PLAIN, OFF), (TWO, OFF), (PLAIN, CACHE), (TWO, CACHE))
        return interaction(*([one.duration_s for one in self.cells[key]] for key in keys))

    def mean(self, chain: str, sharing: str, figure: str) -> float:
        """Over seeds, of a number of `Cell`."""
        return fmean(getattr(one, figure) for one in self.cells[chain, sharing])


def at_batches(trace: TrieRecording, seeds: Sequence[int], limit: int | None, folder: Path) -> list[AtSize]:
    """Serve the crowd in larger and larger batches, memory ample."""

    def server(chain: str, sharing: str, size: int) -> Server:
        return Server(sharing=sharing, max_num_seqs=size)

    return [_at_size(size, server, CROWD.workload(limit), trace, seeds, folder) for size in BATCHES]


def at_memories(trace: TrieRecording, seeds: Sequence[int], limit: int | None, folder: Path) -> list[AtSize]:
    """Serve it with more and more memory; blocks are shared out so that each member of a chain holds as many."""

    def server(chain: str, sharing: str, size: int) -> Server:
        token_bytes = sum(KV_BYTES[name] for name in MEMBERS[chain])
        return Server(sharing=sharing, max_num_seqs=CROWDED, blocks=size * 10**9 // (BLOCK_TOKENS * token_bytes))

    return [_at_size(size, server, CROWD.workload(limit), trace, seeds, folder) for size in MEMORIES_GB]


def _at_size(
    size: int,
    server: Callable[[str, str, int], Server],
    workload: str,
    trace: TrieRecording,
    seeds: Sequence[int],
    folder: Path,
) -> AtSize:
    cells = {
        (chain, sharing): [
            served(workload, chain, server(chain, sharing, size), trace=trace, seed=seed, folder=folder)
            for seed in seeds
        ]
        for sharing in (OFF, CACHE)
        for chain in MEMBERS
    }
    return AtSize(size=size, cells=cells)


def batch_table(found: Sequence[AtSize]) -> Rows:
    """A row for each batch."""
    title = f"{CROWD.name}, {TWO}: at most so many requests at a time, memory ample"
    return table(title, [[cell("batch", one.size), *_common(one)] for one in found])


def memory_table(found: Sequence[AtSize]) -> Rows:
    """A row for each memory."""
    title = f"{CROWD.name}, {TWO}: keys and values of all members in so much memory, at most {CROWDED} at a time"
    return table(title, [[cell("memory", one.size, "GB"), *_put_back(one), *_common(one)] for one in found])


def _put_back(one: AtSize) -> list[TableCell]:
    return [
        cell("put back, no cache", one.mean(TWO, OFF, "preemptions"), digits=0),
        cell("put back, cache", one.mean(TWO, CACHE, "preemptions"), digits=0),
    ]


def _common(one: AtSize) -> list[TableCell]:
    term = one.interaction
    return [
        cell("plain runs, no cache", one.mean(PLAIN, OFF, "running"), digits=1),
        cell("plain runs, cache", one.mean(PLAIN, CACHE, "running"), digits=1),
        cell("cache gains plain", term.gain.mean, "x", 2),
        cell("speed-up without", term.without.mean, "x", 2),
        cell("speed-up with", term.together.mean, "x", 2),
        cell("interaction", term.term.mean, digits=3),
        cell("±", term.term.half_width, digits=3),
        cell("speculation is worth", term.words),
    ]
