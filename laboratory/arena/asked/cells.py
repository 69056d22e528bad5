"""The cells of the arena: `cells.toml`, and those of them that are asked for."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ....arguments import ArgumentError
from ....strict_toml import TomlFileError, checked_toml, read_toml
from ....traces.meta import Record
from ..cell import ArenaCell
from ..ladders import ladder, ladders
from ..loads import load, loads
from ..split import Side, Split

CELLS_FILE = Path(__file__).with_name("cells.toml")


class CellsFileError(TomlFileError):
    """Cells that break a rule."""


class Block(Record):
    """Every recording at every ladder under every load.

    Attributes:
        recordings: names, in which `*` stands for anything; those that the split has count.
        ladders, loads: names likewise; each must name something.
    """

    recordings: tuple[str, ...]
    ladders: tuple[str, ...]
    loads: tuple[str, ...]


class Blocks(Record):
    """All of `cells.toml`.

    Attributes:
        blocks: a cell of several of them is one.
    """

    blocks: tuple[Block, ...]


def all_cells(split: Split, path: Path = CELLS_FILE) -> tuple[ArenaCell, ...]:
    """Every cell, by recording in the order of the split, then as the blocks stand.

    Raises:
        CellsFileError: a file that breaks a rule, or a ladder or load that is none; one line.
    """
    blocks = checked_toml(path, read_toml(path, "the cells", CellsFileError), Blocks, CellsFileError).blocks
    recordings = split.recordings(Side.all)
    found = dict.fromkeys(
        ArenaCell(recording=recording, ladder=at, load=under)
        for place, block in enumerate(blocks)
        for recording in recordings
        if any(fnmatchcase(recording, pattern) for pattern in block.recordings)
        for at in _named(block.ladders, ladders(), path, f"blocks[{place}].ladders")
        for under in _named(block.loads, loads(), path, f"blocks[{place}].loads")
    )
    return tuple(sorted(found, key=lambda cell: recordings.index(cell.recording)))


def asked_cells(split: Split, side: Side, pattern: str | None) -> tuple[ArenaCell, ...]:
    """The cells of a side of the split that match a pattern, as `*/batch-1`.

    A cell that is named in full need not be among those of `cells.toml`.

    Raises:
        ArgumentError: no cell matches, or the side has no recording.
    """
    if not split.recordings(side):
        raise ArgumentError(f"`split` must be a side with recordings, got {side}")
    known = [cell for cell in all_cells(split) if cell.recording in split.recordings(side)]
    if pattern is None:
        return tuple(known)
    found = tuple(cell for cell in known if fnmatchcase(str(cell), pattern))
    if found:
        return found
    if "*" in pattern or pattern.count("/") != 2:
        raise ArgumentError(f"`cells` must match one of the {len(known)} cells of split {side}, got {pattern!r}")
    return (_checked(ArenaCell.parse(pattern), split.recordings(side), side),)


def _checked(cell: ArenaCell, recordings: Sequence[str], side: Side) -> ArenaCell:
    if cell.recording not in recordings:
        raise ArgumentError(
            f"`cells` must name a recording of split {side} ({', '.join(recordings)}), got {cell.recording!r}"
        )
    ladder(cell.ladder)
    load(cell.load)
    return cell


def _named(patterns: Iterable[str], names: Iterable[str], path: Path, field: str) -> list[str]:
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise CellsFileError(path, field, f"must name {', '.join(known)}", pattern)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
