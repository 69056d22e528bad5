"""From a text to a policy: names, options, chains, files and modules; every fault is one line that says what to do."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from paceline.base import names as named_classes
from paceline.policies import Draft, PolicySpecError, Verify, check_policy, make_policy
from paceline.policies.by_name import own_policies, policies_of_packages, policy_names
from paceline.policies.chain_text import policy_options
from paceline.policies.check import check_pool
from paceline.policies.fixed import Chain, Confident, Ngram, Plain
from paceline.policies.windows import Adaptive

POOL = check_pool()
HEAD = Path(__file__).parent / "learned" / "head.json"
MINE = """
from paceline.policies import Verify


class Mine:
    def __init__(self, pool, *, window: int = 4, share: float = 0.5, loud: bool = False, name: str = "x"):
        if window < 1:
            raise ValueError(f"window must be >= 1, got {window}")
        self.options = (window, share, loud, name)
        self.step = Verify(pool.target)

    def decide(self, seen):
        return self.step

    def learn(self, outcome):
        pass


def helper(pool):
    return Mine(pool)


class Half:
    def decide(self, seen):
        return None
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my_policy.py"
    file.write_text(MINE, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("plain", Plain),
        ("target", Chain),
        ("draft:4/target", Chain),
        ("chain,spec=draft:4/mid:8/target", Chain),
        ("adaptive", Adaptive),
        ("adaptive,start=2,draft=mid", Adaptive),
        ("confident,below=0.25", Confident),
        ("ngram,tokens=3", Ngram),
        ("paceline.policies.fixed:Plain", Plain),
    ],
)
def test_texts_name_policies(text, kind):
    assert type(make_policy(text, POOL)) is kind


def test_every_own_policy_is_built_by_its_name():
    needed = {
        "chain": ",spec=draft:4/target",
        "specdec++": f",head={HEAD}",
        "per-tag": ",default=plain",
        "per-turn": ",policy=plain",
        "guarded": ",policy=plain",
    }
    for name, kind in own_policies().items():
        assert type(make_policy(name + needed.get(name, ""), POOL)) is kind


def test_a_file_and_a_module_take_options(mine, monkeypatch):
    policy = make_policy(f"{mine}:Mine,window=2,share=1,loud=true,name=y", POOL)
    assert policy.options == (2, 1.0, True, "y")
    assert check_policy(lambda pool: make_policy(f"{mine}:Mine", pool)).lossless
    monkeypatch.syspath_prepend(mine.parent)
    assert make_policy("my_policy:Mine,loud=false", POOL).options == (4, 0.5, False, "x")
    monkeypatch.delitem(sys.modules, "my_policy")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("nothing", "unknown policy 'nothing': known are plain, chain, two-level, "),
        ("adaptiv", "unknown policy 'adaptiv': did you mean adaptive?"),
        ("SpecRouter", "unknown policy 'SpecRouter': did you mean specrouter?"),
        ("adaptive,strat=4", "unknown option 'strat'; did you mean start?"),
        ("", "unknown policy ''"),
        ("adaptive,window=4", "unknown option 'window'; known are draft, start, up, down, most"),
        ("plain,window=4", "unknown option 'window'; it takes no options"),
        ("adaptive,start", "option 'start' must read key=value"),
        ("adaptive,start=2,start=3", "option 'start' stands twice"),
        ("adaptive,start=two", "option 'start' must be a whole number, got 'two'"),
        ("adaptive,start=2.5", "option 'start' must be a whole number, got '2.5'"),
        ("confident,below=much", "option 'below' must be a number, got 'much'"),
        ("confident,below=1.5", "below must be in [0, 1], got 1.5"),
        ("confident,most=0", "most must be in [1, 1,000,000], got 0"),
        ("adaptive,start=99", "start must be in [1, most=16], got 99"),
        ("adaptive,start=2000000,most=1000000000", "most must be in [1, 1,000,000], got 1000000000"),
        ("adaptive,draft=nobody", "unknown model 'nobody'"),
        ("chain", "policy 'chain': missing a required argument: 'spec'"),
        ("chain,stop=x,spec=draft:4/target", "unknown option 'stop'; known are spec"),
        ("draft:4", "it must end in the target, target, without a window"),
        ("draft:4/target,window=3", "a bare chain takes no options"),
        ("draft/target", "'draft' needs a window"),
        ("specdec++", "head must name the file of an acceptance head, which `paceline policy fit specdec++"),
        ("specdec++,head=nowhere.json", "head nowhere.json: cannot be read: No such file or directory"),
        ("no_such_file.py:Mine", "no file no_such_file.py"),
        ("no.such.module:Mine", "importing 'no.such.module' raised ModuleNotFoundError"),
        ("paceline.policies.fixed:Nobody", "'Nobody' is not a class with decide and learn"),
    ],
)
def test_faults_are_one_line(text, rule):
    with pytest.raises(PolicySpecError) as caught:
        make_policy(text, POOL)
    assert rule in str(caught.value)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "rule"),
    [
        (":Nobody", "'Nobody' is not a class with decide and learn"),
        (":helper", "'helper' is not a class with decide and learn"),
        (":Half", "'Half' is not a class with decide and learn"),
        ("", "say which class of the file, as in "),
        (":Mine,loud=yes", "option 'loud' must be true or false, got 'yes'"),
        (":Mine,window=0", "window must be >= 1, got 0"),
    ],
)
def test_faults_of_a_file_are_named(mine, suffix, rule):
    with pytest.raises(PolicySpecError) as caught:
        make_policy(f"{mine}{suffix}", POOL)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import no_such_module", "raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def (", "raised SyntaxError"),
    ],
)
def test_a_file_that_raises_is_named(tmp_path, source, rule):
    file = tmp_path / "broken.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(PolicySpecError) as caught:
        make_policy(f"{file}:Mine", POOL)
    assert rule in str(caught.value)
    assert "broken.py" in str(caught.value)


