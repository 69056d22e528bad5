"""Text of tokens: decoding in pieces, and converting between two tokenizers.

A decoder drops the space of a first token, cuts characters that span several tokens, and drops special tokens. So a
piece is decoded after a *lead*: some tokens before it whose text is **settled**: no later token can change it.

A drafter with another tokenizer reads the context's text in its own tokens; the target's tokenizer encodes its draft,
and the target verifies that as any draft. So the text never depends on the alignment: a draft that the target would
tokenize differently is only rejected. A span counts as drafted only if it ends where a token of both tokenizers ends
and reads the same in both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

# A decoder's output for bytes that are no whole character.
REPLACEMENT = "\ufffd"


class Pieces:
    """Decodes pieces with one tokenizer; holds no state."""

    __slots__ = ("_bytes", "_special", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        # Tokens such as `<0xE4>` that stand for one byte.
        ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self._bytes = frozenset(token for token in ids if token is not None)

    def text(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return _decode(self._tokenizer, ids)

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
    """Tokens without text."""
    return frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def num_token_ids(tokenizer: Tokenizer) -> int:
    """Rows that a table needs for every token: the largest id plus one. Some ids may have no token."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


# Tokens of context that are encoded again with the draft; words rarely have more, and the cost is bounded.
SUFFIX_TOKENS = 12
# Both must decode these unchanged; a tokenizer that changes text (lower-cases it, folds accents) cannot be aligned.
NEEDED_TEXTS = ("the quick brown fox jumps over the lazy dog",)
PROBE_TEXTS = (
    "The Quick BROWN Fox",
    "0 12 345 6789",
    "two  spaces and   three",
    "a line\nand another\n\n\tone",
    "x = (y[0] + {1: 'z'}) * 2; # \"why?\" -- <no>, a/b & c|d!",
    "it's, they'll; don't . Wait ... what ?",
    "déjà vu, naïve Ångström, über",
    "cafe\u0301",
    "日本語と中文",
    "smile 🙂 and 👩‍💻",
)


