"""Numbers that a log states twice: a mean or a rate beside the counts that it follows from."""

from decimal import Decimal

from ..errors import TraceFormatError
from .reading import Fields

_NOISE = 1e-6  # of single precision


def half_of_last_digit(text: str) -> float:
    """How far a number that is printed so can be from what it was, by rounding alone."""
    return 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)


def check_agrees(place: str, field: str, text: str, least: float, most: float, why: str) -> None:
    """Raise TraceFormatError for a printed number that no number in [least, most] is rounded to.

    Args:
        place: file and line.
        field: of the number.
        text: as it is printed, of which the digits tell the rounding.
        least: of what the other values leave room for.
        most: of the same.
        why: how it follows from them, with their values.
    """
    number = float(text)
    within = half_of_last_digit(text) + _NOISE * max(1.0, abs(number))
    if not least - within <= number <= most + within:
        told = f"{(least + most) / 2:.4g}" if most - least < within else f"in [{least:.4g}, {most:.4g}]"
        raise TraceFormatError(place, field, f"must be {told}: {why}", text)


def check_mean(fields: Fields, key: str, value: float, why: str) -> None:
    """The same of a number of an object, if it is there and not null, which has to be `value`."""
    if key in fields:
        told = fields.rate(key, most=1e9)
        check_agrees(fields.place, fields.prefix + key, str(told), value, value, why)


def check_equal(fields: Fields, key: str, values: tuple[int, ...], why: str) -> None:
    """Raise TraceFormatError for a count of an object that is there and none of `values`.

    Args:
        fields: the object.
        key: of the count.
        values: what it may be, by all readings.
        why: where they come from.
    """
    told = fields.known_count(key, least=0)
    if told is not None and told not in values:
        raise fields.error(key, f"must be {values[0]}, {why}", told)
