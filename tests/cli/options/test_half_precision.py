"""A recording says how far rounding reaches in it: record, inspect, compare and agree tell, in every dtype."""

import json
import shutil
from pathlib import Path

import pytest
from paceline.traces.contexts.on_disk import read_trace

from ...runtime.generation.chained_models import letters
from ...runtime.pools.window_pools import write_window_pool
from ..command_line import done, paceline

PROMPTS = ("a", "hello there, how do you do?", "the cat, the cat, the ca", "we go on and on, we go", "is it", "no, no.")


@pytest.fixture(scope="module")
def pool_of(tmp_path_factory):
    """The folder of a pool of tiny random models in a dtype, with prompts."""
    built = tmp_path_factory.mktemp("half")

    def made(dtype: str) -> Path:
        folder = built / dtype
        if not folder.exists():
            write_window_pool(folder, "qwen3-window", letters().backend_tokenizer, dtype=dtype)
            rows = [{"id": f"r{row}", "prompt": text} for row, text in enumerate(PROMPTS)]
            (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    return made


def with_pool(folder: Path) -> tuple[object, ...]:
    return ("--pool", folder, "--prompts", folder / "prompts.jsonl", "--max-new-tokens", 24)


def recorded(folder: Path) -> str:
    """What `record` prints; its recording, made once for each pool, is copied to where the test is."""
    printed = folder / "printed.txt"
    if not printed.exists():
        told = done("record", "r.trace", *with_pool(folder), "--no-costs")
        shutil.move("r.trace", folder / "r.trace")
        printed.write_text(told, encoding="utf-8")
    shutil.copytree(folder / "r.trace", "r.trace")
    return printed.read_text(encoding="utf-8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_record_and_inspect_say_dtype_and_near_ties(pool_of, dtype):
    printed = recorded(pool_of(dtype))
    meta = read_trace(Path("r.trace")).meta
    ties = meta.trunk_near_ties
    assert meta.dtype == dtype
    assert 0 <= ties.count <= ties.tokens <= 24 * len(PROMPTS)
    assert ties.bound == {"float32": 2**-18, "float16": 2**-9, "bfloat16": 2**-6}[dtype]
    told = f"{ties.count} of {ties.tokens} trunk tokens ({ties.count / ties.tokens:.1%}) at a near tie"
    assert f"{dtype}: {told}" in printed
    assert ("near tie may go the other way" in printed) == (dtype != "float32")
    assert f"{dtype}, {told}" in " ".join(done("trace", "inspect", "r.trace").split())


def test_coarser_rounding_finds_more_near_ties(pool_of):
    counts = []
    for dtype in ("float32", "float16", "bfloat16"):
        recorded(pool_of(dtype))
        counts.append(read_trace(Path("r.trace")).meta.trunk_near_ties.count)
        shutil.rmtree("r.trace")
    assert counts[0] <= counts[1] <= counts[2]
    assert counts[2] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compare_says_what_an_exact_share_means(pool_of, dtype):
    recorded(pool_of(dtype))
    printed = " ".join(done("compare", "--trace", "r.trace", "--policy", "draft:2/target", "--cost", "h200").split())
    remark = f"recorded in {dtype}, "
    assert (remark in printed) == (dtype != "float32")
    assert ("not that a run writes the same text" in printed) == (dtype != "float32")
    done("compare", "--trace", "r.trace", "--policy", "draft:2/target", "--cost", "h200", "--json", "c.json")
    remarks = json.loads(Path("c.json").read_text())["meta"]["remarks"]
    assert any(line.startswith(remark) for line in remarks) == (dtype != "float32")


def test_an_older_recording_says_that_it_does_not_know(pool_of):
    recorded(pool_of("bfloat16"))
    file = Path("r.trace") / "meta.json"
    meta = json.loads(file.read_text())
    del meta["trunk_near_ties"]
    file.write_text(json.dumps(meta))
    assert read_trace(Path("r.trace")).meta.trunk_near_ties is None
    assert "bfloat16, near ties of the trunk not known" in " ".join(done("trace", "inspect", "r.trace").split())
    printed = done("compare", "--trace", "r.trace", "--policy", "draft:2/target", "--cost", "h200")
    assert "near ties of the trunk not known" in " ".join(printed.split())


def test_agree_says_whether_a_difference_stands_at_a_near_tie(pool_of):
    """Widths of forwards change what bf16 models write; the two worlds then differ, and say why."""
    folder = pool_of("bfloat16")
    asked = ("agree", *with_pool(folder), "--batch", 3, "--policy", "draft:3/target", "--policy", "adaptive")
    ran = paceline(*asked)
    assert ran.code in (0, 1)
    assert ran.out.count("a near tie: ") == ran.out.count("both had committed")
    assert paceline(*asked, "--json", "a.json").code == ran.code
    told = json.loads(Path("a.json").read_text())
    assert told["meta"]["dtype"] == "bfloat16"
    assert told["meta"]["trunk_near_ties"]["bound"] == 2**-6
    for row in told["policies"]:
        assert row["difference"] or row["near_ties"] == []