class Alignment:
    """Converts contexts to another tokenizer and its drafts back; holds no state of a request.

    Raises:
        ValueError: one of the tokenizers does not decode a text unchanged; names it and the first such text.
    """

    def __init__(self, target: Tokenizer, other: Tokenizer, target_eos: int, other_eos: frozenset[int]) -> None:
        _check_alignable(target, other)
        self._target = target
        self._other = other
        self._target_eos = target_eos
        self._other_eos = other_eos
        self._target_special = special_ids(target)
        self._other_special = special_ids(other) | other_eos
        self._target_lead = _encode(target, "a")
        self._other_lead = _encode(other, "a")
        self._num_after = _num_special_after(other)

    def to_other(self, context: Sequence[int]) -> list[int]:
        """The context in the other's tokens, with its tokenizer's leading special tokens.

        The context's own special tokens and half a character at its end are left out (a real U+FFFD, the replacement
        character, cannot be told from half a character). Only the last few tokens change as the context grows, so a
        cache of the common prefix is still valid.
        """
        ids = list(self._other.encode(_decode(self._target, context).rstrip(REPLACEMENT)).ids)
        return ids[: len(ids) - self._num_after]

    def drafted(self, context: Sequence[int], other_draft: Sequence[int]) -> list[int]:
        """The target's tokens for the drafted text; none where the alignment fails.

        The last tokens of the context and the draft are encoded together by the target's tokenizer. That must reproduce
        the context's tokens; a suffix of the context is enough, since a model may have tokenized an earlier word
        differently. Of the tokens after them, those count up to the last one that ends where a token of the draft ends,
        with the same text so far; half a character at the end does not count.

        Where the draft stops inside a word, its last token may be one that the target would merge with what follows; it
        still counts, and the target rejects it if it would write the longer token.

        Args:
            context: prompt, committed and pending tokens, in the target's tokens.
            other_draft: the other's draft after `to_other(context)`; tokens after a special one are left out.

        Returns:
            Tokens of the target, maybe more or fewer than were drafted; after them the target's end of sequence if the
            other ended its text there.
        """
        end = next((at for at, token in enumerate(other_draft) if token in self._other_special), len(other_draft))
        draft = list(other_draft[:end])
        ends_text = len(draft) < len(other_draft) and other_draft[len(draft)] in self._other_eos
        # After a lead, a first token keeps its leading space.
        before = _decode(self._target, context[-SUFFIX_TOKENS:]) or _decode(self._target, context)
        drafted = self._spans(draft, self._other_lead if before else [])
        for suffix in self._suffixes(context, before):
            found = self._spelled(suffix, drafted, self._target_lead if before and not suffix else [])
            if found is not None:
                tokens, num_chars = found
                # A context that decodes to nothing, such as a lone space, may still change how the first token decodes.
                if not before and _decode(self._target, [*context, *tokens]) != drafted.text[:num_chars]:
                    return []
                ends_here = ends_text and drafted.is_whole and num_chars == len(drafted.text)
                return [*tokens, self._target_eos] if ends_here else tokens
        return []

    def _spans(self, draft: list[int], lead: list[int]) -> "_Spans":
        num_lead = len(_decode(self._other, lead))
        texts = [_decode(self._other, lead + draft[: index + 1])[num_lead:] for index in range(len(draft))]
        whole = [text for text in texts if REPLACEMENT not in text]
        text = whole[-1] if whole else ""
        ends = frozenset(map(len, whole)) | {0}
        return _Spans(text=text, ends=ends, is_whole=not texts or texts[-1] == text)

    def _suffixes(self, context: Sequence[int], text: str) -> Iterator[list[int]]:
        """Ends of the context without special tokens: the longest of a few tokens first, at last all of it.

        After a special token nothing is encoded again, as text never merges with it, except half a character at the end
        of `text`, the context's.
        """
        near = self._after_special(context[-SUFFIX_TOKENS:])
        if near:
            yield from (near[start:] for start in range(len(near)))
            whole = self._after_special(context) if len(near) == SUFFIX_TOKENS else near
            if len(whole) > len(near):
                yield whole
        elif not text.endswith(REPLACEMENT):
            yield []

    def _after_special(self, context: Sequence[int]) -> list[int]:
        """Tokens after the last special token, all if there is none."""
        last = next((index for index in range(len(context) - 1, -1, -1) if context[index] in self._target_special), -1)
        return list(context[last + 1 :])

    def _spelled(self, suffix: list[int], drafted: "_Spans", lead: list[int]) -> tuple[list[int], int] | None:
        """(the target's tokens for the draft, their characters); None if the suffix is not reproduced.

        The draft is decoded after the suffix, or after `lead` if that is empty. A suffix that starts inside a
        character, or ends in one that the draft does not complete, is not reproduced.
        """
        before = _decode(self._target, suffix).rstrip(REPLACEMENT)
        text = before + drafted.text
        ids = _encode(self._target, text)
        num_before, num_lead = len(suffix), len(_decode(self._target, lead))
        if ids[:num_before] != suffix:
            return None
        # A draft may contain a special token as text.
        first_special = next((at for at, token in enumerate(ids) if token in self._target_special), len(ids))
        for end in range(first_special, num_before - 1, -1):
            spelled = _decode(self._target, lead + ids[:end])[num_lead:]
            num_chars = len(spelled) - len(before)
            if num_chars in drafted.ends and text.startswith(spelled):
                return ids[num_before:end], num_chars
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    text: str  # of its longest part without half a character at the end
    ends: frozenset[int]  # lengths of `text` at which a token of the draft ends, 0 included
    is_whole: bool  # whether that part is the whole draft


def _check_alignable(target: Tokenizer, other: Tokenizer) -> None:
    """Raises ValueError unless both decode the needed texts unchanged, and the other all that the target does."""
    for text in NEEDED_TEXTS:
        _check_round_trip("target", target, text)
    for text in (*NEEDED_TEXTS, *PROBE_TEXTS):
        if _decode(target, _encode(target, text)) == text:
            _check_round_trip("drafting member", other, text)


def _check_round_trip(whose: str, tokenizer: Tokenizer, text: str) -> None:
    back = _decode(tokenizer, _encode(tokenizer, text))
    if back != text:
        raise ValueError(f"tokenizer of the {whose} must give text back unchanged, got {back!r} for {text!r}")


def _num_special_after(tokenizer: Tokenizer) -> int:
    """Number of special tokens that the tokenizer adds after a text."""
    mask = tokenizer.encode("a").special_tokens_mask
    return next((index for index, is_special in enumerate(reversed(mask)) if not is_special), 0)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids))
