"""Plain words: what CONTRIBUTING lists as not to be written is not in pages, help, docstrings and comments."""

import ast
import inspect
import io
import re
import tokenize

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


# Whose docstrings and comments are read, all of them.
FOLDERS = (
    *("base", "benchmarks", "cli", "decoding", "examples", "laboratory", "observing", "policies", "reports"),
    *("runs", "runtime", "server", "sim", "studies", "traces"),
)


def found(text):
    return NOT.findall(CODE.sub("", text))


def prose_of(source):
    """Docstrings and comments of a module, without code; a comment over several lines is one text."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    next_line = None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            if (row, column) == next_line:
                texts[-1] += token.string.lstrip("#")
            else:
                texts.append(token.string)
            next_line = row + 1, column
    return [re.sub("`[^`\n]*`", "", text) for text in texts]


def test_the_list_is_read():
    assert len(listed()) >= 60
    assert found("It goes\non, and `goes on`.\n\n    goes on\n\n```\ngoes on\n```\n") == ["goes\non"]


def test_docstrings_and_comments_are_read():
    source = (
        '"""It goes on."""\ngoes_on = "goes on"  # it goes\n\n\ndef one():\n    # `goes on`, goes\n    # on\n    pass\n'
    )
    assert [word for text in prose_of(source) for word in NOT.findall(text)] == ["goes on", "goes on"]


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


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments(folder):
    texts = {path.relative_to(ROOT): prose_of(path.read_text("utf-8")) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path): words for path, all_of in texts.items() if (words := NOT.findall("\n.\n".join(all_of)))} == {}
