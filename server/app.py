"""The HTTP application: OpenAI's endpoints, health and metrics, with limits on everything that a client can send."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from ..base.errors import counted
from ..base.files import decode_json
from ..runtime.pools.chat_template import ChatTemplate
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.pool_file import PoolFileError
from ..runtime.stop_strings import make_ending
from ..runtime.tokenizers import num_token_ids
from .answers import Answers, Asked
from .engine import Job, LiveEngine
from .follow import Following
from .listening import Receive, Scope, Send, bearer_of, bounded, check_head, unless_left
from .logprobs import TokenTexts
from .meters import Meters
from .options import RequestLimits
from .protocol import ChatRequest, CompletionRequest, RequestError, error_of
from .record import TrafficRecorder

_RETRY_AFTER_S = 1
_PLACE = "paceline.place"  # in the scope of a request


class Service:
    """Turns requests into jobs of the engine, or rejects them.

    Args:
        template: renders a dialogue as text; None: the pool's tokenizer has none, and chats are rejected.
        policies: by name, the first one for requests that name none.
        exact: policies whose every committed token the target judges by its own rule: their answers can have
            log-probabilities.
        recorder: of the traffic; None: nothing is recorded.
        following: picks the policy of requests that name none; None: it is always the first one.
        num_running: requests that run at a time, of all policies together.
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
        self._num_token_ids = num_token_ids(models.tokenizer)
        engine.on_ended.append(meters.ended)
        if recorder is not None:
            engine.on_began.append(recorder.began)
            engine.on_ended.append(recorder.ended)
        self._following = following
        if following is not None:
            engine.on_ended.append(following.follower.ended)
            following.start()
        self._most_open = num_running + limits.max_queue
        self._arriving = set[object]()  # places kept by `let_in`, until the engine counts the request
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

    def let_in(self, place: object) -> None:
        """Keep a place for a request that has come, until `let_go`; raises RequestError if none is left."""
        self.check_room()
        self._arriving.add(place)

    def let_go(self, place: object) -> None:
        """Give a place back: its request was submitted to the engine, or will not be."""
        self._arriving.discard(place)

    async def answers(self, asked: Asked, place: object) -> Answers:
        """The answers to a valid request, in its place; raises RequestError for any other."""
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
        prompt = await asyncio.to_thread(self._tokens, asked)
        max_tokens = self._max_tokens(asked, len(prompt))
        sampling = asked.sampling(self._chance.randrange(2**63))
        ending = make_ending(self._models.tokenizer, asked.stops)
        self.let_go(place)
        self.check_room(asked.n or 1)
        found = Answers(
            asked,
            model=self._models.name,
            token_texts=self._token_texts,
            engine=self.engine,
            timeout_s=self.limits.timeout_s,
        )
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

    def check_room(self, num_more: int = 1) -> None:
        """Raises RequestError if the queue has no room for `num_more` more, or the server is ending."""
        num_open = self.engine.num_open + len(self._arriving)
        if not self.engine.is_alive:
            raise RequestError(503, "the server is shutting down", code="shutting_down", retry_after_s=_RETRY_AFTER_S)
        if num_more > self._most_open:
            raise RequestError(400, f"n must be at most {self._most_open} here, got {num_more}", param="n")
        if num_open + num_more > self._most_open:
            message = f"{counted(num_open, 'request')} run and wait already; come again"
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
            found, most = asked.prompt, self._num_token_ids
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
        return min(most, asked.usual_tokens or most) if wanted is None else wanted


class Guard:
    """Checks a request before its body is read: the key below /v1, its length, and whether there is room.

    Of many that come at once, those without room are rejected before the others are parsed and tokenized.
    """

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], service: Service, api_key: str | None
    ) -> None:
        self._app, self._service, self._wanted = app, service, bearer_of(api_key)
        self._most_bytes = service.limits.max_body_kib * 1024

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_guarded = scope["path"].startswith("/v1")
        is_asked = is_guarded and scope["method"] == "POST"
        try:
            check_head(scope, self._wanted if is_guarded else None, self._most_bytes)
            if is_asked:
                self._service.check_room()
        except RequestError as error:
            await error.response(scope, receive, send)
            return
        scope[_PLACE] = place = object()
        read = bounded(receive, self._most_bytes)

        async def received() -> MutableMapping[str, Any]:
            message = await read()
            if is_asked and message["type"] == "http.request" and not message.get("more_body", False):
                self._service.let_in(place)  # not before: a slowly sent request must take no place
            return message

        try:
            await self._app(scope, received, send)
        finally:
            self._service.let_go(place)


class _Json(Request):
    """A request whose JSON must be UTF-8 and have no key twice; raises RequestError for any other."""

    async def json(self) -> Any:  # noqa: ANN401 - what JSON holds
        """The body."""
        try:
            return decode_json(await self.body(), constants=True)  # fields that are NaN are refused by their names
        except ValueError as error:
            raise RequestError(400, f"the body must be JSON ({error})", code="invalid_json") from None


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Json(request.scope, request.receive))

        return handled


class _Streamed(StreamingResponse):
    """Server-sent events; closes its answers also if the client left before the first event."""

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
    answers = await service.answers(asked, request.scope[_PLACE])
    if asked.stream:
        return _Streamed(answers)
    try:
        return JSONResponse(await unless_left(request.receive, answers.whole()))
    finally:
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
    """The application; its engine runs until the application ends. Requests below /v1 need `api_key`, None: none."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="paceline", docs_url=None, redoc_url=None, lifespan=running)
    app.router.route_class = _Route
    app.add_middleware(Guard, service=service, api_key=api_key)
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
        """Whether requests are accepted."""
        if not service.engine.is_alive:
            raise RequestError(503, "the engine has stopped")
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters, as Prometheus reads them."""
        return Response(service.meters.page(), media_type=CONTENT_TYPE_LATEST)

    return app


def _handle_errors(app: FastAPI) -> None:
    """Give every error OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_of(error.errors()).response

    @app.exception_handler(HTTPException)
    async def failed(_: Request, error: HTTPException) -> Response:
        if isinstance(error, RequestError):
            return error.response
        response = RequestError(error.status_code, str(error.detail)).response
        response.headers.update(error.headers or {})
        return response
