"""Plays the commands of `commands.txt` in this process, and writes down what each printed and wrote.

    python -m tests.golden                  # plays all; exit code 1 and a diff where the book says something else
    python -m tests.golden --write [GROUP]  # writes the book anew, all of it or some groups

Only what users call is called here: the command line and `import paceline`. So the book outlasts every move of code.

A page of the book is a group: `$ command`, its standard output, `! ` before lines of standard error, `exit N` unless 0,
and after `-- NAME` each file that it wrote: JSON with sorted keys, of a Parquet file a hash for each column, short text
in full. `>>> expression` shows a value from Python.

What depends on the machine is masked in one place, `Masks`.
"""

import difflib
import hashlib
import importlib
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import paceline
import pyarrow.parquet as pq
from paceline.reports.page import PAGE

from ..progress import without_progress

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = HERE / "pages"
INPUTS = HERE / "inputs"
EXAMPLE = HERE.parents[1] / "examples" / "my_policy.py"
SHIPPED = ("examples", "pools", "recordings")  # links to these lie in the folder of a group
LONGEST_JSON, LONGEST_TEXT, LONGEST_LINE = 8_000, 4_000, 100  # characters
FIXED = {
    **{"COLUMNS": "100", "LINES": "40", "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC", "OMP_NUM_THREADS": "1"},
    **{"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"},
}
PUBLIC = ("", ".policies", ".traces", ".traces.importers", ".traces.workloads", ".reports")
INNERMOST = re.compile(r"[\[{]\n[^\[\]{}]*[\]}]")  # of indented JSON
UNSET = ("FORCE_COLOR", "PACELINE_TRACEBACK")


def groups() -> dict[str, list[str]]:
    """The commands of each group, in the order in which they are played."""
    found: dict[str, list[str]] = {}
    for line in (HERE / "commands.txt").read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        if line.startswith("["):
            commands = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            commands.append(line)
    return found


