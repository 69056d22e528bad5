from html import unescape

import paceline
import pytest
from paceline.traces.importers import ImportOptions, choose_format, format_names

from ..traces.importers.foreign_files import STATED, one_file_each


@pytest.mark.parametrize("name", format_names())
def test_every_format_becomes_a_recording_and_is_told(tmp_path, name):
    files = one_file_each(tmp_path)[name]
    imported = paceline.import_logs(files, tmp_path / "x.trace", ImportOptions(**STATED.get(name, {})))
    recording = paceline.open_recording(tmp_path / "x.trace")
    assert imported.num_requests == len(recording.requests)
    assert imported.meta == recording.meta
    first, *notes = imported.lines()
    assert first.startswith(f"{tmp_path / 'x.trace'}: imported from {name} (")
    assert first.endswith(f"; saw {choose_format(name, files).words}")
    assert tuple(notes) == recording.meta.notes


def test_texts_do_for_paths_and_nothing_is_overwritten(tmp_path):
    (file,) = one_file_each(tmp_path)["positions"]
    made = paceline.import_logs(str(file), str(tmp_path / "x.trace"), format_name="positions")
    assert "saw" not in made.lines()[0]
    assert "".join(str(made).split()) == "".join("".join(made.lines()).split())  # broken at the width of tables
    assert made.lines()[0] in unescape(made._repr_html_())
    assert not made.tables()
    assert [row["name"] for row in made.to_dicts()] == list(made.meta.drafter_names)
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir())
    with pytest.raises(FileExistsError, match=r"x\.trace: exists already; a recording is never overwritten"):
        paceline.import_logs([file], tmp_path / "x.trace")
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir()) == before
