"""NaN and Infinity, as Python writes them into JSON: they pass where nobody reads and are refused by name elsewhere."""

import copy
import json

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, import_recording
from paceline.traces.rounds.store import read_rounds

from .foreign_files import STATED, one_file_each, sglang_bench, write_lines


def numbers(found, path=()):
    """Paths of all numbers within JSON."""
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(value, (*path, key))
    elif not isinstance(found, (str, bool, type(None))):
        yield path


def spoiled(found, path, value):
    found = copy.deepcopy(found)
    around = found
    for key in path[:-1]:
        around = around[key]
    around[path[-1]] = value
    return found


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused_import(name, files, out):
    """Why an import is refused; None if it is not."""
    try:
        import_recording(name, files, out, ImportOptions(name="x", **STATED.get(name, {})))
    except TraceFormatError as error:
        return str(error)
    return None


def read_back(out):
    trace = read_rounds(out)
    return trace.meta.model_dump_json(), [repr(request) for request in trace.requests]


OF_JSON = (
    *("spec-bench", "eagle-timed", "vllm-detailed", "positions", "frontier", "vllm-summary", "sglang-meta", "trtllm"),
    *("llamacpp-timings", "vllm-bench", "sglang-bench"),
)


@pytest.mark.parametrize("name", OF_JSON)
def test_a_number_that_is_none_is_refused_by_its_field_or_read_by_nobody(tmp_path, name):
    files = one_file_each(tmp_path)[name]
    assert refused_import(name, files, tmp_path / "sound.trace") is None
    sound = read_back(tmp_path / "sound.trace")
    refused = unread = 0
    for file in files:
        text = file.read_text()
        lines = objects(file)
        for number, path in [(number, path) for number, line in enumerate(lines) for path in numbers(line)]:
            write_lines(file, *lines[:number], spoiled(lines[number], path, float("inf")), *lines[number + 1 :])
            out = tmp_path / f"{file.name}-{refused + unread}.trace"
            told = refused_import(name, files, out)
            if told is None:
                assert read_back(out) == sound
                unread += 1
            else:
                key = next(part for part in reversed(path) if isinstance(part, str))
                assert key in told
                assert told.endswith("got inf")
                refused += 1
        file.write_text(text)
    assert refused > 0


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_results_of_bench_serving_as_they_are_written(read, tmp_path, value):
    path = write_lines(tmp_path / "result.jsonl", sglang_bench(2.9, request_rate=value))
    trace = read("auto", path, windows={"drafter": 4})
    assert (trace.meta.source, len(trace.requests)) == ("sglang-bench", 2)


def test_of_several_results_the_line_is_asked_for(read, refusal, tmp_path):
    path = write_lines(tmp_path / "two.jsonl", sglang_bench(2.9, completed=1), sglang_bench(2.1, completed=5))
    told = refusal("auto", path, windows={"drafter": 4})
    assert told == f"{path}: line: must be stated, the file holds 2 results: `line` N, one of 1, 2, got 'nothing'"
    found = {line: len(read("auto", path, windows={"drafter": 4}, line=line).requests) for line in (1, 2)}
    assert found == {1: 1, 2: 5}
    told = refusal("auto", path, windows={"drafter": 4}, line=3)
    assert "line: must be one where a result begins (1, 2), got 3" in told
    path.write_text(json.dumps(sglang_bench(2.9), indent=1) + "\n" + json.dumps(sglang_bench(2.1, completed=5)))
    second = path.read_text().count("\n") + 1
    assert len(read("auto", path, windows={"drafter": 4}, line=second).requests) == 5
    path.write_text(json.dumps([sglang_bench(2.9), sglang_bench(2.1)]))
    assert "must hold one result, got 'several on line 1'" in refusal("auto", path, windows={"drafter": 4}, line=1)


def test_a_line_that_changes_nothing_is_refused(read, tmp_path):
    files = one_file_each(tmp_path)
    with pytest.raises(ValueError, match="`line` must be left out: files of this format are taken whole"):
        read("vllm-detailed", *files["vllm-detailed"], line=1)
    with pytest.raises(ValueError, match=r"`line` must be in \[1, 2147483647\], got 0"):
        ImportOptions(line=0)
