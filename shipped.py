"""Where the pool and the recordings that come with the package are."""

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

DEFAULT_POOL = "pico"


def pool_path(given: Path | str | None) -> Path:
    """Where a pool is: a file or folder, else one that comes with the package, by its name; None is `DEFAULT_POOL`."""
    if given is None:
        return shipped("pools", DEFAULT_POOL)
    path = Path(given)
    if not path.exists() and path.name == str(given):
        with suppress(FileNotFoundError):
            return shipped("pools", path.name)
    return path


def is_shipped(path: Path) -> bool:
    """Whether a file came with the package, however it was named."""
    return path.resolve().is_relative_to(Path(str(files(__package__))).resolve() / "pools")


def shipped(folder: str, name: str) -> Path:
    """Path of `folder/name` inside the installed package; raises FileNotFoundError if it is not there."""
    path = Path(str(files(__package__))) / folder / name
    if not path.exists():
        raise FileNotFoundError(f"{folder}/{name} does not come with this installation")
    return path
