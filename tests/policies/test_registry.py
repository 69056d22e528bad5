"""From a text to a policy: names, options, chains, ranges, nesting, files, modules and packages; the pages name all."""

import inspect
import os
import re
import sys
from importlib.metadata import EntryPoint
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base import by_name as named_classes
from paceline.policies import Member, PolicySpec, PolicySpecError, Pool, check_policy, make_policy
from paceline.policies.about import about_of
from paceline.policies.by_name import POLICIES, own_policies
from paceline.policies.chain_text import chains_in, parse_chain, policy_options
from paceline.policies.check import check_pool
from paceline.policies.fixed import Chain, Confident, Plain
from paceline.policies.windows import Adaptive

from ..decoding.strategies import chains, pools

BAD_WINDOWS = ("", "0", "-1", "2.5", "²", "4:5")
FAULTY_CHAINS = [
    ("", "unknown model ''"),
    ("draft/target", "'draft' needs a window, as in draft:4"),
    ("/target", "'' needs a window"),
    *[(f"draft:{w}/target", f"the window of draft must be a whole number >= 1, got '{w}'") for w in BAD_WINDOWS],
    ("draft:4/target:8", "it must end in the target, target, without a window; its last part is 'target:8'"),
    ("draft:4/nobody", "unknown model 'nobody'; this pool has ngram, draft, mid, slim, target"),
    ("draft:4/draft:4/target", "draft is repeated"),
    ("mid:4/draft:4/target", "members must go from smallest to largest: ngram, draft, mid, slim, target"),
    ("draft:4/mid", "the last member must be the target target, got 'mid'"),
    ("draft:4/", "unknown model ''"),
    (" draft:4/target", "unknown model ' draft'"),
]
POOL = check_pool()
MINE = """
from paceline.policies import Verify


class Mine:
    def __init__(self, pool, *, window: int = 4, share: float = 0.5, loud: bool = False, name: str = "x", n=8, to=None):
        if window < 1:
            raise ValueError(f"window must be >= 1, got {window}")
        self.options = (window, share, loud, name, n, to)
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
        ("target", Chain),
        ("chain,spec=draft:4/mid:8/target", Chain),
        ("confident,below=0.25", Confident),
        ("paceline.policies.fixed:Plain", Plain),
    ],
)
def test_texts_name_policies(text, kind):
    assert type(make_policy(text, POOL)) is kind


def test_a_file_and_a_module_take_options(mine, monkeypatch):
    policy = make_policy(f"{mine}:Mine,window=2,share=1,loud=true,name=y,n=2,to=3", POOL)
    assert policy.options == (2, 1.0, True, "y", 2, "3")  # without a type: of the default, else text
    assert check_policy(lambda pool: make_policy(f"{mine}:Mine", pool)).lossless
    monkeypatch.syspath_prepend(mine.parent)
    assert make_policy("my_policy:Mine,loud=false", POOL).options == (4, 0.5, False, "x", 8, None)
    monkeypatch.delitem(sys.modules, "my_policy")


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
        ("def broken(:", "broken.py raised SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
def test_a_file_that_raises_is_named(tmp_path, source, rule):
    file = tmp_path / "broken.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(PolicySpecError) as caught:
        make_policy(f"{file}:Mine", POOL)
    assert rule in str(caught.value)
    assert "broken.py" in str(caught.value)


class TestEntryPoints:
    """What other packages register, without installing one."""

    def register(self, monkeypatch, *pairs):
        points = [EntryPoint(name=name, value=value, group="paceline.policies") for name, value in pairs]
        monkeypatch.setattr(named_classes, "entry_points", lambda group: points)

    def test_installed_ones_are_read_once_until_a_folder_changes(self, monkeypatch, tmp_path):
        monkeypatch.syspath_prepend(tmp_path)
        assert "theirs" not in POLICIES.registered()
        with monkeypatch.context() as patch:
            patch.setattr("importlib.metadata.distributions", lambda **_: pytest.fail("read again"))
            assert "theirs" not in POLICIES.registered()
        package = tmp_path / "theirs-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
        (package / "entry_points.txt").write_text("[paceline.policies]\ntheirs = paceline.policies.fixed:Plain\n")
        assert type(make_policy("theirs", POOL)) is Plain

    def test_theirs_are_found_by_name(self, monkeypatch):
        self.register(monkeypatch, ("theirs", "paceline.policies.fixed:Plain"))
        assert "theirs" in POLICIES.names()
        assert POLICIES.of_packages() == {"theirs": Plain}
        assert type(make_policy("theirs", POOL)) is Plain

    @pytest.mark.parametrize(
        ("entries", "said"),
        [
            ([("theirs", "no_such_module:Mine")], "loading no_such_module:Mine raised ModuleNotFoundError"),
            ([("theirs", "json:loads")], "policy 'theirs': json:loads is not a class with decide and learn"),
            (
                [("theirs", "paceline.policies.fixed:Plain"), ("theirs", "json:loads")],
                "'theirs' is registered twice, by paceline.policies.fixed:Plain and json:loads",
            ),
            ([("plain", "no_such_module:Mine")], "'plain' is paceline's own: name no_such_module:Mine as module:Class"),
        ],
    )
    def test_a_bad_entry_breaks_nothing_but_itself(self, monkeypatch, entries, said):
        self.register(monkeypatch, *entries)
        name = entries[0][0]
        assert type(make_policy("plain", POOL)) is Plain
        with pytest.raises(PolicySpecError, match="unknown policy 'nothing'"):
            make_policy("nothing", POOL)
        assert said in str(POLICIES.of_packages()[name])
        if name != "plain":
            with pytest.raises(PolicySpecError) as caught:
                make_policy(name, POOL)
            assert said in str(caught.value)


def test_a_file_imports_its_neighbours(tmp_path, monkeypatch):
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


def test_a_file_that_is_written_anew_within_a_second_is_read_anew(tmp_path, monkeypatch):
    """Python takes compiled code by time and size: the second of two such texts would have been the first."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, beside = tmp_path / "policy.py", tmp_path / "number_beside.py"
    for number in range(3):
        beside.write_text(f"NUMBER = {number}\n")
        text = "from number_beside import NUMBER\n" + MINE
        path.write_text(text.replace("self.step", f"self.numbers = (NUMBER, {number})\n        self.step", 1))
        for file in (path, beside):
            os.utime(file, (10**9, 10**9))
        assert make_policy(f"{path}:Mine", POOL).numbers == (number, number)
    assert not sys.dont_write_bytecode


