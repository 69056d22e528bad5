"""The HTTP application: OpenAI's endpoints, health and metrics, with limits on all that a client can send."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from ..base.errors import counted
from ..runtime.pools.chat_template import ChatTemplate
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.pool_file import PoolFileError
from ..runtime.stop_strings import make_ending
from .answers import Answers, Asked
from .engine import Job, LiveEngine
from .follow import Following
from .logprobs import TokenTexts
from .meters import Meters
from .options import RequestLimits
from .protocol import ChatRequest, CompletionRequest, RequestError, error_of
from .record import TrafficRecorder

_RETRY_AFTER_S = 1


class Service:
    """Turns requests into jobs of the engine, or refuses them.

    Args:
        models: of the pool.
        template: puts a dialogue into words; None: the pool's tokenizer has none, and chats are refused.
        policies: by name, the first one for requests that name none.
        engine: that answers.
        meters: that the engine counts by.
        exact: policies that commit nothing which the target did not judge by its own rule: their answers can have
            log-probabilities.
        recorder: of the traffic; None: nothing is kept.
        following: picks the policy of requests that name none; None: it is always the first one.
        num_running: requests that run at a time, of all policies together.
        limits: of requests.
    """

    def __init__(
        self,
        models: ModelPool,
        *,
        template: ChatTemplate | None,
        policies: Sequence[str],
        exact: Collection[str],
        engine: LiveEngine,
        meters: Meters,
        recorder: TrafficRecorder | None,
        following: Following | None,
        num_running: int,
        limits: RequestLimits,
    ) -> None:
        self._models, self._template, self._policies = models, template, tuple(policies)
        self.engine, self.meters, self.limits = engine, meters, limits
        self._recorder, self._exact, self._token_texts = recorder, exact, TokenTexts(models.tokenizer)
        engine.on_ended.append(meters.ended)
        if recorder is not None:
            engine.on_began.append(recorder.began)
            engine.on_ended.append(recorder.ended)
        self._following = following
        if following is not None:
            engine.on_ended.append(following.follower.ended)
            following.start()
        self._most_open = num_running + limits.max_queue
        self._chance, self._since = SystemRandom(), int(time.time())

    def close(self) -> None:
        """End the engine, and write what is left of the recording."""
        if self._following is not None:
            self._following.close()
        self.engine.stop()
        if self._recorder is not None:
            self._recorder.close()

    def listed(self) -> dict[str, Any]:
        """The model, as /v1/models shows it."""
        return {
            "id": self._models.name,
            "object": "model",
            "created": self._since,
            "owned_by": "paceline",
            "max_model_len": self._models.context_tokens,
            "policies": list(self._policies),
        }

    def check_model(self, name: str) -> None:
        """Raises RequestError for a model that is not this one."""
        if name != self._models.name:
            message = f"model {name[:100]!r} is not served here, {self._models.name!r} is"
            raise RequestError(404, message, param="model", code="model_not_found")

    async def answers(self, asked: Asked) -> Answers:
        """The answers to a request that can be answered; raises RequestError for any other."""
        self.check_model(asked.model)
        policy = self._policy(asked.policy)
        if asked.spec_decode_metrics and (asked.n or 1) > 1:
            raise RequestError(
                400, "spec_decode_metrics goes with n = 1: it is of one answer", param="spec_decode_metrics"
            )
        if asked.num_top is not None and policy not in self._exact:
            message = (
                f"logprobs are not known under policy {policy}: it may commit tokens that the target did not judge"
            )
            raise RequestError(400, message, param="logprobs", code="logprobs_not_exact")
        self._check_queue(asked.n or 1)
        prompt = await asyncio.to_thread(self._tokens, asked)
        max_tokens = self._max_tokens(asked, len(prompt))
        sampling = asked.sampling(self._chance.randrange(2**63))
        ending = make_ending(self._models.tokenizer, asked.stops)
        found = Answers(
            asked,
            model=self._models.name,
            tokenizer=self._models.tokenizer,
            token_texts=self._token_texts,
            engine=self.engine,
            timeout_s=self.limits.timeout_s,
        )
        self._check_queue(asked.n or 1)
        if asked.policy is None and self._following is not None:
            policy = self._following.follower.policy_of(found.request_id)
        found.submit(
            [
                Job(
                    request_id=f"{found.request_id}/{choice}" if asked.n else found.request_id,
                    policy=policy,
                    prompt=prompt,
                    max_tokens=max_tokens,
                    sampling=sampling,
                    noise_name=str(choice),
                    eos=frozenset() if asked.ignore_eos else frozenset(self._models.eos_token_ids),
                    ending=ending,
                    deliver=found.deliver(choice),
                    num_top=asked.num_top,
                    text=asked.prompt if isinstance(asked, CompletionRequest) and isinstance(asked.prompt, str) else "",
                )
                for choice in range(asked.n or 1)
            ]
        )
        return found

    def _policy(self, name: str | None) -> str:
        if name is None:
            return self._policies[0]
        if name not in self._policies:
            message = f"policy {name[:100]!r} is declined: this server runs {', '.join(self._policies)}"
            raise RequestError(400, message, param="policy", code="policy_declined")
        return name

    def _check_queue(self, num_more: int) -> None:
        if not self.engine.is_alive:
            raise RequestError(503, "the server is shutting down", code="shutting_down", retry_after_s=_RETRY_AFTER_S)
        if self.engine.num_open + num_more > self._most_open:
            message = f"{counted(self.engine.num_open, 'request')} run and wait already; come again"
            raise RequestError(429, message, code="queue_full", retry_after_s=_RETRY_AFTER_S)

    def _tokens(self, asked: Asked) -> tuple[int, ...]:
        """Token ids of the prompt, at least one."""
        tokenizer, field = self._models.tokenizer, "prompt"
        if isinstance(asked, ChatRequest):
            field = "messages"
            if self._template is None:
                message = f"the tokenizer of {self._models.name} has no chat template; ask /v1/completions"
                raise RequestError(400, message, param=field, code="no_chat_template")
            try:
                text = self._template.dialogue([{"role": one.role, "content": one.text} for one in asked.messages])
            except PoolFileError as error:
                raise RequestError(400, f"{field}: {error.rule}", param=field) from None
            found = tokenizer.encode(text, add_special_tokens=False).ids
        elif isinstance(asked.prompt, str):
            found = tokenizer.encode(asked.prompt).ids
        else:
            found, most = asked.prompt, tokenizer.get_vocab_size()
            if found and max(found) >= most:
                raise RequestError(400, f"prompt: must hold token ids below {most}, got {max(found)}", param=field)
        if not found:
            raise RequestError(400, f"{field}: must give at least one token", param=field)
        return tuple(found)

    def _max_tokens(self, asked: Asked, num_prompt: int) -> int:
        context, wanted = self._models.context_tokens, asked.tokens_asked()
        room = context - num_prompt
        most = room if self.limits.max_tokens is None else min(room, self.limits.max_tokens)
        if room < 1 or (wanted is not None and wanted > room):
            answer = "" if wanted is None else f" and max_tokens {wanted}"
            message = f"prompt of {counted(num_prompt, 'token')}{answer} must fit into the context of {context} tokens"
            raise RequestError(400, message, param="max_tokens", code="context_length_exceeded")
        if wanted is not None and wanted > most:
            raise RequestError(400, f"max_tokens must be at most {most} here, got {wanted}", param="max_tokens")
        return most if wanted is None else wanted


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Looks at a request before it is read: the key of those below /v1, and how long its body is."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], api_key: str | None, most: int) -> None:
        self._app, self._most = app, most
        self._wanted = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._wanted is not None and scope["path"].startswith("/v1"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                error = RequestError(401, "the key in Authorization is wrong or missing", code="invalid_api_key")
                await _response(error)(scope, receive, send)
                return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._most:
            await _response(self._too_long())(scope, receive, send)
            return
        num_bytes = 0

        async def counted_receive() -> MutableMapping[str, Any]:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._most:
                raise HTTPException(413, str(self._too_long()))
            return message

        await self._app(scope, counted_receive, send)

    def _too_long(self) -> RequestError:
        return RequestError(413, f"the body must be at most {self._most:,} bytes", code="body_too_long")


def _response(error: RequestError) -> JSONResponse:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse(error.body, status_code=error.status, headers=headers)


async def _until_left(request: Request) -> None:
    """Return when the client is gone; its request was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Streamed(StreamingResponse):
    """Server-sent events; ends its answers also where the client left before the first of them."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


async def _answered(service: Service, asked: Asked, request: Request) -> Response:
    answers = await service.answers(asked)
    if asked.stream:
        return _Streamed(answers)
    left, whole = asyncio.ensure_future(_until_left(request)), asyncio.ensure_future(answers.whole())
    try:
        await asyncio.wait({left, whole}, return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            raise RequestError(499, "the client has left")
        return JSONResponse(whole.result())
    finally:
        left.cancel()
        whole.cancel()
        answers.close()


_ERRORS: Mapping[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": {"type": "object"}}}}
    for status, words in {
        400: "The request cannot be honoured; the message names the field.",
        401: "The key is wrong or missing.",
        404: "The model is not served here.",
        408: "The answer took too long.",
        413: "The body is too long.",
        429: "Too many requests run and wait; see Retry-After.",
        503: "The server is shutting down.",
    }.items()
}


def make_app(service: Service, *, api_key: str | None = None) -> FastAPI:
    """The application; its engine runs from the application's start to its end.

    Args:
        service: that answers.
        api_key: that requests below /v1 must have; None: none.
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="paceline", docs_url=None, redoc_url=None, lifespan=running)
    app.add_middleware(Guard, api_key=api_key, most=service.limits.max_body_kib * 1024)
    _handle_errors(app)

    @app.post("/v1/completions", responses={**_ERRORS})
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Answer a prompt."""
        return await _answered(service, asked, request)

    @app.post("/v1/chat/completions", responses={**_ERRORS})
    async def chat(asked: ChatRequest, request: Request) -> Response:
        """Answer a dialogue."""
        return await _answered(service, asked, request)

    @app.get("/v1/models", responses={401: _ERRORS[401]})
    async def models() -> dict[str, Any]:
        """The model and the policies that requests may name."""
        return {"object": "list", "data": [service.listed()]}

    @app.get("/v1/models/{name}", responses={401: _ERRORS[401], 404: _ERRORS[404]})
    async def model(name: str) -> dict[str, Any]:
        """The model, by its name."""
        service.check_model(name)
        return service.listed()

    @app.get("/health", responses={503: _ERRORS[503]})
    async def health() -> dict[str, str]:
        """Whether requests are taken."""
        if not service.engine.is_alive:
            raise RequestError(503, "the engine has stopped")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters, as Prometheus reads them."""
        return Response(service.meters.page(), media_type=CONTENT_TYPE_LATEST)

    return app


def _handle_errors(app: FastAPI) -> None:
    """Every error has OpenAI's shape."""

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return _response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return _response(error_of(error.errors()))

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> Response:
        response = _response(RequestError(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response
