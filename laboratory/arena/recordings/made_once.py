"""Folders that are made once: each appears whole, and is used again while what it is made of stays the same.

Two processes that want one folder do not both make it: the second waits for the first. Who makes it holds a lock of the
system on a file beside it, which ends with the process, however that ends. So the file stays, and says nothing.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ....progress import tell
from ....whole_files import write_whole


def made_once(out: Path, fingerprint: str, make: Callable[[Path], None]) -> Path:
    """The folder `out`, made unless it is there and was made with this fingerprint.

    A fingerprint stands beside what it is of: `NAME.made.json` of a finished folder, `NAME.making.json` of one that was
    cut short, so that what is left of that is gone on from only where it is of the same recipe. While another process
    makes it, this one waits.

    Args:
        out: the folder.
        fingerprint: of all that decides what is in it.
        make: writes a folder that is not there, `NAME.making` with the suffix of `out`; what it keeps to go on from
            after it was cut short stands beside, under names that begin with that one.
    """
    if is_made(out, fingerprint):
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        if not is_made(out, fingerprint):  # by whom this one waited for
            _make(out, fingerprint, make)
    return out


def _make(out: Path, fingerprint: str, make: Callable[[Path], None]) -> None:
    made, begun = _made(out), out.with_name(f"{out.stem}.making.json")
    part = out.with_name(f"{out.stem}.making{out.suffix}")
    if _read(begun) != fingerprint:
        _remove_all(part)
        _write(begun, fingerprint)
    shutil.rmtree(part, ignore_errors=True)
    tell(f"making {out}")
    make(part)
    # In this order a kill leaves a folder without its fingerprint, never one with that of another.
    made.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)
    _write(made, fingerprint)
    begun.unlink()
    _remove_all(part)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else makes `out` in this block; its beginning waits until that is so."""
    with out.with_name(f"{out.stem}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for {out}, which another process makes")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_made(out: Path, fingerprint: str) -> bool:
    """Whether the folder `out` is there, and was made with this fingerprint."""
    return out.exists() and _read(_made(out)) == fingerprint


def _made(out: Path) -> Path:
    return out.with_name(f"{out.stem}.made.json")


def _remove_all(part: Path) -> None:
    """A folder and what was kept beside it."""
    for path in part.parent.glob(f"{part.name}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(path: Path, fingerprint: str) -> None:
    write_whole(path, json.dumps({"fingerprint": fingerprint}) + "\n")


def _read(path: Path) -> str | None:
    """The fingerprint that was kept, None without a sound one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("fingerprint") if isinstance(found, dict) else None
