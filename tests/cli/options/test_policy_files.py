"""Policies of the user's own: what is wrong with them is told by name."""

import json
import signal

import pytest

from ..command_line import done, paceline, refused

HEAD = """
from paceline.policies import Commit, ConfidenceBelow, Draft, Verify


class Base:
    def __init__(self, pool):
        self.pool = pool

    def learn(self, outcome):
        pass


class Mine(Base):
    def decide(self, seen):
        {body}
"""


@pytest.fixture
def mine(trace, tmp_path):
    """Runs a policy whose `decide` is one line; gives the line of the refusal."""

    def run(body, *args):
        (tmp_path / "my_policy.py").write_text(HEAD.format(body=body))
        line = refused("compare", "--trace", trace, "--policy", "my_policy.py:Mine", "--json", "out.json", *args)
        names = {file.name for file in tmp_path.iterdir()} - {"__pycache__"}
        assert names == {"my_policy.py", "small.trace"}
        return line

    return run


@pytest.mark.parametrize(
    ("body", "step", "told"),
    [
        ("raise RuntimeError('first\\nsecond')", "None", "decide raised RuntimeError('first\\nsecond')"),
        (
            "return None",
            "None",
            "not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap",
        ),
        ("return 'draft'", "draft", "not a step"),
        ("return Draft", "<class", "not a step"),
        ("return Verify('huge')", "Verify(model='huge', rule=Exact())", "unknown model 'huge'; this pool has ngram,"),
        ("return Verify(['mid'])", "Verify(model=['mid']", "unhashable"),
        ("return Verify('ngram')", "Verify(model='ngram'", "ngram is model-free and cannot verify"),
        ("return Draft('target', 2)", "Draft(model='target', tokens=2, stop=None)", "the target does not draft"),
        ("return Draft('draft', 0)", "None", "draft tokens must be >= 1, got 0"),
        ("return Draft('draft', 2.5)", "None", "draft tokens must be a whole number, got 2.5"),
        ("return Draft('draft', float('nan'))", "None", "draft tokens must be a whole number, got nan"),
        ("return Draft('draft', '3')", "None", "draft tokens must be a whole number, got '3'"),
        (
            "return Draft('draft', 2, stop=0.4)",
            "None",
            "draft stop must be a rule such as ConfidenceBelow(0.4), got 0.4",
        ),
        ("return Draft('draft', 2, stop=ConfidenceBelow(7))", "None", "prob must be in [0, 1], got 7"),
        ("return Verify('target', rule='exact')", "None", "verify rule must be a rule such as Exact(), got 'exact'"),
        ("return Commit(1)", "Commit(tokens=1)", "commit beyond pending: num_pending is 0"),
        ("return Commit(1.5)", "None", "commit tokens must be a whole number, got 1.5"),
        ("return Draft('draft', 3)", "Draft(model='draft', tokens=3, stop=None)", "no room to draft"),
        ("return Draft('ngram', 3)", "Draft(model='ngram', tokens=3, stop=None)", "no progress in 8 steps"),
        ("return Verify('mid')", "Verify(model='mid', rule=Exact())", "nothing left to judge"),
        ("seen.load.missing", "None", "decide raised AttributeError"),
        ("raise SystemExit(0)", "None", "decide raised SystemExit(0)"),
        ("return Draft('draft', 10**30)", "None", "draft tokens must be <= 1,000,000"),
        ("return Verify('target', Verify)", "None", "verify rule must be a rule such as Exact()"),
    ],
)
def test_a_policy_that_breaks_the_contract(mine, body, step, told):
    line = mine(body, "--batch", 3)
    assert line.startswith(f"policy my_policy.py:Mine, request small-0, step {step}")
    assert told in line


def test_learn_that_raises(trace, tmp_path):
    (tmp_path / "my_policy.py").write_text(
        HEAD.format(body="return Verify(self.pool.target)")
        + "\n    def learn(self, outcome):\n        return {}['x']\n"
    )
    line = refused("compare", "--trace", trace, "--policy", "my_policy.py:Mine")
    told = "step Verify(model='target', rule=Exact()): learn raised KeyError('x') (my_policy.py:18)"
    assert line == f"policy my_policy.py:Mine, request small-0, {told}"
    line = refused("policy", "check", "my_policy.py:Mine")
    assert f"request r1, {told}" in line