class Masks:
    """Takes out of a text what another machine, another day or another folder would print.

    Args:
        folder: in which the commands run.
        measured: whether the command measures seconds of this machine. Then every number with a decimal point goes,
            and so do the widths of columns.
    """

    KEYS = frozenset({"software", "total_bytes"})
    MEASURED_KEYS = re.compile(
        r"_s$|_s_(mean|p\d+)$|_per_s|seconds|speed|share_of_|policy_share|^(mean|p\d\d|median|worst|spread|least|most|sd)$"
    )
    MEASURED_COLUMNS = re.compile(r"(_s|_ps|_seconds|times_plain|log_prob|entropy|gap|tvd.*)$")

    def __init__(self, folder: Path, *, measured: bool) -> None:
        self.measured = measured
        self._folders = ((str(folder.resolve()), "FOLDER"), (str(folder), "FOLDER"), (str(ROOT), "ROOT"))

    def line(self, text: str) -> str:
        """The text without what the machine and the folder are called."""
        for path, name in self._folders:
            text = text.replace(path, name)
        return re.sub(r"\bthis is [^;,]+", "this is PROCESSOR", text)

    def text(self, text: str) -> str:
        """The text with masks."""
        text = re.sub(r"of [\d.,]+ GB$", "of MEMORY", without_progress(self.line(text)), flags=re.MULTILINE)
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        if self.measured:
            text = re.sub(r"; \d+ requests? slower than the target alone", "", text)
            text = re.sub(r"[-+]?\d[\d,]*\.\d+(e[-+]?\d+)?", "#", text)
            text = re.sub(r"│ hardware +│.*", "│ hardware │ MASKED", re.sub(r"([─━ ])\1+", r"\1", text))
        return text

    def json(self, value: object, key: str = "") -> object:
        """The parsed JSON with masks."""
        measured = key in {"hardware", "thrashed", "nodes.parquet"} or (
            isinstance(value, float) and self.MEASURED_KEYS.search(key)
        )
        if key in self.KEYS or (self.measured and measured):
            return "MASKED"
        if isinstance(value, str):
            return self.line(value)
        if isinstance(value, float):
            return float(f"{value:.9g}")  # other processors add up in another order
        if isinstance(value, dict):
            # A page says again what stands beside it.
            return {inner: self.json(held, inner) for inner, held in value.items() if inner != PAGE}
        return [self.json(item, key) for item in value] if isinstance(value, list) else value


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def shown_json(value: object) -> str:
    """With sorted keys; if it is long, a hash for each path of keys, over the values that lie there."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    if len(text) > LONGEST_JSON:
        paths: dict[str, list[object]] = {}
        _gather(value, "", paths)
        rows = (f"{path} {len(values)} x {hashed(json.dumps(values))}\n" for path, values in sorted(paths.items()))
        return f"sha256 {hashed(text)}\n{''.join(rows)}"
    return f"{re.sub(INNERMOST, _in_a_line, text)}\n"


def _in_a_line(found: re.Match[str]) -> str:
    line = re.sub(r"\n *", " ", found[0])
    line = f"{line[0]}{line[2:-2]}{line[-1]}"
    return line if len(line) <= LONGEST_LINE else found[0]


def _gather(value: object, path: str, paths: dict[str, list[object]]) -> None:
    inside = value.items() if isinstance(value, dict) else (("[]", item) for item in value)
    for key, held in inside:
        place = f"{path}[]" if key == "[]" else f"{path}.{key}".lstrip(".")
        if isinstance(held, dict | list) and held:
            _gather(held, place, paths)
        else:
            paths.setdefault(place, []).append(held)


def shown_table(path: Path, masks: Masks) -> str:
    """A line a column: its type, and a hash over its values."""
    table = pq.read_table(path)
    lines = [f"{table.num_rows} rows\n"]
    lines += [f"{key.decode()}: {masks.text(value.decode())}" for key, value in (table.schema.metadata or {}).items()]
    for field in table.schema:
        hidden = masks.measured and masks.MEASURED_COLUMNS.search(field.name)
        values = "MASKED" if hidden else hashed(repr(masks.json(table[field.name].to_pylist())))
        lines.append(f"{field.name}: {field.type}{'' if field.nullable else ' not null'} {values}\n")
    return "".join(lines)


def shown_file(path: Path, masks: Masks) -> str:
    """What the book keeps of a file."""
    if path.suffix in {".parquet", ".profile"}:
        return shown_table(path, masks)
    if path.suffix in {".svg", ".png"}:
        return "a picture\n"
    if path.suffix == ".json":
        return shown_json(masks.json(json.loads(path.read_text(encoding="utf-8"))))
    text = masks.text(path.read_text(encoding="utf-8"))
    return text if len(text) <= LONGEST_TEXT else f"{text.count(chr(10))} lines, sha256 {hashed(text)}\n"


def paceline_command(words: list[str]) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `paceline`, called in this process."""
    out, err = StringIO(), StringIO()
    handler = signal.getsignal(signal.SIGINT)
    # Where a module was started by `python -m`, a usage line would name that one.
    named = patch.object(sys.modules["__main__"], "__package__", None)
    with named, patch.object(sys, "argv", ["paceline", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            importlib.import_module("paceline.__main__").main()  # sets a handler of signals when it is imported
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGINT, handler)
    return int(code or 0), out.getvalue(), err.getvalue()


def _files(folder: Path) -> dict[str, str]:
    """Hash of each file below the folder; what a link leads to is left out."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
    }


def _entry(line: str, folder: Path) -> Iterator[str]:
    """What the book says of one command."""
    yield f"{line}\n"
    if line.startswith(">>> "):
        value = eval(line.removeprefix(">>> "), {"paceline": paceline})
        masks = Masks(folder, measured=False)
        shown = value if isinstance(value, str) else shown_json(masks.json(json.loads(json.dumps(value))))
        yield masks.text(shown)
        return
    words = shlex.split(line.removeprefix("$ "))
    name = next(place for place, word in enumerate(words) if "=" not in word)
    settings = dict(word.split("=", 1) for word in words[:name])
    masks = Masks(folder, measured="MEASURED" in settings)
    before = _files(folder)
    with patch.dict(os.environ, settings):
        code, out, err = paceline_command(words[name + 1 :])
    yield shown_json(masks.json(json.loads(out))) if out.startswith("{") else masks.text(out)
    yield "".join(f"! {told}\n" for told in masks.text(err).splitlines())
    if code:
        yield f"exit {code}\n"
    for path, found in _files(folder).items():
        if before.get(path) != found:
            yield f"-- {path}\n{shown_file(folder / path, masks)}"


@contextmanager
def _fixed(folder: Path) -> Iterator[None]:
    """The same surroundings everywhere; a warning is an error, as in the tests."""
    with patch.dict(os.environ, FIXED), chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in UNSET:
            os.environ.pop(name, None)
        os.environ.setdefault("PACELINE_CACHE", str(ROOT / ".pytest_cache" / "golden"))
        time.tzset()
        yield
    time.tzset()


def played(commands: list[str], folder: Path) -> str:
    """The page of a group, played in this empty folder."""
    shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
    shutil.copy(EXAMPLE, folder)
    for name in SHIPPED:
        (folder / name).symlink_to(ROOT / name)
    with _fixed(folder):
        text = "\n".join("".join(_entry(line, folder)) for line in commands)
    return text.replace(version("paceline"), "VERSION")


def page(name: str) -> str:
    """What the book says of a group; nothing of a new one."""
    path = PAGES / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def difference(before: str, now: str) -> str:
    """The first lines of a unified diff; empty if both are the same."""
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "book", "now", lineterm="", n=2)
    return "\n".join(line[:300] for line in itertools.islice(lines, 40))


def _signature(value: object) -> str:
    """How it is called, types by their last name only: modules move."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return re.sub(r"\b(?:[a-zA-Z_]\w*\.)+([A-Za-z_]\w*)", r"\1", text)


def _public(name: str, value: object) -> Iterator[str]:
    """A line for a function; of a class also its public methods and what else it has."""
    yield f"{name}{_signature(value) if callable(value) else f': {type(value).__name__}'}\n"
    if inspect.isclass(value) and value.__module__.startswith("paceline"):
        for inner in sorted({*dir(value), *getattr(value, "__annotations__", {})}):
            held = inspect.getattr_static(value, inner, None)
            if not inner.startswith("_"):
                called = held.__func__ if isinstance(held, classmethod | staticmethod) else held
                yield f"    .{inner}{_signature(called) if inspect.isfunction(called) else ''}\n"


def signatures() -> str:
    """`__all__` of the public modules with the signatures, and the entry points."""
    parts = []
    for place in PUBLIC:
        found = importlib.import_module(f"paceline{place}")
        parts.append(f"# paceline{place}\n")
        for name in sorted(found.__all__):
            parts.extend(_public(name, getattr(found, name)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts.append("# pyproject.toml\n")
    parts.append(shown_json({key: project[key] for key in ("scripts", "entry-points", "optional-dependencies")}))
    return "".join(parts)
