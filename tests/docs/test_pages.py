"""Pages: files, modules and classes that they name are there, commands and examples print what they show."""

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO

import pytest
from paceline.policies import check_policy, make_policy
from paceline.traces import SyntheticSpec, make_trace, write_trace

from ..cli.command_line import paceline
from ..progress import without_progress
from .shown import FENCE, ROOT, main
from .web_site import lay_out

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.py)`")
MADE = {"mistakes.py", "my_router.py"}  # the page that names one makes it
PYPROJECT = "".join((ROOT / place / "pyproject.toml").read_text(encoding="utf-8") for place in ("", "laboratory"))
DOTTED = re.compile(r"\bpaceline((?:\.[A-Za-z_]\w*)+)")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CLASS = re.compile(r"`((?:[A-Z][a-z]+){2,})\b")


@pytest.fixture(scope="module")
def code():
    """Text of each Python file by its path."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = [*ROOT.glob("*.py*"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}


@pytest.fixture(scope="module")
def words(code):
    return set(re.findall(r"\w+", "\n".join(code.values())))


def found(dotted, code):
    """Whether a module of the package has what is named."""
    place, parts = ROOT, dotted.strip(".").split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py") in code:
        place /= f"{parts.pop(0)}.py"
    held = code[place / "__init__.py" if place.is_dir() else place]
    return not parts or re.search(rf"\b{parts[0]}\b", held) is not None


def test_names_are_seen(code):
    assert {"cli/app.py", "sim/cost/"} <= set(PATH.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert found(".policies.make_policy", code)
    assert not found(".policies.made_up", code)
    assert not found(".made_up.policies", code)


PLAYED = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if re.search("^```(console|py)$", path.read_text(encoding="utf-8"), re.MULTILINE)
]
PYTHON_PAGE = ROOT / "docs" / "python-api.md"
HARDWARE_PAGE = ROOT / "docs" / "validate-on-your-hardware.md"
OF_MODELS = {PYTHON_PAGE, HARDWARE_PAGE}  # their commands run models, in seconds
WITH_MODELS = ["--models"] if find_spec("torch") and find_spec("transformers") else []


def played(*arguments):
    """(exit code, what was printed) of the module that plays pages, in this process."""
    out = StringIO()
    with redirect_stdout(out):
        code = main(arguments)
    return code, out.getvalue()


# Each process imports the package once for its pages; pages of models have one of their own.
OTHERS = [page for page in PLAYED if page not in OF_MODELS]
TOGETHER = [
    *(pytest.param([page], marks=pytest.mark.slow) for page in sorted(OF_MODELS)),
    *(OTHERS[at::3] for at in range(3)),
]


@pytest.mark.pages
@pytest.mark.parametrize("quick", [["--quick"], pytest.param([], marks=pytest.mark.slow)], ids=["quick", "whole"])
@pytest.mark.parametrize("pages", TOGETHER, ids=lambda pages: " ".join(page.name for page in pages))
def test_commands_print_what_the_pages_show(pages, quick):
    models = WITH_MODELS if OF_MODELS.issuperset(pages) else []
    command = [sys.executable, "-m", "tests.docs.shown", *pages, *models, *quick]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


SCREENS = (
    ("--seed", "0"),
    ("--policy", "draft:3/mid:20/target", "--policy", "via-sd", "--detail", "--by-tag", "--batch", "9"),
    ("--sweep", "draft:1..4:3/target"),
)


@pytest.fixture(scope="module")
def screen_trace(tmp_path_factory):
    spec = {"requests": 6, "tokens": 48, "tags": ("math", "code"), "cost_ratios": (0.05, 0.3, 0.7)}
    models = ("draft", "mid", "slim", "target")
    path = tmp_path_factory.mktemp("screens") / "screen.trace"
    write_trace(make_trace(SyntheticSpec(**spec, models=models, acceptance=(0.6, 0.8, 0.9))), path)
    return path


@pytest.mark.parametrize(("options", "width"), [*((options, 80) for options in SCREENS), (SCREENS[1], 160)])
def test_screens_are_readable_at_every_width(screen_trace, options, width, monkeypatch):
    """Nothing is cut off, and no line is wider than it was asked for."""
    monkeypatch.setenv("COLUMNS", str(width))
    ran = paceline("compare", "--trace", screen_trace, *options)
    assert ran.code == 0, ran.err
    assert "…" not in ran.out
    assert 0.5 * width < max(map(len, ran.out.splitlines())) <= width


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
    assert "-2" in played(page)[1]
    assert played("--write", page)[0] == 0
    assert page.read_text() == CELLS % "['a']\n1"


EXAMPLES = ROOT / "examples"
WITH_OUTPUT = sorted(path for path in EXAMPLES.glob("*.py") if path.with_suffix(".out").is_file())


@pytest.mark.pages
@pytest.mark.parametrize(
    "script",
    # The README's command prints the same table, and is played.
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem in {"compare_policies", "transformers_generate"}))
        for path in WITH_OUTPUT
    ],
    ids=lambda path: path.name,
)
@pytest.mark.one_in(2)
def test_prints_what_stands_beside_it(script, tmp_path):
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == script.with_suffix(".out").read_text(encoding="utf-8")
    assert without_progress(run.stderr) == ""


def test_the_readme_shows_what_the_example_prints():
    printed = (EXAMPLES / "compare_policies.out").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"$ .venv/bin/paceline compare --trace smollm2\n{printed}```" in readme


def test_example_policy_keeps_the_contract():
    text = f"{EXAMPLES / 'my_policy.py'}:MyPolicy"
    assert check_policy(lambda pool: make_policy(text, pool), name=text).lossless


def test_the_policy_guide_shows_the_example_as_it_is():
    guide = (ROOT / "docs" / "writing-a-policy.md").read_text(encoding="utf-8")
    shown = guide.split("```python\n")[1].split("```")[0]
    assert (EXAMPLES / "my_policy.py").read_text(encoding="utf-8").endswith(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_is_there(page, code, words):
    """Files in folders of the repository, modules and classes; other files are a user's own."""
    text = page.read_text(encoding="utf-8")
    named = PATH.findall(FENCE.sub("", text))
    ours = [path for path in named if (ROOT / path.split("/")[0]).is_dir() and "/" in path]
    assert [path for path in ours if not (ROOT / path).exists()] == []
    modules = {file.name for file in code} | MADE
    assert [path for path in named if "/" not in path and path not in modules] == []
    groups = {entries.partition('"')[0] for entries in PYPROJECT.split('[project.entry-points."paceline')[1:]}
    assert [name for name in DOTTED.findall(text) if name not in groups and not found(name, code)] == []
    assert [name for name in CLASS.findall(text) if name not in words] == []


