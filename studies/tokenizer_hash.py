"""The tokenizer a pool uses, by hash, without loading any model."""

import hashlib
from pathlib import Path

from ..runtime.pools.pool_file import PoolFileError, read_pool_file


def tokenizer_sha256(pool: Path) -> str:
    """Hash of the pool's tokenizer file, as recordings store it.

    Raises:
        PoolFileError: the pool file is wrong, or its tokenizer is not a local file.
    """
    file, content = read_pool_file(pool)
    path = file.parent / content.tokenizer
    if not path.is_file():
        raise PoolFileError(file, "tokenizer", "must be a local file to be compared", content.tokenizer)
    return hashlib.sha256(path.read_bytes()).hexdigest()
