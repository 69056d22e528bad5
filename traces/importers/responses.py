"""What responses of servers have in common: a name, tokens of prompt and answer, and objects deep within."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ..rounds.rounds import RoundsRequest
from .ongoing import Ongoing
from .reading.fields import Fields

# What counts the speculation of a whole request, whatever it answered.
_OF_THE_REQUEST = (
    ("metrics", "speculative_decoding"),
    ("speculative_decoding",),
    ("spec_decode_metrics",),
    ("timings",),
)
_SEVERAL = "answers stand beside others in one response, whose usage counts their tokens together"
EMPTY = "answers without a token were left out"


class Responses:
    """The responses of one file.

    Attributes:
        ongoing: the import they belong to.
    """

    def __init__(self, path: Path, ongoing: Ongoing) -> None:
        self.ongoing = ongoing
        self._path = path
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
        return self.ongoing.drafters.of_server(self._path)

    def each(self, parse: "Parse") -> Iterator[RoundsRequest]:
        """The requests of all responses that have a token, one for each of their choices."""

        def requests(line: Fields) -> Iterator[RoundsRequest]:
            answers = answers_of(line)
            self.ongoing.findings.note(_SEVERAL, len(answers) if len(answers) > 1 else 0)
            for answer in answers:
                yield from self.answered(parse(self, answer))

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
        for path in files:
            yield from Responses(path, ongoing).each(parse)

    return read


def answers_of(line: Fields) -> list[Fields]:
    """A response of n > 1 choices as n responses of one each, called `ID/CHOICE`; any other one as it is.

    Their `usage` has the prompt's tokens alone: those of the answers are counted together.

    Raises:
        TraceFormatError: what the engine counts is of the request as a whole, so that nobody says which answer kept
            what. vLLM counts a request only if it asks for one answer.
    """
    choices = line.values.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        return [line]
    for *around, key in _OF_THE_REQUEST:
        place = within(line, *around) if around else line
        if place is not None and key in place.values:
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
                "usage": usage,
            },
            line.prefix,
        )
        for number, choice in enumerate(line.each("choices"))
    ]


def stem(path: Path) -> str:
    """What requests without a name of their own are called by."""
    return path.name.split(".")[0]


def usage_of(line: Fields) -> Fields:
    """The object that counts a response's tokens, empty if there is none."""
    return line.nested("usage") if "usage" in line else Fields(line.place, {}, f"{line.prefix}usage.")


def completion_tokens(line: Fields) -> int | None:
    """Tokens of a response's answer, None if it does not say."""
    return usage_of(line).known_count("completion_tokens", least=0)


def prompt_tokens(line: Fields) -> int:
    """Tokens of a response's prompt, 0 if it does not say."""
    return usage_of(line).count("prompt_tokens", least=0, default=0)


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
