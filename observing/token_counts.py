"""Tokens of texts, counted by the server's own tokenizer, where its answers have no `usage`.

An answer that is read again may come to other tokens than were written, and an end of sequence has no text: these
counts say that they are the tokenizer's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..runs.observed.request import ObservedRequest
from ..strict_json import decode_json
from ..traces.workloads.options import MOST_COUNT
from .endpoint import Endpoint, ServerError
from .exchange import Exchange

# Path below the server, and what is posted there for a text: vLLM, llama.cpp's server, llama-cpp-python.
_ASKED: tuple[tuple[str, Callable[[str, str], dict[str, Any]]], ...] = (
    ("/tokenize", lambda model, text: {"model": model, "prompt": text}),
    ("/tokenize", lambda _, text: {"content": text, "add_special": True}),
    ("/extras/tokenize/count", lambda model, text: {"model": model, "input": text}),
)


class ServerTokenizer:
    """Counts tokens of texts. Final.

    Args:
        endpoint: of the server.
        model: whose tokenizer it is.

    Raises:
        ServerError: the server has none that is known here.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model
        self._form = next((form for form in _ASKED if self._count_by(form, "one two") is not None), None)
        if self._form is None:
            raise ServerError(f"{endpoint.url}: has no tokenizer to ask (/tokenize, /extras/tokenize/count)")
        # What is put before every text, as a beginning of sequence, is none of an answer's tokens.
        self._before = self.count("")

    def count(self, text: str) -> int:
        """Tokens of a prompt; raises ServerError for a server that no longer tells."""
        assert self._form is not None
        found = self._count_by(self._form, text)
        if found is None:
            raise ServerError(f"{self._endpoint.url}{self._form[0]}: tells no count of tokens")
        return found

    def counted(self, found: Exchange) -> ObservedRequest:
        """The request with what its answer did not tell, as far as the server tells it now: a run was measured."""
        seen = found.seen
        if not seen.finished:
            return seen
        try:
            prompt = seen.prompt_tokens if seen.prompt_tokens is not None else self.count(found.prompt)
            output = seen.output_tokens if seen.output_tokens is not None else self.count(found.answer) - self._before
        except ServerError:
            return seen
        # A prompt of no token and an answer of less than none are no counts: such a tokenizer does not tell.
        return replace(
            seen, prompt_tokens=prompt if prompt > 0 else None, output_tokens=output if output >= 0 else None
        )

    def _count_by(self, form: tuple[str, Callable[[str, str], dict[str, Any]]], text: str) -> int | None:
        path, body = form
        try:
            content = decode_json(self._endpoint.page(path, body(self._model, text)).encode("utf-8"))
        except ValueError:
            return None
        count = content.get("count") if isinstance(content, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_COUNT:
            return count
        tokens = content.get("tokens") if isinstance(content, dict) else None
        return len(tokens) if isinstance(tokens, list) else None
