"""The objects of a file that holds one a line, as Fields with their places; numbers with a point are exact decimals."""

from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any

from ....arguments import repeated
from ....strict_json import decode_json, kind_of_json
from ...importers.reading.lines import lines_of
from ..exact_seconds import MOST_PS, MOST_READ_PS, PS_PER_S, ps_of_decimal
from ..options import MOST_COUNT
from .format import MOST_ID, Reading, whole


def objects_of(reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of each; raises TraceFormatError for a line that is none."""
    for line, text in lines_of(reading.path):
        yield line, object_of(reading, line, text)


def object_of(reading: Reading, line: int, text: bytes) -> dict[str, Any]:
    """The object that a line holds; raises TraceFormatError."""
    rule = "must be one JSON object a line"
    try:
        found = decode_json(text, decimals=True, constants=True)
    except ValueError as error:
        raise reading.error(line, "JSON", rule, str(error)) from None
    if not isinstance(found, dict):
        raise reading.error(line, "JSON", rule, kind_of_json(found))
    return found


def check_keys(
    reading: Reading, line: int, found: dict[str, Any], needed: Collection[str], known: Collection[str], *, of: str = ""
) -> None:
    """Raise TraceFormatError for keys that are missing or unknown; `of` names what the object is within."""
    for key in found:
        if key not in known:
            raise reading.error(line, f"{of}{key}"[:100], f"must be one of {', '.join(known)}", "an unknown key")
    for key in needed:
        if found.get(key) is None:
            raise reading.error(line, f"{of}{key}", "must be there", "null" if key in found else "nothing")


def count_of(reading: Reading, line: int, field: str, value: object) -> int:
    """A whole number; what becomes of 0 is left to `Reading.lengths`."""
    if whole(value):
        assert isinstance(value, int)
        return value
    raise reading.error(line, field, f"must be a whole number in [1, {MOST_COUNT}]", shown(value))


def time_of(reading: Reading, line: int, field: str, value: object, *, unit_ps: int = PS_PER_S) -> int:
    """Picoseconds of an arrival in units of time, in [0, 1e9] seconds."""
    return reading.time(line, field, _ps_of(value, unit_ps), shown(value), most_ps=MOST_READ_PS)


def wait_of(reading: Reading, line: int, field: str, value: object, *, unit_ps: int = PS_PER_S) -> int:
    """Picoseconds of a time within a session, of which the clock of a run has to hold every one."""
    return reading.time(line, field, _ps_of(value, unit_ps), shown(value), most_ps=MOST_PS)


def _ps_of(value: object, unit_ps: int) -> int | None:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return ps_of_decimal(value, unit_ps=unit_ps)
    return None


def ids_of(reading: Reading, line: int, field: str, value: object) -> tuple[int, ...]:
    """Ids of blocks: whole numbers, none twice, since an id stands for all the text before it as well."""
    if not isinstance(value, list):
        raise reading.error(line, field, "must be a list", kind_of_json(value))
    if set(map(type, value)) - {int} or (value and not 0 <= min(value) <= max(value) <= MOST_ID):
        place, wrong = next((place, one) for place, one in enumerate(value) if not whole(one, 0, MOST_ID))
        raise reading.error(line, f"{field}[{place}]", f"must be a whole number in [0, {MOST_ID}]", shown(wrong))
    twice = repeated(value)
    if twice:
        raise reading.error(line, field, "must not hold an id twice: it stands for all the text before it", twice[0])
    return tuple(value)


def shown(value: object) -> object:
    """A value of a file as errors show it."""
    if isinstance(value, (dict, list)):
        return kind_of_json(value)
    return float(value) if isinstance(value, Decimal) else value
