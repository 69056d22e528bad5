"""`paceline trace list | make | inspect | check` and `paceline policy list | show | check`."""

import json

import pytest
from paceline.policies.spec import own_policies
from paceline.traces import SyntheticSpec, make_trace, read_trace

from ...traces.making import assert_equal
from ..command_line import done, paceline, refused


def test_make_then_look(tmp_path):
    args = [
        "--requests",
        "4",
        "--tokens",
        "20",
        "--prompt-tokens",
        "5",
        "--models",
        "a,b,c",
        "--acceptance",
        "0.5,0.75",
    ]
    args += ["--off-trunk", "0.4,0.6", "--cost-ratios", "0.1,0.3", "--reach", "6", "--run", "3", "--tags", "math,code"]
    args += ["--seed", "9", "--vocab-size", "100", "--depth-decay", "0.2", "--autocorrelation", "0.1"]
    assert done("trace", "make", "made.trace", *args) == "made.trace: synthetic, 4 requests of 20 tokens\n"
    wanted = SyntheticSpec(
        name="made",
        requests=4,
        tokens=20,
        prompt_tokens=5,
        models=("a", "b", "c"),
        acceptance=(0.5, 0.75),
        off_trunk=(0.4, 0.6),
        cost_ratios=(0.1, 0.3),
        reach=6,
        run=3,
        tags=("math", "code"),
        seed=9,
        vocab_size=100,
        depth_decay=0.2,
        autocorrelation=0.1,
    )
    assert_equal(read_trace(tmp_path / "made.trace"), make_trace(wanted))
    assert done("trace", "check", "made.trace").startswith("made.trace: ok, SYNTHETIC, 4 requests, ")
    text = done("trace", "inspect", "made.trace")
    for word in ("made (SYNTHETIC)", "monotone, reach 6, run 3", "math", "code", "share of trunk contexts"):
        assert word in text


def test_inspect_as_json(trace):
    data = json.loads(done("trace", "inspect", trace, "--json", "-"))
    assert set(data) == {"meta", "total", "by_tag", "nodes_per_trunk_token", "size_bytes", "bytes_per_node"}
    assert data["total"]["num_requests"] == 3
    assert data["total"]["num_trunk_tokens"] == 36
    assert set(data["by_tag"]) == {"math", "code"}
    assert set(data["total"]["agreement"]) == {"draft", "mid"}