def test_one_that_keeps_drafting_and_refusing_ends(trace, tmp_path):
    """Verifiers below the target in turn, and never the target: it stops when nothing is left to do."""
    body = "return Draft('draft', 1) if seen.room else Verify('mid') if seen.waiting('mid') else Draft('draft', 1)"
    (tmp_path / "my_policy.py").write_text(HEAD.format(body=body))
    line = refused("compare", "--trace", trace, "--policy", "my_policy.py:Mine")
    assert "no room to draft" in line


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        (None, "my_policy.py:Mine", "no file my_policy.py"),
        (None, "no/such/folder.py:Mine", "no file no/such/folder.py"),
        (
            "def broken(:\n",
            "my_policy.py:Mine",
            "my_policy.py raised SyntaxError: invalid syntax (my_policy.py, line 1)",
        ),
        (
            "import no_such_module\n",
            "my_policy.py:Mine",
            "raised ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("1 / 0\n", "my_policy.py:Mine", "my_policy.py raised ZeroDivisionError: division by zero"),
        ("class Other: pass\n", "my_policy.py:Mine", "'Mine' is not a class with decide and learn"),
        ("class Mine: pass\n", "my_policy.py:Mine", "'Mine' is not a class with decide and learn"),
        ("class Mine: pass\n", "my_policy.py", "say which class of the file, as in my_policy.py:MyPolicy"),
        ("Mine = 3\n", "my_policy.py:Mine", "'Mine' is not a class with decide and learn"),
        (None, "no_such_package.module:Mine", "importing 'no_such_package.module' raised ModuleNotFoundError"),
        (None, "json:Mine", "'Mine' is not a class with decide and learn"),
        (None, "json:dumps", "'dumps' is not a class with decide and learn"),
        (None, ":Mine", "importing '' raised ValueError: Empty module name"),
        (None, ".module:Mine", "importing '.module' raised TypeError"),
    ],
)
def test_a_class_that_is_not_there(trace, tmp_path, content, name, told):
    if content is not None:
        (tmp_path / "my_policy.py").write_text(content)
    line = refused("compare", "--trace", trace, "--policy", name)
    assert line.startswith(f"policy '{name}': ")
    assert told in line


CONSTRUCTORS = """
class Mine:
    def __init__(self, pool, *, size: int = 3, kind=None, rate: "float | None" = None, {more}):
        {body}
        self._step = Verify(pool.target)

    def decide(self, seen):
        return self._step

    def learn(self, outcome):
        pass
"""


@pytest.mark.parametrize(
    ("more", "body", "options", "told"),
    [
        ("", "raise ValueError('size must be odd, got 4')", "", ": size must be odd, got 4"),
        ("", "raise KeyError('missing')", "", ": its constructor raised KeyError: 'missing'"),
        ("", "pool.level('huge')", "", ": unknown model 'huge'; this pool has"),
        ("", "pass", ",size=big", ": option 'size' must be a whole number, got 'big'"),
        ("", "pass", ",rate=big", ": option 'rate' must be a number, got 'big'"),
        ("", "pass", ",other=1", ": unknown option 'other'; known are size, kind, rate"),
        ("", "pass", ",size=1,size=2", ": option 'size' stands twice"),
        ("needed", "pass", "", ": missing a required"),
        ("stop: Verify = None", "pass", ",stop=1", ": unknown option 'stop'; known are size, kind, rate"),
    ],
)
def test_a_constructor_that_refuses(trace, tmp_path, more, body, options, told):
    content = "from paceline.policies import Verify\n" + CONSTRUCTORS.format(more=more, body=body)
    (tmp_path / "my_policy.py").write_text(content)
    name = f"my_policy.py:Mine{options}"
    assert f"policy '{name}'{told}" in refused("compare", "--trace", trace, "--policy", name)


def test_a_class_without_a_constructor(trace, tmp_path):
    (tmp_path / "my_policy.py").write_text(
        "class Mine:\n    def decide(self, seen): ...\n    def learn(self, outcome): ...\n"
    )
    line = refused("compare", "--trace", trace, "--policy", "my_policy.py:Mine")
    reason = "too many positional arguments (its constructor must take the pool first, then options) (my_policy.py:1)"
    assert line == f"policy 'my_policy.py:Mine': {reason}"


MODERN = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.policies import Draft, Verify

if TYPE_CHECKING:
    from paceline.policies import Observation, Outcome, Pool, Step, Stop


@dataclass(frozen=True, slots=True)
class Plan:
    window: int


class Mine:
    def __init__(self, pool: Pool, *, window: int = 4, stop: Stop | None = None, drafter: str = "draft") -> None:
        self._plan = Plan(window)
        self._steps = Draft(drafter, window, stop), Verify(pool.target)

    def decide(self, seen: Observation) -> Step:
        return self._steps[seen.num_pending > 0]

    def learn(self, outcome: Outcome) -> None: ...
