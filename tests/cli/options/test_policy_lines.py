"""What goes wrong in a user's policy is told with file and line by every command; what it prints stays off stdout."""

import json
import subprocess
import sys

import pytest

from ..command_line import done, paceline, refused

pytestmark = pytest.mark.usefixtures("pool_loaded_once")

POLICY = """
from paceline.policies import Draft, Verify
{load}

class Mine:
    def __init__(self, pool):
        self.verify = Verify(pool.target)
        {construct}

    def decide(self, seen):
        {decide}
        return self.verify

    def learn(self, outcome):
        {learn}
"""
# Code that raises, in each place, and what is said of it: the lines are those of POLICY.
FAILING = {
    "load": ("raised KeyError: 'x' (my_policy.py:3)", "{}['x']"),
    "construct": ("its constructor raised KeyError: 'x' (my_policy.py:8)", "{}['x']"),
    "decide": ("decide raised KeyError('x') (my_policy.py:11)", "{}['x']"),
    "learn": ("learn raised KeyError('x') (my_policy.py:15)", "{}['x']"),
}
PRINTING = {where: f"print('said in {where}')" for where in FAILING}


@pytest.fixture
def mine(tmp_path):
    def write(**lines):
        (tmp_path / "my_policy.py").write_text(POLICY.format(**(dict.fromkeys(FAILING, "pass") | lines)))
        return "my_policy.py:Mine"

    return write


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "tag": "t", "prompt": "Q: one"}\n')
    return "prompts.jsonl"


def command(kind, trace, prompts):
    """A command line that ends in the option or argument for a policy."""
    few = ("--prompts", prompts, "--max-new-tokens", 4)
    return {
        "compare": ("compare", "--trace", trace, "--policy"),
        "regret": ("compare", "--trace", trace, "--regret", "--policy"),
        "nested": ("compare", "--trace", trace, "--policy"),
        "check": ("policy", "check"),
        "run": ("run", *few, "--policy"),
        "agree": ("agree", *few, "--policy"),
    }[kind]


QUICK = ("compare", "regret", "check", "run")


