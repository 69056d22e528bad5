"""The finished requests of a recording that is not finished: what a killed recording goes on from."""

import shutil
import zlib
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from ...traces.tries.features.views import FeatureViews, arrays_of, feature_fields
from ...traces.tries.trie import TreeRanks, Trie, columns_of, plain_columns
from ...whole_files import whole_file, write_whole

FURTHER = "features."
_FINGERPRINT_FILE = "fingerprint"


class Ties(NamedTuple):
    """Near ties of one request: of all models anywhere, and of the target along the trunk."""

    anywhere: int
    on_trunk: int


class Parts:
    """A folder with one `.npz` (no pickle) per finished request and the fingerprint of what is being recorded.

    Every file is written beside its place and moved there, so that a part is whole or absent.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Open the folder, or make it.

        Raises:
            ValueError: the folder holds parts of another recording.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _FINGERPRINT_FILE
        if not file.is_file():
            write_whole(file, fingerprint)
            return
        found = file.read_text(encoding="utf-8", errors="replace")
        if found != fingerprint:
            raise ValueError(
                f"{folder}: fingerprint must be that of this pool, these prompts and options ({fingerprint[:12]}; "
                f"remove the folder to start afresh), got {found[:12]!r}"
            )

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"

    def has(self, number: int) -> bool:
        """Whether request `number` (from 0, in file order) is finished."""
        return self._file(number).is_file()

    def keep(self, number: int, trie: Trie, ties: Ties) -> None:
        """Write a finished request."""
        columns = columns_of(trie)
        if trie.ranks is not None:
            columns |= {field.name: getattr(trie.ranks, field.name) for field in fields(TreeRanks)}
        if trie.features is not None:
            columns |= {f"{FURTHER}{name}": array for name, array in arrays_of(trie.features).items()}
        with whole_file(self._file(number)) as part, part.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, ties=np.array(ties, dtype=np.int64), **columns)

    def read(self, number: int) -> tuple[Trie, Ties]:
        """A finished request's trie and its near ties.

        Raises:
            ValueError: the file was damaged; the message says how to go on.
        """
        file = self._file(number)
        try:
            with np.load(file, allow_pickle=False) as columns:
                arrays = {name: columns[name] for name in plain_columns()}
                features = None
                if f"{FURTHER}next_token" in columns:
                    features = FeatureViews(**{name: columns[f"{FURTHER}{name}"] for name in feature_fields()})
                ranks = None
                if "rank" in columns:
                    ranks = TreeRanks(**{field.name: columns[field.name] for field in fields(TreeRanks)})
                return Trie(**arrays, ranks=ranks, features=features), Ties(*columns["ties"].tolist())
        except (BadZipFile, KeyError, ValueError, TypeError, EOFError, zlib.error) as error:
            raise ValueError(f"{file}: cannot be read ({error}); remove it to record this request again") from None

    def remove_if_empty(self) -> None:
        """Remove the folder if no request is finished, so that there is nothing to go on from."""
        if not any(self.folder.glob("*.npz")):
            self.remove()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)