def test_a_policy_that_the_pool_does_not_suit_says_why():
    without_lookup = type(POOL)(POOL.members[1:])
    with pytest.raises(PolicySpecError, match="ngram needs a model-free member in the pool; it has draft, mid"):
        make_policy("ngram", without_lookup)
    alone = type(POOL)(POOL.members[-1:])
    with pytest.raises(PolicySpecError, match="no model below its target to draft with"):
        make_policy("adaptive", alone)


class TestEntryPoints:
    """What other packages register, without installing one."""

    def register(self, monkeypatch, *pairs):
        points = [EntryPoint(name=name, value=value, group="paceline.policies") for name, value in pairs]
        monkeypatch.setattr(named_classes, "entry_points", lambda group: points)

    def test_theirs_are_found_by_name(self, monkeypatch):
        self.register(monkeypatch, ("theirs", "paceline.policies.fixed:Plain"))
        assert "theirs" in policy_names()
        assert policies_of_packages() == {"theirs": Plain}
        assert type(make_policy("theirs", POOL)) is Plain

    @pytest.mark.parametrize(
        ("entries", "said"),
        [
            ([("theirs", "no_such_module:Mine")], "loading no_such_module:Mine raised ModuleNotFoundError"),
            ([("theirs", "json:loads")], "policy 'theirs': json:loads has no decide and learn"),
            (
                [("theirs", "paceline.policies.fixed:Plain"), ("theirs", "json:loads")],
                "'theirs' is registered twice, by paceline.policies.fixed:Plain and json:loads",
            ),
            ([("plain", "no_such_module:Mine")], "'plain' is paceline's own: name no_such_module:Mine as module:Class"),
        ],
    )
    def test_a_bad_entry_breaks_nothing_but_itself(self, monkeypatch, entries, said):
        """It is loaded only where it is named, and ours stay ours."""
        self.register(monkeypatch, *entries)
        name = entries[0][0]
        assert type(make_policy("plain", POOL)) is Plain
        with pytest.raises(PolicySpecError, match="unknown policy 'nothing'"):
            make_policy("nothing", POOL)
        assert said in str(policies_of_packages()[name])
        if name != "plain":
            with pytest.raises(PolicySpecError) as caught:
                make_policy(name, POOL)
            assert said in str(caught.value)


def test_a_file_imports_its_neighbours(tmp_path, monkeypatch):
    """As a script may; of two files with a neighbour of one name, each has its own."""
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "numbers_beside.py").write_text(f"NUMBER = {number}\n")
        (tmp_path / folder / "parts_beside").mkdir()
        (tmp_path / folder / "parts_beside" / "inner.py").write_text(f"NUMBER = {number}\n")
        text = "from numbers_beside import NUMBER\nimport parts_beside.inner\n" + MINE
        text = text.replace("self.step", "self.numbers = (NUMBER, parts_beside.inner.NUMBER)\n        self.step", 1)
        (tmp_path / folder / "policy.py").write_text(text)
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    for number, folder in enumerate(("one", "two")):
        assert make_policy(f"{folder}/policy.py:Mine", POOL).numbers == (number, number)
    assert sys.path == path
    assert not {"numbers_beside", "parts_beside", "parts_beside.inner"} & set(sys.modules)


def test_options_are_those_of_the_constructor():
    assert list(policy_options(Adaptive)) == ["draft", "start", "up", "down", "most"]
    assert list(policy_options(Plain)) == []


def test_steps_of_a_bare_chain():
    policy = make_policy("draft:4/target", POOL)
    fresh = type("Seen", (), {"num_pending": 0, "found_nothing": False})()
    assert policy.decide(fresh) == Draft("draft", 4)
    assert make_policy("target", POOL).decide(fresh) == Verify("target")