@pytest.mark.parametrize("kind", [*QUICK, pytest.param("agree", marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", FAILING)
def test_the_line_that_raised(mine, trace, prompts, kind, where):
    told, code = FAILING[where]
    said = refused(*command(kind, trace, prompts), mine(**{where: code}))
    assert said.startswith(("policy my_policy.py:Mine, request ", "policy 'my_policy.py:Mine': "))
    assert said.endswith(told)


@pytest.mark.parametrize("kind", QUICK)
def test_a_step_that_is_refused_is_told_by_where_it_was_decided(mine, trace, prompts, kind):
    assert refused(*command(kind, trace, prompts), mine(decide="return Draft(self.verify.model, 2)")).endswith(
        " (decide: my_policy.py:10)"
    )


def test_the_deepest_line_of_the_users_own_file(mine, trace, tmp_path):
    """Neither the caller's nor that of the library below, and the same in a policy made of others."""
    compare = ("compare", "--trace", trace, "--policy")
    said = refused(*compare, mine(load="def read(): import json; json.loads('{')", decide="read()"))
    assert said.endswith(" (my_policy.py:3)")
    said = refused(*compare, "guarded,policy=my_policy.py:Mine")
    assert said.endswith(" (my_policy.py:3)")
    said = refused(*compare, f"guarded,policy={mine(decide='return None')}")
    assert said.endswith(" (decide: my_policy.py:10)")


def test_a_value_that_its_constructor_refuses(mine, trace):
    """The error of a range check, which reads as one of ours but for the line."""
    said = refused("compare", "--trace", trace, "--policy", mine(construct="raise ValueError('must be odd, got 4')"))
    assert said == "policy 'my_policy.py:Mine': must be odd, got 4 (my_policy.py:8)"
    said = refused("compare", "--trace", trace, "--policy", "draft:0/target")
    assert "(my_policy" not in said


@pytest.mark.parametrize("kind", QUICK)
def test_a_rule_of_ones_own(mine, trace, prompts, kind):
    """It is called far below the policy, by the world."""
    body = "    lossless = needs_target_prob = False\n    def accepts(self, facts): return facts.missing"
    said = refused(*command(kind, trace, prompts), mine(load=f"class Mad:\n{body}", decide=MAD))
    assert "AttributeError" in said
    assert said.endswith(" (my_policy.py:5)")


def test_what_is_no_whole_rule_is_refused_before_it_is_used(mine, trace):
    """Wherever a world would have missed the rest of it."""
    rule = "class Mad:\n    lossless = False\n    def accepts(self, facts): return True"
    said = refused("compare", "--trace", trace, "--policy", mine(load=rule, decide=MAD))
    assert "verify rule must be a rule such as Exact(), got <paceline_policy_file_my_policy.Mad object" in said
    assert said.endswith(" (my_policy.py:13)")


# Methods that cannot be called as they are, and what is said of them; the class is on line 3 of the file.
UNFIT = {
    "def accepts(self): return True": "Mad.accepts must be a method that takes (facts), got (): too many positional",
    "def accepts(self, facts, more): return True": "takes (facts), got (facts, more): missing a required argument",
    "accepts = True": "Mad.accepts must be a method that takes (facts), got True",
    "def accepts(self, facts): return True\n    def escalates(self): return False": "Mad.escalates must be a method",
    "def holds(self, signal): return False": "Mad.holds must be a method that takes (signal, product), got (signal):",
    "holds = 0": "Mad.holds must be a method that takes (signal, product), got 0",
}


@pytest.mark.parametrize("method", UNFIT)
def test_a_rule_or_a_stop_that_cannot_be_called_is_named_by_where_it_is_defined(mine, trace, method):
    """The call would raise in ours, with no line of the user's in the traceback."""
    rule = f"class Mad:\n    lossless = needs_target_prob = False\n    {method}"
    used = "return Draft('draft', 2, Mad()) if seen.room else self.verify" if "holds" in method else MAD
    said = refused("compare", "--trace", trace, "--policy", mine(load=rule, decide=used))
    assert UNFIT[method] in said
    assert " (my_policy.py:3)" in said


def test_rules_of_all_shapes_that_can_be_called(mine, trace):
    """Static, with more arguments that need not be given, with any number of them, and one of ours, extended."""
    ways = [
        "class Mad:\n    lossless = needs_target_prob = False\n    @staticmethod\n    def accepts(facts): return True",
        "class Mad:\n    lossless = needs_target_prob = False\n    def accepts(self, facts, share=1): return True",
        "class Mad:\n    lossless = needs_target_prob = escalates = None\n    def accepts(*args): return True",
        "from paceline.policies import Exact\nclass Mad(Exact): pass",
    ]
    for way in ways:
        done("compare", "--trace", trace, "--policy", mine(load=way, decide=MAD))


MAD = "return Verify('target', Mad()) if seen.num_pending else Draft('draft', 2) if seen.room else self.verify"


def test_of_another_folder(mine, trace, tmp_path, monkeypatch):
    name = mine(decide="{}['x']")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = refused("compare", "--trace", trace, "--policy", f"../{name}")
    assert said.endswith(" (../my_policy.py:11)")
    said = refused("compare", "--trace", trace, "--policy", tmp_path / name)
    assert said.endswith(f" ({tmp_path / 'my_policy.py'}:11)")


def test_an_installed_policy_that_cannot_be_loaded(trace, tmp_path, monkeypatch):
    """Registered by a package, broken since."""
    info = tmp_path / "broken_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[paceline.policies]\nbroken = broken_package:Mine\n")
    (tmp_path / "broken_package.py").write_text("\n{}['x']\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = refused("compare", "--trace", trace, "--policy", "broken")
    assert said == ("policy 'broken': loading broken_package:Mine raised KeyError: 'x' (broken_package.py:2)")


@pytest.mark.parametrize("kind", [*QUICK, pytest.param("agree", marks=pytest.mark.slow)])
def test_what_it_prints_does_not_reach_the_json(mine, trace, prompts, kind):
    ran = paceline(*command(kind, trace, prompts), mine(**PRINTING), "--json", "-")
    assert ran.code == 0
    json.loads(ran.out)
    assert all(f"said in {where}" in ran.err for where in PRINTING)


def test_nor_in_a_process_of_its_own(mine, trace):
    """Where stdout is a pipe with a buffer."""
    name = mine(**PRINTING)
    args = ("-m", "paceline", "compare", "--trace", str(trace), "--policy", name, "--json", "-")
    ran = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["policies"][0]["policy"] == name
    assert "said in load\nsaid in construct\n" in ran.stderr


def test_elsewhere_it_may_print(mine, trace, tmp_path):
    """To a table's side, and with the JSON in a file."""
    assert "said in decide" in done("compare", "--trace", trace, "--policy", mine(**PRINTING))
    assert "said in decide" in done("compare", "--trace", trace, "--policy", mine(**PRINTING), "--json", "out.json")
    json.loads((tmp_path / "out.json").read_text())
