"""`--lossless`: what may commit other text than the target's is refused by name, in every command with policies."""

import json

import pytest

from ..command_line import done, refused

MINE = """
from paceline.policies import About, Commit, Draft, Ratio, Verify


class Silent:
    # Says nothing of itself.

    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        return self.judge(seen) if seen.num_pending else Draft("draft", 4)

    def judge(self, seen):
        return Verify(self.target)

    def learn(self, outcome):
        pass


class Lies(Silent):
    about = About(lossless=True)

    def judge(self, seen):
        return Verify(self.target, Ratio(0.01))


class Commits(Silent):
    def judge(self, seen):
        return Commit(seen.num_pending)


class Admits(Commits):
    about = About(lossless=False)
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"id": "r0", "tag": "a", "prompt": "Q: one"}) + "\n")
    return tmp_path


def policies(*names):
    return [part for name in names for part in ("--policy", name)]


def compare(trace, *names):
    return ("compare", "--trace", trace, "--lossless", *policies(*names))


def test_lossless_ones_pass(trace, mine):
    names = ["plain", "two-level", "per-tag,default=svip,code=guarded+policy=ngram", "oracle-window", "mine.py:Silent"]
    data = json.loads(done(*compare(trace, *names), "--json", "-"))
    assert [row["policy"] for row in data["policies"]] == names


@pytest.mark.parametrize("name", ["via-sd", "guarded,policy=cascade", "per-tag,default=plain,a=early-commit"])
def test_lossy_ones_of_ours_are_refused_before_any_run(trace, name):
    assert refused(*compare(trace, "plain", name)) == f"policy {name} is lossy, and --lossless was asked for"


@pytest.mark.parametrize(
    ("name", "step"),
    [("Lies", "Verify(model='target', rule=Ratio(theta=0.01)) is lossy"), ("Commits", "Commit(tokens=4) is lossy")],
)
def test_others_are_refused_at_their_first_lossy_step(trace, mine, name, step):
    told = refused(*compare(trace, f"mine.py:{name}"))
    assert told.startswith(f"policy mine.py:{name}, request ")
    assert step in told


def test_what_another_one_admits_is_believed(trace, mine):
    told = refused(*compare(trace, "mine.py:Admits"))
    assert told == "policy mine.py:Admits is lossy, and --lossless was asked for"


def test_a_part_that_says_nothing_is_looked_at_step_by_step(trace, mine):
    done(*compare(trace, "guarded,policy=mine.py:Silent"))
    told = refused(*compare(trace, "per-tag,default=mine.py:Commits"))
    assert "is lossy, and only lossless policies were asked for" in told


@pytest.mark.parametrize("command", ["run", "agree"])
@pytest.mark.parametrize(("name", "told"), [("early-commit", "is lossy"), ("mine.py:Commits", "is lossy")])
def test_real_models_refuse_them_too(mine, command, name, told):
    line = refused(command, "--prompts", "prompts.jsonl", "--max-new-tokens", 6, "--lossless", *policies(name))
    assert told in line


@pytest.mark.parametrize("command", ["run", "agree"])
def test_real_models_refuse_oracles_by_name(mine, command):
    line = refused(command, "--prompts", "prompts.jsonl", "--max-new-tokens", 6, *policies("oracle-window"))
    assert line == "policy oracle-window sees ahead, which only a recording can grant"
