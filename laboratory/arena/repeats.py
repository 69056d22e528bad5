"""How much of a recording's answers stood somewhere before, word for word: what copies can live on.

    python -m paceline_laboratory.arena.repeats WORK/recordings/mixed.trace ...

A **piece** is eight tokens of an answer in a row. Recordings of models that write few different things repeat most of
them from one answer to the next, so that what a policy gains by copies there says little about other texts.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.contexts.recording import TrieRecording

PIECE = 8  # tokens: longer than chance and fixed phrases bring about


class Repeats(NamedTuple):
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


if __name__ == "__main__":
    for path in sys.argv[1:]:
        found = repeats(read_trace(Path(path)))
        shares = [f"{part / max(found.pieces, 1):.0%}" for part in (found.own, found.earlier)]
        sys.stdout.write(
            f"{path}: {found.pieces} pieces, {shares[0]} in its own text, {shares[1]} in earlier answers\n"
        )