"""


def test_types_for_checkers_only(trace, tmp_path):
    """Annotations that do not exist when the program runs, and dataclasses beside them."""
    (tmp_path / "my_policy.py").write_text(MODERN)
    args = ("compare", "--trace", trace, "--json", "-", "--policy")
    (mine,) = json.loads(done(*args, "my_policy.py:Mine,window=3,drafter=mid"))["policies"]
    (same,) = json.loads(done(*args, "mid:3/target"))["policies"]
    assert {**mine, "policy": "mid:3/target"} == same
    assert "unknown option 'stop'; known are window, drafter" in refused(*args, "my_policy.py:Mine,stop=1")


def test_two_files_of_one_name(trace, tmp_path):
    for folder, window in (("a", 2), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_policy.py").write_text(MODERN.replace("window: int = 4", f"window: int = {window}"))
    args = ("--policy", "a/my_policy.py:Mine", "--policy", "b/my_policy.py:Mine")
    rows = json.loads(done("compare", "--trace", trace, *args, "--json", "-"))["policies"]
    assert rows[0]["target_calls_per_token"] > rows[1]["target_calls_per_token"]


def test_a_policy_that_never_ends_is_stopped_by_the_check(tmp_path):
    body = "return Draft('ngram', 2) if seen.room else Verify(self.pool.target)"
    (tmp_path / "my_policy.py").write_text(HEAD.format(body=body))
    line = refused("policy", "check", "my_policy.py:Mine")
    assert line.startswith("policy my_policy.py:Mine, request r")


def test_a_policy_of_a_module(trace, monkeypatch, tmp_path):
    (tmp_path / "some_package_of_mine.py").write_text(MODERN)
    monkeypatch.syspath_prepend(tmp_path)
    ran = paceline("compare", "--trace", trace, "--policy", "some_package_of_mine:Mine", "--json", "-")
    assert (ran.code, ran.err) == (0, "")


ODD = """
from paceline.policies import Draft, Verify


class Boom(BaseException):
    pass


class OwnInterrupt(KeyboardInterrupt):
    pass


class Mute(Exception):
    def __str__(self):
        raise Boom

    __repr__ = __str__


class MuteStep:
    __repr__ = Mute.__str__


class OddStep:
    @property
    def __class__(self):
        raise Boom("no class")

    __repr__ = Mute.__str__


class Longwinded:
    def __repr__(self):
        return "x" * 1_000_000


class Mine:
    def __init__(self, pool):
        self.pool = pool
        {built}

    def decide(self, seen):
        {decide}

    def learn(self, outcome):
        {learn}
"""


@pytest.mark.parametrize(
    ("where", "body", "told"),
    [
        ("decide", "raise Boom('all')", "decide raised Boom('all')"),
        ("decide", "raise OwnInterrupt", "decide raised OwnInterrupt()"),
        ("decide", "raise GeneratorExit", "decide raised GeneratorExit()"),
        ("decide", "raise Mute", "decide raised a Mute that cannot be printed (Boom)"),
        ("decide", "return MuteStep()", "step a MuteStep that cannot be printed (Boom): not a step"),
        ("decide", "return OddStep()", "step a OddStep that cannot be printed (Boom): no class"),
        ("decide", "return Longwinded()", "xxx...: not a step"),
        ("decide", "return Draft(MuteStep(), 3)", "cannot be printed"),
        ("learn", "raise Boom('all')", "learn raised Boom('all')"),
        ("learn", "raise Mute", "learn raised a Mute that cannot be printed (Boom)"),
        ("built", "raise Boom('all')", "its constructor raised Boom: all"),
        ("built", "raise Mute", "its constructor raised Mute: a Mute that cannot be printed (Boom)"),
    ],
)
def test_a_policy_may_raise_and_be_anything(trace, tmp_path, where, body, told):
    parts = {"built": "pass", "decide": "return Verify('target')", "learn": "pass", where: body}
    (tmp_path / "odd.py").write_text(ODD.format(**parts))
    assert told in refused("compare", "--trace", "small.trace", "--policy", "odd.py:Mine")


@pytest.mark.parametrize("raised", ["BaseException('all')", "type('Own', (KeyboardInterrupt,), {})()"])
def test_a_policy_file_may_raise_anything(trace, tmp_path, raised):
    (tmp_path / "odd.py").write_text(f"raise {raised}\n")
    assert "odd.py raised " in refused("compare", "--trace", trace, "--policy", "odd.py:Mine")


@pytest.fixture
def signals_put_back():
    """An interrupted command ignores further signals, as its process is about to end; this one is not."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("where", ["built", "decide", "learn"])
def test_an_interrupt_is_no_error_of_the_policy(trace, tmp_path, signals_put_back, where):
    """The user may press Ctrl-C while the policy runs."""
    parts = {"built": "pass", "decide": "return Verify('target')", "learn": "pass"}
    parts[where] = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    if where == "decide":
        parts[where] += "; return Verify('target')"
    (tmp_path / "odd.py").write_text(ODD.format(**parts))
    ran = paceline("compare", "--trace", trace, "--policy", "odd.py:Mine", "--json", "out.json")
    assert (ran.code, ran.out, ran.err) == (130, "", "paceline: error: interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["odd.py", "small.trace"]
