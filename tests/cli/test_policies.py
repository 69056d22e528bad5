"""Policies of the user's own: what goes wrong in them is told by name, file and line; `paceline policy`."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from paceline.policies.by_name import own_policies

from .command_line import done, paceline, refused

MINE = "my_policy.py:Mine"
POLICY = """
from paceline.policies import About, Commit, ConfidenceBelow, Draft, Verify
{load}

class Mine:
    def __init__(self, pool):
        self.pool, self.verify = pool, Verify(pool.target)
        {built}

    def decide(self, seen):
        {decide}
        return self.verify

    def learn(self, outcome):
        {learn}
"""


QUICK = ("compare", "regret", "check", "run")
ALL = (*QUICK, pytest.param("agree", marks=pytest.mark.slow))


@pytest.fixture
def mine(tmp_path):
    """Writes the policy, with these lines in these places, and gives its name."""

    def write(**lines):
        parts = dict.fromkeys(("load", "built", "decide", "learn"), "pass") | lines
        (tmp_path / "my_policy.py").write_text(POLICY.format(**parts))
        return MINE

    return write


@pytest.fixture
def refusal(trace, mine):
    """The line by which `compare` refuses the policy; nothing is left behind."""

    def run(*args, **lines):
        line = refused("compare", "--trace", trace, "--policy", mine(**lines), "--json", "out.json", *args)
        left = {file.name for file in trace.parent.iterdir()} - {"__pycache__"}
        assert left == {"my_policy.py", "small.trace"}
        return line

    return run


@pytest.mark.parametrize(
    ("body", "step", "told"),
    [
        ("raise RuntimeError('first\\nsecond')", None, "decide raised RuntimeError('first\\nsecond')"),
        ("return None", None, "got None, not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap"),
        ("return Verify('huge')", "Verify(model='huge', rule=Exact())", "unknown model 'huge'; this pool has ngram,"),
        ("return Verify(['mid'])", "Verify(model=['mid']", "unknown model ['mid']; this pool has ngram,"),
        ("return Draft('draft', 3)", "Draft(model='draft', tokens=3, stop=None)", "no room to draft"),
        # Verifiers below the target in turn, and never the target: it stops when nothing is left to do.
        ("return Draft('draft', 1) if seen.room or not seen.waiting('mid') else Verify('mid')", "", "no room to draft"),
        ("seen.load.missing", None, "decide raised AttributeError"),
        ("raise SystemExit(0)", None, "decide raised SystemExit(0)"),
    ],
)
def test_a_policy_that_breaks_the_contract(refusal, body, step, told):
    line = refusal("--batch", 3, decide=body)
    assert line.startswith(f"policy {MINE}, request small-")
    assert (", step " in line) == (step is not None)
    assert step is None or f", step {step}" in line
    assert told in line


@pytest.mark.parametrize(
    ("asked", "rows"), [((), "policies"), (("--workload", "poisson:rate=9,requests=4", "--cluster", "h100"), "rows")]
)
def test_a_policy_that_breaks_in_the_middle_loses_no_other_row(mine, asked, rows):
    broken = mine(decide="if seen.request_id.endswith('2'): raise RuntimeError('oh')")
    policies = ("draft:4/target", broken, "mid:4/target")
    ran = paceline("compare", *asked, *chain(*(("--policy", name) for name in policies)), "--json", "out.json")
    text = Path("out.json").read_text()
    told = json.loads(text)
    assert (ran.code, {row["policy"] for row in told[rows]} - {"plain"}) == (2, {"draft:4/target", "mid:4/target"})
    assert ran.err.startswith(f"paceline: error: policy {broken}, request ")
    error = ran.err.removeprefix("paceline: error: ").strip()
    assert f"{broken} is left out: {error}" in text


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        (None, "no/such/folder.py:Mine", "no file no/such/folder.py"),
        ("import no_such_module\n", MINE, "raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("from .own import WINDOW\n", MINE, "(my_policy.py:1); a file imports its neighbours by their names, `from"),
        (None, "no_such.module:Mine", "No module named 'no_such'; install it, or set PYTHONPATH to the folder that it"),
        ("raise BaseException('all')\n", MINE, "my_policy.py raised "),
        ("raise type('Own', (KeyboardInterrupt,), {})()\n", MINE, "my_policy.py raised "),
        (None, "json:Mine", "'Mine' is not a class with decide and learn"),
        (None, ":Mine", "importing '' raised ValueError: Empty module name"),
        (None, ".module:Mine", "importing '.module' raised TypeError"),
        (
            "class Mine:\n    def decide(self, seen): ...\n    def learn(self, outcome): ...\n",
            MINE,
            "(its constructor must take the pool first, then options) (my_policy.py:1)",
        ),
    ],
)
def test_a_class_that_is_not_there(trace, tmp_path, content, name, told):
    if content is not None:
        (tmp_path / "my_policy.py").write_text(content)
    line = refused("compare", "--trace", trace, "--policy", name)
    assert line.startswith(f"policy '{name}': ")
    assert told in line


CONSTRUCTORS = """
from paceline.policies import Verify

