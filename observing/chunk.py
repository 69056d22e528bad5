"""What one event of a streamed completion says: text, why it ended, counts, or an error."""

from dataclasses import dataclass
from typing import Any

from ..foreign_text import message_of, one_line_of
from ..strict_json import decode_json
from ..traces.importers.reading.event_stream import BrokenStreamError
from ..traces.workloads.options import MOST_COUNT

_LONGEST_REASON = 60  # characters
PAIR = ("drafted", "accepted")  # which tell nothing without each other
_TEXTS = ("content", "reasoning_content", "reasoning")  # of a chat's delta; models that reason stream that as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event. None stands where the server says nothing.

    Attributes:
        text: that was added; "" for none.
        finish_reason: once the answer has ended.
        prompt_tokens, output_tokens: of `usage`, tokens.
        cached_tokens: of the prompt, that the server had in its cache, by `usage.prompt_tokens_details`.
        drafted, accepted: drafted tokens of the answer, and those that stayed, by llama.cpp's `timings`.
        error: the server's message, where the event is one; "" for none.
        odd: names of counts that cannot be right, such as negative ones, drafted tokens without accepted ones, or
            more accepted than drafted; they are None above.
    """

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""
    odd: tuple[str, ...] = ()


def chunk_of(data: str) -> Chunk:
    """What the data of an event says; raises BrokenStreamError for what is no object of JSON, or of several answers."""
    try:
        content = decode_json(data.encode("utf-8"), constants=True)
    except ValueError:
        raise BrokenStreamError(f"an event is no JSON: {data[:60]!r}") from None
    if not isinstance(content, dict):
        raise BrokenStreamError(f"an event is no JSON object: {data[:60]!r}")
    if content.get("error"):
        return Chunk(error=message_of(content))
    choice = _choice(content)
    usage, timings = _object(content, "usage"), _object(content, "timings")
    told = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "cached_tokens": _object(usage, "prompt_tokens_details").get("cached_tokens"),
        "drafted": timings.get("draft_n"),
        "accepted": timings.get("draft_n_accepted"),
    }
    counts: dict[str, Any] = {
        name: value for name, value in told.items() if _is_count(value, least=int(name == "prompt_tokens"))
    }
    odd = [name for name, value in told.items() if value is not None and name not in counts]
    drafted, accepted = (counts.get(name) for name in PAIR)
    if (drafted is None) != (accepted is None) or (accepted or 0) > (drafted or 0):
        odd += [name for name in PAIR if counts.pop(name, None) is not None]
    reason = choice.get("finish_reason")
    return Chunk(
        text=_text(choice),
        finish_reason=one_line_of(reason, _LONGEST_REASON) if isinstance(reason, str) and reason else None,
        odd=tuple(odd),
        **counts,
    )


def _choice(content: dict[str, Any]) -> dict[str, Any]:
    """The one choice of an event, empty if it has none: one answer was asked for."""
    choices = content.get("choices")
    found = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    if len(found) > 1 or any(one.get("index", 0) not in (0, None) for one in found):
        raise BrokenStreamError("an event is of a second choice: one answer was asked for")
    return found[0] if found else {}


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    parts = [delta.get(name) for name in _TEXTS] if isinstance(delta, dict) else [choice.get("text")]
    return "".join(part for part in parts if isinstance(part, str))


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_COUNT
