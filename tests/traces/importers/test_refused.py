"""What is refused: one line each, with file, field, rule and value; and nothing stays. Rows are in refused.jsonl."""

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, format_names, import_recording
from paceline.traces.importers.reading import half_of_last_digit
from paceline.traces.rounds.store import read_rounds

from ...cli.command_line import paceline, refused
from ..refused import SHEETS, rows_of, told
from .foreign_files import (
    STATED,
    llamacpp_lines,
    metrics_line,
    new_llamacpp_lines,
    one_file_each,
    response,
    summary,
    timings,
    trtllm,
    vllm_bench,
    write,
    write_lines,
    write_text,
)


@pytest.mark.parametrize("row", rows_of(SHEETS[0]))
def test_what_does_not_fit_is_refused_by_its_field(tmp_path, row):
    assert told(row, tmp_path) == row["told"] != ""
    assert len(row["told"]) <= 300
    assert "\n" not in row["told"]


def test_a_log_that_settles_how_answers_begin_is_not_told_otherwise(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [1], [2]))
    assert read("vllm-detailed", path, prefilled={"drafter": True}).meta.drafters[0].prefilled
    with pytest.raises(ValueError, match="`prefilled` drafter must be prefill, as in every log of this format"):
        read("vllm-detailed", path, prefilled={"drafter": False})


# -- what is said twice may differ by its rounding


@pytest.mark.parametrize(
    ("text", "half"), [("3", 0.5), ("3.0", 0.05), ("0.554", 0.0005), ("5e-05", 0.5e-5), ("1.25e-05", 0.5e-7)]
)
def test_rounding_is_told_by_the_digits_that_are_printed(text, half):
    assert half_of_last_digit(text) == pytest.approx(half)


def changed(found, path, value):
    """The same object with another value at the end of a path of keys."""
    found = copy.deepcopy(found)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


IN_VLLM = ("metrics", "speculative_decoding")
IN_TRTLLM = ("choices", 0, "speculative_decoding")
DETAILED = response("a", [3, 0, 1, 0], [3, 3, 3, 0])  # 4 of 9 tokens; one step drafted nothing
SUMMARY = summary("a", [3, 2, 0, 4])  # 14 of 27 tokens in 9 steps
TRTLLM = trtllm("a", histogram=[2, 0, 3])  # 6 of 10 tokens
BENCH = vllm_bench([0.7, 0.5, 0.4])  # 100 drafts, 160 of 300 tokens
LLAMA = {**timings(30, 40, 12), "usage": {}}
VLLM_LINE = metrics_line([0.921, 0.828, 0.674], 676, 837)
SHORT, LONG = (new_llamacpp_lines(516, 564, 374, wording=wording) for wording in ("len", "length"))

# Format, a sound object, path of a field, values that are sound as well.
OBJECTS = [
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [[1, 1, 0, 1], [2, 1, 0, 1, 0], None]),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_spec_steps"), [3, 4, None]),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_accepted_draft_tokens"), [4]),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_draft_tokens"), [9]),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "draft_acceptance_rate"), [4 / 9, 0.444, 0.44, None]),
    ("vllm-detailed", response("a", [3, 0], [3, 3]), (*IN_VLLM, "mean_acceptance_length"), [2.5]),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "mean_acceptance_length"), [1 + 14 / 9, 2.56]),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "draft_acceptance_rate"), [14 / 27, 0.519]),
    ("trtllm", TRTLLM, (*IN_TRTLLM, "total_accepted_draft_tokens"), [6]),
    ("trtllm", TRTLLM, (*IN_TRTLLM, "acceptance_rate"), [0.6]),
    ("llamacpp-timings", LLAMA, ("usage", "completion_tokens"), [30, None]),
    ("llamacpp-timings", LLAMA, ("tokens_predicted",), [30]),
    ("vllm-bench", BENCH, ("spec_decode_accepted_tokens",), [159, 161]),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_length",), [2.6, None]),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_rate",), [53.33, 160 / 3]),
    ("vllm-bench", BENCH, ("spec_decode_draft_tokens",), [250, 300]),
    ("vllm-bench", BENCH, ("total_output_tokens",), [50, None]),
    ("vllm-bench", BENCH, ("completed",), [1, 2]),
]
# The same of lines: what is replaced, and by what.
LINES = [
    ("vllm-log", [VLLM_LINE], "length: 3.42", ["length: 3.4", "length: 3.423"]),
    ("vllm-log", [VLLM_LINE], "rate: 80.8%", ["rate: 81%", "rate: 80.76%"]),
    ("llamacpp-log", LONG, "0.723", ["0.809", "0.600"]),
    ("llamacpp-log", LONG, "length =  3.65", ["length =  3.6"]),
    (
        "llamacpp-log",
        LONG,
        "acceptance = 0.66312",
        ["acceptance = 0.663"],
    ),
    ("llamacpp-log", SHORT, "mean len =  3.65", ["mean len = 3.65"]),
    ("llamacpp-log", llamacpp_lines(30, 40, 12), "0.30000", ["0.3"]),
]


