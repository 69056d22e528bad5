"""`paceline cluster`: the same figures in the table, in JSON and from Python; bad input is one line."""

import json

import pytest
from paceline.studies.load import cluster

from ...command_line import done, paceline

MINE = """
[router]
name = "two-choices"
stale_s = 0.5

[[replicas]]
name = "chat"
count = 3
device = "rtx4090"
drop_units = 2

[replicas.members.draft]
kv_blocks = 50
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_the_table_says_what_json_says(mine):
    found = json.loads(done("cluster", mine, "--json", "-"))
    assert found == cluster(mine).to_json()
    assert (found["name"], found["router"], found["stale_s"], found["horizon_s"]) == ("mine", "two-choices", 0.5, None)
    (chat,) = found["replicas"]
    assert (chat["name"], chat["count"], chat["max_num_seqs"], chat["token_budget"]) == ("chat", 3, 256, 2048)
    (memory,) = chat["memory"]
    members = {member["member"]: member for member in memory["members"]}
    assert (members["draft"]["num_blocks"], members["draft"]["given"], members["draft"]["drop_units"]) == (50, True, 2)
    held = sum(member["weights_bytes"] + member["kv_bytes"] for member in memory["members"])
    assert memory["usable_bytes"] == held + memory["reserve_bytes"] + memory["spare_bytes"]
    table = done("cluster", mine)
    assert "Cluster mine: 3 replicas" in table
    assert "router two-choices, signals every 0.5 s; no horizon" in table
    assert f"{members['target']['num_blocks']:,}" in table
    assert "KV of draft, given" in table
    assert "yes, drops 2 blocks" in table


def test_rows_are_members(mine):
    rows = cluster(mine).to_dicts()
    assert [row["member"] for row in rows] == ["draft", "mid", "slim", "target"]
    assert {(row["replicas"], row["count"], row["device"]) for row in rows} == {("chat", 3, "rtx4090")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h300", "paceline: error: unknown cluster 'h300': known are a100,"),
        ("none.toml", "paceline: error: none.toml: cluster file must exist, got 'none.toml'"),
    ],
)
def test_bad_input_is_one_line(text, said):
    ran = paceline("cluster", text)
    assert ran.code == 2
    assert ran.err.startswith(said)
    assert ran.err.count("\n") == 1


def test_a_breach_of_the_file_is_one_line(mine):
    mine.write_text(MINE.replace("drop_units = 2", 'drop_units = "two"'), encoding="utf-8")
    ran = paceline("cluster", mine)
    assert ran.code == 2
    assert "replicas[0].drop_units input should be a valid integer, got 'two'" in ran.err


def test_what_cannot_be_built_tells_its_value_once(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text('[router]\nname = "two-choices,by=foo"\n[[replicas]]\ndevice = "h100"\n', encoding="utf-8")
    assert paceline("cluster", path).err.rstrip().endswith("by must be requests, tokens or kv, got 'foo'")
