"""A fault of real engines: members below the target that keep no prefix cache, and read every prompt anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...reports.interval import Interval, mean_interval
from ...traces.tries.recording import TrieRecording
from ..findings.table import Cell as TableCell
from ..findings.table import Rows, cell, table
from .grid import Served
from .serving import CACHE, THREE, TWO, Cell, Server, served

BELOW = {TWO: ("draft",), THREE: ("draft", "mid")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncached:
    """A chain whose members below the target read every prompt anew.

    Attributes:
        load: by name.
        chain: which.
        cached, uncached: one run for each seed, with prefix caches in all members, and in the target alone.
    """

    load: str
    chain: str
    cached: Sequence[Cell]
    uncached: Sequence[Cell]

    @property
    def slowdown(self) -> Interval:
        """Its time over that with caches in all members."""
        return mean_interval([a.duration_s / b.duration_s for a, b in zip(self.uncached, self.cached, strict=True)])


def uncached(
    found: Sequence[Served], trace: TrieRecording, seeds: Sequence[int], limit: int | None, folder: Path
) -> list[Uncached]:
    """Serve every load again under each chain, its drafts without prefix caches."""
    rows = []
    for one in found:
        for chain, below in BELOW.items():
            server = Server(sharing=CACHE, uncached=below)
            work = one.load.workload(limit)
            cells = [served(work, chain, server, trace=trace, seed=seed, folder=folder) for seed in seeds]
            cached = one.cells[chain, CACHE]
            rows.append(Uncached(load=one.load.name, chain=chain, cached=cached, uncached=cells))
    return rows


def uncached_table(found: Sequence[Uncached]) -> Rows:
    """A row for each load and chain."""
    return table("members below the target without a prefix cache of their own", map(_uncached, found))


def _uncached(one: Uncached) -> list[TableCell]:
    def below(cells: Sequence[Cell]) -> float:
        return sum(cell.reading_s[name] for cell in cells for name in BELOW[one.chain]) / len(cells)

    def tpot(cells: Sequence[Cell]) -> float:
        return 1e3 * sum(cell.tpot_s for cell in cells) / len(cells)

    return [
        cell("workload", one.load),
        cell("chain", one.chain),
        cell("drafts read prompts, with", below(one.cached), "s", 2),
        cell("without", below(one.uncached), "s", 2),
        cell("TPOT with", tpot(one.cached), "ms", 2),
        cell("TPOT without", tpot(one.uncached), "ms", 2),
        cell("takes longer by", 100 * (one.slowdown.mean - 1.0), "%", 1),
        cell("±", 100 * one.slowdown.half_width, "%", 1),
    ]
