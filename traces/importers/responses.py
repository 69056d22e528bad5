"""What responses of servers have in common: a name, tokens of prompt and answer, and objects deep within."""

from itertools import count
from pathlib import Path

from .learned import Learned
from .reading.fields import Fields

EMPTY = "answers without a token were left out"


class RequestNames:
    """Names the responses of a file: by their own id, or by file and number.

    Args:
        path: of the file.
        learned: takes note of the ids.
    """

    def __init__(self, path: Path, learned: Learned) -> None:
        self._stem = path.name.split(".")[0]
        self._learned = learned
        self._numbers = count(1)

    def of(self, line: Fields, *within: Fields) -> str:
        """The name of the next response; raises TraceFormatError if it is empty or that of another one.

        Args:
            line: the response.
            within: objects of it that may hold its id, if it does not itself.
        """
        number = next(self._numbers)
        for fields in (line, *within):
            for key in ("id", "request_id"):
                if key in fields:
                    request_id = fields.text(key)
                    self._learned.request(fields, key, request_id)
                    return request_id
        request_id = f"{self._stem}/{number}"
        self._learned.request(line, "id", request_id)
        return request_id


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
