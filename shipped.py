"""Where the pool and the recordings that come with the package are."""

from contextlib import suppress
from importlib.resources import files
from pathlib import Path


def pool_path(given: Path | str) -> Path:
    """Where a pool is that was named: a file or folder, or else the name of a pool that comes with the package."""
    path = Path(given)
    if not path.exists() and path.name == str(given):
        with suppress(FileNotFoundError):
            return shipped("pools", path.name)
    return path


def shipped(folder: str, name: str) -> Path:
    """Path of `folder/name` inside the installed package; raises FileNotFoundError if it is not there."""
    path = Path(str(files(__package__))) / folder / name
    if not path.exists():
        raise FileNotFoundError(f"{folder}/{name} does not come with this installation")
    return path