class Mine:
    def __init__(self, pool, *, size: int = 3, most=8, kind=None, rate: "float | None" = None, {more}):
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
        ("", "raise ValueError('size must be odd, got 4')", "", ": size must be odd, got 4 (my_policy.py:6)"),
        ("", "raise KeyError('missing')", "", ": its constructor raised KeyError: 'missing'"),
        ("", "pool.level('huge')", "", ": unknown model 'huge'; this pool has"),
        ("", "pass", ",size=big", ": option 'size' must be a whole number, got 'big'"),
        ("", "pass", ",most=many", ": option 'most' must be a whole number, got 'many'"),
        ("", "pass", ",rate=big", ": option 'rate' must be a number, got 'big'"),
        ("", "pass", ",other=1", ": unknown option 'other'; known are size, most, kind, rate"),
        ("", "pass", ",size=1,size=2", ": option 'size' is repeated"),
        ("needed", "pass", "", ": missing a required"),
        ("stop: Verify = None", "pass", ",stop=1", ": unknown option 'stop'; known are size, most, kind, rate"),
    ],
)
def test_a_constructor_that_refuses(trace, tmp_path, more, body, options, told):
    (tmp_path / "my_policy.py").write_text(CONSTRUCTORS.format(more=more, body=body))
    name = f"{MINE}{options}"
    assert f"policy '{name}'{told}" in refused("compare", "--trace", trace, "--policy", name)


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


