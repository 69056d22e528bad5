"""The blocks that `vllm bench serve` and SGLang's `bench_serving` print: as good as result files without details."""

import pytest

from .foreign_files import sglang_bench, vllm_bench, write_lines, write_text

VLLM = """\
============ Serving Benchmark Result ============
Successful requests:                     4
Maximum request concurrency:             16
Benchmark duration (s):                  21.50
Total input tokens:                      40
Total generated tokens:                  404
Request throughput (req/s):              3.72
---------------Time to First Token----------------
Mean TTFT (ms):                          20.10
---------------Speculative Decoding---------------
Acceptance rate (%):                     55.00
Acceptance length:                       2.10
Drafts:                                  100
Draft tokens:                            200
Accepted tokens:                         110
Per-position acceptance (%):
  Position 0:                            70.00
  Position 1:                            40.00
==================================================
"""
SGLANG = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Successful requests:                     4
Total input tokens:                      40
Total generated tokens:                  404
Accept length:                           2.50
==================================================
"""
TOTALS = {"completed": 4, "total_input_tokens": 40, "total_output_tokens": 404}
OF = {
    "vllm-bench": (VLLM, vllm_bench([0.7, 0.4], input_lens=None, output_lens=None, **TOTALS)),
    "sglang-bench": (SGLANG, sglang_bench(2.5, **TOTALS)),
}
WINDOW = {"sglang-bench": {"windows": {"drafter": 4}}}


@pytest.mark.parametrize("name", OF)
def test_a_block_says_what_the_file_of_its_run_says(read, tmp_path, name):
    text, result = OF[name]
    options = WINDOW.get(name, {})
    noise = "Namespace(backend='x')\nStarting initial test\n100%|####| 4/4\n\nTotal: 4\n"
    found = read("auto", write_text(tmp_path / "x.txt", noise, text, "Done: drafting ended", "accept: 3"), **options)
    file = read("auto", write_lines(tmp_path / "x.json", result), **options)
    assert found.meta == file.meta
    assert [repr(request) for request in found.requests] == [repr(request) for request in file.requests]
    assert sum(request.num_tokens["drafter"] for request in found.requests) == 404


@pytest.mark.parametrize("name", OF)
def test_of_several_blocks_one_is_chosen_by_its_line(read, refusal, tmp_path, name):
    text, options = OF[name][0], WINDOW.get(name, {})
    path = write_text(tmp_path / "x.txt", text + text.replace(" 404", " 808"))
    second = text.count("\n") + 1
    assert f"the file holds 2 results: `line` N, one of 1, {second}, got" in refusal("auto", path, **options)
    tokens = {line: sum(request.num_tokens["drafter"] for request in read("auto", path, line=line, **options).requests)
              for line in (1, second)}  # fmt: skip
    assert tokens == {1: 404, second: 808}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Position 1", "Position 2", "line 18: Position 2: must follow in order, as Position 1"),
        ("Position 1", "Position one", "Position one: must be one of Successful requests, "),
        ("Drafts: ", "Draftss: ", "Draftss: must be one of"),
        ("Draft tokens: ", "Drafts: ", "Drafts: must stand once in a block"),
        ("70.00", "many", "Position 0: must be a number, got 'many'"),
        ("70.00", "nan", "must be a number in [0, 1], got nan"),
        ("40.00", "90.00", "must not exceed the rate before it"),
        ("Drafts:          ", "Drafts of 3 ", "line 13: line: must be a name and a number, as in a block of results"),
        (VLLM[VLLM.index("  Position 0") :], "", "acceptance_rates: must be there"),
        ("requests:                     4", "requests:                     -4", "completed: must be a whole number"),
    ],
)  # fmt: skip
def test_what_a_block_should_not_say_is_refused(refusal, tmp_path, old, new, told):
    assert old in VLLM
    assert told in refusal("vllm-bench", write_text(tmp_path / "x.txt", VLLM.replace(old, new)))


def test_a_text_without_a_block(refusal, tmp_path):
    path = write_text(tmp_path / "x.txt", "Accept: nothing", "a line")
    assert "file: must hold a result, got 'nothing'" in refusal("vllm-bench", path)
