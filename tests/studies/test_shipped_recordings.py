"""What comes with the package is found by its name."""

from pathlib import Path

import paceline
import pytest
from paceline.base.files import recording_path, shipped
from paceline.traces.errors import TraceFormatError


def test_a_recording_is_a_folder_or_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    assert recording_path(None) == recording_path("pico") == shipped("recordings", "pico.trace")
    assert paceline.open_recording("pico-coupled").about.name == "pico-coupled"
    (tmp_path / "pico").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recording_path("pico") == Path("pico")  # what is here goes first
    assert recording_path(tmp_path / "pico") == tmp_path / "pico"
    with pytest.raises(TraceFormatError, match="nobody: trace: must be a directory, got 'nothing there'"):
        paceline.open_recording("nobody")
