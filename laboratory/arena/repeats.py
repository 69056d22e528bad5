"""How much of a recording's answers repeats earlier text exactly: what copying can use.

    python -m paceline_laboratory.arena.repeats WORK/recordings/mixed.trace ...

A **piece** is eight tokens of an answer in a row. Models with little variety repeat most pieces from one answer to the
next, so gains by copying there say little about other texts.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.contexts.recording import TrieRecording

PIECE = 8  # tokens: longer than chance repeats and fixed phrases


class Repeats(NamedTuple):
    """Counts of repeated pieces in all answers of a recording."""

    pieces: int  # of answers, >= 0
    own: int  # that occurred before in the same request, its prompt included
    earlier: int  # that occurred in the answer of an earlier request, in the recorded order


def repeats(recording: TrieRecording) -> Repeats:
    """Count the pieces of all answers."""
    before: set[tuple[int, ...]] = set()
    pieces = own = earlier = 0
    for request in recording.requests:
        answer = request.trie.token[request.trie.trunk[1:]].tolist()
        text = [*request.prompt, *answer]
        found = pieces_of(answer)
        # First those that begin in the prompt; the last of them end in the answer.
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


if __name__ == "__main__":
    for path in sys.argv[1:]:
        found = repeats(read_trace(Path(path)))
        shares = [f"{part / max(found.pieces, 1):.0%}" for part in (found.own, found.earlier)]
        sys.stdout.write(
            f"{path}: {found.pieces} pieces, {shares[0]} in its own text, {shares[1]} in earlier answers\n"
        )
