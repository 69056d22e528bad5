"""What clients may send, and the answers' shapes: OpenAI's completions and chat, and its errors.

An unknown field is rejected by name, and so is a value that this server could not honour exactly: no option is accepted
and ignored. vLLM's `top_k` and `ignore_eos` are known; `policy` and `spec_decode_metrics` are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ..base.errors import one_line_of
from ..traces.meta import LOWEST_TEMPERATURE, Sampling

MOST_TOP = 20  # likeliest tokens beside a log-probability: OpenAI's bound of chats, vLLM's of both
_LAW = "the target's own, at temperature 1"

MOST_CHOICES, MOST_STOPS, MOST_MESSAGES = 16, 16, 1024
_MOST_SEED = 2**63 - 1
_LONGEST, _LONGEST_VALUE = 1000, 60  # characters of a message, and of the value that it names
Number = StrictInt | StrictFloat


def _utf8(text: str) -> str:
    """Raise ValueError for a text that is no UTF-8: JSON can spell half of a surrogate pair."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must be UTF-8, and has half of a surrogate pair")
    return text


Utf8 = Annotated[str, AfterValidator(_utf8)]
# Fields of OpenAI's protocol, and of vLLM's that its own benchmark sends, that change answers in ways that this server
# does not support, with the values that change nothing: those are accepted, and so is null.
_NOTHING: Mapping[str, object] = {
    **dict.fromkeys(("audio", "best_of", "function_call", "functions", "parallel_tool_calls", "prediction")),
    **dict.fromkeys(("frequency_penalty", "min_p", "presence_penalty", "top_logprobs"), 0),
    "echo": False,
    "logit_bias": {},
    "modalities": ["text"],
    "reasoning_effort": None,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "suffix": "",
    "tool_choice": "none",
    "tools": [],
}


class RequestError(HTTPException):
    """A request that is rejected; `response` is sent.

    Args:
        status: of HTTP, 400 to 599.
        message: one line that names the field, the rule and the value.
        param: the field, where there is one.
        code: OpenAI's word for what went wrong, where there is one.
        retry_after_s: seconds after which the client may try again; None: not sent.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        message = one_line_of(message, _LONGEST)  # the request may hold line ends, and half a surrogate pair
        super().__init__(status, message, None if retry_after_s is None else {"Retry-After": str(retry_after_s)})
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
        told = {"message": message, "type": kind if status < 500 else "server_error", "param": param, "code": code}
        self.body = {"error": told}

    @property
    def response(self) -> JSONResponse:
        """In OpenAI's shape of errors."""
        return JSONResponse(self.body, self.status_code, self.headers)


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = Field(default=False, description="Send a last chunk that counts tokens.")


class _Asked(BaseModel):
    """What completions and chats have in common."""

    # tokens of an answer without max_tokens, or what is allowed if that is fewer; None: what is allowed
    usual_tokens: ClassVar[int | None] = None
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="As /v1/models lists it.")
    max_tokens: int | None = Field(default=None, ge=1, description="Longest answer.")
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES, description="Answers to the prompt.")
    temperature: Number | None = Field(
        default=None, ge=0, le=2, description=f"0: the likeliest token; else {LOWEST_TEMPERATURE:g} to 2. Default: 1."
    )
    top_p: Number | None = Field(default=None, gt=0, le=1, description="Sample from the tokens that hold this share.")
    top_k: int | None = Field(default=None, ge=1, description="Sample from so many of the most probable tokens.")
    seed: int | None = Field(
        default=None, ge=0, le=_MOST_SEED, description="Answer i is what `paceline run --seed` writes for prompt i."
    )
    stop: Utf8 | list[Utf8] | None = Field(default=None, description="Texts that end an answer and are not part of it.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = Field(default=False, description="Go on after an end-of-sequence token (vLLM).")
    policy: str | None = Field(default=None, description="One of those that the server was started with.")
    spec_decode_metrics: bool = Field(
        default=False, description="Tell acceptance by step, in `metrics.speculative_decoding` (vLLM's names)."
    )

    @model_validator(mode="before")
    @classmethod
    def _asks_for_nothing_else(cls, values: object) -> object:
        """Remove fields that change nothing, and reject those that would change the answer."""
        if not isinstance(values, dict):
            return values
        unknown = {name: nothing for name, nothing in _NOTHING.items() if name not in cls.model_fields}
        for name, nothing in unknown.items():
            value = values.get(name)
            if value is not None and not (value == nothing and _alike(value, nothing)):
                raise _wrong(name, "is not supported here")
        return {name: value for name, value in values.items() if name not in unknown}

    @field_validator("temperature")
    @classmethod
    def _can_be_divided_by(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < LOWEST_TEMPERATURE:
            raise ValueError(f"must be 0, or at least {LOWEST_TEMPERATURE:g}")
        return value

    @field_validator("stop")
    @classmethod
    def _stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        texts = [value] if isinstance(value, str) else value or []
        if len(texts) > MOST_STOPS:
            raise ValueError(f"must hold at most {MOST_STOPS} texts")
        if any(not text or "\ufffd" in text for text in texts):
            raise ValueError("must hold no empty text and no U+FFFD")
        return value

    @model_validator(mode="after")
    def _streams(self) -> "_Asked":
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options", "goes with stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self, drawn_seed: int) -> Sampling:
        """How tokens are chosen; the seed is `drawn_seed` where the request gives none.

        Truncation always keeps the likeliest token, so it does not change a greedy answer.
        """
        temperature = 1.0 if self.temperature is None else float(self.temperature)
        if not temperature:
            return Sampling(mode="greedy")
        top_p = None if self.top_p is None else float(self.top_p)
        seed = drawn_seed if self.seed is None else self.seed
        return Sampling(mode="coupled", temperature=temperature, seed=seed, top_p=top_p, top_k=self.top_k)

    def tokens_asked(self) -> int | None:
        """Longest answer; None: `usual_tokens`."""
        return self.max_tokens


class CompletionRequest(_Asked):
    """Of /v1/completions."""

    usual_tokens: ClassVar[int | None] = 16  # as in OpenAI and vLLM
    prompt: Utf8 | list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        description="A text, or the token ids of one. Several prompts are several requests."
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MOST_TOP,
        description=f"Tell each token's log-probability, and so many of the likeliest tokens: {_LAW}.",
    )

    @property
    def num_top(self) -> int | None:
        """Likeliest tokens to send with each token's log-probability; None: send neither."""
        return self.logprobs


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Utf8


