"""Files that cannot be read, and lines that are no JSON object: one line each, with file and number."""

import gzip
import json
import os

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers.reading import first_object, read_objects, the_one


def refusal(path):
    with pytest.raises(TraceFormatError) as error:
        list(read_objects(path))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_objects_with_their_places(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}')
    assert [(found.place, found.values) for found in read_objects(path)] == [
        (f"{path}: line 1", {"a": 1}),
        (f"{path}: line 4", {"a": 2}),
    ]


def test_compressed_files(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert [found.values for found in read_objects(path)] == [{"a": 1}]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"a": 1', "line 2: JSON: must be one JSON object (the file's last line: is it cut?), got "),
        (b"null", "got 'null'"),
        (b"true", "got 'true'"),
        (b"3", "got 'a number'"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "got \"key 'b' twice\""),
        (b'{"a": nan}', "got 'Expecting value at character 6'"),
        (b'{"a": "\xff"}', "got 'a byte that is no UTF-8, at 7'"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "got 'brackets nested too deep'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 2: JSON: must be one JSON object"),
        (b"\x00\x01\x02", "line 2: JSON: must be one JSON object"),
    ],
)
def test_a_malformed_last_line_is_told_by_its_number(tmp_path, line, told):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line)
    found = refusal(path)
    assert found.startswith(f"{path}: line 2: JSON: ")
    assert told in found
    assert "last line" in found


def test_the_entries_of_an_array_are_objects(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'[{"a": 1}, 2]')
    assert refusal(path).startswith(f"{path}: line 1, entry 1: JSON: must be one JSON object")


def test_a_malformed_line_between_is_not_the_last(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    assert "line 2: JSON: must be one JSON object, got " in refusal(path)


def test_files_that_cannot_be_read(tmp_path):
    assert "file: must be a readable file, got 'Is a directory'" in refusal(tmp_path)
    assert "got 'No such file or directory'" in refusal(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"\n \n")
    assert "file: must hold a JSON object, got 'nothing'" in refusal(empty)
    for reading in (read_object, first_object):
        with pytest.raises(TraceFormatError, match="file: must hold a JSON object, got 'nothing'"):
            reading(empty)


def test_nobody_looks_ahead_in_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceFormatError, match="pipe: file: must not be a pipe, to be read twice, got 'a pipe'"):
        first_object(tmp_path / "pipe")


def test_compressed_files_that_are_cut_or_altered(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    data = gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(5000)))
    path.write_bytes(data[: len(data) // 2])
    assert f"{path}: file: must be a readable file, got " in refusal(path)
    path.write_bytes(data[:100] + b"\xff" * 50 + data[150:])
    assert f"{path}: " in refusal(path)
    path.write_bytes(b"no gzip")
    assert "must be a readable file, got " in refusal(path)


def test_one_object_over_many_lines(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{\n "a": 1\n}\n')
    assert read_object(path).values == first_object(path).values == {"a": 1}
    path.write_text('{\n "a": \n}\n')
    for reading in (read_object, first_object):
        with pytest.raises(TraceFormatError, match="JSON: must be one JSON object"):
            reading(path)


def read_object(path):
    return the_one(path, read_objects(path), None)


VALUES = [{"id": "a", "text": 'br{ack[ets" and \\ more'}, {"id": "b", "list": [[1], {"c": {}}]}, {"id": "c"}]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps(value) for value in VALUES),
        "\n\n".join(json.dumps(value, indent=2) for value in VALUES),
        "\n".join(json.dumps(value, indent=0) for value in VALUES),
        json.dumps(VALUES),
        json.dumps(VALUES, indent=4),
        "[\n" + ",\n".join(json.dumps(value) for value in VALUES) + "\n]\n",
        json.dumps(VALUES[0]) + "\n" + json.dumps(VALUES[1], indent=1) + "\n" + json.dumps(VALUES[2]),
    ],
)
def test_objects_by_the_line_over_lines_and_in_arrays(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert [found.values for found in read_objects(path)] == VALUES


def test_what_is_no_object_can_be_skipped(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": [2,\n{"a": 3}\nnonsense\n{"a": 5}\n{"a": [')
    skipped = []
    assert [found.values for found in read_objects(path, skipped.append)] == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert [error.path for error in skipped] == [f"{path}: line {number}" for number in (2, 4, 6)]


def test_a_pretty_printed_file_that_is_cut(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{\n "a": 1,\n "b": [\n')
    assert refusal(path).startswith(f"{path}: line 1: JSON: must be one JSON object (is the file cut?), got ")
