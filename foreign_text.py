"""Text of others, such as a server's, as a terminal may show it: what would steer the terminal is escaped."""

import re

# Control characters but for the line break and the tab, those that change the direction of text, and halves of
# surrogate pairs, which no encoding writes.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """A text with escapes, such as `x1b` behind a backslash, for what is no text; it can be written as UTF-8."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line_of(text: str, most: int) -> str:
    """The same on one line, of at most so many characters, >= 3; what is longer ends in `...`."""
    # Whoever splits a text takes time for all of it.
    line = escaped(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."
