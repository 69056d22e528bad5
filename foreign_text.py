"""Text from outside, such as a server's, made safe to print: control characters are escaped."""

import re

LONGEST_MESSAGE = 300  # characters, of a server

# Control characters but for the line break and the tab, those that change the direction of text, and halves of
# surrogate pairs, which no encoding writes.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """The text with control characters written as escapes; it can always be encoded as UTF-8."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line_of(text: str, most: int) -> str:
    """The escaped text on one line of at most `most` characters, >= 3; a longer one is cut and ends in `...`."""
    # Cut first: splitting would take time for the whole text, however long.
    line = escaped(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."


def message_of(content: object, most: int = LONGEST_MESSAGE) -> str:
    """The message of an error, in any of the forms that servers give it: one line, without control characters."""
    found = content
    while isinstance(found, dict):
        inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        if inner is None:
            break
        found = inner
    try:
        return one_line_of(found if isinstance(found, str) else str(found), most)
    except RecursionError:
        return "brackets nested too deep"
