"""JSON from others: nothing is accepted that would have to be guessed at, such as a key that stands there twice."""

import json
from decimal import Decimal
from typing import Any, NoReturn


def decode_json(text: bytes, *, decimals: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The value that a text holds.

    Args:
        text: of one value.
        decimals: whether numbers with a point or an exponent become `Decimal`, digit by digit, instead of floats.

    Raises:
        ValueError: no UTF-8, no JSON (NaN and Infinity are none), brackets nested too deep, or an object that has a
            key twice; one line.
    """
    try:
        return json.loads(
            text.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
            parse_float=Decimal if decimals else None,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"a byte that is no UTF-8, at {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("brackets nested too deep") from None


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
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for place, key in enumerate(keys) if key in keys[:place])!r} twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no JSON")
