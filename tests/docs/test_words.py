"""Plain words: what CONTRIBUTING lists as not to be written is not in pages, in help or in public docstrings."""

import inspect
import re

import paceline
import pytest
from paceline.cli.app import CommandByName, command

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


def helps(made, names=()):
    """Help of each command, with that of its options, by its name."""
    made = made.make() if isinstance(made, CommandByName) else made
    told = [made.help or "", *(getattr(option, "help", None) or "" for option in made.params)]
    yield " ".join(names), "\n".join(inspect.cleandoc(text) for text in told)
    for name, part in getattr(made, "commands", {}).items():
        yield from helps(part, (*names, name))


def test_the_list_is_read():
    assert len(listed()) >= 60
    assert found("It goes\non, and `goes on`.\n\n    goes on\n\n```\ngoes on\n```\n") == ["goes\non"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page):
    text = page.read_text(encoding="utf-8")
    assert found(ROW.sub("", text) if page.name == "CONTRIBUTING.md" else text) == []


def test_help():
    assert {name: words for name, told in helps(command()) if (words := found(told))} == {}


def test_docstrings_of_public_names():
    docs = {name: inspect.getdoc(getattr(paceline, name)) or "" for name in paceline.__all__}
    assert {name: words for name, doc in docs.items() if (words := found(doc))} == {}
