"""Every load under every chain and kind of sharing, at several seeds, and the tables of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ...traces.tries.recording import TrieRecording
from ..findings.table import Cell as TableCell
from ..findings.table import Rows, cell, table
from .interaction import Interaction, interaction
from .loads import Load
from .serving import ATTENTION, CACHE, CHAINS, OFF, PLAIN, SHARINGS, Cell, Server, served

SPECULATING = tuple(chain for chain in CHAINS if chain != PLAIN)
STEPS = ((CACHE, OFF), (ATTENTION, CACHE))  # what comes, and over what
Key = tuple[str, str]  # chain and sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One load.

    Attributes:
        load: which.
        cells: by chain and sharing, one for each seed, in the same order.
    """

    load: Load
    cells: Mapping[Key, Sequence[Cell]]

    def durations(self, chain: str, sharing: str) -> list[float]:
        """Seconds until the last request ended, by seed."""
        return [one.duration_s for one in self.cells[chain, sharing]]

    def interaction(self, chain: str, sharing: str, over: str) -> Interaction:
        """Of a chain over the target alone, and of a kind of sharing over another."""
        keys = ((PLAIN, over), (chain, over), (PLAIN, sharing), (chain, sharing))
        return interaction(*(self.durations(*key) for key in keys))

    def mean(self, chain: str, sharing: str, figure: str) -> float:
        """Over seeds, of a number of `Cell`."""
        return fmean(getattr(one, figure) for one in self.cells[chain, sharing])

    def seconds(self, chain: str, sharing: str, what: str) -> float:
        """Reading or writing, of all members together, mean over seeds."""
        return fmean(sum(getattr(one, f"{what}_s").values()) for one in self.cells[chain, sharing])


def served_load(load: Load, trace: TrieRecording, seeds: Sequence[int], limit: int | None, folder: Path) -> Served:
    """Serve a load in every cell; at one seed all meet the same requests, and the same recorded answers."""
    workload = load.workload(limit)
    cells = {
        (chain, sharing): [
            served(workload, chain, Server(sharing=sharing), trace=trace, seed=seed, folder=folder) for seed in seeds
        ]
        for sharing in SHARINGS
        for chain in CHAINS
    }
    return Served(load=load, cells=cells)


def cells_table(found: Served) -> Rows:
    """One load: a row for each chain and kind of sharing."""
    return table(found.load.name, [_row(found, *key) for key in found.cells])


def _row(found: Served, chain: str, sharing: str) -> list[TableCell]:
    def mean(figure: str) -> float:
        return found.mean(chain, sharing, figure)

    hits = found.cells[chain, sharing]
    members = {name: 100 * fmean(one.hit_shares[name] for one in hits) for name in hits[0].hit_shares}
    return [
        cell("chain", chain),
        cell("sharing", sharing),
        cell("tokens/s", mean("tokens_per_s"), digits=0),
        cell("TTFT", 1e3 * mean("ttft_s"), "ms", 0),
        cell("TPOT", 1e3 * mean("tpot_s"), "ms", 2),
        cell("prompts", found.seconds(chain, sharing, "reading"), "s", 1),
        cell("answers", found.seconds(chain, sharing, "writing"), "s", 1),
        *(cell(f"hits of {name}", members.get(name), "%", 1) for name in ("draft", "mid", "target")),
        cell("accept. length", mean("acceptance_length"), digits=2),
    ]


def interaction_table(found: Sequence[Served]) -> Rows:
    """A row for each load, chain and kind of sharing."""
    keys = [(one, chain, *step) for one in found for chain in SPECULATING for step in STEPS]
    return table("what sharing makes speculation worth", [_interaction(*key) for key in keys])


def _interaction(found: Served, chain: str, sharing: str, over: str) -> list[TableCell]:
    one = found.interaction(chain, sharing, over)
    return [
        cell("workload", found.load.name),
        cell("chain", chain),
        cell("sharing", sharing),
        cell("over", over),
        cell("it gains plain", one.gain.mean, "x", 2),
        cell("speed-up without", one.without.mean, "x", 2),
        cell("speed-up with", one.together.mean, "x", 2),
        cell("interaction", one.term.mean, digits=3),
        cell("±", one.term.half_width, digits=3),
        cell("speculation is worth", one.words),
    ]
