"""How much of a recording's answers stood somewhere before, word for word: what copies can live on.

    python -m paceline_laboratory.arena.repeats WORK/recordings/mixed.trace ...

A **piece** is eight tokens of an answer in a row. Recordings of models that write few different things repeat most of
them from one answer to the next, so that what a policy gains by copies there says little of other texts.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.reports.grid import console_of_output, print_tables
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.contexts.store import read_trace

from ..findings import Cell, Rows, table, table_cell

PIECE = 8  # tokens: longer than chance and fixed phrases bring about


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What stood before, of all answers of a recording."""

    pieces: int  # of answers, >= 0
    own: int  # that stood before in the same request, its prompt included
    earlier: int  # that stood in the answer of a request before it, in the recorded order


def repeats(recording: TrieRecording) -> Repeats:
    """Count the pieces of all answers."""
    before: set[tuple[int, ...]] = set()
    pieces = own = earlier = 0
    for request in recording.requests:
        answer = request.trie.token[request.trie.trunk[1:]].tolist()
        text = [*request.prompt, *answer]
        found = pieces_of(answer)
        # At first those that begin in the prompt, the last of which end in the answer.
        seen = set(pieces_of(text[: len(request.prompt) + PIECE - 1]))
        for piece in found:
            own += piece in seen
            seen.add(piece)
        pieces += len(found)
        earlier += sum(piece in before for piece in found)
        before.update(found)
    return Repeats(pieces=pieces, own=own, earlier=earlier)


def pieces_of(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Every `PIECE` tokens in a row."""
    return [tuple(tokens[start : start + PIECE]) for start in range(len(tokens) - PIECE + 1)]


def repeats_table(recordings: Iterable[TrieRecording]) -> Rows:
    """A row for each recording."""
    return table(f"pieces of {PIECE} tokens of the answers that stood before", [_row(one) for one in recordings])


def _row(recording: TrieRecording) -> list[Cell]:
    found = repeats(recording)
    of = max(found.pieces, 1)
    return [
        table_cell("recording", recording.meta.name),
        table_cell("requests", len(recording.requests)),
        table_cell("pieces", found.pieces),
        table_cell("in its own text", f"{found.own / of:.0%}"),
        table_cell("in earlier answers", f"{found.earlier / of:.0%}"),
    ]


def main() -> int:
    """Print the table; exit code 2 for what is no recording of contexts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path, metavar="NAME.trace")
    try:
        found = repeats_table(map(read_trace, parser.parse_args().recordings))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print_tables(console_of_output(), [found.grid()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
