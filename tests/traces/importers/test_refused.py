"""What is refused: one line each, with file, field, rule and value; and nothing stays. Rows are in refused.jsonl."""

import copy
import gzip
import json
import os
import shutil

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


RESPONSE = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": {}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5}}  # fmt: skip
UNKNOWN_BENCH = {"date": "x", "backend": "vllm", "num_prompts": 8, "completed": 8, "request_throughput": 3.0,
                 "mean_ttft_ms": 20.1, "total_input_tokens": 80, "total_output_tokens": 90}  # fmt: skip


def lines(*objects):
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


# name: content, and words that the refusal has to have.
SPOILED = {
    "empty": (b"", ["must hold a JSON object, got 'nothing'"]),
    "blank lines": (b"\n \n\n", ["must hold a JSON object, got 'nothing'"]),
    "a response": (lines(RESPONSE), ["a response without acceptance", "--per-request-spec-decode-metrics"]),
    "a result without speculation": (lines(UNKNOWN_BENCH), ["nearest is vllm-bench", "spec_decode_per_position"]),
    "a misspelt key": (
        lines({"per_step_acceptd": [1], "per_step_drafted": [2], "speculative_decoding": {}}),
        ["nearest is vllm-detailed", "(it has per_step_acceptd)"],
    ),
    "a config": (lines({"model_type": "llama", "architectures": ["A"]}), ["a model's config", "--models"]),
    "shapes": (lines({"name": "a", "parameters": 3, "kv_bytes_per_token": 2}), ["shapes of models", "--models"]),
    "a workload": (lines({"arrives_s": 0, "prompt_tokens": 3, "output_tokens": 2}), ["a workload", "--workload"]),
    "blocks": (lines({"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [1]}), ["a workload"]),
    "prompts": (lines({"id": "a", "prompt": "why"}), ["a list of prompts", "save responses"]),
    "an error": (lines({"error": {"message": "no such model"}}), ["an error of a server"]),
    "a recording": (lines({"format": "x", "kind": "trie", "target": "t"}), ["the meta.json of a recording"]),
    "trtllm-bench": (
        lines({"engine": {}, "performance": {}, "decoding_stats": {"acceptance_length": {"average": 2.4}}}),
        ["a report of trtllm-bench", "avg_decoded_tokens_per_iter"],
    ),
    "an object of nothing": (b"{}", ["must be one that is known", "got 'keys none'"]),
    "other keys": (lines({"foo": 1, "bar": {"baz": 2}}), ["near none", "docs/importing.md", "keys bar, foo"]),
    "thousands of keys": (lines({f"k{number}": number for number in range(20_000)}), ["near none"]),
    "a long key": (lines({"k" * 100_000: 1}), ["near none"]),
    "a long text": (lines({"text": "x" * 1_000_000}), ["near none"]),
    "numbers": (b"[1, 2, 3]", ["near none"]),
    "a number": (b"42", ["near none"]),
    "cut JSON": (b'{"id": "a", "usage": {"prompt', ["JSON: must be one JSON object", "is it cut?"]),
    "a cut array": (b'[{"id": "a"}, {"id"', ["JSON: must be one JSON object"]),
    "single quotes": (b"{'id': 'a'}", ["JSON: must be one JSON object"]),
    "a list of texts": (b'["a", "b"]', ["JSON: must be one JSON object", "a text"]),
    "deep JSON": (b'{"a": ' + b"[" * 50_000, ["JSON", "nested too deep"]),
    "prose": (b"Dear reader,\nthis is no log.\n", ["near none", "'Dear reader, this is no log.'"]),
    "a line without end": (b"word " * 200_000, ["near none"]),
    "a table": (b"time,prompt,output\n0,3,4\n", ["near none"]),
    "YAML": (b"model: m\nspec:\n  - a\n", ["near none"]),
    "a log of vLLM without drafts": (
        b"INFO 05-18 11:19:54 [loggers.py:127] Engine 000: Avg prompt throughput: 3.2 tokens/s, Avg generation "
        b"throughput: 9 tokens/s (vllm)\n",
        ["speculative decoding is off", "SpecDecoding metrics:"],
    ),
    "a log of llama.cpp without answers": (
        b"srv  init: initializing slots\nslot get_availabl: id 0\nllama_context: n_ctx = 4096\n",
        ["nearest is llamacpp-log"],
    ),
    "a page of counters": (
        b"# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\nhttp_requests_total 3\n",
        ["nearest is vllm-metrics"],
    ),
    "a printed result": (
        b"============ Serving Benchmark Result ============\nSuccessful requests: 80\n",
        ["nearest is", "-bench"],
    ),
    "a page": (b"<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>", ["a page of a web server"]),
    "control characters": (b"\x1b[31mred\x1b[0m \x07\n", ["near none"]),
    "UTF-16": ("\ufeff{}".encode("utf-16-le"), ["UTF-16", "save it as UTF-8"]),
    "Latin-1": ("caf\u00e9 du monde\n".encode("latin-1"), ["near none"]),
    "NUL bytes": (b"a\x00b\x00c", ["must be text or JSON"]),
    "random bytes": (bytes(range(256)) * 40, ["must be text or JSON"]),
    "gzip without its name": (gzip.compress(b"{}" * 40), ["it is gzip; name it .gz"]),
    "zip": (b"PK\x03\x04" + b"\x00" * 60, ["an archive", "unpack it"]),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\x01" * 60, ["an archive"]),
    "bzip2": (b"BZh9" + b"\x01" * 60, ["an archive"]),
    "Parquet": (b"PAR1" + b"\x00" * 60, ["a columnar table"]),
    "SQLite": (b"SQLite format 3\x00" + b"\x00" * 60, ["a database"]),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3", ["a picture or a page"]),
    "a stream of nothing": (b": ping\n\n: ping\n\n", ["must hold a JSON object, got 'nothing'"]),
    "a stream of other things": (b'data: {"a": 1}\n\n', ["near none"]),
    "a stream without data": (b'data: {"a": 1}\n\n{"b": 2}\n', ["event: must be data: {...}"]),
    "a stream of prose": (b"data: hello\n\n", ["near none"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("folder", [".", "logs of some server/on some day"])
def test_one_short_line_says_what_it_is_and_what_to_save(tmp_path, monkeypatch, name, folder):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    content, words = SPOILED[name]
    path = os.path.relpath(place / "my file.log")
    (tmp_path / path).write_bytes(content)
    told = refused("trace", "import", "auto", path, "--out", "x.trace")
    assert told.startswith(f"{path}: ")
    assert len(f"paceline: error: {told}") <= 300
    assert "\n" not in told
    assert told.isprintable()
    for word in words:
        assert word in told
    assert not (tmp_path / "x.trace").exists()


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