def test_types_for_checkers_only_and_two_files_of_one_name(trace, tmp_path, monkeypatch):
    """Annotations that do not exist when the program runs, and dataclasses beside them."""
    for folder, window in (("a", 2), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_policy.py").write_text(MODERN.replace("window: int = 4", f"window: int = {window}"))
    (tmp_path / "some_package_of_mine.py").write_text(MODERN)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("a/my_policy.py:Mine", "b/my_policy.py:Mine", "some_package_of_mine:Mine,window=3,drafter=mid")
    asked = [part for name in (*names, "mid:3/target") for part in ("--policy", name)]
    rows = json.loads(done("compare", "--trace", trace, *asked, "--json", "-"))["policies"]
    assert rows[0]["target_calls_per_token"] > rows[1]["target_calls_per_token"]
    assert {**rows[2], "policy": "mid:3/target"} == rows[3]
    told = refused("compare", "--trace", trace, "--policy", f"{names[0]},stop=1")
    assert "unknown option 'stop'; known are window, drafter" in told


ODD = """
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
def test_a_policy_may_raise_and_be_anything(refusal, where, body, told):
    assert told in refusal(load=ODD, **{where: body})


@pytest.mark.parametrize("kind", ["compare", "check", "run"])
@pytest.mark.parametrize("verb", ["decide", "learn"])
def test_a_method_that_does_nothing_when_it_is_called(mine, command, tmp_path, kind, verb):
    """Of an async `learn`, or one with a yield, no line would run, and nothing would be said."""
    mine()
    for begin, word in (("async def", "pass"), ("def", "yield")):
        with (tmp_path / "my_policy.py").open("a") as file:
            file.write(f"\nclass Idle(Mine):\n    {begin} {verb}(self, seen): {word}\n")
        for name in ("my_policy.py:Idle", "per-tag,default=my_policy.py:Idle"):
            said = refused(*command(kind), name)
            assert said.startswith("policy my_policy.py:Idle: ") or "'per-tag" in said
            assert f"{verb} must be a plain method, without async or yield, got <bound method Idle." in said


@pytest.mark.parametrize("kind", [*QUICK, "simulate"])
@pytest.mark.parametrize(
    ("has", "told"),
    [
        ("decide = 5", "decide must be a plain method, without async or yield, got 5 (my_policy.py:17)"),
        ("learn = property(lambda self: {}['x'])", "KeyError: 'x' (my_policy.py:19)"),
        ("about = 'lossless'", "about of policy Odd must be an About, got 'lossless' (my_policy.py:17)"),
        ("most_pending = 'many'", "most_pending must be a whole number, got 'many' (my_policy.py:17)"),
        ("trees = ('4x2',)", "trees must be a tuple of DraftTree, got ('4x2',) (my_policy.py:17)"),
        ("def __getattr__(self, name): return 5", "about of policy Odd must be an About, got 5 (my_policy.py:17)"),
        ("def __getattr__(self, name): 1 / 0", "ZeroDivisionError: division by zero (my_policy.py:19)"),
    ],
)
def test_what_a_policy_says_of_itself_is_read_when_it_is_built(mine, command, tmp_path, kind, has, told):
    """Each world read another part of it, some in the middle of a run, and named no policy."""
    mine()
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write(f"\nclass Odd(Mine):\n    kind = 'odd'\n    {has}\n")
    said = refused(*command(kind), "my_policy.py:Odd")
    assert said.endswith(told)
    assert said.startswith(("policy my_policy.py:Odd: ", "about of policy Odd "))


@pytest.mark.parametrize("kind", [*QUICK, "simulate"])
def test_what_a_policy_says_of_itself_may_depend_on_its_options(mine, command, tmp_path, kind):
    """`run` looked at the class, where a property is no About."""
    mine()
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write("\nclass Says(Mine):\n    about = property(lambda self: About(lossless=True))\n")
    done(*command(kind), "my_policy.py:Says")


@pytest.mark.parametrize("has", ["trees = {}", "trees = []", "named_tags = set()", "named_tags = {}.keys()"])
def test_an_empty_table_is_no_tree_and_tags_are_any_set(mine, command, tmp_path, has):
    mine()
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write(f"\nclass Holds(Mine):\n    {has}\n")
    for name in ("my_policy.py:Holds", "per-turn,by=acceptance,policy=my_policy.py:Holds"):
        done(*command("compare"), name)


@pytest.mark.parametrize("where", ["built", "decide", "learn"])
def test_an_interrupt_is_no_error_of_the_policy(trace, mine, tmp_path, signals_put_back, where):
    """The user may press Ctrl-C while the policy runs."""
    name = mine(**{where: "import os, signal; os.kill(os.getpid(), signal.SIGINT)"})
    ran = paceline("compare", "--trace", trace, "--policy", name, "--json", "out.json")
    assert (ran.code, ran.out, ran.err) == (130, "", "paceline: error: interrupted\n")
    assert not (tmp_path / "out.json").exists()


# -- the line that raised, in every command

# Where code raises, and what is said of it: the lines are those of POLICY.
FAILING = {
    "load": "raised KeyError: 'x' (my_policy.py:3)",
    "built": "its constructor raised KeyError: 'x' (my_policy.py:8)",
    "decide": "decide raised KeyError('x') (my_policy.py:11)",
    "learn": "learn raised KeyError('x') (my_policy.py:15)",
}
MAD = "return Verify('target', Mad()) if seen.num_pending else Draft('draft', 2) if seen.room else self.verify"
RULE = "class Mad:\n    lossless = needs_target_prob = False\n    "


@pytest.fixture
def command(trace, tmp_path, pool_loaded_once):
    """A command line that ends in the option or argument for a policy."""
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "tag": "t", "prompt": "Q: one"}\n')
    shapes = [part for name in ("draft", "mid", "target") for part in ("--models", f"{name}=llama-3.2-1b")]
    served = ("--workload", "poisson:rate=20,requests=4", "--cluster", "h100", *shapes)
    few = ("--prompts", "prompts.jsonl", "--max-new-tokens", 4, "--policy")
    return {
        "compare": ("compare", "--trace", trace, "--policy"),
        "regret": ("compare", "--trace", trace, "--regret", "--policy"),
        "check": ("policy", "check"),
        "simulate": ("simulate", "--trace", trace, *served, "--policy"),
        "run": ("run", *few),
        "drawn": ("run", "--sampling", "rejection", "--temperature", 1, "--seed", 1, *few),
        "agree": ("agree", *few),
    }.get


@pytest.mark.parametrize("kind", ALL)
def test_the_line_that_raised(mine, command, kind):
    for where, told in FAILING.items():
        said = refused(*command(kind), mine(**{where: "{}['x']"}))
        assert said.startswith((f"policy {MINE}, request ", f"policy '{MINE}': "))
        assert said.endswith(told)


@pytest.mark.parametrize("kind", QUICK)
def test_a_step_or_a_rule_that_is_refused_is_told_by_where_it_was_decided_or_defined(mine, command, kind):
    """A rule is called far below the policy, by the world."""
    said = refused(*command(kind), mine(decide="return Draft(self.verify.model, 2)"))
    assert said.endswith(" (decide: my_policy.py:10)")
    said = refused(*command(kind), mine(load=f"{RULE}def accepts(self, facts): return facts.missing", decide=MAD))
    assert "AttributeError" in said
    assert said.endswith(" (my_policy.py:5)")


STOP = "return Draft('draft', 2, Mad()) if seen.room > 1 and not seen.num_pending else self.verify"


@pytest.mark.parametrize("kind", [*QUICK, "simulate", "drawn"])
@pytest.mark.parametrize(
    ("load", "decide", "told"),
    [
        (f"{RULE}def accepts(self, facts): raise SystemExit(0)", MAD, "its rule raised SystemExit(0) (my_policy.py:5)"),
        (f"{RULE}def accepts(self, facts): pass", MAD, "accepts must return whether the token is accepted, got None"),
        (
            f"{RULE}def accepts(self, facts): return False\n    def escalates(self, facts): pass",
            MAD,
            "escalates must return whether the token is escalated, got None",
        ),
        (f"{RULE}def holds(self, signal, product): 1 / 0", STOP, "its stop raised ZeroDivisionError("),
        (f"{RULE}def holds(self, signal, product): pass", STOP, "holds must return whether the draft ends, got None"),
        (
            f"{RULE}def holds(self, signal, product): return False\n"
            "    def factor(self, signal, index): return float('nan')",
            STOP,
            "factor must be a number, got nan",
        ),
    ],
)
def test_a_rule_or_a_stop_that_raises_or_says_nothing_names_request_and_step(mine, command, kind, load, decide, told):
    """In every world; such a stop never ended a draft, and such a rule accepted nothing, in silence."""
    said = refused(*command(kind), mine(load=load, decide=decide))
    assert said.startswith(f"policy {MINE}, request ")
    assert f", step {'Verify' if 'accepts' in load else 'Draft'}(" in said
    assert "Mad object>" in said  # without its address: two runs say the same
    assert told in said


@pytest.mark.parametrize(
    ("law", "told"),
    [
        ("1 / 0", "its rule raised ZeroDivisionError('division by zero') (my_policy.py:6)"),
        (
            "return draft_probs / 2",
            "law must return probabilities of all 1,536 tokens, got (1536,) that add up to 0.5,",
        ),
        ("return draft_probs[1:]", "law must return probabilities of all 1,536 tokens, got (1535,) that add up to"),
        ("return 2 * draft_probs - target_probs", "that add up to 1, at least -"),
        ("return [1.0]", "of all 1,536 tokens, got (1,) that add up to 1, at least 1"),
    ],
)
def test_a_law_that_raises_or_is_none_names_request_and_step(mine, command, law, told):
    rule = f"{RULE}def accepts(self, facts): return facts.same\n    def law(self, target_probs, draft_probs): {law}"
    said = refused(*command("drawn"), mine(load=rule, decide=MAD))
    assert said.startswith(f"policy {MINE}, request a, step Verify(model='target', rule=")
    assert told in said


def test_a_law_may_be_an_array(mine, command):
    rule = f"{RULE}def accepts(self, facts): return facts.same\n    def law(self, target, _): return target.numpy()"
    done(*command("drawn"), mine(load=rule, decide=MAD))


def test_the_deepest_line_of_the_users_own_file(mine, command, tmp_path, monkeypatch):
    """Neither the caller's nor that of the library below, and the same in a policy made of others or elsewhere."""
    mine(load="def read(): import json; json.loads('{')", decide="read()")
    for name in (MINE, f"guarded,policy={MINE}"):
        assert refused(*command("compare"), name).endswith(" (my_policy.py:3)")
    told = refused(*command("compare"), f"guarded,policy={mine(decide='return None')}")
    assert told.endswith(" (decide: my_policy.py:10)")
    assert "(my_policy" not in refused(*command("compare"), "draft:0/target")
    mine(decide="{}['x']")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, place in ((f"../{MINE}", "../my_policy.py"), (tmp_path / MINE, tmp_path / "my_policy.py")):
        assert refused(*command("compare"), name).endswith(f" ({place}:11)")


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("def accepts(self): return True", "Mad.accepts must be a method that takes (facts), got (): too many"),
        ("def accepts(self, facts, more): return True", "takes (facts), got (facts, more): missing a required"),
        ("accepts = True", "Mad.accepts must be a method that takes (facts), got True"),
        (
            "def accepts(self, facts): return True\n    def escalates(self): return False",
            "Mad.escalates must be a method",
        ),
        ("def holds(self, signal): return False", "Mad.holds must be a method that takes (signal, product), got (sign"),
        ("holds = 0", "Mad.holds must be a method that takes (signal, product), got 0"),
    ],
)
def test_a_rule_or_a_stop_that_cannot_be_called_is_named_by_where_it_is_defined(refusal, method, told):
    """The call would raise in ours, with no line of the user's in the traceback."""
    used = "return Draft('draft', 2, Mad()) if seen.room else self.verify" if "holds" in method else MAD
    said = refusal(load=RULE + method, decide=used)
    assert told in said
    assert " (my_policy.py:3)" in said


