"""What a method is called: by the user, else by the first known word in its model id or in the name of its file."""

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import TraceFormatError

PLAIN = ""  # the target alone

# In this order: `..._ea_hsd` is the second of its two words.
_METHODS = {
    "hsd": "hsd",
    "eagle3": "eagle3",
    "eagle2": "eagle2",
    "eagle": "eagle",
    "ea": "eagle",
    "medusa": "medusa",
    "hydra": "hydra",
    "sps": "sps",
    "pld": "pld",
    "lookahead": "lookahead",
    "rest": "rest",
    "recycling": "recycling",
    "kangaroo": "kangaroo",
    "samd": "samd",
    "space": "space",
    "swift": "swift",
}
TOKEN_METHODS = frozenset({"sps"})  # a draft model that reads tokens only


def method_name(model_ids: Iterable[str], path: Path) -> str:
    """The first known method among the words of the model id, then of the file's name; else the model id itself."""
    ids = [model_id for model_id in model_ids if model_id]
    for text in (*ids[:1], path.name):
        words = re.split(r"[^a-z0-9]+", text.lower())
        for word, name in _METHODS.items():
            if word in words:
                return name
    stem = path.name.split(".jsonl")[0]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", ids[0] if ids else stem).lstrip("-._+") or "drafter"


def check_names(names: Iterable[tuple[str, Path]]) -> None:
    """Raise ValueError unless every file stands for a method of its own."""
    seen: dict[str, Path] = {}
    for name, path in names:
        if name in seen:
            told = f"{seen[name]} and {path}" if name else f"{seen[name]} and {path}, both the target alone,"
            raise TraceFormatError(
                path, "method", f"must differ from file to file (--drafter FILE=NAME), {told} share one", name
            )
        seen[name] = path
