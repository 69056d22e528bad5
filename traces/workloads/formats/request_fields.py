"""Fields that requests of our own lines have, wherever they stand."""

from .format import Reading
from .objects import ids_of, shown

_MOST_TEXT = 200


def blocks_of(reading: Reading, line: int, field: str, value: object, prompt: int, unit: int) -> tuple[int, ...]:
    """Ids for all of a prompt, its last unit full or begun, or none at all."""
    blocks = ids_of(reading, line, field, value)
    if blocks and not unit:
        raise reading.error(line, field, "must be left out where the first line has no unit_tokens", len(blocks))
    if blocks and len(blocks) not in (prompt // unit, -(-prompt // unit)):
        rule = f"must be one for each {unit} tokens of prompt_tokens {prompt}, whether the last is full or begun"
        raise reading.error(line, field, rule, len(blocks))
    return blocks


def request_id_of(reading: Reading, line: int, field: str, value: object) -> str:
    """The id of a request; raises TraceFormatError."""
    if name := text_of(reading, line, field, value):
        return name
    raise reading.error(line, field, "must not be empty", value)


def text_of(reading: Reading, line: int, field: str, value: object) -> str:
    """A text that may stand in a line; raises TraceFormatError."""
    if isinstance(value, str) and value.isprintable() and len(value) <= _MOST_TEXT:
        return value
    raise reading.error(line, field, f"must be printable text of at most {_MOST_TEXT} characters", shown(value))
