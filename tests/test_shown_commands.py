"""What the pages show is what the commands print."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```console" in path.read_text(encoding="utf-8")
]


def shown(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "docs" / "shown.py", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_print_what_the_page_shows(page):
    run = shown(page)
    assert run.returncode == 0, run.stdout + run.stderr


PAGE = """
`two.json`:

```json
{"a": 2}
```

```sh
cat > three.txt <<'IN'
three
IN
```

```console
$ cat one.txt
one
$ cat one.txt three.txt \\
    two.json
one
three
{"a": 2}
$ .venv/bin/paceline run something
left alone
```
"""


def test_a_page_makes_the_files_that_it_shows(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    run = shown(page)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 commands" in run.stdout


def test_what_is_out_of_date_is_told_and_written_anew(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("one\nthree\n{", "one\nfour\n{"))
    told = shown(page)
    assert told.returncode == 1
    assert "-four" in told.stdout
    assert "+three" in told.stdout
    assert shown("--write", page).returncode == 0
    assert page.read_text() == PAGE
