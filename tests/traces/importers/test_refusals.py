"""Files of no known format: one line of at most 300 characters that says what they are, and what to save instead."""

import gzip
import json
import os
import shutil

import pytest
from paceline.traces.importers import format_names

from ...cli.command_line import paceline, refused
from .foreign_files import one_file_each, write_text

RESPONSE = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": {}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5}}  # fmt: skip
BENCH = {"date": "x", "backend": "vllm", "num_prompts": 8, "completed": 8, "request_throughput": 3.0,
         "mean_ttft_ms": 20.1, "total_input_tokens": 80, "total_output_tokens": 90}  # fmt: skip


def lines(*objects):
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


# name: content, and words that the refusal has to have.
SPOILED = {
    "empty": (b"", ["must hold a JSON object, got 'nothing'"]),
    "blank lines": (b"\n \n\n", ["must hold a JSON object, got 'nothing'"]),
    "a response": (lines(RESPONSE), ["a response without acceptance", "--per-request-spec-decode-metrics"]),
    "a result without speculation": (lines(BENCH), ["nearest is vllm-bench", "spec_decode_per_position"]),
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
