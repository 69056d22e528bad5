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
    assert imported.to_json() == {
        "trace": str(tmp_path / "x.trace"),
        "requests": len(recording.requests),
        **recording.meta.model_dump(mode="json"),
    }


def test_texts_do_for_paths_and_nothing_is_overwritten(tmp_path):
    (file,) = one_file_each(tmp_path)["positions"]
    options = ImportOptions(**STATED.get("positions", {}))
    made = paceline.import_logs(str(file), str(tmp_path / "x.trace"), options)
    assert "".join(str(made).split()) == "".join("".join(made.lines()).split())  # broken at the width of tables
    assert made.lines()[0] in unescape(made._repr_html_())
    assert not made.tables()
    assert [row["name"] for row in made.to_dicts()] == list(made.meta.drafter_names)
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir())
    with pytest.raises(FileExistsError, match=r"x\.trace: exists already; a recording is never overwritten"):
        paceline.import_logs([file], tmp_path / "x.trace", options)
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir()) == before


def test_a_format_that_was_named_is_not_said_to_be_seen(tmp_path):
    files = one_file_each(tmp_path)["positions"]
    assert "saw" not in paceline.import_logs(files, tmp_path / "x.trace", format_name="positions").lines()[0]