def test_options_are_those_of_the_constructor():
    assert list(policy_options(Adaptive)) == ["draft", "start", "up", "down", "most"]
    assert list(policy_options(Plain)) == []


PLAIN = st.sampled_from(["plain", "two-level(most=8,start=2)", "draft:2/mid:3/target", "svip(h=0.5)", "adaptive()"])
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds("guarded(policy={},trial={})".format, inner, st.integers(1, 9)),
        st.builds("per-tag(default={},code={})".format, inner, inner),
    ),
    max_leaves=6,
)


def options_of(spec):
    """A spec without its texts."""
    parts = {key: options_of(value) if isinstance(value, PolicySpec) else value for key, value in spec.options.items()}
    return spec.name, parts


@given(text=NESTED)
def test_any_nesting_is_read_and_built(text):
    spec = PolicySpec.parse(text)
    assert spec.label == text
    assert type(spec.build(POOL)) is type(PolicySpec.parse(f"guarded,policy={text}").build(POOL).wrapped)


def test_spellings_mean_the_same():
    spellings = (
        "per-tag,default=plain,code=guarded(policy=two-level(most=8))",
        "per-tag(default=plain,code=guarded(policy=two-level(most=8)))",
        "per-tag,default=plain,code=guarded+policy=two-level++most=8",
    )
    first, *others = [options_of(PolicySpec.parse(text)) for text in spellings]
    inner = ("guarded", {"policy": ("two-level", {"most": 8})})
    assert first == ("per-tag", {"default": ("plain", {}), "code": inner})
    assert others == [first, first]


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("draft:4/target", "chain", {"spec": "draft:4/target"}),
        ("chain,spec=draft:4/target", "chain", {"spec": "draft:4/target"}),
        ("confident,below=1,most=3", "confident", {"below": 1.0, "most": 3}),
        ("anything", "anything", {}),
    ],
)
def test_values_are_what_the_constructor_wants(text, name, options):
    spec = PolicySpec.parse(text)
    assert (spec.name, spec.options, spec.label) == (name, options, text)


def test_a_bare_word_may_be_the_target_of_a_pool():
    assert type(PolicySpec.parse("target").build(POOL)) is Chain


