"""What the pages show is what the commands print."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .shown import FENCE, ROOT, shown_in

SCREENS = Path(__file__).with_name("screens.md")
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), SCREENS]
    if re.search("^```(console|py)$", path.read_text(encoding="utf-8"), re.MULTILINE)
]
PYTHON_PAGE = ROOT / "docs" / "python-api.md"
WITH_MODELS = ["--models"] if find_spec("torch") and find_spec("transformers") else []


def shown(*arguments):
    command = [sys.executable, "-m", "tests.docs.shown", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.pages
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_print_what_the_page_shows(page):
    run = shown(page, *(WITH_MODELS if page == PYTHON_PAGE else ()))
    assert run.returncode == 0, run.stdout + run.stderr


def test_screens_are_readable_at_every_width():
    text = SCREENS.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    blocks = FENCE.findall(text)
    screens = [screen for _, block in blocks for screen in shown_in(block) if "COLUMNS" in screen.command]
    widths = [int(screen.command.split()[0].removeprefix("COLUMNS=")) for screen in screens]
    assert sorted(widths) == [80] * 3 + [100] * 3 + [160] * 3
    for screen, width in zip(screens, widths, strict=True):
        assert "…" not in screen.printed
        assert max(map(len, screen.printed.splitlines())) <= width


def test_the_page_of_the_python_api_has_cells_that_run_models_and_others():
    cells = re.findall("^```py\n(.*?)^```", PYTHON_PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    models = [bool(re.search(r"paceline\.(record|decode|agree)\(", cell)) for cell in cells]
    assert len(cells) >= 10
    assert models == sorted(models)  # those that need torch stand at the end
    assert sum(models) == 2


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


CELLS = """
```py
names = ["a"]
print(names)
len(names)
```

```text
%s
```

```py
names[1]
```

```text
IndexError: list index out of range
```

```text
stands alone
```
"""


def test_cells_of_a_page_share_their_names(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(CELLS % "['a']\n2")
    assert "-2" in shown(page).stdout
    assert shown("--write", page).returncode == 0
    assert page.read_text() == CELLS % "['a']\n1"


def test_what_is_out_of_date_is_told_and_written_anew(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("one\nthree\n{", "one\nfour\n{"))
    told = shown(page)
    assert told.returncode == 1
    assert "-four" in told.stdout
    assert "+three" in told.stdout
    assert shown("--write", page).returncode == 0
    assert page.read_text() == PAGE
