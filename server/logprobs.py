"""Log-probabilities of an answer's tokens, in the shapes of OpenAI's completions and chats.

They are the target's own, over all tokens and at temperature 1, however an answer was sampled: the log-softmax of its
logits, as vLLM's `raw_logprobs`. Letters: V vocabulary.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..runtime.tokenizers import REPLACEMENT, Pieces

LOWEST = -9999.0  # for a probability of 0, whose logarithm JSON cannot hold; OpenAI's and vLLM's number


class TokenLogprob(NamedTuple):
    """The target's log-probability of a token of an answer."""

    token: int
    logprob: float  # <= 0
    top: tuple[tuple[int, float], ...]  # the likeliest tokens with log-probabilities, likeliest first


def token_logprobs(log_probs: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """N tokens' entries from `[N, V]` log-probabilities, each with the `num_top` likeliest, >= 0."""
    index = torch.as_tensor(tokens, device=log_probs.device)[:, None]
    own = log_probs.gather(-1, index)[:, 0].clamp(min=LOWEST).tolist()
    best = log_probs.topk(num_top, dim=-1)
    values, ids = best.values.clamp(min=LOWEST).tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(near, theirs, strict=True)))
        for token, logprob, near, theirs in zip(tokens, own, ids, values, strict=True)
    ]


class TokenTexts:
    """Single tokens: their text, and their bytes, which may be a part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.pieces = tokenizer, Pieces(tokenizer)
        self._added = {token: str(one.content) for token, one in tokenizer.get_added_tokens_decoder().items()}
        is_by_byte = "ByteLevel" in json.dumps(json.loads(tokenizer.to_str()).get("decoder"))
        self._by_byte = {letter: byte for byte, letter in bytes_to_unicode().items()} if is_by_byte else {}
        self._lead = tokenizer.encode("a", add_special_tokens=False).ids  # a decoder drops the space of a first token

    def bytes_of(self, token: int) -> bytes | None:
        """Of one token; None where it is a part of a character whose bytes the tokenizer does not give."""
        written = self._tokenizer.id_to_token(token)
        if token in self._added:
            return self._added[token].encode()
        if written is not None and self._by_byte and all(letter in self._by_byte for letter in written):
            return bytes(self._by_byte[letter] for letter in written)
        if written is not None and len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
            return bytes.fromhex(written[3:5])
        text = self.pieces.text([*self._lead, token])[len(self.pieces.text(self._lead)) :]
        return None if REPLACEMENT in text else text.encode()

    def text_of(self, token: int) -> str:
        r"""Of one token; `bytes:\xe2` of one that is no whole text, as OpenAI's completions write it."""
        found = self.bytes_of(token)
        if found is None:
            return f"token:{token}"
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


def of_completion(texts: TokenTexts, told: Sequence[TokenLogprob], offsets: Sequence[int]) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/completions; `offsets` are characters of the answer before each token."""
    tops = []
    for one in told:
        top: dict[str, float] = {}
        for token, logprob in (*one.top, (one.token, one.logprob)):  # the token itself is always included
            top.setdefault(texts.text_of(token), logprob)
        tops.append(top)
    return {
        "tokens": [texts.text_of(one.token) for one in told],
        "token_logprobs": [one.logprob for one in told],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def of_chat(texts: TokenTexts, told: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/chat/completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        found = texts.bytes_of(token)
        return {
            "token": texts.text_of(token),
            "logprob": logprob,
            "bytes": None if found is None else list(found),
        }

    content = [
        {**entry(one.token, one.logprob), "top_logprobs": [entry(token, logprob) for token, logprob in one.top]}
        for one in told
    ]
    return {"content": content, "refusal": None}