def test_every_policy_is_listed():
    rows = json.loads(done("policy", "list", "--json", "-"))["policies"]
    assert set(own_policies()) <= {row["name"] for row in rows}
    for row in rows:
        assert set(row) == {"name", "summary", "paper", "lossless", "members", "observes", "oracle", "options"}
        assert row["summary"].endswith(".")
        assert row["members"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["adaedl"]["paper"] == "AdaEDL, arXiv:2410.18351"
    assert by_name["adaedl"]["lossless"] is True
    assert by_name["adaedl"]["observes"] == ["signals"]
    assert by_name["per-tag"]["lossless"] is None
    assert by_name["per-tag"]["options"] == "default, any of tags"
    assert by_name["oracle-chain"]["oracle"] is True
    assert by_name["adaptive"]["options"] == "draft=None, start=4, up=2, down=1, most=16"
    text = done("policy", "list")
    for word in (*own_policies(), "lossless", "LOSSY", "depends", "simulator only"):
        assert word in text


@pytest.mark.parametrize(
    "policy", ["plain", "two-level", "per-tag,default=ngram,a=svip", "draft:3/mid:6/target", "target"]
)
def test_our_own_keep_the_contract(policy):
    assert "keeps the contract" in done("policy", "check", policy)
    told = json.loads(done("policy", "check", policy, "--json", "-"))
    fields = {"policy", "num_requests", "num_steps", "num_tokens", "lossless", "says_lossless", "contradicted"}
    assert set(told) == fields
    assert told["lossless"] is True
    assert told["policy"] == policy


def test_a_lossy_policy_is_no_error(tmp_path):
    (tmp_path / "my_policy.py").write_text(
        """
from paceline.policies import Commit, Draft


class Mine:
    def __init__(self, pool):
        pass

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 4)

    def learn(self, outcome):
        pass
"""
    )
    assert "LOSSY: committed other text" in done("policy", "check", "my_policy.py:Mine")
    assert json.loads(done("policy", "check", "my_policy.py:Mine", "--json", "-"))["lossless"] is False


def test_a_policy_that_says_it_is_lossy_is_not_called_lossless():
    """What toy models happen to show is no promise."""
    assert done("policy", "check", "pyramid-sd").endswith(
        "LOSSY by what it says of itself, though it committed what the target alone writes here\n"
    )


def test_a_policy_that_is_not_what_it_says_is_told(tmp_path):
    (tmp_path / "claims.py").write_text(
        """
from paceline.policies import About, Commit, Draft


class Claims:
    about = About(lossless=True)

    def __init__(self, pool):
        pass

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 4)

    def learn(self, outcome):
        pass
"""
    )
    ran = paceline("policy", "check", "claims.py:Claims")
    assert ran.code == 1
    assert "LOSSY: committed other text, though it says of itself that it is lossless" in ran.out
    assert paceline("policy", "check", "claims.py:Claims", "--json", "-").code == 1


def test_oracles_cannot_be_checked():
    told = refused("policy", "check", "oracle-chain")
    assert told.startswith("policy oracle-chain sees ahead, which only a recording can grant")


def test_inspect_shows_the_recording_that_compare_replays():
    """Both take the shipped one where none is named."""
    name = json.loads(done("trace", "inspect", "--json", "-"))["meta"]["name"]
    assert name == json.loads(done("compare", "--policy", "plain", "--json", "-"))["meta"]["trace"] == "pico"


@pytest.mark.parametrize("words", [("policy", "list"), ("experiment", "list"), ("trace", "inspect")], ids=" ".join)
def test_lists_are_readable_on_a_narrow_screen(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = done(*words)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_recordings_are_listed(trace, tmp_path):
    (tmp_path / "broken.trace").mkdir()
    listed = json.loads(done("trace", "list", "--json", "-"))["recordings"]
    by_name = {row["trace"]: row for row in listed}
    assert by_name["pico"]["models"] == "ngram, draft, mid, slim, target"
    assert by_name[trace.name]["holds"].startswith("SYNTHETIC, 3 requests")
    assert by_name["broken.trace"]["holds"].startswith("cannot be read: ")
    assert "smollm2-coupled" in done("trace", "list", "--json", "-")
    assert refused("trace", "list", "nowhere") == "nowhere: must be a folder"


def test_one_policy_is_shown():
    text = done("policy", "show", "adaptive")
    for words in ("adaptive: lossless;", "transformers; needs a drafter", "start", "int", "most"):
        assert words in text, words
    shown = json.loads(done("policy", "show", "per-tag", "--json", "-"))
    assert shown["options"] == [{"name": "default", "type": "Policy", "default": None}]
    assert "did you mean adaptive?" in refused("policy", "show", "adaptiv")
    assert "'draft:4/target' is a chain of models" in refused("policy", "show", "draft:4/target")


def test_a_policy_that_cannot_be_used_is_listed_with_the_reason(tmp_path, monkeypatch):
    info = tmp_path / "broken_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[paceline.policies]\nbroken = broken_package:Mine\nplain = x:Y\n")
    monkeypatch.syspath_prepend(tmp_path)
    listed = json.loads(done("policy", "list", "--json", "-"))
    assert set(listed["unusable"]) == {"broken", "plain"}
    assert {row["name"] for row in listed["policies"]} == set(own_policies())
    assert "No module named 'broken_package'" in listed["unusable"]["broken"]
    assert "cannot be" in done("policy", "list")
