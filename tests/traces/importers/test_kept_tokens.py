"""What is said of a log in which nothing was ever refused, whatever its format."""

import pytest
from paceline.traces.importers import Load

from .foreign_files import (
    STATED,
    answer,
    counters,
    frontier,
    metrics_line,
    positions,
    response,
    sglang,
    sglang_bench,
    summary,
    timings,
    trtllm,
    vllm_bench,
    write_lines,
    write_text,
)

# Of each format a file in which all was kept, and one in which something was refused.
FILES = {
    "spec-bench": ([answer(1, [3, 3], [3]), answer(2, [3])], [answer(1, [3, 1], [3])]),
    "vllm-detailed": ([response("a", [3, 3], [3, 3])], [response("a", [3, 2], [3, 3])]),
    "positions": ([positions("a", draft=[3, 3, 3, 3])], [positions("a", draft=[3, 1, 3, 3])]),
    "frontier": ([frontier({"0": [3, 3]}, {"0": [2, 2]})], [frontier({"0": [3, 2]}, {"0": [2, 2]})]),
    "vllm-summary": ([summary("a", [0, 0, 0, 4])], [summary("a", [1, 0, 0, 4])]),
    "sglang-meta": ([sglang("a", 4, 17, histogram=[0, 0, 0, 4])], [sglang("a", 4, 14, histogram=[1, 0, 0, 3])]),
    "trtllm": ([trtllm("a", histogram=[0, 0, 4])], [trtllm("a", histogram=[1, 0, 3])]),
    "llamacpp-timings": ([timings(26, 20, 20)], [timings(26, 20, 19)]),
    "vllm-bench": ([vllm_bench([1.0, 1.0])], [vllm_bench([1.0, 0.9])]),
    "sglang-bench": ([sglang_bench(5)], [sglang_bench(4.9)]),
    "vllm-metrics": (
        counters(100, [100, 100], requests=4, tokens=304),
        counters(100, [100, 99], requests=4, tokens=303),
    ),
    "vllm-log": ([metrics_line([1.0, 1.0], 200, 200)], [metrics_line([1.0, 0.5], 150, 200)]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_log_without_a_refusal_is_called_unlikely(read, tmp_path, name):
    for number, content in enumerate(FILES[name]):
        write = write_text if isinstance(content[0], str) else write_lines
        trace = read(name, write(tmp_path / f"{number}.txt", *content), **STATED.get(name, {}))
        said = [note for note in trace.meta.notes if "drafted was ever refused" in note]
        assert len(said) == (number == 0)
        if said:
            assert said[0].startswith(f"nothing that {trace.meta.drafters[0].name} drafted was ever refused")


def test_a_log_without_drafts_is_called_one(read, tmp_path):
    trace = read("llamacpp-timings", write_lines(tmp_path / "x.jsonl", timings(9), timings(12)))
    assert "nothing in these files tells of drafts: every answer is taken to be the target's alone" in trace.meta.notes
    with_load = read(
        "vllm-log", write_text(tmp_path / "x.log", metrics_line([0.5], 50, 100)), load=Load(requests=1, output_tokens=9)
    )
    assert not any("tells of drafts" in note for note in with_load.meta.notes)