def test_what_is_no_whole_rule_is_refused_before_it_is_used(refusal):
    """Wherever a world would have missed the rest of it."""
    said = refusal(load="class Mad:\n    lossless = False\n    def accepts(self, facts): return True", decide=MAD)
    assert "verify rule must be a rule such as Exact(), got <paceline_policy_file_my_policy.Mad object" in said
    assert said.endswith(" without needs_target_prob') (my_policy.py:13)")


@pytest.mark.parametrize(
    "way",
    [
        f"{RULE}@staticmethod\n    def accepts(facts): return True",
        f"{RULE}def accepts(self, facts, share=1): return True",
        f"{RULE}escalates = None\n    def accepts(*args): return True",
        "from paceline.policies import Exact\nclass Mad(Exact): pass",
    ],
)
def test_rules_of_all_shapes_that_can_be_called(mine, trace, way):
    done("compare", "--trace", trace, "--policy", mine(load=way, decide=MAD))


# -- what it prints stays off stdout where JSON goes there

PRINTING = {where: f"print('said in {where}')" for where in FAILING}


@pytest.mark.parametrize("kind", ALL)
def test_what_it_prints_does_not_reach_the_json(mine, command, kind):
    ran = paceline(*command(kind), mine(**PRINTING), "--json", "-")
    assert ran.code == 0
    json.loads(ran.out)
    assert all(f"said in {where}" in ran.err for where in PRINTING)


