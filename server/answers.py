"""One request's answers for the client: texts as they become final, whole or as server-sent events.

Runs in the event loop; the engine's thread hands over tokens.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ..runtime.stop_strings import TextStream, text_before_stop
from ..runtime.tokenizers import Pieces
from .engine import Deliver, End, Job, LiveEngine
from .logprobs import TokenTexts, of_chat, of_completion
from .protocol import FINISHED, ChatRequest, CompletionRequest, RequestError, metrics_of, usage_of

Asked = CompletionRequest | ChatRequest
Piece = tuple[int, Sequence[int], End | None]  # choice, its new tokens, how it ended


class ChoiceText:
    """Text of one answer, returned as soon as no stop string can begin in it; mutated by `push`."""

    def __init__(self, pieces: Pieces, stops: Sequence[str]) -> None:
        self._stream, self._stops = TextStream(pieces), stops
        self._held_back = max((len(stop) for stop in stops), default=1) - 1
        self._open = ""
        self._num_settled = 0
        self.offsets: list[int] = []  # of each token, characters of the answer before it

    def push(self, tokens: Sequence[int], end: End | None) -> str:
        """Text that may be shown now, after these tokens; all that is left of it if the answer has ended."""
        for token in tokens:
            self.offsets.append(self._num_settled)
            settled = self._stream.push(token)
            self._num_settled += len(settled)
            self._open += settled
        if end is not None:
            self._open += self._stream.rest()
            text = text_before_stop(self._open, self._stops) if end.reason == "stop" else self._open
            self._open = ""
            return text
        ready = len(self._open) - self._held_back
        if ready <= 0:
            return ""
        text, self._open = self._open[:ready], self._open[ready:]
        return text


class Answers:
    """The answers to one request, from its submission until the last has ended or the client has left.

    The last token comes within `timeout_s` seconds, > 0.
    """

    def __init__(
        self, asked: Asked, *, model: str, token_texts: TokenTexts, engine: LiveEngine, timeout_s: float
    ) -> None:
        self._asked, self._engine, self._timeout_s = asked, engine, timeout_s
        self._chat = isinstance(asked, ChatRequest)
        self.request_id = f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._head = {"id": self.request_id, "created": int(time.time()), "model": model}
        self._token_texts = token_texts
        self._texts = [ChoiceText(token_texts.pieces, asked.stops) for _ in range(asked.n or 1)]
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._jobs: list[Job] = []
        self._left = len(self._texts)
        self._num_told = [0] * len(self._texts)  # tokens of each choice whose log-probabilities were sent

    def deliver(self, choice: int) -> Deliver:
        """A callback that passes the engine's output for a choice on to the event loop."""

        def handed_on(_: Job, tokens: Sequence[int], end: End | None) -> None:
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, (choice, tokens, end))
            except RuntimeError:  # the loop is closed: no client is left
                return

        return handed_on

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let the engine answer; the caller must call `close` at the end, after an error too."""
        self._jobs = list(jobs)
        for job in jobs:
            self._engine.submit(job)

    def close(self) -> None:
        """The client has left: cancel jobs that have not ended."""
        for job in self._jobs if self._left else ():
            self._engine.cancel(job)

    async def whole(self) -> dict[str, Any]:
        """The response, once all answers have ended; raises RequestError."""
        texts, reasons = [""] * len(self._texts), [""] * len(self._texts)
        async for choice, text, reason in self._settled():
            texts[choice] += text
            reasons[choice] = reason or reasons[choice]
        choices: list[dict[str, Any]] = [
            {"index": index, "logprobs": self._logprobs(index), "finish_reason": reason, **self._said(text)}
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage(), **self._metrics()}

    async def events(self) -> AsyncIterator[bytes]:
        """The response as server-sent events; an error is the last of them."""
        options, kind = self._asked.stream_options, "chat.completion.chunk" if self._chat else "text_completion"
        counts = options is not None and options.include_usage
        head = {**self._head, "object": kind}
        usage = {"usage": None} if counts else {}
        try:
            if self._chat:
                for index in range(len(self._texts)):
                    delta = {"role": "assistant", "content": ""}
                    yield _event(
                        {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}], **usage}
                    )
            async for index, text, reason in self._settled():
                said = {"delta": {"content": text} if text else {}} if self._chat else {"text": text}
                logprobs = self._logprobs(index)
                choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason or None}
                told = self._metrics() if reason and not counts else {}
                yield _event({**head, "choices": [choice], **usage, **told})
            if counts:
                yield _event({**head, "choices": [], "usage": self._usage(), **self._metrics()})
            yield b"data: [DONE]\n\n"
        except RequestError as error:
            yield _event(error.body)

    async def _settled(self) -> AsyncIterator[tuple[int, str, str]]:
        """(choice, text, how it ended or ""): new text that can be shown; raises RequestError."""
        ends_at_s = self._loop.time() + self._timeout_s
        while self._left:
            try:  # no timer runs while writing to the client
                async with asyncio.timeout_at(ends_at_s):
                    choice, tokens, end = await self._pieces.get()
            except TimeoutError:
                message = f"the answer took longer than {self._timeout_s:g} s"
                raise RequestError(408, message, code="timeout") from None
            if end is not None:
                self._left -= 1
                if end.error:
                    raise RequestError(500, end.error, code="server_error")
            text = self._texts[choice].push(tokens, end)
            if text or end is not None:
                yield choice, text, "" if end is None else FINISHED[end.reason]

    def _logprobs(self, choice: int) -> dict[str, Any] | None:
        """Log-probabilities of a choice's tokens since the last call: each is sent once."""
        if self._asked.num_top is None:
            return None
        offsets, start = self._texts[choice].offsets, self._num_told[choice]
        told = self._jobs[choice].logprobs[start : len(offsets)]
        self._num_told[choice] = len(offsets)
        if self._chat:
            return of_chat(self._token_texts, told)
        return of_completion(self._token_texts, told, offsets[start:])

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}

    def _usage(self) -> dict[str, int]:
        return usage_of(len(self._jobs[0].prompt), sum(len(job.tokens) for job in self._jobs))

    def _metrics(self) -> dict[str, Any]:
        return {"metrics": metrics_of(self._jobs[0].steps)} if self._asked.spec_decode_metrics else {}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