class Message(BaseModel):
    """Of a dialogue."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Utf8 | list[TextPart]

    @property
    def text(self) -> str:
        """Its whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Asked):
    """Of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, description="As max_tokens, which it replaces.")
    logprobs: bool | None = Field(default=None, description=f"Tell each token's log-probability: {_LAW}.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=MOST_TOP, description="Of logprobs: tell so many of the likeliest tokens as well."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> "ChatRequest":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise _wrong("max_completion_tokens", "stands beside max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise _wrong("top_logprobs", "goes with logprobs: true")
        return self

    @property
    def num_top(self) -> int | None:
        """Likeliest tokens to send with each token's log-probability; None: send neither."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def tokens_asked(self) -> int | None:
        """Longest answer; None: `usual_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _alike(value: object, other: object) -> bool:
    """Whether both are truth values, or neither: Python equates `True` and 1."""
    return isinstance(value, bool) == isinstance(other, bool)


def _wrong(field: str, rule: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{field} {rule}", {"field": field, "rule": rule})


def error_of(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """The first of pydantic's errors as a RequestError."""
    first = errors[0]
    context = first.get("ctx") or {}
    where = [str(part) for part in first.get("loc", ()) if part != "body"]
    field = str(context.get("field") or next(iter(where), ""))
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        field, message = ".".join(where), "is not a field that this server knows"
    elif first["type"] != "missing":
        value = first["input"][field] if context.get("field") else first["input"]
        message = f"{message}, got {one_line_of(repr(value), _LONGEST_VALUE)}"
    named = message if field and message.startswith(field) else f"{field or 'body'}: {message}"
    return RequestError(400, named, param=field[:100] or None)


# What both protocols have in common.
FINISHED = {"eos": "stop", "stop": "stop", "length": "length"}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Tokens of a prompt, counted once, and of all answers to it."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def metrics_of(steps: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Acceptance of an answer by step of the target, in vLLM's names (`--per-request-spec-decode-metrics detailed`).

    `steps` are (drafted, accepted) tokens of each. Unlike vLLM's, lists have steps that drafted nothing, so that no
    step has to be placed at random. None for a request that never drafted.
    """
    if not any(drafted for drafted, _ in steps):
        return {"speculative_decoding": None}
    most = max(drafted for drafted, _ in steps)
    accepted = [kept for _, kept in steps]
    return {
        "speculative_decoding": {
            "num_spec_tokens": most,
            "num_spec_steps": len(steps),
            "num_draft_tokens": sum(drafted for drafted, _ in steps),
            "num_accepted_draft_tokens": sum(accepted),
            "acceptance_histogram": [accepted.count(count) for count in range(most + 1)],
            "per_step_accepted": accepted,
            "per_step_drafted": [drafted for drafted, _ in steps],
        }
    }
