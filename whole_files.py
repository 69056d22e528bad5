"""Files and folders that appear whole or not at all.

They are written beside their place, under a name that nobody else uses, and moved there at the end. A link stays one:
what it leads to is replaced. Errors name what was asked for, never what it was written under.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex


def place_of(path: Path) -> Path:
    """Where `path` leads, through links; raises OSError for links that lead to themselves."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # which of them depends on the version of Python
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or through a pipe or a device.

    Args:
        path: of the file; the file it leads to is replaced at the very end.
        content: text is written as UTF-8.

    Raises:
        OSError: naming `path`; a file there is as it was, and nothing lies beside it.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    place = place_of(path)
    if place.exists() and not place.is_file():
        with _errors_of(path):
            place.write_bytes(data)
        return
    with whole_file(path) as part:
        part.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to fill that takes the place of the one `path` leads to if the block ends well, and vanishes if not.

    Raises:
        OSError: naming `path`.
    """
    place = place_of(path)
    part = _beside(place)
    try:
        with _errors_of(path, part):
            part.touch(exist_ok=False)
            yield part
            if place.exists():
                part.chmod(place.stat().st_mode)
            part.replace(place)
    finally:
        _twice(lambda: _remove(part))


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of the one `path` leads to if the block ends well, and vanishes if not.

    Folders above that are missing are made, and vanish with it.

    Raises:
        OSError: naming `path`.
    """
    place = place_of(path)
    part, former = _beside(place), _beside(place)
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        with _errors_of(path, part):
            part.mkdir(parents=True)
            yield part
            if place.exists():
                place.rename(former)
            part.rename(place)
    finally:
        _twice(lambda: _clear(place, part, former, missing))


def _beside(place: Path) -> Path:
    """A hidden name in the same folder, so that a move is one step; as short for any name."""
    return place.with_name(f".{token_hex(8)}.part")


def _remove(part: Path) -> None:
    with suppress(OSError):  # it may never have been made
        part.unlink()


def _clear(place: Path, part: Path, former: Path, made: list[Path]) -> None:
    """Take away all but what was there before, or what is whole now."""
    if former.exists() and not place.exists():
        former.rename(place)
    for folder in (part, former):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in made:
        try:
            folder.rmdir()
        except OSError:  # never made, or in use: whole now, or by somebody else
            return


def _twice(clear: Callable[[], object]) -> None:
    """Clear away, also where an interrupt comes in between: it comes once."""
    try:
        clear()
    except KeyboardInterrupt:
        clear()
        raise


@contextmanager
def _errors_of(path: Path, *parts: Path) -> Iterator[None]:
    """Errors of what is written on the way there name `path`; others go through."""
    try:
        yield
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is not None and named != place_of(path) and not any(named.is_relative_to(part) for part in parts):
            raise
        # Arrow gives a text of its own, with or without a number.
        told = os.strerror(error.errno) if error.errno else f"cannot be written: {error}"
        raise OSError(error.errno or errno.EIO, told, str(path)) from None
