"""What responses of servers have in common: a name, tokens of prompt and answer, and objects deep within."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from ...arguments import repeated
from ...foreign_text import message_of
from ..errors import TraceFormatError
from ..rounds.rounds import RoundsRequest
from .drafters import DRAFTER
from .ongoing import Ongoing
from .reading.fields import Fields
from .reading.lines import refuse_pipe
from .reading.objects import read_objects
from .reading.streamed import ERROR_RULE, LONGEST_TOLD
from .steps.methods import merged

# What counts the speculation of a whole request, whatever it answered.
_OF_THE_REQUEST = (
    ("metrics", "speculative_decoding"),
    ("speculative_decoding",),
    ("spec_decode_metrics",),
    ("timings",),
)
_SEVERAL = "answers stand beside others in one response, whose usage counts their tokens together"
# Where a line keeps the question that it answers: of the response, or beside it.
_PROMPTS = ("messages", "prompt", "prompt_token_ids", "input_ids", "input")
_UNMATCHED = "answers stand without their prompt, so that no other file's are of the same question"
_BY_PROMPT = "files that answer the same prompts are a drafter each"
SHARED = "choices of the response"  # of one choice, as a response of its own: how many it stood among
EMPTY = "answers without a token were left out"


class Responses:
    """The responses of one file.

    Attributes:
        ongoing: the import they belong to.
    """

    def __init__(self, path: Path, ongoing: Ongoing, method: str = DRAFTER) -> None:
        self.ongoing = ongoing
        self._path, self._method = path, method
        self._numbers = count(1)

    def name_of(self, line: Fields, *within: Fields) -> str:
        """The name of the next response, by its own id or by file and number; raises TraceFormatError for one twice.

        Args:
            line: the response.
            within: objects of it that may hold its id, if it does not itself.
        """
        number = next(self._numbers)
        for fields in (line, *within):
            for key in ("id", "request_id"):
                if key in fields:
                    request_id = fields.text(key)
                    self.ongoing.request(fields, key, request_id)
                    return request_id
        request_id = f"{stem(self._path)}/{number}"
        self.ongoing.request(line, "id", request_id)
        return request_id

    def drafter(self) -> str:
        """The name of the drafter that wrote them."""
        return self.ongoing.drafters.of_server(self._path, self._method)

    def each(self, parse: "Parse") -> Iterator[RoundsRequest]:
        """The requests of all responses that have a token, one for each of their choices."""
        return (request for request, _ in self.each_with_prompt(parse))

    def each_with_prompt(self, parse: "Parse") -> Iterator[tuple[RoundsRequest, "Question | None"]]:
        """The same, each with the question that it answers."""

        def requests(line: Fields) -> Iterator[tuple[RoundsRequest, Question | None]]:
            if line.values.get("error"):
                raise line.error("error", ERROR_RULE, message_of(line.values["error"], LONGEST_TOLD))
            answers = answers_of(line)
            self.ongoing.findings.note(_SEVERAL, len(answers) if len(answers) > 1 else 0)
            for answer, question in zip(answers, _questions(line, len(answers)), strict=True):
                for request in self.answered(parse(self, answer)):
                    yield request, question

        return self.ongoing.each(self._path, requests)

    def answered(self, request: RoundsRequest | None) -> list[RoundsRequest]:
        """The request of a response; none, which is noted, if its answer has no token."""
        self.ongoing.findings.note(EMPTY, request is None)
        return [] if request is None else [request]


# What a response of one answer comes to; None if the answer has no token.
Parse = Callable[[Responses, Fields], RoundsRequest | None]


def by_response(parse: Parse) -> Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]:
    """Reads files that hold one response an object; each of its choices is a request."""

    def read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
        return read_responses(files, ongoing, lambda _: parse)

    return read


def read_responses(
    files: Sequence[Path], ongoing: Ongoing, parse_of: Callable[[Path], Parse]
) -> Iterator[RoundsRequest]:
    """The requests of files of responses; those of several drafters meet by the questions that they answer.

    Args:
        files: each of one drafter.
        ongoing: takes note.
        parse_of: how a file's responses are read.

    Raises:
        TraceFormatError: files of which nobody can say which answers belong together.
    """
    methods = _methods(files, ongoing) if len(files) > 1 else {}
    if methods:
        ongoing.findings.remark(_BY_PROMPT)
        yield from merged(ongoing, _by_question(files, ongoing, parse_of, methods))
    for path in files if not methods else ():
        yield from Responses(path, ongoing).each(parse_of(path))


# The kind and the hash of a prompt, and which of its answers it is.
Question = tuple[str, bytes, int]


def _questions(line: Fields, answers: int) -> list[Question | None]:
    """What the answers of a response are to."""
    for place in (line, within(line, "request"), first_choice(line)):
        for key in _PROMPTS:
            prompt = None if place is None else place.values.get(key)
            if prompt and isinstance(prompt, str | list):
                if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
                    prompt = prompt[0]
                kind = key if isinstance(prompt, str) or key == "messages" else "prompt_token_ids"
                digest = sha256(json.dumps(prompt, sort_keys=True).encode()).digest()
                return [(kind, digest, number) for number in range(answers)]
    return [None] * answers


def _methods(files: Sequence[Path], ongoing: Ongoing) -> Mapping[Path, str]:
    """What the drafters of files are called that answer the same questions; empty where all files are of one drafter.

    They are of several if the user calls them by different names, or if they answer the same prompt.
    """
    names = {path: ongoing.options.names[key] for path in files if (key := ongoing.options.key_of_file(path))}
    asked = {path: _asked(path) for path in files}
    shared = repeated(question for places in asked.values() for question in places)
    if len(set(names.values())) < 2 and (not shared or len(names) == len(files)):
        return {}
    for path, places in asked.items():
        for question, lines in places.items():
            if len(lines) > 1:
                rule = "must be asked once in a file, to be found again in the other files"
                raise TraceFormatError(path, question[0], rule, f"the same on lines {lines[0]} and {lines[1]}")
    kinds = {question[0]: path for path, places in asked.items() for question in places}
    if len(kinds) > 1:
        (one, path), (other, _), *_ = kinds.items()
        raise TraceFormatError(path, one, "must be in all files, to tell which answer the same", other)
    called = {path: re.sub(r"[^A-Za-z0-9._+-]+", "-", stem(path)).lstrip("-._+") or DRAFTER for path in files}
    twice = repeated(names.get(path, called[path]) for path in files)
    if twice:
        rule = "must differ from file to file where they answer the same prompts (`names` FILE=NAME)"
        raise TraceFormatError(files[-1], "drafter", rule, twice[0])
    return called


def _asked(path: Path) -> Mapping[Question, Sequence[str]]:
    """The questions of a file that will be read again, with the lines that answer them, two of each at most."""
    refuse_pipe(path)
    found: dict[Question, list[str]] = {}
    for line in read_objects(path, lambda _: None):
        choices = line.values.get("choices")
        for question in _questions(line, max(len(choices), 1) if isinstance(choices, list) else 1):
            if question is not None:
                lines = found.setdefault(question, [])
                lines.extend([line.place.removeprefix(f"{path}: line ")] if len(lines) < 2 else [])
    return found


def _by_question(
    files: Sequence[Path], ongoing: Ongoing, parse_of: Callable[[Path], Parse], methods: Mapping[Path, str]
) -> Iterator[RoundsRequest]:
    """The answers of all files, those to one question under the name that it has in the first file."""
    names: dict[Question, str] = {}
    taken: set[str] = set()
    for path in files:
        ongoing.begin_file()
        for request, question in Responses(path, ongoing, methods[path]).each_with_prompt(parse_of(path)):
            ongoing.findings.note(_UNMATCHED, question is None)
            known = None if question is None else names.get(question)
            name = known or request.request_id
            if known is None:
                name = f"{stem(path)}/{name}" if name in taken else name
                taken.add(name)
                if question is not None:
                    names[question] = name
            yield replace(request, request_id=name)


def answers_of(line: Fields) -> list[Fields]:
    """A response of n > 1 choices as n responses of one each, called `ID/CHOICE`; any other one as it is.

    Their `usage` has the prompt's tokens alone: those of the answers are counted together.

    Raises:
        TraceFormatError: what the engine counts is of the request as a whole, so that nobody says which answer kept
            what. vLLM counts a request only if it asks for one answer.
    """
    choices = line.values.get("choices")
    if not isinstance(choices, list):
        return [line]
    _check_usage(line, choices)
    if len(choices) < 2:
        return [line]
    _check_indices(line)
    for *around, key in _OF_THE_REQUEST:
        place = within(line, *around) if around else line
        if place is not None and key in place:
            rule = "must stand beside one choice (n = 1): it is of the request as a whole, not of each of its answers"
            raise place.error(key, rule, f"{len(choices)} choices")
    usage = {key: value for key, value in usage_of(line).values.items() if key != "completion_tokens"}
    own = {key: line.text(key) for key in ("id", "request_id") if key in line}
    return [
        Fields(
            line.place,
            {
                **line.values,
                **{key: f"{name}/{number}" for key, name in own.items()},
                "choices": [choice.values],
                SHARED: len(choices),
                "usage": usage,
            },
            line.prefix,
        )
        for number, choice in enumerate(line.each("choices"))
    ]


def _check_usage(line: Fields, choices: list[Any]) -> None:
    """Refuse a `usage` that is not the sum of choices that all count their tokens."""
    usage = usage_of(line)
    told = usage.known_count("completion_tokens", least=0)
    metas = [one.get("meta_info") if isinstance(one, dict) else None for one in choices]
    counts = [meta.get("completion_tokens") if isinstance(meta, dict) else None for meta in metas]
    known = [count for count in counts if type(count) is int]
    if told is not None and known and len(known) == len(choices) and sum(known) != told:
        of = "choice" if len(known) == 1 else f"{len(known)} choices"
        raise usage.error(
            "completion_tokens", f"must be {sum(known)}, by meta_info.completion_tokens of its {of}", told
        )


def _check_indices(line: Fields) -> None:
    """Refuse choices of one number: an answer would be read for another, or counted twice."""
    taken: dict[int, str] = {}
    for choice in line.each("choices"):
        number = choice.values.get("index")
        if type(number) is int and taken.setdefault(number, choice.prefix) != choice.prefix:
            rule = f"must differ from that of the other choices: {taken[number]}index is the same"
            raise choice.error("index", rule, number)


def stem(path: Path) -> str:
    """What requests without a name of their own are called by."""
    return path.name.split(".")[0]


def usage_of(line: Fields) -> Fields:
    """The object that counts a response's tokens, empty if there is none."""
    return line.nested("usage") if "usage" in line else Fields(line.place, {}, f"{line.prefix}usage.")


def completion_tokens(line: Fields) -> int | None:
    """Tokens of a response's answer, None if it does not say."""
    return usage_of(line).known_count("completion_tokens", least=0)


def first_choice(line: Fields) -> Fields | None:
    """The first choice of a response, None if there is none; of the only one, by the number that it says."""
    choices = line.values.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        index = choices[0].get("index", 0)
        return Fields(line.place, choices[0], f"{line.prefix}choices[{index if type(index) is int else 0}].")
    return None


def within(found: Fields | None, *path: str) -> Fields | None:
    """The object that these keys lead to, None if there is none."""
    for key in path:
        if found is None or not isinstance(found.values.get(key), dict):
            return None
        found = found.nested(key)
    return found
