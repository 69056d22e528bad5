"""Where the pool and the recordings that come with the package are."""

from importlib.resources import files
from pathlib import Path


def shipped(folder: str, name: str) -> Path:
    """Path of `folder/name` inside the installed package; raises FileNotFoundError if it is not there."""
    path = Path(str(files(__package__))) / folder / name
    if not path.exists():
        raise FileNotFoundError(f"{folder}/{name} does not come with this installation")
    return path
