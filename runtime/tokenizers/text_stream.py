"""The text of an answer, token by token.

The tokenizers package has a `DecodeStream`, but it fails where a later byte token makes the text of earlier ones
unreadable, and drops what it still holds at the end.
"""

from tokenizers import Tokenizer

from .pieces import Pieces


class TextStream:
    """Text of one answer as its tokens are committed; mutated by `push` and `rest`.

    What `push` returned, joined, and `rest` after it are the text of all tokens decoded at once.
    """

    __slots__ = ("_ids", "_num_read", "_pieces", "_read")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = Pieces(tokenizer)
        # The lead, then tokens whose text is still open.
        self._ids: list[int] = []
        self._read = ""
        self._num_read = 0

    def push(self, token_id: int) -> str:
        """New text that one more token settles; empty while a character or a run of byte tokens is incomplete."""
        self._ids.append(token_id)
        text = self._pieces.text(self._ids)
        if not self._pieces.is_settled(self._ids, text):
            return ""
        return self._take(text)

    def rest(self) -> str:
        """Text after what `push` returned, with U+FFFD for bytes that are no whole character."""
        text = self._pieces.text(self._ids)
        fresh = text[len(self._read) :]
        self._read, self._num_read = text, len(self._ids)
        return fresh

    def _take(self, text: str) -> str:
        """What of `text`, the settled text of the tokens held, is new; keeps only a lead for what follows."""
        fresh = text[len(self._read) :]
        lead = self._ids[self._num_read :]
        lead_text = self._pieces.text(lead)
        if lead_text:
            self._ids, self._read = lead, lead_text
        else:
            self._read = text
        self._num_read = len(self._ids)
        return fresh
