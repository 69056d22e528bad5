"""Small files of a pool's members: tokenizers, and others by name; loading by transformers without its notices."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.utils import logging
from transformers.utils.hub import cached_file

from .hub import check_hub
from .pool_file import HUB_ID, PoolFile, PoolFileError
from .published import TOKENIZER, fetched


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from printing bars or reports; loading errors are reported in one line."""
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def file_beside(location: Path | str, name: str) -> Path | None:
    """A small file of a model or a tokenizer, in its folder or fetched from the hub; None if it has none."""
    if isinstance(location, Path):
        return location / name if (location / name).is_file() else None
    found = cached_file(location, name, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def load_tokenizer(file: Path, field: str, location: str) -> tuple[Tokenizer, str]:
    """The tokenizer at `location` and its hash: of the file, or for a hub id of the serialised tokenizer.

    `location` is a file relative to the pool file, or a hub id (if fetched, it has a file); `field` of the pool file
    names it.

    Raises:
        PoolFileError: there is no such tokenizer, or it cannot be read.
    """
    local = file.parent / location
    if not local.is_file() and (location.endswith(".json") or not HUB_ID.fullmatch(location)):
        raise PoolFileError(file, field, "must be an existing file or a hub id (owner/name)", location)
    if not local.is_file() and (here := fetched(location)):
        local = here / TOKENIZER
    if not local.is_file():
        check_hub(file, field, location)
    tokenizer: Tokenizer
    try:
        if local.is_file():
            tokenizer, hashed = Tokenizer.from_file(str(local)), local.read_bytes()
        else:
            tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False).backend_tokenizer
            hashed = tokenizer.to_str().encode()
    # The tokenizers package raises bare Exception for a file it cannot read.
    except Exception as error:
        raise PoolFileError(file, field, f"cannot be loaded ({error})", location) from error
    # A file may set truncation and padding.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(hashed).hexdigest()


def load_member_tokenizers(file: Path, content: PoolFile) -> dict[str, Tokenizer]:
    """Tokenizers of foreign members and of their submodels, by the member's name.

    Raises:
        PoolFileError: as `load_tokenizer`.
    """
    tokenizers = {
        entry.name: load_tokenizer(file, f"members[{row}].tokenizer", entry.tokenizer)[0]
        for row, entry in enumerate(content.members)
        if entry.tokenizer is not None
    }
    for entry in content.members:
        if entry.submodel_of in tokenizers:
            tokenizers[entry.name] = tokenizers[entry.submodel_of]
    return tokenizers
