"""`paceline trace inspect | check` of imported recordings."""

import json
from dataclasses import replace

import pytest

from ...traces.making import edit_meta, edit_table, timed_trace, write
from ...traces.rounds.rounds_strategies import bernoulli_trace
from ..command_line import done, refused
from ..test_bad_files import a_pool


@pytest.fixture
def imported(tmp_path):
    made = timed_trace()
    meta = made.meta.model_copy(
        update={"notes": ("Exact: rounds.", "Unknown: [red]texts[/red]."), "hardware": "a coin"}
    )
    write(replace(made, meta=meta), tmp_path / "coins.trace")
    return "coins.trace"


def test_inspect(imported):
    told = done("trace", "inspect", imported)
    for words in (
        "coins (IMPORTED from test; rounds known in order)",
        "d (window 6, depends on the start)",
        "Exact: rounds.",
        "Unknown: [red]texts[/red].",
        "a coin",
        "prompt, 60 output",
        "unknown prompt",
        "tokens/round",
    ):
        assert words in told, words
    rows = [line.split("│")[1:-1] for line in told.splitlines() if line.startswith(("│ coin ", "│ all "))]
    assert [row[1].strip() for row in rows] == ["d", "d"]


def test_what_no_method_says_is_no_row(tmp_path):
    trace = bernoulli_trace(by_start=False, requests=2)
    silent = replace(trace.requests[1], tag="", rounds={})
    write(replace(trace, requests=(trace.requests[0], silent)), tmp_path / "coins.trace")
    told = done("trace", "inspect", "coins.trace")
    assert "d (window 6, reads tokens only)" in told
    assert [line for line in told.splitlines() if line.startswith("│ - ")] == []
    assert "seconds measured for │ nothing" in told
    assert "what is exact" not in told


def test_inspect_as_json(imported, tmp_path):
    data = json.loads(done("trace", "inspect", imported, "--json", "-"))
    assert set(data) == {"meta", "total", "by_tag", "num_texts", "size_bytes"}
    assert data["meta"]["kind"] == "imported"
    assert data["total"]["methods"]["d"]["num_requests"] == 3
    assert data["by_tag"] == {"coin": data["total"]}
    assert done("trace", "inspect", imported, "--json", "out.json") == ""
    assert json.loads((tmp_path / "out.json").read_text()) == data


def test_check(imported):
    rounds = sum(len(request.rounds["d"].start) for request in timed_trace().requests)
    assert done("trace", "check", imported) == f"coins.trace: ok, IMPORTED from test, 3 requests, {rounds} rounds\n"


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_a_spoilt_import_is_refused_in_one_line(imported, tmp_path, command):
    edit_meta(tmp_path / imported, lambda meta: meta["drafters"][0].update(window=1))
    assert "rounds.parquet: accepted: must be at most the window 1 of drafter 'd'" in refused(
        "trace", command, imported
    )
    edit_table(tmp_path / imported, "rounds.parquet", lambda table: table.slice(1))
    assert "requests.parquet: num_rounds: " in refused("trace", command, imported)


def test_an_import_names_no_tokenizer(imported, tmp_path):
    a_pool(tmp_path / "pool")
    told = refused("trace", "check", imported, "--pool", "pool")
    assert "tokenizer_sha256: must be that of pool" in told
    assert "none, as it was imported" in told
