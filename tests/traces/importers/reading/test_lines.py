"""Lines of files are bounded, also of those that are small until they are unpacked."""

import gzip
import tracemalloc

import pytest
from paceline.base.files import MOST_BYTES
from paceline.runtime.prompts import read_prompts
from paceline.runtime.tasks import read_task
from paceline.traces import TraceFormatError
from paceline.traces.importers import read_recording
from paceline.traces.importers import reading as json_texts
from paceline.traces.importers import reading as lines
from paceline.traces.importers.reading import lines_of, read_objects, text_lines
from paceline.traces.workloads import open_workload


@pytest.fixture
def bounded(monkeypatch):
    for module in (lines, json_texts):
        monkeypatch.setattr(module, "MOST_BYTES", 100)


def test_lines_of_any_number_pass_and_a_long_one_is_refused_by_its_number(tmp_path, bounded):
    path = tmp_path / "x"
    path.write_bytes((b"x" * 99 + b"\n") * 1000)
    assert len(list(lines_of(path))) == 1000
    path.write_bytes(b"x\n\n" + b"x" * 101)
    for reading in (lines_of, text_lines, read_objects):
        with pytest.raises(TraceFormatError) as error:
            list(reading(path))
        assert str(error.value) == f"{path}: line 3: line: must have at most 100 bytes, got 'more'"


def test_a_value_over_many_lines_is_bounded_too(tmp_path, bounded):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}\n[\n' + '{"b": 2},\n' * 20)
    with pytest.raises(TraceFormatError) as error:
        list(read_objects(path))
    assert str(error.value) == f"{path}: line 2: value: must have at most 100 bytes, got 'more'"


@pytest.fixture(scope="module")
def bomb():
    """A small file that unpacks to three times what a line may have."""
    return gzip.compress(b'{"a": "' + b"x" * (3 * MOST_BYTES), compresslevel=1)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_recording("auto", [path]),
        lambda path: read_recording("vllm-log", [path]),
        lambda path: list(open_workload(path)),
        read_prompts,
        lambda path: read_task("gsm8k", path),
    ],
)
def test_what_unpacks_to_one_endless_line_takes_no_more_memory_than_a_line_may(tmp_path, bomb, read):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(TraceFormatError, match=f"must have at most {MOST_BYTES:,} bytes, got 'more'"):
            read(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.5 * MOST_BYTES
