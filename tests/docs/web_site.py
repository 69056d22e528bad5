"""Lays the pages out for mkdocs as the repository has them, so that their links hold, with a page of the Python API.

python -m tests.docs.web_site [FOLDER]        (default: build/pages, where mkdocs.yml looks)
"""

import shutil
import sys
from importlib.util import resolve_name
from pathlib import Path

import paceline
from paceline import policies

from .shown import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs/**/*", "examples/*.sh", "pools/*/CARD.md")


def api_page():
    """A heading for each public function, and for each name that a policy's author imports."""
    functions = [f"paceline.{module}.{name}" for name, module in paceline.MODULES.items()]
    names = [f"{resolve_name(module, policies.__name__)}.{name}" for name, module in policies.MODULES.items()]
    blocks = ["# Python API", "[How to use it](docs/python-api.md).", *(f"::: {name}" for name in functions)]
    blocks += ["# For policies", "All of `paceline.policies`.", *(f"::: {name}" for name in names)]
    return "\n\n".join(blocks) + "\n"


def lay_out(folder):
    """Copy the pages into an empty `folder`, and write `api.md` beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in (file for pattern in PAGES for file in ROOT.glob(pattern) if file.is_file()):
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    (folder / "api.md").write_text(api_page(), encoding="utf-8")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "pages")
