"""The formats by name, detection, and foreign files as a recording: in memory, or streamed to a folder.

A file that fits no format is an error of one line of at most 300 characters with the command's own words, unless the
file's path alone is longer than 60: what it is, or which format is nearest, and what to save instead.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ...base.by_name import NamedKind
from ...base.errors import ArgumentError, known_are, message_of, repeated
from ..errors import TraceFormatError
from ..meta import ModelInfo
from ..rounds.on_disk import write_rounds
from ..rounds.recording import RoundsRecording
from ..rounds.rounds import LOOKUP, LOSSY, DrafterInfo, RoundsMeta, RoundsRequest
from ..shapes import model_called, shape_called
from .bench_results import AIPERF, GUIDELLM, SGLANG_BENCH, VLLM_BENCH, VLLM_SUMMARY
from .by_k import ACCEPTANCE_BY_K
from .engine_totals import LLAMACPP_TIMINGS, SGLANG_META, TRTLLM
from .format import Format
from .importing import ImportOptions, KeptTokens, Ongoing
from .metrics_pages import LLAMACPP_METRICS, SGLANG_METRICS, TRTLLM_METRICS, VLLM_METRICS
from .reading import JSON_BEGINS, Fields, files_of, lines_of, opened, peek_objects, refuse_pipe, text_lines
from .responses import VLLM_DETAILED, drafted_nothing
from .server_logs import LLAMACPP_LOG, SGLANG_LOG, TRTLLM_ITERATIONS, VLLM_LOG
from .steps import EAGLE_TIMED, FRONTIER, POSITIONS, SPEC_BENCH

FORMATS: tuple[Format, ...] = (
    EAGLE_TIMED,
    SPEC_BENCH,
    VLLM_DETAILED,
    POSITIONS,
    FRONTIER,
    VLLM_SUMMARY,
    SGLANG_META,
    TRTLLM,
    LLAMACPP_TIMINGS,
    LLAMACPP_LOG,
    VLLM_METRICS,
    SGLANG_METRICS,
    TRTLLM_METRICS,
    LLAMACPP_METRICS,
    VLLM_LOG,
    VLLM_BENCH,
    SGLANG_BENCH,
    SGLANG_LOG,
    TRTLLM_ITERATIONS,
    AIPERF,
    GUIDELLM,
    ACCEPTANCE_BY_K,
)


AUTO = "auto"


class ImporterError(ValueError):
    """An importer of another package, file or module that cannot be used; one line."""


def _own_formats() -> Mapping[str, Format | None]:
    return {known.name: known for known in FORMATS} | {AUTO: None}


IMPORTERS: NamedKind[Format] = NamedKind(
    noun="importer",
    group="paceline.importers",
    methods=(),
    record=Format,
    example="FORMAT",
    refused=ImporterError,
    own=_own_formats,
)


def format_names() -> tuple[str, ...]:
    """Names of our own formats."""
    return tuple(known.name for known in FORMATS)


def format_named(name: str) -> Format:
    """The format of that name, ours or of another package, file or module; raises ValueError."""
    found = IMPORTERS.called(name)
    if found is None:
        known = known_are(name, [one for one in IMPORTERS.names() if one != AUTO], where="docs/importing.md")
        raise ValueError(f"format must be {AUTO} or a known one ({known}), got {name!r}")
    if found.name in IMPORTERS.own() and found not in FORMATS:
        raise ImporterError(f"importer {name!r}: the name of its format is that of one of paceline's own, {found.name}")
    return found


def formats_of_packages() -> list[Format]:
    """Every format that another package registers; raises ImporterError for one that cannot be used."""
    return [format_named(name) for name in IMPORTERS.registered() if name not in IMPORTERS.own()]


_MOST = 280  # characters of a message; the command's own words come before it
_LEAST_SHOWN, _MOST_SHOWN = 16, 60  # of the value found
_HEAD_BYTES = 2**16
_MOST_WORDS = 5000  # of an object
_LEAST_WORD = 4
_CLOSE = 0.85
_CLOSER = re.compile(r" \(it has [^)]*\)")  # of a rule: what can be left out
_CONFIDENCES = re.compile(r"prob|confiden|entropy", re.IGNORECASE)
_NO_CONFIDENCES = (
    "it is a table of confidences, which no format holds: `paceline record` with the models does; what was drafted and "
    "accepted alone is read as frontier"
)
_SERVER = "save responses, a log or /metrics of a server that speculates (docs/importing.md)"


class _Kind(NamedTuple):
    signs: tuple[bytes, ...] | tuple[str, ...]  # first bytes of the file, or keys that an object must all have
    words: str  # what such a file is
    instead: str  # what to do instead


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
        "a report of trtllm-bench, with means alone",
        "save max_draft_len and the mean acceptance length as CSV (K,acceptance_length), or trtllm-serve's responses",
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
    """The error for a file whose first object fits no format."""
    if error := first.values.get("error"):
        rule = f"must be a log of a server: it is an error of a server; {_SERVER}"
        return _refusal(first.place, rule, message_of(error, _MOST_SHOWN))
    choices = list(_choices(first.values))
    kinds = ("chat.completion.chunk", "text_completion")
    if "usage" not in first.values and (any("delta" in one for one in choices) or first.values.get("object") in kinds):
        how = "that was cut, without a finish_reason and usage; save the stream to its end"
        if any(one.get("finish_reason") for one in choices):
            how = "without its last chunk, of usage; ask for stream_options.include_usage"
        return _refusal(first.place, f"must be a log of a server: it is a streamed response {how}", keys_of(first))
    names = frozenset(first.values)
    for kind in _OBJECTS:
        if names.issuperset(kind.signs):
            return _refusal(
                first.place, f"must be a log of a server: it is {kind.words}; {kind.instead}", keys_of(first)
            )
    words = list(_words(first.values))
    return _refusal(first.place, _nearest(" ".join(f'"{word}"' for word in words), words), keys_of(first))


def _choices(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = values.get("choices")
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def unreadable(path: Path, error: TraceFormatError) -> TraceFormatError:
    """The error for a file that is not JSON, by `error`, and of which no line fits a format."""
    with opened(files_of(path)[0]) as file:
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
    columns = text.splitlines()[0] if text else ""
    if "," in columns and _CONFIDENCES.search(columns):
        return _refusal(path, f"must be a log of a server: {_NO_CONFIDENCES}", columns)
    rule = _nearest(text, re.findall(r"[\w:]{4,}", text)[:_MOST_WORDS], [known for known in FORMATS if known.is_text])
    return _refusal(path, rule, " ".join(text.split()))


def keys_of(first: Fields) -> str:
    """The keys of an object, in words."""
    return f"keys {', '.join(sorted(first.values)) or 'none'}"


def _nearest(text: str, words: list[str], formats: Sequence[Format] = FORMATS) -> str:
    """The rule that a file breaks, by the format with which it shares most words."""
    scores = {known.name: _score(known, text) for known in formats}
    name = max(scores, key=lambda name: scores[name])
    if not scores[name]:
        own = ", or rounds of your own as frontier" if formats is FORMATS else ""
        return f"must be a known one, and resembles none; {_SERVER}{own}"
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
    """The parts of a format's key to look for in a file: the words of a path of keys, the beginning of a phrase."""
    if " " in key:
        return [re.split(r"=|\.\.\.", key)[0].strip()]
    return [word for word in re.findall(r"[\w:]+", key) if len(word) >= _LEAST_WORD]


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys of an object and of nested ones, and short texts, outer ones first."""
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
    most = min(max(room, _LEAST_SHOWN), _MOST_SHOWN)
    cut = f"{str(found)[: most - 3]}..." if len(str(found)) > most else str(found)
    return TraceFormatError(str(place), field, rule, found if isinstance(found, bytes) else cut)


_MOST_PLAIN = 100_000  # rows of the target alone before one that fits a format


def detect(files: Sequence[Path], also: Sequence[Format] = ()) -> Format:
    """The one format of all files and of those that accompany them: ours, else of `also` or another package."""
    try:
        return _detected(files, FORMATS)
    except TraceFormatError:
        theirs = [*also, *(known for known in formats_of_packages() if known not in also)]
        if theirs:
            with suppress(TraceFormatError):
                return _detected(files, theirs)
        raise


def _detected(files: Sequence[Path], formats: Sequence[Format]) -> Format:
    seen: dict[Path, Format] = {}
    objects: dict[Path, Fields] = {}
    for path in files:
        told = _telling(path, formats)
        if isinstance(told, Format):
            seen[path] = told
        else:
            objects[path] = told
    pairing = [known for known in formats if any(map(known.sees, objects.values()))]
    for path, first in objects.items():
        if not any(known.sees_beside(first) for known in pairing):
            fitting = [known for known in formats if known.sees(first)]
            if not fitting:
                raise unlike(first)
            if len(fitting) > 1:
                rule = f"must be named, the file could be {' or '.join(known.name for known in fitting)}"
                raise first.error("format", rule, keys_of(first))
            seen[path] = fitting[0]
    found = next(iter(seen.values()))
    for path, other in seen.items():
        if other is not found:
            raise TraceFormatError(path, "format", f"must be {found.name} as the files before it", other.name)
    return found


def _telling(path: Path, formats: Sequence[Format]) -> Format | Fields:
    """The first object that fits a format; of text, the format that its lines fit."""
    try:
        found = peek_objects(path)
    except TraceFormatError as error:
        if error.field != "JSON":
            raise
        refuse_pipe(path)
        known = next((known for _, line in text_lines(path) for known in formats if known.sees_line(line)), None)
        if known is None:
            raise unreadable(path, error) from None
        return known
    first = next(found)
    if not drafted_nothing(first):
        return first
    try:
        return next((other for other in islice(found, _MOST_PLAIN) if not drafted_nothing(other)), first)
    except TraceFormatError:  # the reader raises it again, or skips it
        return first


MOST_LINES = 64
MOST_CHARACTERS = 65_536  # of a line: the rest is a user's text
_CALLED = re.compile(
    rb"""(?<![\w\\])["']?(?:model|model_id|model_name|model_path|served_model_name)["']?\s*[:=]\s*"""
    rb"""(["'])([^"'\\]{1,200})\1"""
)
# As vLLM prints its arguments and its configuration.
_SPECULATION = re.compile(rb"""["']?speculative_config["']?\s*[:=]\s*(?:SpeculativeConfig\(|\{)[^(){}]{0,4000}[)}]""")
# As SGLang prints its arguments, in its log and in results of bench_serving.
_DRAFT_PATH = re.compile(rb"""speculative_draft_model_path["']?\s*[:=]\s*(["'])([^"'\\]{1,200})\1""")
_ALGORITHM = re.compile(rb"""speculative_algorithm["']?\s*[:=]\s*(["'])([A-Za-z_0-9]{1,40})\1""")
_METHOD = re.compile(rb"""(?<!\w)["']?method["']?\s*[:=]\s*(["'])([A-Za-z_0-9]{1,40})\1""")  # within `_SPECULATION`
# By methods what drafts, as `studies.engine_settings` calls it; of prompt lookup more must be known than a name.
_DRAFTS_BY = {
    **{name: name for name in ("eagle", "eagle3", "mtp", "suffix")},
    **{"draft_model": "model", "standalone": "model", "nextn": "mtp"},
}

