"""`paceline cluster`: the same figures in the table, in JSON and from Python; bad input is one line."""

import pytest
from paceline.studies.load import cluster

from ..command_line import paceline

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
