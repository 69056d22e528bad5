"""`paceline trace inspect | check` of imported recordings."""

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


def test_what_no_method_says_is_no_row(tmp_path):
    trace = bernoulli_trace(by_start=False, requests=2)
    silent = replace(trace.requests[1], tag="", rounds={})
    write(replace(trace, requests=(trace.requests[0], silent)), tmp_path / "coins.trace")
    told = done("trace", "inspect", "coins.trace")
    assert "d (window 6, reads tokens only)" in told
    assert [line for line in told.splitlines() if line.startswith("│ - ")] == []
    assert "seconds measured for │ nothing" in told
    assert "what is exact" not in told


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
