"""Python imports this by itself if its folder is on PYTHONPATH: commands that a test starts are changed as well."""

import builtins
import json
import os
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

SOURCES = "MUTANT_SOURCES"  # a JSON file: by the path of a module the text that is run in its place
HITS = "MUTANT_HITS"  # where a probe writes down its number and the running test


def install() -> None:
    """Modules that are imported from now on have the changed sources; compiled ones are not asked for them."""
    sources = json.loads(Path(os.environ[SOURCES]).read_text(encoding="utf-8"))
    read, seen = SourceFileLoader.get_code, set()

    def get_code(self: SourceFileLoader, fullname: str) -> object:
        text = sources.get(self.path)
        return read(self, fullname) if text is None else compile(text, self.path, "exec", dont_inherit=True)

    def probe(number: int) -> None:
        hit = (number, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0])
        if hit not in seen:
            seen.add(hit)
            # Not Path.open, which tests replace; and some let no file grow.
            with suppress(OSError), open(os.environ[HITS], "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(hit) + "\n")

    SourceFileLoader.get_code = get_code
    builtins.mutant_probe = probe


if SOURCES in os.environ:
    install()