# Settings of vLLM and SGLang of how drafts are accepted, and the values that leave the target's own distribution.
_ACCEPTANCE = re.compile(
    rb"""\b(rejection_sample_method|spec_decoding_acceptance_method|speculative_accept_threshold_(?:single|acc))"""
    rb"""["']?\s?[=:]\s?["']?([A-Za-z_0-9.]{1,40})"""
)
_EXACT = re.compile(rb"standard|block|strict|probabilistic|rejection_sampler|None|null|1(\.0*)?")
_OTHER_TEXT = "answers are not the target's own texts, and figures are of accepting as this server did"
_VLLM_VERSION = re.compile(rb"(?:LLM engine \(v|API server version v?)([0-9]{1,9}(?:\.[0-9a-z]{1,12}){1,4})")

_OF_LOG = "{} has the shape of the drafter that the log names in its first lines"

Watch = Callable[[Iterable[RoundsRequest]], Iterable[RoundsRequest]]


def choose_format(name: str | Format, files: Sequence[Path]) -> Format:
    """The format of that name, a format itself, or for "auto" the one the files have.

    Raises:
        ValueError: no such format, no files, or one of them twice.
        TraceFormatError: the files fit none, or several.
    """
    if not files:
        raise ValueError("files must name at least one file, got none")
    twice = repeated(files)
    if twice:
        raise ValueError(f"files must be given once each, got {str(twice[0])!r} twice")
    if isinstance(name, Format):
        return name
    return detect(files) if name == AUTO else format_named(name)


