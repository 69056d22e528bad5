"""Text for screens, which cannot show all of it: ASCII lookalikes where there are some, escapes for the rest."""

import tomllib
from importlib.resources import files

from ...foreign_text import escaped

LOOKALIKES = tomllib.loads(files(__package__).joinpath("lookalikes.toml").read_text(encoding="utf-8"))


def shown_in(text: str, encoding: str) -> str:
    """`text` as `encoding` can write it, each character replaced that it cannot write, or that steers a terminal."""
    text = escaped(text)
    if _writes(text, encoding):
        return text
    return "".join(char if _writes(char, encoding) else _replaced(char, encoding) for char in text)


def draws_boxes(encoding: str) -> bool:
    """Whether the corners and lines of our tables can be written in `encoding`."""
    return _writes("┏━┓┃│└", encoding)


def _writes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _replaced(char: str, encoding: str) -> str:
    # Escapes are ASCII, which every encoding of a terminal writes.
    lookalike: str | None = LOOKALIKES.get(char)
    return lookalike or char.encode(encoding, "backslashreplace").decode("ascii")
