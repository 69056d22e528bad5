"""Options that give each of several names a number: `--scale draft=0.5 --scale target=2`."""

from collections.abc import Sequence
from math import isfinite


def named_numbers(option: str, what: str, texts: Sequence[str] | None) -> dict[str, float]:
    """The number of each name, in the order given.

    Args:
        option: as the command line calls it.
        what: the number is, in capitals.
        texts: `NAME=number`, one for each name.

    Raises:
        ValueError: a text of another form, a number that is not finite, or a name given twice.
    """
    numbers: dict[str, float] = {}
    for text in texts or ():
        name, _, number = text.partition("=")
        if name in numbers:
            raise ValueError(f"{option} {name} is given twice")
        found = _number(number)
        if not name or found is None:
            raise ValueError(f"{option} must be NAME={what}, got {text!r}")
        if not isfinite(found):
            raise ValueError(f"{option} of {name} must be finite, got {number}")
        numbers[name] = found
    return numbers


def _number(text: str) -> float | None:
    """What a text says as people write numbers, without what only Python takes: `1_000`, spaces, other digits."""
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None
