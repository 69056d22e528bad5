"""Tell the format of files by the keys of their first objects, or say which keys were missed."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import TraceFormatError
from . import eagle_timed
from .formats import FORMATS, Format
from .reading.fields import Fields
from .reading.objects import first_object


def detect(files: Sequence[Path]) -> Format:
    """The one format all files have; timings and the answers they time are one format.

    Raises:
        TraceFormatError: a file cannot be read, has no known format, or another than the first one.
    """
    firsts = {path: first_object(path) for path in files}
    timed = any(eagle_timed.sees(first) for first in firsts.values())
    telling = {path: first for path, first in firsts.items() if not (timed and eagle_timed.sees_answer(first))}
    seen = {path: _format_of(first) for path, first in telling.items()}
    found = next(iter(seen.values()))
    for path, other in seen.items():
        if other is not found:
            raise TraceFormatError(path, "format", f"must be {found.name} as the files before it", other.name)
    return found


def _format_of(first: Fields) -> Format:
    fitting = [known for known in FORMATS if known.sees(first)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        rule = f"must be named, the file could be {' or '.join(known.name for known in fitting)}"
    else:
        wanted = "; ".join(f"{known.name}: {', '.join(known.keys)}" for known in FORMATS)
        rule = f"must be told by its keys ({wanted})"
    raise first.error("format", rule, f"keys {', '.join(sorted(first.values)) or 'none'}")
