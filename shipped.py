"""Where the pool and the recordings that come with the package are."""

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from .arguments import did_you_mean

DEFAULT_POOL = "pico"
DEFAULT_RECORDING = "pico"


def pool_path(given: Path | str | None) -> Path:
    """Where a pool is: a file or folder, else one that comes with the package, by its name; None is `DEFAULT_POOL`."""
    if given is None:
        return shipped("pools", DEFAULT_POOL)
    return _here_or_shipped(Path(given), "pools", "")


def recording_path(given: Path | str | None) -> Path:
    """Where a recording is: a folder, else one that comes with the package, by its name; None is the default one."""
    if given is None:
        return shipped("recordings", f"{DEFAULT_RECORDING}.trace")
    return _here_or_shipped(Path(given), "recordings", ".trace")


def _here_or_shipped(path: Path, folder: str, ending: str) -> Path:
    """A path as it is, but for a mere name of something in `folder` where nothing here has that name."""
    if not path.exists() and len(path.parts) == 1:
        with suppress(FileNotFoundError):
            return shipped(folder, f"{path.name}{ending}")
        near = did_you_mean(path.name, shipped_names(folder, ending))
        if near:
            raise ValueError(f"{path}: must be a path, or the name of one of the shipped {folder}; {near}")
    return path


def shipped_names(folder: str, ending: str = "") -> list[str]:
    """What `folder` of the installed package holds, in order, each without its `ending`."""
    inside = sorted(path.name for path in shipped(folder, ".").iterdir() if path.is_dir())
    return [name.removesuffix(ending) for name in inside if name.endswith(ending)]


def is_shipped(path: Path) -> bool:
    """Whether a file came with the package, however it was named."""
    return path.resolve().is_relative_to(Path(str(files(__package__))).resolve() / "pools")


def shipped(folder: str, name: str) -> Path:
    """Path of `folder/name` inside the installed package; raises FileNotFoundError if it is not there."""
    path = Path(str(files(__package__))) / folder / name
    if not path.exists():
        raise FileNotFoundError(f"{folder}/{name} does not come with this installation")
    return path
