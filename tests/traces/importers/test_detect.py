import tomllib
from pathlib import Path

import pytest
from paceline.traces import TraceFormatError, importers
from paceline.traces.importers import choose_format, format_names
from paceline.traces.importers.formats import FORMATS, detect, format_named

from .foreign_files import one_file_each, write_lines

SHEET = Path(importers.__file__).with_name("formats.toml")


def test_every_format_is_told_by_its_files(tmp_path):
    for name, files in one_file_each(tmp_path).items():
        assert detect(files).name == name
        assert detect(files[::-1]).name == name
        assert choose_format("auto", files) is format_named(name)


def test_the_list_of_formats(tmp_path):
    assert set(format_names()) == set(tomllib.loads(SHEET.read_text()))
    assert set(format_names()) == set(one_file_each(tmp_path))
    for known in FORMATS:
        assert known.words
        assert known.keys
        assert [note.split(":")[0] for note in known.notes] == ["Exact", "Unknown"]
        assert all(note.endswith(".") and "\n" not in note for note in known.notes)


def test_files_of_two_formats_or_of_two_at_once(tmp_path):
    files = one_file_each(tmp_path)
    with pytest.raises(TraceFormatError, match=r"pos\.jsonl: format: must be vllm-detailed as the files before it"):
        detect([*files["vllm-detailed"], *files["positions"]])
    with pytest.raises(TraceFormatError, match=r"pos\.jsonl: format: must be eagle-timed"):
        detect([files["eagle-timed"][1], files["eagle-timed"][0], *files["positions"]])
    both = write_lines(tmp_path / "both.jsonl", {"id": 1, "drafters": {}, "question_id": 1, "choices": []})
    with pytest.raises(TraceFormatError, match="must be named, the file could be spec-bench or positions"):
        detect([both])


def test_a_format_by_name():
    with pytest.raises(ValueError, match=r"format must be a known one .known are eagle-timed, spec-bench, "):
        format_named("csv")
    with pytest.raises(ValueError, match="files must name at least one file"):
        choose_format("auto", [])
    with pytest.raises(ValueError, match=r"files must be given once each, got 'x\.jsonl' twice"):
        choose_format("spec-bench", [Path("x.jsonl"), Path("y.jsonl"), Path("x.jsonl")])
    with pytest.raises(ValueError, match=r"format must be auto or a known one \(known are eagle-timed, .*, got 'csv'"):
        choose_format("csv", [Path("x.jsonl")])
