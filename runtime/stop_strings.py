"""Where answers end by their text: at stop strings; and text that is returned once it is settled."""

from collections.abc import Sequence
from functools import partial

from tokenizers import Tokenizer

from ..base.errors import ArgumentError
from ..decoding.request_text import Ending
from .tokenizers import REPLACEMENT, Pieces


def make_ending(tokenizer: Tokenizer, stop_strings: Sequence[str]) -> Ending | None:
    """A function of (emitted tokens, number of old ones) that returns how many tokens the answer keeps.

    The answer ends with the first new token that completes a stop string in the decoded text; the function returns None
    if there is no such token. It holds no state: one serves every request. It reads a tail of the answer only, long
    enough for the longest stop string. A stop string may start and end inside of tokens; None is returned if there is
    none.

    Raises:
        ArgumentError: a stop string that is empty or holds U+FFFD.
    """
    for stop in stop_strings:
        if not stop:
            raise ArgumentError(f"stop strings must not be empty, got {list(stop_strings)!r}")
        if REPLACEMENT in stop:
            raise ArgumentError(f"stop strings must not hold U+FFFD, which stands for half a character, got {stop!r}")
    if not stop_strings:
        return None
    return partial(_first_end, Pieces(tokenizer), tuple(stop_strings))


def text_before_stop(text: str, stop_strings: Sequence[str]) -> str:
    """`text` up to where the first of the stop strings (as `make_ending` took) starts; all of it if it holds none."""
    starts = [start for stop in stop_strings if (start := text.find(stop)) >= 0]
    return text[: min(starts)] if starts else text


def _first_end(pieces: Pieces, stops: tuple[str, ...], emitted: list[int], num_before: int) -> int | None:
    """Number of tokens up to and with the first one from index `num_before` on that completes a stop string."""
    start, skipped = _tail(pieces, emitted, num_before, max(map(len, stops)))
    text = pieces.text(emitted[start:])[skipped:]
    # A shorter text can show a stop string that the whole lacks only if the text has half a character.
    if REPLACEMENT not in text and not any(stop in text for stop in stops):
        return None
    for end in range(num_before + 1, len(emitted) + 1):
        text = pieces.text(emitted[start:end])[skipped:]
        if any(stop in text for stop in stops):
            return end
    return None


def _tail(pieces: Pieces, emitted: list[int], num_before: int, longest: int) -> tuple[int, int]:
    """(token the tail is decoded from, characters of the lead): the rest is text as in the answer.

    It holds at least the last `longest` - 1 settled characters of the first `num_before` tokens.
    """
    length = 4 + longest // 2
    while length < num_before:
        start = num_before - length
        skipped = _settled(pieces, emitted, start, range(start + 1, num_before))
        if skipped and _settled(pieces, emitted, start, range(num_before, start, -1)) - skipped >= longest - 1:
            return start, skipped
        length *= 2
    return 0, 0


def _settled(pieces: Pieces, emitted: list[int], start: int, ends: range) -> int:
    """Characters of the first settled text from `start` to one of the ends; 0 if there is none."""
    for end in ends:
        text = pieces.text(emitted[start:end])
        if pieces.is_settled(emitted[start:end], text):
            return len(text)
    return 0


class TextStream:
    """Text of one answer as its tokens are committed; mutated by `push` and `rest`.

    What `push` returned, joined, and `rest` after it are the text of all tokens decoded at once.
    """

    __slots__ = ("_ids", "_num_read", "_pieces", "_read")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        # The lead, then tokens whose text is not settled.
        self._ids: list[int] = []
        self._read = ""
        self._num_read = 0

    def push(self, token_id: int) -> str:
        """New text that one more token settles; empty while a character or a run of byte tokens is incomplete."""
        self._ids.append(token_id)
        text = self._pieces.text(self._ids)
        if not self._pieces.is_settled(self._ids, text):
            return ""
        fresh = text[len(self._read) :]
        # Only a lead for what follows is kept.
        lead = self._ids[self._num_read :]
        lead_text = self._pieces.text(lead)
        if lead_text:
            self._ids, self._read = lead, lead_text
        else:
            self._read = text
        self._num_read = len(self._ids)
        return fresh

    def rest(self) -> str:
        """Text after what `push` returned, with U+FFFD for bytes that are no whole character."""
        text = self._pieces.text(self._ids)
        fresh = text[len(self._read) :]
        self._read, self._num_read = text, len(self._ids)
        return fresh