@pytest.mark.parametrize(("name", "sound", "path", "others"), OBJECTS)
def test_objects_that_agree_with_themselves(read, tmp_path, name, sound, path, others):
    for value in others:
        assert read(name, write_lines(tmp_path / "x", changed(sound, path, value)), **STATED.get(name, {})).requests


@pytest.mark.parametrize(("name", "sound", "shown", "others"), LINES)
def test_lines_that_agree_with_themselves(read, tmp_path, name, sound, shown, others):
    assert "\n".join(sound).count(shown) == 1
    for other in others:
        path = write(tmp_path / "x", *(line.replace(shown, other) for line in sound))
        assert read(name, path, **STATED[name]).requests


# -- files of no known format


# What files hold, byte for byte as Latin-1, and what is told of them here and in folders of long names.
UNKNOWN = [json.loads(line) for line in Path(__file__).with_name("unknown.jsonl").read_text().splitlines()]
FOLDERS = (".", "logs of some server/on some day")
ENDLESS = {
    "thousands of keys": (json.dumps({f"k{number}": number for number in range(20_000)}).encode(), "near none"),
    "a long key": (json.dumps({"k" * 100_000: 1}).encode(), "near none"),
    "a long text": (json.dumps({"text": "x" * 1_000_000}).encode(), "near none"),
    "deep JSON": (b'{"a": ' + b"[" * 50_000, "nested too deep"),
    "a line without end": (b"word " * 200_000, "near none"),
}


def refused_line(tmp_path, folder, content):
    """The line that a file is refused with, by the command, in a folder."""
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    path = os.path.relpath(place / "my file.log")
    (tmp_path / path).write_bytes(content)
    line = refused("trace", "import", "auto", path, "--out", "x.trace")
    assert line.startswith(f"{path}: ")
    assert len(f"paceline: error: {line}") <= 300
    assert line.isprintable()
    assert not (tmp_path / "x.trace").exists()
    return line


@pytest.mark.parametrize("row", UNKNOWN, ids=lambda row: row["what"])
def test_one_short_line_says_what_it_is_and_what_to_save(tmp_path, monkeypatch, row):
    monkeypatch.chdir(tmp_path)
    assert [refused_line(tmp_path, folder, row["content"].encode("latin-1")) for folder in FOLDERS] == row["told"]


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_line_is_short_whatever_the_length_of_the_file(tmp_path, monkeypatch, name, folder):
    monkeypatch.chdir(tmp_path)
    content, words = ENDLESS[name]
    assert words in refused_line(tmp_path, folder, content)


def test_a_cut_file_of_every_format_is_short_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, files in one_file_each(tmp_path).items():
        half = files[0].read_bytes()
        (tmp_path / "half").write_bytes(half[: len(half) // 3].replace(b"accept", b"acept").replace(b"spec_", b"spek_"))
        for form in ("auto", name):
            ran = paceline("trace", "import", form, "half", "--out", "x.trace")
            assert ran.code == (0 if name == "llamacpp-log" else 2), (name, form)  # a log ends anywhere
            assert len(ran.told) <= 300, (name, form)
            shutil.rmtree(tmp_path / "x.trace", ignore_errors=True)


@pytest.mark.parametrize("name", sorted(format_names()))
def test_a_file_of_another_format_is_refused_shortly_by_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "prose.txt", "nothing of the kind")
    told = refused("trace", "import", name, "prose.txt", "--out", "x.trace")
    assert told.startswith("prose.txt: ")
    assert len(told) <= 300


# -- NaN and Infinity, as Python writes them into JSON: they pass where nobody reads, and are refused by name elsewhere


def numbers(found, path=()):
    """Paths of all numbers within JSON."""
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(value, (*path, key))
    elif not isinstance(found, (str, bool, type(None))):
        yield path


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
        found = [json.loads(line) for line in text.splitlines()]
        for number, path in [(number, path) for number, line in enumerate(found) for path in numbers(line)]:
            write_lines(file, *found[:number], changed(found[number], path, float("inf")), *found[number + 1 :])
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