def anchors(page):
    """What a link may name in a page, as GitHub makes it of headings."""
    headings = re.findall("^#{1,6} (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for place, heading in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not place.startswith("http"):
            linked = page.parent / place if place else page
            assert linked.exists(), place
            assert not heading or heading in anchors(linked), f"{place}#{heading}"


def test_every_page_is_on_the_map():
    linked = {place for place, _ in LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))}
    assert {page.name for page in PAGES if page.parent == ROOT / "docs"} - {"README.md"} <= linked


def test_a_page_makes_the_files_that_it_shows_and_what_is_out_of_date_is_told_and_written_anew(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    code, said = played(page)
    assert code == 0, said
    assert "3 commands" in said
    page.write_text(PAGE.replace("one\nthree\n{", "one\nfour\n{"))
    code, said = played(page)
    assert code == 1
    assert "-four" in said
    assert "+three" in said
    assert played("--write", page)[0] == 0
    assert page.read_text() == PAGE


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "strict: true" in settings
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / ".typing").mkdir()
    (tmp_path / ".typing" / "paceline").symlink_to(ROOT)
    lay_out(tmp_path / "build" / "pages")
    command = [sys.executable, "-m", "mkdocs", "build"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 'id="paceline.studies.compare.compare"' in (tmp_path / "build/site/api/index.html").read_text(
        encoding="utf-8"
    )
    assert (tmp_path / "build/site/search/search_index.json").is_file()
