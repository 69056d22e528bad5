"""Which model a log speaks of: answers, responses and metrics name the one that was served."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ..shapes.named import model_called
from .reading.lines import lines_of

MOST_LINES = 64
MOST_CHARACTERS = 65_536  # of a line: what comes after is text that somebody wrote
_CALLED = re.compile(
    rb"""(?<![\w\\])"?(?:model|model_id|model_name|model_path|served_model_name)"?\s*[:=]\s*"([^"\\]{1,200})\""""
)


def served_model(files: Sequence[Path]) -> str:
    """The preset of the model that the files name in their first lines; "" if there is none, or more than one."""
    found = {model for path in files if path.is_file() for model in _models(path)}
    return found.pop() if len(found) == 1 else ""


def _models(path: Path) -> set[str]:
    texts = [text[:MOST_CHARACTERS] for _, text in islice(lines_of(path), MOST_LINES)]
    called = [match.decode(errors="replace") for text in texts for match in _CALLED.findall(text)]
    return {model for name in called if (model := model_called(name)) is not None}
