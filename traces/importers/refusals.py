"""What to say of a file that is of no known format: what it is, or which format is nearest, and what to save instead.

One line of at most 300 characters with the command's own words, unless the file's path alone is longer than 60.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ...foreign_text import message_of
from ..errors import TraceFormatError
from .format import Format
from .formats import FORMATS
from .reading.fields import Fields
from .reading.lines import opened
from .reading.objects import JSON_BEGINS

_MOST = 280  # characters of a message; the command's own words come before it
_LEAST_SHOWN, _MOST_SHOWN = 16, 60  # of what was found
_HEAD_BYTES = 2**16
_MOST_WORDS = 5000  # of an object
_LEAST_WORD = 4
_CLOSE = 0.85
_CLOSER = re.compile(r" \(it has [^)]*\)")  # of a rule: what can be left out
_SERVER = "save responses, a log or /metrics of a server that speculates (docs/importing.md)"


class _Kind(NamedTuple):
    """Files that are something else.

    Attributes:
        signs: bytes that they begin with, or keys of which an object has all.
        words: what they are.
        instead: what to do.
    """

    signs: tuple[bytes, ...] | tuple[str, ...]
    words: str
    instead: str


_BYTES = (
    _Kind((b"\x1f\x8b",), "gzip", "name it .gz"),
    _Kind((b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"), "an archive", "unpack it, or pack it with gzip"),
    _Kind((b"PAR1", b"ARROW1", b"Obj\x01"), "a columnar table", "save one JSON object a line"),
    _Kind((b"SQLite format 3",), "a database", "save one JSON object a line"),
    _Kind((b"\xff\xfe", b"\xfe\xff"), "UTF-16", "save it as UTF-8"),
    _Kind((b"%PDF", b"\x89PNG", b"\xff\xd8\xff", b"GIF8"), "a picture or a page", _SERVER),
    _Kind((b"<!doctype", b"<html", b"<?xml"), "a page of a web server", _SERVER),
)
_OBJECTS = (
    _Kind(("format", "kind", "target"), "the meta.json of a recording", "give its folder to `compare`"),
    _Kind(("model_type", "architectures"), "a model's config", "give it to `models` NAME=FILE"),
    _Kind(("kv_bytes_per_token", "parameters"), "shapes of models", "give it to `models` FILE"),
    _Kind(("arrives_s", "prompt_tokens"), "a workload", "give it to `workload`"),
    _Kind(("hash_ids",), "a workload", "give it to `workload`"),
    _Kind(("input_length", "output_length"), "a workload", "give it to `workload`"),
    _Kind(
        ("engine", "performance"),
        "a report of trtllm-bench, without any request's drafts",
        "save responses of trtllm-serve (avg_decoded_tokens_per_iter), or its /metrics with enable_iter_perf_stats",
    ),
    _Kind(
        ("choices", "usage"),
        "a response without acceptance",
        "serve with --per-request-spec-decode-metrics (vLLM) or ask for return_meta_info (SGLang)",
    ),
    _Kind(("text", "meta_info"), "a response without acceptance", "serve with a drafter, for spec_verify_ct"),
    _Kind(("content", "tokens_predicted"), "a response without timings", "save all of llama.cpp's response"),
    _Kind(("id", "prompt"), "a list of prompts", _SERVER),
)


def unlike(first: Fields) -> TraceFormatError:
    """What to raise of a file whose first object tells no format."""
    if error := first.values.get("error"):
        rule = f"must be a log of a server: it is an error of a server; {_SERVER}"
        return _refusal(first.place, rule, message_of(error, _MOST_SHOWN))
    if _is_of_stream(first.values):
        return _refusal(first.place, f"must be a log of a server: it is {_ended_how(first.values)}", keys_of(first))
    names = frozenset(first.values)
    for kind in _OBJECTS:
        if names.issuperset(kind.signs):
            return _refusal(
                first.place, f"must be a log of a server: it is {kind.words}; {kind.instead}", keys_of(first)
            )
    words = list(_words(first.values))
    return _refusal(first.place, _nearest(" ".join(f'"{word}"' for word in words), words), keys_of(first))


def _is_of_stream(values: Mapping[str, Any]) -> bool:
    """Whether an object is what a stream of chat or text completions came to, before it counted anything."""
    kind = values.get("object")
    of_chat = any("delta" in choice for choice in _choices(values))
    return "usage" not in values and (of_chat or kind in ("chat.completion.chunk", "text_completion"))


def _ended_how(values: Mapping[str, Any]) -> str:
    if any(choice.get("finish_reason") for choice in _choices(values)):
        return "a streamed response without its last chunk, of usage; ask for stream_options.include_usage"
    return "a streamed response that was cut, without a finish_reason and usage; save the stream to its end"


def _choices(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = values.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def unreadable(path: Path, error: TraceFormatError) -> TraceFormatError:
    """What to raise of a file that is no JSON, by `error`, and that no line tells a format of."""
    with opened(path) as file:
        head = file.read(_HEAD_BYTES)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for kind in _BYTES:
        if start.lower().startswith(tuple(sign.lower() for sign in kind.signs if isinstance(sign, bytes))):
            return _refusal(path, f"must be text or JSON: it is {kind.words}; {kind.instead}", start[:8])
    if b"\x00" in head:
        return _refusal(path, f"must be text or JSON; {_SERVER}", start[:8])
    if JSON_BEGINS.match(start):
        return _refusal(error.path, error.rule, error.value, field="JSON")
    text = head.decode("utf-8", errors="replace")
    return _refusal(path, _nearest(text, re.findall(r"[\w:]{4,}", text)[:_MOST_WORDS]), " ".join(text.split()))


def keys_of(first: Fields) -> str:
    """The keys of an object, in words."""
    return f"keys {', '.join(sorted(first.values)) or 'none'}"


def _nearest(text: str, words: list[str]) -> str:
    """The rule that a file breaks, by the format that it has most words of."""
    scores = {known.name: _score(known, text) for known in FORMATS}
    name = max(scores, key=lambda name: scores[name])
    if not scores[name]:
        return f"must be one that is known, and is near none; {_SERVER}"
    nearest = next(known for known in FORMATS if known.name == name)
    missing = next((key for key in nearest.keys if not all(word in text for word in _parts(key))), nearest.keys[0])
    close = [
        other
        for word in _parts(missing)
        if word not in text
        for other in get_close_matches(word, set(words), n=1, cutoff=_CLOSE)
    ]
    but = f"{missing} (it has {close[0][:40]})" if close else missing
    return f"must be one that is known: nearest is {name}, without {but}; save {nearest.words} that has it"


def _score(known: Format, text: str) -> int:
    keys = {word for key in known.keys for word in _parts(key)}
    return 2 * sum(word in text for word in keys) + sum(word in text for word in known.near)


def _parts(key: str) -> list[str]:
    """What a file has of what tells a format: the words of a path of keys, the beginning of a phrase."""
    if " " in key:
        return [re.split(r"=|\.\.\.", key)[0].strip()]
    return [word for word in re.findall(r"[\w:]+", key) if len(word) >= _LEAST_WORD]


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys of an object and of those within, and short texts, from the outside in."""
    level: list[object] = [values]
    count = 0
    while level and count < _MOST_WORDS:
        inner: list[object] = []
        for found in level:
            if isinstance(found, dict):
                yield from found
                count += len(found)
                inner += found.values()
            elif isinstance(found, list):
                inner += found[:_LEAST_SHOWN]
            elif isinstance(found, str) and len(found) <= _MOST_SHOWN:
                yield found
        level = inner


def _refusal(place: object, rule: str, found: object, *, field: str = "format") -> TraceFormatError:
    if len(str(place)) + len(rule) > _MOST - 2 * _LEAST_SHOWN:
        rule = _CLOSER.sub("", rule)
    room = _MOST - len(str(place)) - len(field) - len(rule) - len(": : , got ''...")
    shown = found if isinstance(found, bytes) else str(found)[: min(max(room, _LEAST_SHOWN), _MOST_SHOWN)]
    return TraceFormatError(str(place), field, rule, shown)
