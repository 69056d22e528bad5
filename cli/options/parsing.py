"""Texts of options that hold several numbers, names, or numbers by name."""

from collections.abc import Sequence
from math import isfinite

_MOST_DIGITS = 7


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The comma-separated numbers of an option; raises ValueError with the part that is none."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"{option} must hold numbers with commas between, got {part!r}") from None
    return tuple(values)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The comma-separated whole numbers of an option; raises ValueError with the part that is none."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS):
            raise ValueError(f"{option} must hold whole numbers with commas between, got {part!r}")
    return tuple(int(part) for part in parts)


def words(option: str, text: str) -> tuple[str, ...]:
    """The comma-separated names of an option; raises ValueError for an empty one."""
    values = tuple(text.split(","))
    if not all(values):
        raise ValueError(f"{option} must hold names with commas between, got {text!r}")
    return values


def named_numbers(option: str, what: str, texts: Sequence[str] | None) -> dict[str, float]:
    """The number of each name, in the order given: `--scale draft=0.5 --scale target=2`.

    Args:
        option: as the command line calls it.
        what: the number is, in capitals.
        texts: `NAME=number`, one for each name.

    Raises:
        ValueError: a text of another form, a number that is not finite, or a name given twice.
    """
    values: dict[str, float] = {}
    for name, number in named_texts(option, what, texts).items():
        found = _number(number)
        if found is None:
            raise ValueError(f"{option} must be NAME={what}, got {f'{name}={number}'!r}")
        if not isfinite(found):
            raise ValueError(f"{option} of {name} must be finite, got {number}")
        values[name] = found
    return values


def named_texts(option: str, what: str, texts: Sequence[str] | None) -> dict[str, str]:
    """The text of each name, in the order given; as `named_numbers`, of `NAME=text`."""
    values: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if name in values:
            raise ValueError(f"{option} {name} is given twice")
        if not name or not value:
            raise ValueError(f"{option} must be NAME={what}, got {text!r}")
        values[name] = value
    return values


def _number(text: str) -> float | None:
    """What a text says as people write numbers, without what only Python takes: `1_000`, spaces, other digits."""
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None