def test_each_policy_is_a_new_one():
    spec = PolicySpec.parse("guarded,policy=two-level")
    first, second = spec.build(POOL), spec.build(POOL)
    assert first is not second
    assert first.wrapped is not second.wrapped


def test_a_file_is_read_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from paceline.policies.fixed import Plain as Mine\n", encoding="utf-8")
    spec = PolicySpec.parse(f"{file}:Mine")
    file.unlink()
    assert spec.build(POOL).about.lossless


def file_of_adaptive(file):
    file.parent.mkdir()
    file.write_text("from paceline.policies.windows import Adaptive as Mine\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("fold", [33, 2000])
def test_what_is_nested_too_deep_is_refused_in_one_line(fold):
    older = "guarded" + "".join(f"{'+' * depth or ','}policy=guarded" for depth in range(fold))
    for text in ("guarded(policy=" * fold + "plain" + ")" * fold, older):
        with pytest.raises(PolicySpecError, match="can stand in one another 32 deep at most") as refused:
            PolicySpec.parse(text)
        assert len(str(refused.value)) < 1000


def test_windows_are_one_label_however_they_are_written():
    spec = PolicySpec.parse("draft:04/mid:0010/target")
    assert spec.label == "draft:4/mid:10/target"
    assert spec.build(POOL).spec == PolicySpec.parse(spec.label).build(POOL).spec


def test_a_window_is_refused_as_it_was_written():
    with pytest.raises(PolicySpecError, match=r"chain 'draft:00/target': the window of draft must be .* got '00'"):
        PolicySpec.parse("draft:00/target").build(POOL)


@given(st.data())
def test_notation_reads_back_as_it_is_written(data):
    pool = data.draw(pools())
    text = data.draw(chains(pool))
    chain = parse_chain(text, pool)
    assert str(chain) == text
    assert len(chain.windows) == len(chain.members) - 1
    assert chain.members[-1] == pool.target


def test_a_chain_names_members_and_windows():
    chain = parse_chain("draft:4/mid:8/target", POOL)
    assert (chain.members, chain.windows) == (("draft", "mid", "target"), (4, 8))


@pytest.mark.parametrize(("text", "rule"), FAULTY_CHAINS)
def test_faults_are_named(text, rule):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        parse_chain(text, POOL)
    assert str(caught.value).startswith(f"chain {text!r}: {rule}")
    assert "\n" not in str(caught.value)


def test_a_pool_is_ordered():
    for members, rule in (
        ([Member(name="a"), Member(name="a")], "names must be unique, got a, a"),
        ([], "at least one model"),
        ([Member(name="a", model_free=True)], r"its last member .* must be a model"),
        ([Member(name="a"), Member(name="b", model_free=True), Member(name="c")], "model-free members come first"),
    ):
        with pytest.raises(ValueError, match=rule):
            Pool(tuple(members))


THREE = Pool(members=tuple(Member(name=name) for name in ("draft", "mid", "target")))


def names(*texts, most=1000):
    return [str(chain) for chain in chains_in(texts, THREE, most=most)]


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 5), st.integers(1, 9), st.integers(0, 5))
def test_every_window_of_every_range(first, more, step, low, high):
    text = f"draft:{first}..{first + more}:{step}/mid:{low}..{low + high}/target"
    windows = product(range(first, first + more + 1, step), range(low, low + high + 1))
    assert names(text) == [f"draft:{one}/mid:{other}/target" for one, other in windows]
    assert chains_in([text], THREE, most=1000)[0] == parse_chain(f"draft:{first}/mid:{low}/target", THREE)


