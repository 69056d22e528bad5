"""Times of files as whole picoseconds, read from their decimal text and never through floats."""

import re
from datetime import date
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache

PS_PER_S = 10**12
MOST_PS = 2**62 - 1  # some 53 days: sums and differences of two such times stay within 64 bits
MOST_READ_PS = 10**9 * PS_PER_S  # some thirty years: what files may say before it is scaled or cut

_PLACES = 12  # of seconds, as picoseconds
_MOST_DIGITS = 40
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d)(?:\.(\d{1,40}))?(?:Z|\+00:00)?", re.ASCII)
_SECONDS = re.compile(r"(\d{1,10})(?:\.(\d{0,40}))?", re.ASCII)


def ps_of_seconds(text: str) -> int | None:
    """Seconds as files write them, rounded to the nearest picosecond, halves up; None for what is no number.

    A sign, blanks and an exponent may stand there; what is beyond `MOST_READ_PS` in size comes to more than that.
    """
    found = _SECONDS.fullmatch(text)
    if found is not None:
        return int(found[1]) * PS_PER_S + _fraction(found[2] or "")
    if not text.isascii() or "_" in text or len(text) > _MOST_DIGITS:  # what only Python takes for a number
        return None
    try:
        return ps_of_decimal(Decimal(text.strip()))
    except InvalidOperation:
        return None


def ps_of_decimal(value: Decimal | int, *, unit_ps: int = PS_PER_S) -> int | None:
    """So many units of time, rounded to the nearest picosecond, halves up; None for infinity and what is no number.

    Args:
        value: of any size; what comes to more than `MOST_READ_PS` stays more, of the same sign.
        unit_ps: of one unit, a power of ten.
    """
    if isinstance(value, int):
        return value * unit_ps
    if not value.is_finite():
        return None
    if value.adjusted() > _PLACES:
        return -MOST_READ_PS - 1 if value < 0 else MOST_READ_PS + 1
    return int(value.scaleb(len(str(unit_ps)) - 1).to_integral_value(ROUND_HALF_UP))


def ps_of_moment(text: str) -> int | None:
    """A time of the calendar in UTC, `2023-11-16 18:17:03.9799600`, since year 1; None for what is none."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    minute, seconds, fraction = found.groups()
    minutes = _minutes(minute)
    if minutes is None or seconds > "59":
        return None
    return (minutes * 60 + int(seconds)) * PS_PER_S + _fraction(fraction or "")


def _fraction(digits: str) -> int:
    """Picoseconds of the digits after a point."""
    if len(digits) <= _PLACES:
        return int(digits.ljust(_PLACES, "0"))
    return int(digits[:_PLACES]) + (digits[_PLACES] >= "5")


@lru_cache(maxsize=64)
def _minutes(text: str) -> int | None:
    """Minutes since year 1 of a day, an hour and a minute."""
    hours, minutes = text[11:13], text[14:16]
    if hours > "23" or minutes > "59":
        return None
    try:
        days = date.fromisoformat(text[:10]).toordinal()
    except ValueError:
        return None
    return (days * 24 + int(hours)) * 60 + int(minutes)
