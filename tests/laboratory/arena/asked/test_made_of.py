"""What runs are made of."""

from dataclasses import replace

import pytest
from paceline.policies.spec import PolicySpec
from paceline_laboratory.arena import ladders
from paceline_laboratory.arena import versions as code_version
from paceline_laboratory.arena.versions import Versions, ladder_version

CLASS = """class Mine:
    def __init__(self, pool, *, head: str = ""):
        self.pool = pool

    def decide(self, seen):
        raise AssertionError("it is never played")

    def learn(self, outcome):
        raise AssertionError("it is never played")
"""


def test_policies_have_versions_of_their_own():
    versions = Versions()
    names = ("plain", "draft:4/target", "two-level", "specrouter", "hedgespec")
    assert len({versions.policy(PolicySpec.parse(name)) for name in names}) == len(names)


def test_a_file_of_the_user_counts_and_so_do_files_that_options_name(tmp_path):
    file, head = tmp_path / "mine.py", tmp_path / "head.json"
    head.write_text("{}")

    def version(text, options=""):
        file.write_text(text)
        return Versions().policy(PolicySpec.parse(f"{file}:Mine{options}"))

    first = version(CLASS)
    assert first == version(CLASS)
    assert first != version(CLASS + "\nMORE = 1\n")
    with_head = version(CLASS, f",head={head}")
    head.write_text('{"more": 1}')
    assert with_head != version(CLASS, f",head={head}")


def test_of_a_file_of_the_user_what_it_imports_of_the_package_counts(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("from paceline.policies.specrouter.policy import SpecRouter\n\nclass Mine(SpecRouter):\n    pass\n")
    source = code_version._source
    before = code_version.file_version(file)

    def changed(name):
        found, imported = source(name)
        return (f"{found} changed" if name == "paceline.policies.specrouter.search" else found), imported

    monkeypatch.setattr(code_version, "_source", changed)
    assert code_version.file_version(file) != before


@pytest.mark.parametrize("name", ["steep", "near", "cpu", "h100-7b"])
def test_a_ladder_is_its_seconds(monkeypatch, trace, name):
    first = ladder_version(name, trace)
    assert first == ladder_version(name, trace)
    other = ladders.ladders()["flat"]
    assert first != ladder_version("flat", trace)
    monkeypatch.setattr(ladders, "ladders", lambda: {name: replace(other, what="changed")})
    assert ladder_version(name, trace) != first