def test_a_number_is_a_range_of_one_and_a_chain_of_two_texts_is_one():
    assert names("draft:4/target") == ["draft:4/target"]
    assert names("draft:2|8/target") == ["draft:2/target", "draft:8/target"]
    assert names("draft:1..3/target", "draft:2..4/target") == [f"draft:{window}/target" for window in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("draft/target", "chain 'draft/target': 'draft' needs a window, as in draft:4"),
        (
            "draft:1..x/target",
            "a sweep must have ranges such as 1..8, 0.1..0.9:0.1, 1e-3..1:log or a|b, got '1..x' in ",
        ),
        ("draft:5..1/target", "a sweep must go up in the range of draft, got 5..1 in 'draft:5..1/target'"),
        ("draft:0..4/target", "the window of draft must be a whole number >= 1, got '0'"),
        ("draft:1..4:0/target", "a sweep must go up in steps above 0 in the range of draft, got 1..4:0"),
        ("draft:1.5..4/target", "a sweep must have steps in the range of draft"),
        ("draft:1..99999999/target", "a sweep must hold 1,000 cells at most, got 99,999,999 chains"),
        ("draft:１..4/target", "the window of draft must be a whole number >= 1, got '１..4'"),
        ("nobody:1..4/target", "chain 'nobody:1/target': "),
        ("draft:1..4/target:2", "it must end in the target, target, without a window"),
        ("", "chain ''"),
    ],
)
def test_what_is_no_sweep(text, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        names(text)


def test_more_than_is_allowed_is_counted_before_it_is_made():
    with pytest.raises(ValueError, match="a sweep must hold 1,000 cells at most, got 999,998,000,001 chains in draft"):
        names("draft:1..999999/mid:1..999999/target")
    assert len(names("draft:1..1000/target")) == 1000


DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("policies", "policies-load", "policies-lossy", "specrouter", "checks")
# A name, and what it is found by; or several of them, such as "SpecRouter, arXiv:2505.07680".
PAPERS = re.compile(r"[^,;]+(, (arXiv:\d{4}\.\d{5}|\w+ \d{4}))?(; [^,;]+, arXiv:\d{4}\.\d{5})*")


def sections(*pages):
    """By policy, the section whose heading has its name in code."""
    found = {}
    for page in pages:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for section in re.split(r"^(?=#{1,6} )", text, flags=re.MULTILINE):
            for name in re.findall(r"`([^`]+)`", section.partition("\n")[0]):
                assert name not in found, f"{name} has two sections"
                found[name] = section
    return found


def test_every_policy_has_a_section_and_every_section_a_policy():
    assert set(sections(*PAGES)) == set(own_policies())


@pytest.mark.parametrize("name", sorted(own_policies()))
def test_every_option_has_its_words_in_the_docstring(name):
    """`policy show` prints them; the pages name no option twice."""
    cls = own_policies()[name]
    told = re.findall(r"^ +(\w+(?:, \w+)*): ", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    assert set(policy_options(cls)) <= {name for names in told for name in names.split(", ")}


def test_every_policy_says_what_it_follows_all_alike():
    for name, cls in own_policies().items():
        paper = about_of(cls).paper
        assert PAPERS.fullmatch(paper), (name, paper)  # a paper, a program, or paceline's own and what it does


@pytest.mark.parametrize("name", ["a(b)/mine", "a(b/mine", "c++/mine", "a+b, c/mine", "d)/mine"])
def test_a_file_may_have_any_name_also_inside_another_policy(tmp_path, name):
    file = file_of_adaptive(tmp_path / f"{name}.py")
    for options in ("", ",most=3", "(most=3)"):
        spec = PolicySpec.parse(f"{file}:Mine{options}")
        assert (spec.name, spec.options) == (f"{file}:Mine", {"most": 3} if options else {})
    if name in {"a(b)/mine", "c++/mine"}:
        for options in ("+most=3", "(most=3)"):
            part = PolicySpec.parse(f"guarded,policy={file}:Mine{options}").options["policy"]
            assert (part.name, part.options) == (f"{file}:Mine", {"most": 3})


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ('About(lossless="yes")', "`About.lossless` must be a bool, got 'yes'"),
        ('About(lossless=True, observes=["signals"])', "`About.observes` must be a frozenset of Observable, got ['sig"),
        ("About(lossless=True, observes=frozenset({'signal'}))", "`About.observes` must be a frozenset of Observable"),
        ("About(lossless=True, paper=3)", "`About.paper` must be a str, got 3"),
        ("{'lossless': True}", "about of policy Mine must be an About, got {'lossless': True}"),
        ("About", "about of policy Mine must be an About, got <class "),
    ],
)
def test_what_a_policy_says_of_itself_is_checked(tmp_path, about, said):
    path = tmp_path / "policy.py"
    text = "from paceline.policies import About\n" + MINE
    path.write_text(text.replace("    def __init__", f"    about = {about}\n\n    def __init__", 1))
    with pytest.raises(ValueError, match="About") as caught:
        about_of(make_policy(f"{path}:Mine", POOL))
    assert said in str(caught.value)
