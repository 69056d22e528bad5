"""Where real recordings lie that are not ours to ship; tests on them are skipped where there are none."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[1].parent / "shared" / "data"


def data_folder() -> Path | None:
    """The folder PACELINE_DATA names, else one beside the checkout, else None."""
    named = os.environ.get("PACELINE_DATA")
    folder = Path(named) if named else BESIDE
    return folder if folder.is_dir() else None


with_data = pytest.mark.skipif(
    data_folder() is None, reason="no folder of real data beside the checkout, nor in PACELINE_DATA"
)


def data_files(folder: str, pattern: str = "*") -> list[Path]:
    """Files of one data set by name, empty where the data is not there."""
    data = data_folder()
    return [] if data is None else sorted((data / folder).glob(pattern))
