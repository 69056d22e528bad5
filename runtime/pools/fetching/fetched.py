"""Where fetched models lie; needs no torch."""

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
