"""Strict JSON, files and folders that appear whole or not at all, this machine's folders, and shipped files.

JSON is rejected where its meaning is ambiguous (a repeated key), and its size and nesting are bounded. New files are
written beside their place under a name of their own and moved there at the end. A link stays a link, and errors name
the path that was asked for.
"""

import errno
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn, TypeAlias

from .errors import did_you_mean, repeated

FOLDER_VARIABLE = "PACELINE_CACHE"


def processor() -> str:
    """The processor's name as the system gives it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def num_processors() -> int:
    """Processors that this process may run on, >= 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kept_folder() -> Path:
    """Where measurements of this machine are kept: $PACELINE_CACHE, else the user's folder for caches."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "paceline"


DEFAULT_POOL = "pico"
DEFAULT_RECORDING = "pico"


def pool_path(given: Path | str | None) -> Path:
    """Where a pool is: a file or folder, else one that comes with the package, by its name; None is `DEFAULT_POOL`."""
    if given is None:
        return shipped("pools", DEFAULT_POOL)
    return _here_or_shipped(given, "pools", "")


def recording_path(given: Path | str | None) -> Path:
    """Where a recording is: a folder, else one that comes with the package, by its name; None is the default one."""
    if given is None:
        return shipped("recordings", f"{DEFAULT_RECORDING}.trace")
    return _here_or_shipped(given, "recordings", ".trace")


def _here_or_shipped(given: Path | str, folder: str, ending: str) -> Path:
    """The path as given; if it is a bare name in `folder` and nothing here has it, the path there."""
    if given == "":  # as a path it is the current folder
        raise ValueError(f"a path, or the name of one of the shipped {folder}, must not be empty, got ''")
    path = Path(given)
    if not path.exists() and len(path.parts) == 1:
        with suppress(FileNotFoundError):
            return shipped(folder, f"{path.name}{ending}")
        near = did_you_mean(path.name, shipped_names(folder, ending))
        if near:
            raise ValueError(f"{path}: must be a path, or the name of one of the shipped {folder}; {near}")
    return path


def shipped_names(folder: str, ending: str = "") -> list[str]:
    """The names of folders in `folder` of the installed package, in order, each without its `ending`."""
    inside = sorted(path.name for path in shipped(folder, ".").iterdir() if path.is_dir())
    return [name.removesuffix(ending) for name in inside if name.endswith(ending)]


def is_shipped(path: Path) -> bool:
    """Whether a file came with the package, however it was named."""
    return path.resolve().is_relative_to(_ROOT / "pools")


_ROOT = Path(__file__).resolve().parents[1]  # of the package


def shipped(folder: str, name: str) -> Path:
    """Path of `folder/name` inside the installed package; raises FileNotFoundError if it is not there."""
    path = _ROOT / folder / name
    if not path.exists():
        raise FileNotFoundError(f"{folder}/{name} does not come with this installation")
    return path


MOST_BYTES = 2**27  # of a file that is read whole, and of a line of a longer one
MOST_DEPTH = 100  # of brackets within brackets: code that walks through values may call itself for each
Refused: TypeAlias = Callable[[Path, str, str, object], ValueError]  # of a file, its field, the rule and the value


def decode_json(text: bytes, *, decimals: bool = False, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The one value that a text holds.

    Args:
        text: UTF-8; a byte order mark at its beginning is ignored, as RFC 8259 allows (8.1).
        decimals: whether numbers with a point or an exponent become `Decimal`, digit by digit, instead of floats.
        constants: whether NaN, Infinity and -Infinity are taken, as floats: for files of others, whose fields are
            checked one by one as they are read.

    Raises:
        ValueError: no UTF-8, no JSON, brackets nested deeper than 100, or an object that has a key twice; one line.
    """
    try:
        found = json.loads(
            text.decode("utf-8-sig"),
            parse_constant=float if constants else _refuse_constant,
            object_pairs_hook=_object,
            parse_float=Decimal if decimals else None,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"a byte that is no UTF-8, at {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("brackets nested too deep") from None
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH and nested_too_deep(found):
        raise ValueError("brackets nested too deep")
    return found


def read_json(path: Path, *, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The one value of a file; raises OSError, and ValueError as `decode_json` and for a file of more than 128 MiB."""
    return decode_json(read_bounded(path), constants=constants)


def checked_json(path: Path, refused: Refused, *, content: bytes | None = None, constants: bool = False) -> Any:  # noqa: ANN401 - what JSON holds
    """The one value of a file, or of its `content` where that was read already; `constants` as of `decode_json`.

    Raises what `refused` makes of path, field, rule and value.
    """
    try:
        return decode_json(read_bounded(path) if content is None else content, constants=constants)
    except OSError as error:
        raise refused(path, "file", "must be a readable file", error.strerror) from None
    except ValueError as error:
        raise refused(path, "content", "must be JSON", str(error)) from None


def checked_config(path: Path, refused: Refused) -> dict[str, Any]:
    """The keys of a config or of a file beside one, as others write them; raises as `checked_json`."""
    found = checked_json(path, refused, constants=True)
    if not isinstance(found, dict):
        raise refused(path, "content", "must be an object", kind_of_json(found))
    return found


def read_bounded(path: Path) -> bytes:
    """All of a file; raises OSError, and ValueError for more than 128 MiB, without reading the rest."""
    with path.open("rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return found


def nested_too_deep(value: object) -> bool:
    """Whether a decoded value of JSON or TOML has lists and tables within each other to more than 100 levels."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_DEPTH):
        held = (one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer))
        level = [one for one in held if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def kind_of_json(value: object) -> str:
    """What a decoded value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value), "a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = repeated(key for key, _ in pairs)[0]
        raise ValueError(f"key {twice[:100]!r} twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no JSON")


def as_file_name(text: str) -> str:
    """Its letters, digits and `._+-`, each run of others as one hyphen; unlike texts may have one name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-")


def place_of(path: Path) -> Path:
    """Where `path` leads, through links; raises OSError for links that lead to themselves."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # which of them depends on the version of Python
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file (text as UTF-8), or through a pipe or a device; what `path` leads to is replaced at the very end.

    Raises OSError that names `path`; then a file there is unchanged, and no temporary file is left.
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
    """A file to fill, which takes the place of the one `path` leads to if the block ends well, and vanishes if not.

    Raises OSError that names `path`.
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
    """A folder to fill, which takes the place of the one `path` leads to if the block ends well, and vanishes if not.

    Missing folders above it are made, and vanish with it. Raises OSError that names `path`.
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
    with suppress(OSError):  # it may not exist
        part.unlink()


def _clear(place: Path, part: Path, former: Path, made: list[Path]) -> None:
    if former.exists() and not place.exists():
        former.rename(place)
    for folder in (part, former):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in made:
        try:
            folder.rmdir()
        except OSError:  # never made, or in use: it is complete, or belongs to another program
            return


def _twice(clear: Callable[[], object]) -> None:
    """Clear away, again if an interrupt comes in between: only one can come."""
    try:
        clear()
    except KeyboardInterrupt:
        clear()
        raise


@contextmanager
def _errors_of(path: Path, *parts: Path) -> Iterator[None]:
    """Make errors of temporary files name `path`; others pass unchanged."""
    try:
        yield
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is not None and named != place_of(path) and not any(named.is_relative_to(part) for part in parts):
            raise
        # Arrow gives a text of its own, with or without a number.
        told = os.strerror(error.errno) if error.errno else f"cannot be written: {error}"
        raise OSError(error.errno or errno.EIO, told, str(path)) from None
