"""Where an answer ends before its budget and its end-of-sequence token: stop strings."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from ...arguments import ArgumentError
from ...decoding.request_tokens import Ending
from .pieces import REPLACEMENT, Pieces


def make_ending(tokenizer: Tokenizer, stop_strings: Sequence[str]) -> Ending | None:
    """A function of (emitted tokens, how many of them are old) that says how many tokens the answer keeps.

    The answer ends with the first new token that completes a stop string in the decoded text; the function returns None
    if there is no such token. It holds no state: one serves every request. It reads a tail of the answer only, long
    enough for the longest stop string.

    Args:
        tokenizer: the pool's.
        stop_strings: may be none; a stop string may start and end inside of tokens.

    Returns:
        None if no stop string is given.

    Raises:
        ArgumentError: a stop string that is empty or holds U+FFFD.
    """
    _check_stop_strings(stop_strings)
    if not stop_strings:
        return None
    return _StopSearch(Pieces(tokenizer), tuple(stop_strings)).first_end


def text_before_stop(text: str, stop_strings: Sequence[str]) -> str:
    """`text` up to where the first of the stop strings starts; all of it if it holds none.

    Args:
        text: of an answer.
        stop_strings: that `make_ending` took.
    """
    starts = [start for stop in stop_strings if (start := text.find(stop)) >= 0]
    return text[: min(starts)] if starts else text


def _check_stop_strings(stop_strings: Sequence[str]) -> None:
    for stop in stop_strings:
        if not stop:
            raise ArgumentError(f"stop strings must not be empty, got {list(stop_strings)!r}")
        if REPLACEMENT in stop:
            raise ArgumentError(f"stop strings must not hold U+FFFD, which stands for half a character, got {stop!r}")


class _StopSearch:
    """Finds the first token that completes a stop string."""

    __slots__ = ("_longest", "_pieces", "_stops")

    def __init__(self, pieces: Pieces, stops: tuple[str, ...]) -> None:
        self._pieces = pieces
        self._stops = stops
        self._longest = max(len(stop) for stop in stops)

    def first_end(self, emitted: list[int], num_before: int) -> int | None:
        """Tokens up to and with the first one from index `num_before` on whose arrival completes a stop string."""
        start, skipped = self._tail(emitted, num_before)
        text = self._pieces.text(emitted[start:])[skipped:]
        # Only half a character can hide from the whole text what a shorter one shows.
        if REPLACEMENT not in text and not self._holds_stop(text):
            return None
        for end in range(num_before + 1, len(emitted) + 1):
            if self._holds_stop(self._pieces.text(emitted[start:end])[skipped:]):
                return end
        return None

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self._stops)

    def _tail(self, emitted: list[int], num_before: int) -> tuple[int, int]:
        """(token the tail is decoded from, characters of the lead): the rest is text as it stands in the answer.

        It holds at least the last `longest` - 1 settled characters of the first `num_before` tokens.
        """
        length = 4 + self._longest // 2
        while length < num_before:
            start = num_before - length
            skipped = self._lead(emitted, start, num_before)
            if skipped is not None and self._num_settled(emitted, start, num_before) - skipped >= self._longest - 1:
                return start, skipped
            length *= 2
        return 0, 0

    def _lead(self, emitted: list[int], start: int, stop: int) -> int | None:
        """Characters of the shortest settled text from `start`; None if there is none before `stop`."""
        for end in range(start + 1, stop):
            lead = emitted[start:end]
            text = self._pieces.text(lead)
            if self._pieces.is_settled(lead, text):
                return len(text)
        return None

    def _num_settled(self, emitted: list[int], start: int, stop: int) -> int:
        """Characters of the longest settled text from `start` that ends at or before `stop`."""
        for end in range(stop, start, -1):
            piece = emitted[start:end]
            text = self._pieces.text(piece)
            if self._pieces.is_settled(piece, text):
                return len(text)
        return 0