def test_nor_in_a_process_of_its_own_but_elsewhere_it_may_print(mine, command, tmp_path):
    """Where stdout is a pipe with a buffer; to a table's side, and with the JSON in a file."""
    asked = (*map(str, command("compare")), mine(**PRINTING))
    ran = subprocess.run(
        [sys.executable, "-m", "paceline", *asked, "--json", "-"], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout)["policies"][0]["policy"] == MINE
    assert "said in load\nsaid in built\n" in ran.stderr
    assert "said in decide" in done(*asked)
    assert "said in decide" in done(*asked, "--json", "out.json")
    json.loads((tmp_path / "out.json").read_text())


# -- paceline policy


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        (MINE, 0, "LOSSY: committed other text"),
        ("my_policy.py:Claims", 1, "LOSSY: committed other text, though it says of itself that it is lossless"),
        # What toy models happen to show is no promise.
        ("pyramid-sd", 0, "LOSSY by what it says of itself, though it committed what the target alone writes here\n"),
    ],
)
def test_a_lossy_policy_is_no_error_unless_it_says_otherwise(tmp_path, mine, name, code, told):
    mine(decide="return Commit(seen.num_pending) if seen.num_pending else Draft('draft', 4)")
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write("\nclass Claims(Mine):\n    about = About(lossless=True)\n")
    ran = paceline("policy", "check", name)
    assert (ran.code, told in ran.out) == (code, True)
    again = paceline("policy", "check", name, "--json", "-")
    assert (again.code, json.loads(again.out)["lossless"]) == (code, name == "pyramid-sd")


def test_a_policy_that_says_nothing_of_itself_is_shown(mine):
    assert done("policy", "show", mine()).startswith(f"{MINE}: depends; no paper\n")


