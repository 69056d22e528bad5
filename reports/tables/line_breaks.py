"""Lines of a cell: broken between words, after the parts of a name, and never inside a number."""

import re
from collections.abc import Iterator

from rich.cells import cell_len

# A space; after `,` `/` `;` `_` that no digit follows; after `:` `-` before a letter. `draft:12/mid:6` keeps its 12.
_BREAKS = re.compile(r" +|(?<=[,/;_])(?![\d\s])|(?<=[:-])(?=[A-Za-z])")


def longest_piece(text: str) -> int:
    """Cells of the longest part of `text` that is not broken without need."""
    return max((cell_len(piece.rstrip()) for line in text.split("\n") for piece in _pieces(line)), default=0)


def broken(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` >= 1 cells; a piece that is longer itself is cut, but never inside a number.

    A number of more than `width` digits stands on a line that is too long.
    """
    return [line for part in text.split("\n") for line in _broken_line(part, width)]


def prose(text: str, width: int) -> list[str]:
    """Sentences in lines of at most `width` cells: names stay whole, unless one is longer than a line."""
    lines = []
    for paragraph in text.split("\n"):
        for line in words_of(paragraph, width):
            lines += [line] if cell_len(line) <= width else broken(line, width)
    return lines


def words_of(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` cells, broken between words only; a word that is longer has its own line."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _broken_line(text: str, width: int) -> Iterator[str]:
    line = ""
    for piece in _pieces(text):
        if line and cell_len(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += piece
        while cell_len(line.rstrip()) > width and (cut := _cut(line, width)):
            yield line[:cut]
            line = line[cut:]
    yield line.rstrip()


def _pieces(line: str) -> Iterator[str]:
    """The parts of a line between which it may be broken, spaces at the end of each."""
    start = 0
    for found in _BREAKS.finditer(line):
        if found.end() > start:
            yield line[start : found.end()]
            start = found.end()
    if start < len(line):
        yield line[start:]


def _cut(text: str, width: int) -> int:
    """Where to cut a piece that is too long: as late as fits, not inside a number; 0 where there is no such place."""
    fitting = [index for index in range(1, len(text)) if cell_len(text[:index]) <= width]
    good = [index for index in fitting if not (_numeric(text[index - 1]) and _numeric(text[index]))]
    return good[-1] if good else 0


def _numeric(char: str) -> bool:
    return char.isdigit() or char in ".,"
