"""Plain words: what CONTRIBUTING lists as not to be written is not in pages, in help or in public docstrings."""

import inspect
import re

import paceline
import pytest
from paceline import policies
from paceline.cli.app import GROUPS
from paceline.policies.by_name import own_policies

from . import options
from .test_pages import PAGES, ROOT

ROW = re.compile(r"^\| ([a-z ,-]+) \| [^|]+ \|$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def listed():
    """The left column of the table."""
    words = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Words\n")[2].partition("\n## ")[0]
    return [phrase for row in ROW.findall(words) if row != "not" for phrase in row.split(", ")]


NOT = re.compile(r"\b(?:" + "|".join(re.sub(" ", r"\\s+", phrase) for phrase in listed()) + r")\b", re.IGNORECASE)


def found(text):
    return NOT.findall(CODE.sub("", text))


def test_the_list_is_read():
    assert len(listed()) >= 60
    assert found("It goes\non, and `goes on`.\n\n    goes on\n\n```\ngoes on\n```\n") == ["goes\non"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page):
    text = page.read_text(encoding="utf-8")
    assert found(ROW.sub("", text) if page.name == "CONTRIBUTING.md" else text) == []


def test_help():
    """That of commands and options is a page of its own, which is read as the others are."""
    assert options.PAGE.read_text(encoding="utf-8") == options.page()
    assert {name: words for name, purpose, _ in GROUPS if (words := found(purpose))} == {}


def test_docstrings_of_public_names():
    """Those of the root, of `paceline.policies`, and of policies, which `policy show` prints."""
    named = [(module, name) for module in (paceline, policies) for name in module.__all__]
    docs = {name: inspect.getdoc(getattr(module, name)) for module, name in named}
    docs |= {name: inspect.getdoc(policy) for name, policy in own_policies().items()}
    bare = {name: re.sub("`[^`\n]*`", "", doc or "") for name, doc in docs.items()}
    assert {name: words for name, doc in bare.items() if (words := NOT.findall(doc))} == {}