def test_what_the_check_refuses(mine):
    told = refused("policy", "check", "oracle-chain")
    assert told.startswith("policy oracle-chain sees ahead, which only a recording allows")
    told = refused("policy", "check", mine(decide="return Draft('ngram', 2) if seen.room else self.verify"))
    assert told.startswith(f"policy {MINE}, request r")


@pytest.mark.parametrize(
    ("says", "decide", "told"),
    [
        ("runs=frozenset({'target'})", "", "draft is not among the members that `About.runs` names: target"),
        ("target_alone=True", "", "its `about` says target_alone, and this is no step of the target alone"),
        ("by_pending=True", "width = 1 + len(seen.request_id) % 2", "says by_pending, and it took another step where"),
        ("", "seen.load.num_running = 77", "decide changed seen.load, which belongs to all requests"),
        ("", "seen.load.batch[0] += 1", "decide changed seen.load, which belongs to all requests"),
    ],
)
def test_the_check_holds_a_policy_to_what_it_says_and_may_do(mine, tmp_path, says, decide, told):
    """Where a world takes its word, another step gave other figures in silence."""
    mine()
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write(f"\nclass Says(Mine):\n    about = About(lossless=True, {says})\n    def decide(self, seen):\n")
        file.write(f"        width = 1\n        {decide}\n")
        file.write("        return Draft('draft', width) if seen.room > 1 and not seen.num_pending else self.verify\n")
    line = refused("policy", "check", "my_policy.py:Says")
    assert line.startswith("policy my_policy.py:Says, request r")
    assert told in line
    assert line.endswith(" (decide: my_policy.py:19)")


def test_a_stop_made_anew_in_every_step_is_the_same_step(mine, tmp_path):
    """Two objects of a class without `__eq__` are never equal."""
    mine(
        load=f"{RULE}def holds(self, signal, product): return signal.prob < 0.5",
        decide=STOP.replace("room > 1", "has_room"),
    )
    with (tmp_path / "my_policy.py").open("a") as file:
        file.write("\nclass Says(Mine):\n    about = About(lossless=True, by_pending=True)\n    decide = Mine.decide\n")
    ran = paceline("policy", "check", "my_policy.py:Says")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    "chance", ["random.randint(1, 4)", "next(Mine.turns) % 4 + 1", "1 + time.perf_counter_ns() // 1000 % 4"]
)
def test_the_check_says_that_no_run_repeats(mine, chance):
    """Else `compare` gives other figures at the same seed, and nothing says why."""
    step = f"return Draft('draft', {chance}) if seen.room > 1 and not seen.num_pending else self.verify"
    name = mine(decide=step, load="import itertools, random, time", built="pass\n    turns = itertools.count()")
    told = done("policy", "check", name)
    assert "; NOT REPEATABLE: a second run took other steps" in told
    assert json.loads(done("policy", "check", name, "--json", "-"))["repeats"] is False
    fine = mine(decide=step.replace(chance, "self.chance.randint(1, 4)"), load="import random", built=SEEDED)
    assert "REPEAT" not in done("policy", "check", fine)


SEEDED = "self.chance = random.Random(3)"


def test_a_policy_that_cannot_be_used_is_listed_with_the_reason_and_refused_by_it(trace, tmp_path, monkeypatch):
    """Registered by a package, broken since."""
    info = tmp_path / "broken_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1\n")
    points = "broken = broken_package:Mine\nplain = x:Y\nnone = no_package_of_mine:Mine\n"
    (info / "entry_points.txt").write_text(f"[paceline.policies]\n{points}")
    (tmp_path / "broken_package.py").write_text("\n{}['x']\n")
    monkeypatch.syspath_prepend(tmp_path)
    listed = json.loads(done("policy", "list", "--json", "-"))
    assert set(listed["unusable"]) == {"broken", "plain", "none"}
    assert {row["name"] for row in listed["policies"]} == set(own_policies())
    assert "No module named 'no_package_of_mine'" in listed["unusable"]["none"]
    assert "cannot be" in done("policy", "list")
    said = refused("compare", "--trace", trace, "--policy", "broken")
    assert said == "policy 'broken': loading broken_package:Mine raised KeyError: 'x' (broken_package.py:2)"


@pytest.mark.parametrize("words", [("policy", "list"), ("experiment", "list"), ("trace", "inspect")], ids=" ".join)
def test_lists_are_readable_on_a_narrow_screen(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = done(*words)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
