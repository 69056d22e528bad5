"""`paceline trace list | make | inspect | check` and `paceline policy list | show | check`."""

import json

import pytest
from paceline.policies.spec import own_policies

from ..command_line import done, paceline, refused


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


@pytest.mark.parametrize("words", [("policy", "list"), ("experiment", "list"), ("trace", "inspect")], ids=" ".join)
def test_lists_are_readable_on_a_narrow_screen(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = done(*words)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


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
