import json

import pytest
from paceline.traces import read_rounds
from paceline_laboratory.arena import recordings as imported
from paceline_laboratory.arena.recordings import RecordingShelf, RecordingUnavailableError, hsd, spec_bench

from ....data_folder import data_files

SOURCES = {"specbench": (spec_bench(), 3), "hsd": (hsd(), 4)}


@pytest.fixture(params=SOURCES)
def made(request, tmp_path, monkeypatch):
    """A recording by name, where its logs lie."""
    source, count = SOURCES[request.param]
    files = data_files(source.folder, source.pattern)
    if len(files) != count:
        pytest.skip(f"no {source.folder} in PACELINE_DATA")
    monkeypatch.setenv("PACELINE_DATA", str(files[0].parents[1]))
    return read_rounds(RecordingShelf(work=tmp_path).recording(request.param))


def test_a_part_of_the_logs_is_imported_with_every_method(made):
    source, _ = SOURCES[made.meta.name]
    assert {drafter.name for drafter in made.meta.drafters} == {"specbench": {"eagle", "sps"}, "hsd": {"eagle", "hsd"}}[
        made.meta.name
    ]
    assert made.meta.source == source.format_name
    assert sum(request.length("") for request in made.requests) >= 5_000


def test_every_task_stays(made):
    tags = {request.tag for request in made.requests}
    assert len(tags) == {"specbench": 13, "hsd": 1}[made.meta.name]


@pytest.mark.parametrize("name", SOURCES)
def test_absent_logs_are_said_in_one_line_with_where_they_were_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(RecordingUnavailableError, match="PACELINE_DATA") as refused:
        RecordingShelf(work=tmp_path).recording(name)
    assert str(tmp_path / "nowhere" / SOURCES[name][0].folder) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.trace"))


def test_other_logs_are_another_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    folder = tmp_path / hsd().folder
    folder.mkdir()
    (folder / "h100_a.jsonl.gz").write_bytes(b"one")
    before = json.dumps(hsd().recipe())
    (folder / "h100_a.jsonl.gz").write_bytes(b"two")
    assert json.dumps(hsd().recipe()) != before


def test_other_code_is_another_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    folder = tmp_path / hsd().folder
    folder.mkdir()
    (folder / "h100_a.jsonl.gz").write_bytes(b"one")
    before = hsd().recipe()
    monkeypatch.setattr(imported, "code_version", lambda roots: f"changed {roots}")
    assert hsd().recipe() != before
