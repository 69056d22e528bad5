"""A record of options is typed option by option, and reaches its command as one."""

from dataclasses import dataclass
from inspect import signature

from paceline.cli.app import spelled_out


@dataclass(frozen=True, kw_only=True)
class Size:
    width: int = 3
    height: int = 4


def test_fields_stand_in_the_record_s_place():
    def command(*, first: str, size: Size, last: bool) -> None:
        raise AssertionError

    found = signature(spelled_out(command)).parameters
    assert list(found) == ["first", "width", "height", "last"]
    assert (found["width"].annotation, found["width"].default) == (int, 3)


def test_the_command_gets_the_record():
    told = []

    def command(*, size: Size, name: str) -> None:
        told.append((size, name))

    spelled_out(command)(name="a", width=1, height=2)
    assert told == [(Size(width=1, height=2), "a")]
