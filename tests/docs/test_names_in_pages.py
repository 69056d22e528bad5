"""Files, modules and classes that the pages name are there."""

import re

import pytest

from .shown import FENCE, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.py)`")
MADE = {"by_the_coin.py", "mistakes.py", "my_router.py"}  # the page that names one makes it
PYPROJECT = "".join((ROOT / place / "pyproject.toml").read_text(encoding="utf-8") for place in ("", "laboratory"))
DOTTED = re.compile(r"\bpaceline((?:\.[A-Za-z_]\w*)+)")
CLASS = re.compile(r"`((?:[A-Z][a-z]+){2,})\b")


@pytest.fixture(scope="module")
def code():
    """Text of each Python file by its path."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = [*ROOT.glob("*.py*"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_are_there(page, code):
    """Those in folders of the repository, and modules; other files are a user's own."""
    named = PATH.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    ours = [path for path in named if (ROOT / path.split("/")[0]).is_dir() and "/" in path]
    assert [path for path in ours if not (ROOT / path).exists()] == []
    modules = {file.name for file in code} | MADE
    assert [path for path in named if "/" not in path and path not in modules] == []


def found(dotted, code):
    """Whether a module of the package has what is named."""
    place, parts = ROOT, dotted.strip(".").split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py") in code:
        place /= f"{parts.pop(0)}.py"
    held = code[place / "__init__.py" if place.is_dir() else place]
    return not parts or re.search(rf"\b{parts[0]}\b", held) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_have_what_is_named(page, code):
    dotted = DOTTED.findall(page.read_text(encoding="utf-8"))
    groups = {entries.partition('"')[0] for entries in PYPROJECT.split('[project.entry-points."paceline')[1:]}
    assert [name for name in dotted if name not in groups and not found(name, code)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_classes_are_there(page, code):
    every = set(re.findall(r"\w+", "\n".join(code.values())))
    assert [name for name in CLASS.findall(page.read_text(encoding="utf-8")) if name not in every] == []


def test_names_are_seen(code):
    """A test that sees none would miss none."""
    assert {"cli/app.py", "sim/cost/"} <= set(PATH.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert found(".policies.make_policy", code)
    assert not found(".policies.made_up", code)
    assert not found(".made_up.policies", code)