def read_recording(
    format_name: str | Format, files: Sequence[Path], options: ImportOptions | None = None
) -> RoundsRecording:
    """Files in memory, not yet checked as a written recording is; raises as `import_recording`."""
    source, ongoing = choose_format(format_name, files), Ongoing(options or ImportOptions())
    requests = tuple(_requests(source, files, ongoing))
    return RoundsRecording(meta=_meta(source, files, ongoing), requests=requests)


def import_recording(
    format_name: str | Format,
    files: Sequence[Path],
    out: Path,
    options: ImportOptions | None = None,
    *,
    watch: Watch = iter,
) -> RoundsMeta:
    """Stream files to a recording at `out`; a file of many requests is never in memory as a whole.

    Drafters are numbered in the order of files. `watch` gets the requests and yields them, for a progress bar. Raises
    TraceFormatError where a file breaks its format, or is no sound recording, and ValueError for an option that names
    nothing of the files.
    """
    source, ongoing = choose_format(format_name, files), Ongoing(options or ImportOptions())
    return write_rounds(watch(_requests(source, files, ongoing)), lambda: _meta(source, files, ongoing), out)


def _requests(source: Format, files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of files; raises TraceFormatError, which names the formats where a file has none of them."""
    if ongoing.options.skip_bad_lines and not source.by_line:
        raise ArgumentError(f"`skip_bad_lines` must be left out: {source.name} files do not go by lines")
    kept = KeptTokens()
    try:
        for request in source.read(files, ongoing):
            kept.see(request)
            if request.prompt and request.output:
                ongoing.findings.mattered.add("lookup")
            yield request
    except TraceFormatError as error:
        if error.field != "JSON":
            raise
        rule = f"{error.rule}; {source.name} is recognised by {', '.join(source.keys)}"
        raise TraceFormatError(error.path, error.field, rule, error.value) from None
    for words in kept.remarks(ongoing.drafters.seen()):
        ongoing.findings.remark(words)


def _meta(source: Format, files: Sequence[Path], ongoing: Ongoing) -> RoundsMeta:
    options = ongoing.options
    try:
        drafters = ongoing.drafters.infos()
        options.refuse_idle(ongoing.findings.mattered)
        called = _called(files)
        own = _drafter_shape(called, drafters, options)
        return RoundsMeta(
            name=options.name,
            source=source.name,
            form=ongoing.findings.form(source.form),
            target=options.target,
            drafters=drafters,
            models=options.models if own is None else (*options.models, own),
            served_model=_served_model(called),
            drafts_by=_drafts_by(called, drafters),
            software={} if (version := _engine_version(source, files)) is None else {"vllm": version},
            notes=(
                *source.notes,
                *ongoing.notes(),
                *ongoing.drafters.pooled(),
                *([] if own is None else [_OF_LOG.format(own.name)]),
                *(f"{LOSSY} by {why}: {_OTHER_TEXT}" for why in _lossy(files, drafters)),
            ),
            ngram=options.lookup or LOOKUP,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "recording"
        rule = first["msg"].removeprefix("Value error, ")
        raise ValueError(
            f"{field}: {rule}" if ", got " in rule else f"{field}: {rule}, got {first['input']!r}"
        ) from None


def _first_lines(files: Sequence[Path]) -> Iterator[bytes]:
    for path in (path for path in files if path.is_file()):
        yield from (text[:MOST_CHARACTERS] for _, text in islice(lines_of(path), MOST_LINES))


def _lossy(files: Sequence[Path], drafters: Sequence[DrafterInfo]) -> list[str]:
    """What says that drafts were not verified exactly: settings in the first lines of files, or names."""
    found: dict[str, None] = {}
    for setting, value in (setting for text in _first_lines(files) for setting in _ACCEPTANCE.findall(text)):
        if not _EXACT.fullmatch(value):
            found[f"{setting.decode()} {value.decode()}"] = None
    names = (*(drafter.name for drafter in drafters), *(path.name for path in files))
    named = next((name for name in names if "typical" in re.split(r"[^a-z]+", name.lower())), None)
    return [*found, *([] if named is None else [f"the name {named}, of typical acceptance"])]


class _Called(NamedTuple):
    """What the first lines of files name: models, models that draft, and methods of drafting."""

    models: set[str]
    drafters: set[str]
    methods: set[str]


def _called(files: Sequence[Path]) -> _Called:
    found = _Called(set(), set(), set())

    def note(into: set[str], pattern: re.Pattern[bytes], text: bytes) -> None:
        into.update(name.decode(errors="replace") for _, name in pattern.findall(text))

    for text in _first_lines(files):
        for drafts in _SPECULATION.findall(text):
            note(found.drafters, _CALLED, drafts)
            note(found.methods, _METHOD, drafts)
        note(found.drafters, _DRAFT_PATH, text)
        note(found.methods, _ALGORITHM, text)
        note(found.models, _CALLED, _SPECULATION.sub(b"", text))
    return found


def _served_model(called: _Called) -> str:
    """The preset of the model that is named; "" if there is none, or more than one."""
    found = {model for name in called.models if (model := model_called(name)) is not None}
    return found.pop() if len(found) == 1 else ""


def _drafts_by(called: _Called, drafters: Sequence[DrafterInfo]) -> str:
    """What the only drafter is by the engine's arguments; "" if they do not say, or name several."""
    # As vLLM reads deepseek_mtp and others; SGLang's FROZEN_KV_MTP is something else.
    methods = (re.sub("[a-z0-9_]+_mtp", "mtp", name).lower() for name in called.methods)
    kinds = {_DRAFTS_BY.get(name, "") for name in methods}
    if len(kinds) != 1 or len(drafters) != 1:
        return ""
    (kind,) = kinds
    paths = called.drafters - called.models if kind == "mtp" else called.drafters
    if kind == "suffix" or (kind == "mtp" and not paths):
        return kind
    path = next(iter(paths)) if len(paths) == 1 else ""
    return f"{kind}={path}" if kind and path.strip() and path.isprintable() and "\ufffd" not in path else ""


def _engine_version(source: Format, files: Sequence[Path]) -> str | None:
    """The version in the first lines of vLLM's log; None where there is none, or more than one."""
    if source.name != VLLM_LOG.name:
        return None
    found = {version for text in _first_lines(files) for version in _VLLM_VERSION.findall(text)}
    return found.pop().decode() if len(found) == 1 else None


def _drafter_shape(called: _Called, drafters: Sequence[DrafterInfo], options: ImportOptions) -> ModelInfo | None:
    """The shape of the only drafter, where the files name its model and no option another; None: unknown."""
    if len(drafters) != 1 or len(called.drafters) != 1 or drafters[0].name in {shape.name for shape in options.models}:
        return None
    return shape_called(next(iter(called.drafters)), drafters[0].name, _served_model(called) or None)
