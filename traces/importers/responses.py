"""What responses of servers have in common: a name, tokens of prompt and answer, and objects deep within."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from ..rounds.rounds import RoundsRequest
from .ongoing import Ongoing
from .reading.fields import Fields

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
        """The requests of all responses that have a token."""
        return self.ongoing.each(self._path, lambda line: self.answered(parse(self, line)))

    def answered(self, request: RoundsRequest | None) -> list[RoundsRequest]:
        """The request of a response; none, which is noted, if its answer has no token."""
        self.ongoing.findings.note(EMPTY, request is None)
        return [] if request is None else [request]


Parse = Callable[[Responses, Fields], RoundsRequest | None]


def by_response(parse: Parse) -> Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]:
    """Reads files that hold one response an object: `parse` gives its request, None if its answer has no token."""

    def read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
        for path in files:
            yield from Responses(path, ongoing).each(parse)

    return read


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
    """The first choice of a response, None if there is none."""
    choices = line.values.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return Fields(line.place, choices[0], f"{line.prefix}choices[0].")
    return None


def within(found: Fields | None, *path: str) -> Fields | None:
    """The object that these keys lead to, None if there is none."""
    for key in path:
        if found is None or not isinstance(found.values.get(key), dict):
            return None
        found = found.nested(key)
    return found
