"""Pieces of a token sequence, decoded so that they read as they do within the whole.

A decoder drops the space of a first token, cuts characters that span several tokens, and drops special tokens. So a
piece is decoded after a *lead*: some tokens before it whose text is settled. Text is **settled** when no token that
follows can change it.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

# What a decoder writes for bytes that are no whole character.
REPLACEMENT = "\ufffd"


class Pieces:
    """Decodes pieces with one tokenizer; holds nothing of what it decoded."""

    __slots__ = ("_bytes", "_special", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._bytes = _byte_ids(tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return str(self._tokenizer.decode(ids))

    def is_settled(self, ids: Sequence[int], text: str) -> bool:
        """Whether no token after `ids`, whose text is `text`, can change that text.

        A run of byte tokens (byte fallback) is open until another token ends it: one more byte can make all of it
        unreadable. Text that is empty is open, as the space that the decoder drops may be yet to come.
        """
        if not text or text[-1] == REPLACEMENT:
            return False
        if not self._bytes:
            return True
        for token in reversed(ids):
            if token not in self._special:
                return token not in self._bytes
        return False


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that stand for no text."""
    return frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def num_token_ids(tokenizer: Tokenizer) -> int:
    """Rows that a table needs for every token: the largest id and one. Ids between may belong to none."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _byte_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens such as `<0xE4>` that stand for one byte."""
    ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token for token in ids if token is not None)
