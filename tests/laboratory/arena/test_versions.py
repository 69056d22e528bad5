"""What runs are made of, and what a version of code depends on."""

import sys
from dataclasses import replace

import pytest
from paceline.policies.spec import PolicySpec
from paceline_laboratory.arena import ladders, versions
from paceline_laboratory.arena.versions import code_version, file_version, ladder_version, policy_version

MODULES = {
    "__init__": "",
    "top": '"""Says something."""\nfrom .middle import value\n\ndef twice():\n    """Twice."""\n    return 2 * value\n',
    "middle": "from . import low\n\nvalue = low.VALUE\n",
    "low": "VALUE = 1\n",
    "other": "VALUE = 1\n",
}
CLASS = """class Mine:
    def __init__(self, pool, *, head: str = ""):
        self.pool = pool

    def decide(self, seen):
        raise AssertionError("it is never played")

    def learn(self, outcome):
        raise AssertionError("it is never played")
"""


@pytest.fixture
def version(tmp_path, monkeypatch):
    """Version of `top` in a package of which a module reads otherwise."""
    monkeypatch.setattr(versions, "PACKAGES", ("folded",))
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "folded"
    folder.mkdir()

    def of(changed="", text="", **options):
        for name, source in MODULES.items():
            (folder / f"{name}.py").write_text(text if name == changed else source)
        versions._source.cache_clear()
        versions._is_module.cache_clear()
        try:
            return code_version(["folded.top"], **options)
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "folded"]:
                del sys.modules[name]

    yield of
    versions._source.cache_clear()
    versions._is_module.cache_clear()


@pytest.mark.parametrize("module", ["top", "middle", "low"])
def test_code_that_is_imported_counts(version, module):
    assert version() != version(module, MODULES[module] + "MORE = 2\n")


def test_other_code_does_not_count(version):
    assert version() == version("other", "VALUE = 2\n")


def test_what_is_left_out_does_not_count(version):
    changed = ("low", "VALUE = 2\n")
    assert version(without=["folded.low"]) == version(*changed, without=["folded.low"])


@pytest.mark.parametrize(
    "text",
    [
        MODULES["top"].replace("Says something", "Says more"),
        MODULES["top"].replace("    return", "    # a remark\n    return"),
        MODULES["top"].replace('"""Twice."""', '"""Two times."""'),
    ],
)
def test_words_for_readers_do_not_count(version, text):
    assert version() == version("top", text)


def test_both_packages_count(monkeypatch):
    """What the simulator of the arena plays with is paceline's; a policy of paceline is known by paceline's modules."""
    source, before = versions._source, versions.simulator_version()
    for module in ("paceline_laboratory.arena.cells", "paceline.sim.simulate"):
        changed = {module: "changed"}
        with monkeypatch.context() as patch:
            patch.setattr(
                versions, "_source", lambda name, changed=changed: (changed.get(name, source(name)[0]), source(name)[1])
            )
            assert versions.simulator_version() != before, module


def test_policies_have_versions_of_their_own():
    names = ("plain", "draft:4/target", "two-level", "specrouter", "hedgespec")
    assert len({policy_version(PolicySpec.parse(name)) for name in names}) == len(names)


def test_a_file_of_the_user_counts_and_so_do_files_that_options_name(tmp_path):
    file, head = tmp_path / "mine.py", tmp_path / "head.json"
    head.write_text("{}")

    def version(text, options=""):
        file.write_text(text)
        return policy_version(PolicySpec.parse(f"{file}:Mine{options}"))

    first = version(CLASS)
    assert first == version(CLASS)
    assert first != version(CLASS + "\nMORE = 1\n")
    with_head = version(CLASS, f",head={head}")
    head.write_text('{"more": 1}')
    assert with_head != version(CLASS, f",head={head}")


def test_of_a_file_of_the_user_what_it_imports_of_the_package_counts(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("from paceline.policies.specrouter.policy import SpecRouter\n\nclass Mine(SpecRouter):\n    pass\n")
    source, before = versions._source, file_version(file)

    def changed(name):
        found, imported = source(name)
        return (f"{found} changed" if name == "paceline.policies.specrouter.search" else found), imported

    monkeypatch.setattr(versions, "_source", changed)
    assert file_version(file) != before


@pytest.mark.parametrize("name", ["steep", "near", "cpu", "h100-7b"])
def test_a_ladder_is_its_seconds(monkeypatch, trace, name):
    first = ladder_version(name, trace)
    assert first == ladder_version(name, trace)
    other = ladders.ladders()["flat"]
    assert first != ladder_version("flat", trace)
    monkeypatch.setattr(ladders, "ladders", lambda: {name: replace(other, what="changed")})
    assert ladder_version(name, trace) != first
