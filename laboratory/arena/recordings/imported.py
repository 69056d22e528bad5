"""Recordings that others published, where they lie on this machine; nothing of them is shipped."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ....traces.folder import hash_file
from ....traces.importers import ImportOptions, import_recording
from ....traces.rounds.rounds import RoundsRequest
from ..asked.code_version import code_version
from .source import QuickSource, RecordingUnavailableError, Shelf

DATA = "PACELINE_DATA"  # environment variable that names the folder of published logs
BESIDE = Path(__file__).parents[3].parent / "shared" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSource(QuickSource):
    """Logs of a benchmark, through the importer of their format.

    Attributes:
        folder: of the logs, below the folder of published logs.
        pattern: which of its files.
        format_name: of the importer.
        every: of the logged requests the first of so many is taken, >= 1, so that all tasks stay.
    """

    folder: str
    pattern: str
    format_name: str
    every: int

    def recipe(self) -> object:
        """Hashes of the files, what is done with them, and the code that does it.

        Raises:
            RecordingUnavailableError: the files are not there.
        """
        files = {path.name: hash_file(path) for path in self._files()}
        code = code_version([import_recording.__module__])
        return {"files": files, "format": self.format_name, "every": self.every, "code": code}

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Import them; raises RecordingUnavailableError where they are not there."""
        del shelf
        import_recording(self.format_name, self._files(), out, ImportOptions(name=name), watch=self._taken)

    def _taken(self, requests: Iterable[RoundsRequest]) -> Iterable[RoundsRequest]:
        return islice(requests, 0, None, self.every)

    def _files(self) -> list[Path]:
        folder = published_logs() / self.folder
        files = sorted(folder.glob(self.pattern))
        if not files:
            rule = f"published logs {self.pattern} must lie there, or below the folder that {DATA} names"
            raise RecordingUnavailableError(f"{folder}: {rule}, got none")
        return files


def spec_bench() -> ImportedSource:
    """Vicuna-7B with EAGLE and with a draft model of 68 million parameters, on the tasks of Spec-Bench."""
    return ImportedSource(folder="specbench_yukiki", pattern="*.jsonl.gz", format_name="spec-bench", every=9)


def hsd() -> ImportedSource:
    """Llama-3.1-8B with EAGLE-3, its tree verified as it comes and by hierarchical speculative decoding, on GSM8K."""
    return ImportedSource(folder="hsd_eagle3_h100", pattern="h100_*.jsonl.gz", format_name="eagle-timed", every=2)


def published_logs() -> Path:
    """The folder that PACELINE_DATA names, else `shared/data` beside the checkout; it need not be there."""
    return Path(os.environ.get(DATA) or BESIDE)
