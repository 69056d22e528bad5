"""`paceline compare --sweep`: each cell is what `compare` says of that chain at that batch."""

import json
import re
from pathlib import Path

import pytest

from ..command_line import done, refused
from .test_compare import compared, rows_of


def swept(trace, *args):
    return json.loads(done("compare", "--trace", trace, *args, "--json", "-"))


def test_every_cell_is_that_of_a_comparison(trace):
    data = swept(trace, "--sweep", "draft:1..3/target", "--sweep", "draft:2/mid:3..5:2/target", "--batch", "1,2")
    chains = [*(f"draft:{window}/target" for window in (1, 2, 3)), "draft:2/mid:3/target", "draft:2/mid:5/target"]
    assert [(cell["batch"], cell["policy"]) for cell in data["sweep"]] == [
        (batch, name) for batch in (1, 2) for name in chains
    ]
    assert data["sweep"][3]["windows"] == {"draft": 2, "mid": 3}
    assert data["meta"]["batch"] == [1, 2]
    for batch in (1, 2):
        options = [option for chain in chains for option in ("--policy", chain)]
        rows = {row["policy"]: row for row in compared(trace, *options, "--batch", batch)["policies"]}
        cells = [cell for cell in data["sweep"] if cell["batch"] == batch]
        for cell in cells:
            own = set(cell) - {"batch", "windows", "best"}
            assert {key: cell[key] for key in own} == {key: rows[cell["policy"]][key] for key in own}
        best = max(rows.values(), key=lambda row: row["output_tokens_per_s"])["policy"]
        assert [cell["policy"] for cell in cells if cell["best"]] == [best]


def test_many_batches_stay_readable(trace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    batches = ",".join(map(str, range(1, 13)))
    text = done("compare", "--trace", trace, "--sweep", "draft:1..2/target", "--batch", batches)
    assert max(map(len, text.splitlines())) <= 80
    assert sum(cell.endswith(("x", "x*")) for row in rows_of(text) for cell in row) == 24
    assert "--batch 12: the recording has 3 requests, so at most 3 run together" in text


def test_what_the_cost_does_not_know_is_told_and_left_empty(trace, tmp_path):
    table = {"new_tokens": [1, 9], "seconds": [1.0, 2.0]}
    (tmp_path / "mine.json").write_text(json.dumps(dict.fromkeys(("draft", "mid", "target"), table)))
    words = ("--sweep", "draft:2..12:10/target", "--cost", "mine.json")
    text = done("compare", "--trace", trace, *words)
    assert rows_of(text)[1] == ["draft:12/target", "-"]
    assert "batch 1: draft:12/target is left out: cost mine.json: " in text
    line = refused("compare", "--trace", trace, "--sweep", "draft:12/target", "--cost", "mine.json", "--batch", "1,3")
    assert line.startswith("batch 1: cost mine.json: target was measured for 1 to 9 new tokens")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--policy", "plain"), "--policy has no part in --sweep"),
        (("--by-tag",), "--by-tag has no part in --sweep"),
        (("--regret",), "--regret has no part in --sweep"),
        (("--detail",), "--detail has no part in --sweep"),
        (("--log", "logs"), "--log has no part in --sweep"),
        (("--on", "h200"), "--on has no part in --sweep"),
        (("--batch", "1,1"), "--batch 1 is given twice"),
        (("--batch", "1,,2"), "--batch must be a whole number from 1 to 1,000,000, got ''"),
        (("--batch", ",".join(map(str, range(1, 400)))), "a sweep must hold 2 cells at most"),
        (("--sweep", "draft:1..1000/target"), "a sweep must hold 1,000 cells at most, got 1,003 chains"),
    ],
)
def test_a_sweep_refuses_what_it_would_ignore(trace, words, told):
    assert told in refused("compare", "--trace", trace, "--sweep", "draft:1..3/target", *words)


def test_the_documentation_lists_every_key(trace):
    (cell,) = swept(trace, "--sweep", "draft:1/target")["sweep"]
    text = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    listed = [row for row in text.splitlines() if row.startswith("| `sweep[]")]
    named = {name for row in listed for name in re.findall(r"`(?:sweep\[\]\.)?(\w+)`", row.split("|")[1])}
    assert named == set(cell)


def test_several_batches_are_for_a_sweep(trace):
    line = refused("compare", "--trace", trace, "--policy", "plain", "--batch", "1,4")
    assert line == "--batch takes several numbers with --sweep only, got '1,4'"
