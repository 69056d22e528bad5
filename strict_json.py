"""JSON from others: nothing is accepted that would have to be guessed at, such as a key that stands there twice.

What it holds is bounded: bytes of a file or a line, and how deep brackets nest.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from .arguments import repeated

MOST_BYTES = 2**27  # of a file that is read whole, and of a line of a longer one
MOST_DEPTH = 100  # of brackets within brackets: whoever goes through values may call itself for each
Refused: TypeAlias = Callable[[Path, str, str, object], ValueError]  # of a file, its field, the rule and the value


def decode_json(text: bytes, *, decimals: bool = False, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The value that a text holds.

    Args:
        text: of one value.
        decimals: whether numbers with a point or an exponent become `Decimal`, digit by digit, instead of floats.
        constants: whether NaN, Infinity and -Infinity are taken, as floats: for files of others, whose fields are
            checked one by one as they are read, and most of which nobody reads.

    Raises:
        ValueError: no UTF-8, no JSON (NaN and Infinity are none, without `constants`), brackets nested deeper than 100,
            or an object that has a key twice; one line.
    """
    try:
        found = json.loads(
            text.decode("utf-8"),
            parse_constant=float if constants else _refuse_constant,
            object_pairs_hook=_object,
            parse_float=Decimal if decimals else None,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"a byte that is no UTF-8, at {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("brackets nested too deep") from None
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH and nested_too_deep(found):
        raise ValueError("brackets nested too deep")
    return found


def read_json(path: Path, *, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The one value of a file; raises OSError, and ValueError as `decode_json` and for a file of more than 128 MiB."""
    return decode_json(read_bounded(path), constants=constants)


def checked_json(path: Path, refused: Refused, *, content: bytes | None = None, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The one value of a file; what it cannot be is said in one line.

    Args:
        path: of the file.
        refused: makes the error to be raised, of path, field, rule and value.
        content: all of the file, where it was read already.
        constants: as of `decode_json`.
    """
    try:
        return decode_json(read_bounded(path) if content is None else content, constants=constants)
    except OSError as error:
        raise refused(path, "file", "must be a readable file", error.strerror) from None
    except ValueError as error:
        raise refused(path, "content", "must be JSON", str(error)) from None


def checked_config(path: Path, refused: Refused) -> dict[str, Any]:
    """The keys of a config or of a file beside one, as others write them; raises as `checked_json`."""
    found = checked_json(path, refused, constants=True)
    if not isinstance(found, dict):
        raise refused(path, "content", "must be an object", kind_of_json(found))
    return found


def read_bounded(path: Path) -> bytes:
    """All of a file; raises OSError, and ValueError for more than 128 MiB, however much more there would be."""
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return found


def nested_too_deep(value: object) -> bool:
    """Whether a decoded value of JSON or TOML has lists and tables within each other to more than 100 levels."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_DEPTH):
        held = (one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer))
        level = [one for one in held if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def kind_of_json(value: object) -> str:
    """What a decoded value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value), "a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = repeated(key for key, _ in pairs)[0]
        raise ValueError(f"key {twice[:100]!r} twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no JSON")
