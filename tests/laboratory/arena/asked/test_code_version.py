"""What a version of code depends on."""

import sys

import pytest
from paceline_laboratory.arena import versions
from paceline_laboratory.arena.versions import code_version

MODULES = {
    "__init__": "",
    "top": '"""Says something."""\nfrom .middle import value\n\ndef twice():\n    """Twice."""\n    return 2 * value\n',
    "middle": "from . import low\n\nvalue = low.VALUE\n",
    "low": "VALUE = 1\n",
    "other": "VALUE = 1\n",
}


@pytest.fixture
def version(tmp_path, monkeypatch):
    """Version of `top` in a package of which a module reads otherwise."""
    monkeypatch.setattr(versions, "PACKAGE", "folded")
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
