"""Runs the commands and cells of a page and compares what they print with what the page says, or writes it anew.

    python -m tests.docs.shown docs/compare.md            # exit code 1 and a diff where the page is out of date
    python -m tests.docs.shown --write docs/*.md README.md

A page is read from top to bottom, in a scratch folder of its own that sees the repository's files:

- a `console` block holds commands behind `$ ` (further lines behind `> ` or after a backslash) and what they print;
- a `console` block that shows `$ cat mine.json` of a file that is not there makes that file;
- an `sh` block that holds `.venv/bin/` or `cat >`, and neither `make` nor `pip`, is run; the page shows no output;
- a `json`, `toml` or `python` block becomes the file that the words before it name, if they end in a colon;
- `py` blocks are the cells of a notebook, all of them run in one fresh interpreter; a `text` block next to one is what
  it shows.

A command that needs nothing of a shell is run by a fork of this process, which has imported the package already.
Commands that measure seconds or run models print something else on each machine, so they are left as they are. With
`--models`, those that run models are run too, and with `--measured` also the benchmarks.
`--quick` leaves those alone that take some seconds, for a test that runs often.
"""

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..progress import without_progress
from .cells import Cells

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100  # a page on the web shows about so many
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(r"`([\w.-]+\.(?:jsonl?|toml|py|csv|txt|log|prom))`")
RUNS_MODELS = re.compile(
    r"paceline (run|record|agree|pool (train|show|check|search-slim|distil))\b|examples/transformers|pytest|^cmp "
    r"|paceline\.(record|decode|agree|generate)\("
)
MEASURES = re.compile(r"benchmarks/|paceline experiment\b|-m paceline_laboratory\.|trace (inspect|check) [^\n]*--pool")
# The golden book plays commands like these, on less; that `serve` refuses a public address, tests/server says, and what
# `report` writes and prints, tests/reports.
LONG = re.compile(
    r"--find-rate|recommendation\.json|--trace smollm2 .*(--by-tag|--why)|(--trace|make) (steady|ahead)\.trace"
    r"|paceline (tune|serve|proxy|sweep|collect|best|recommend|whatif|report)\b|--rate 2[05],"
    r"|compare --by-tag \\|--policy via-sd|--regret|specrouter,stop=|--batch 8 --policy my_policy"
)
OUTPUT_OF_CELL = "```\n\n```text\n"  # what stands between a cell and what it shows
CAT = re.compile(r"cat ([\w.-]+)")
OWN = ".venv/bin/paceline"
OF_A_SHELL = re.compile(r"[|&;<>()$`*?\[\]#~{}\n]")
VARIABLE = re.compile(r"[A-Z_]+=")
FOREIGN = re.compile(r"\$PACELINE_DATA|shared/data|spec-bench\.trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One command of a console block.

    Attributes:
        lines: as the page shows them, prompts included.
        printed: what the page says that it prints.
    """

    lines: str
    printed: str

    @property
    def command(self) -> str:
        """What a shell is given."""
        return "\n".join(line.removeprefix("$ ").removeprefix("> ") for line in self.lines.splitlines())


def shown_in(block: str) -> Iterator[Shown]:
    """The commands of a console block, each with what follows it."""
    lines: list[str] = []
    printed: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ ") and lines:
            yield Shown(lines="\n".join(lines), printed="".join(f"{text}\n" for text in printed))
            lines, printed = [], []
        continues = lines and not printed and (line.startswith("> ") or line == ">" or lines[-1].endswith("\\"))
        (lines if line.startswith("$ ") or continues else printed).append(line)
    if lines:
        yield Shown(lines="\n".join(lines), printed="".join(f"{text}\n" for text in printed))


class Page:
    """A page while it is played.

    Args:
        path: the page.
        folder: scratch folder in which its commands run.
        skip: commands that match are not run, and what the page shows of them is left alone.
    """

    def __init__(self, path: Path, folder: Path, skip: list[re.Pattern[str]]) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.num_run = 0
        self._folder = folder
        self._skip = skip
        self._lost: set[str] = set()
        self._cells: Cells | None = None

    def played(self) -> str:
        """The page with what its commands and cells print now."""
        parts, end = [], 0
        shows: str | None = None  # of the cell before, where a block of its output may follow
        for fence in FENCE.finditer(self.text):
            kind, block = fence.groups()
            between = self.text[end : fence.start(2)]
            answers = shows is not None and between == OUTPUT_OF_CELL
            parts += [between, self._console(block) if kind == "console" else shows if answers else block]
            end = fence.end(2)
            shows = self._cell(block) if kind == "py" else None
            if kind == "sh" and self._is_played(block):
                self._run(block)
            elif kind in {"json", "toml", "python", "text", ""} and not answers:
                self._write(self.text[: fence.start()], block)
        if self._cells is not None:
            self._cells.close()
        return "".join([*parts, self.text[end:]])

    def _cell(self, code: str) -> str | None:
        """What a cell shows; None of one that is left alone."""
        if self._skipped(code):
            return None
        self.num_run += 1
        if self._cells is None:
            self._cells = Cells(Path(sys.executable), self._folder, _environment())
        return "".join(f"{line.rstrip()}\n" for line in self._cells.run(code).splitlines())

    def _is_played(self, block: str) -> bool:
        if not re.search(r"\.venv/bin/|^cat >", block, re.MULTILINE) or re.search(r"\bmake\b|\bpip\b", block):
            return False
        return not self._skipped(block)

    def _skipped(self, command: str) -> bool:
        """Whether a command is of a kind that is left alone, or needs what such a command would have made."""
        if any(pattern.search(command) for pattern in self._skip) or any(name in command for name in self._lost):
            self._lost.update(re.findall(r"[\w.-]+\.trace\b", command))
            self._lost.update(re.findall(r"pool train (?!pools/)([\w.-]+)", command))
            return True
        return False

    def _console(self, block: str) -> str:
        parts = []
        for shown in shown_in(block):
            cat = CAT.fullmatch(shown.command)
            if cat and not (self._folder / cat[1]).exists():
                (self._folder / cat[1]).write_text(shown.printed, encoding="utf-8")
            printed = shown.printed if self._skipped(shown.command) else self._run(shown.command)
            parts.append(f"{shown.lines}\n{printed}")
        return "".join(parts)

    def _write(self, before: str, block: str) -> None:
        introduction = before.rstrip().rsplit("\n\n", 1)[-1]
        names = NAMED_FILE.findall(introduction)
        if names and introduction.endswith(":"):
            (self._folder / names[-1]).write_text(block, encoding="utf-8")

    def _run(self, command: str) -> str:
        self.num_run += 1
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            if own := _own_command(command):
                _run_forked(*own, self._folder, printed.fileno())
            else:
                subprocess.run(
                    ["bash", "-c", command],
                    cwd=self._folder,
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
            printed.seek(0)
            lines = [line.rstrip() for line in without_progress(printed.read()).splitlines()]
        return "".join(f"{line}\n" for line in lines)


def _own_command(command: str) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and variables of the package's own command; None where it is another one, or needs a shell."""
    line = command.replace("\\\n", "")
    if OF_A_SHELL.search(line):
        return None
    words = shlex.split(line)
    count = next((index for index, word in enumerate(words) if not VARIABLE.match(word)), 0)
    variables = dict(word.split("=", 1) for word in words[:count])
    return (words[count + 1 :], variables) if words[count] == OWN else None


def _run_forked(arguments: list[str], variables: dict[str, str], folder: Path, out: int) -> None:
    """Run the package's command in a fork of this process, both of its outputs to the file descriptor `out`."""
    # Here, as many pages run no command; what most commands need, so that no fork imports it.
    import paceline.cli.compare
    import paceline.cli.policy
    import paceline.cli.serving
    import paceline.cli.trace_import  # noqa: F401
    from paceline.__main__ import main as paceline_main

    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        os.chdir(folder)
        os.environ.update(_environment() | variables)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for standard in (1, 2):
            os.dup2(out, standard)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = [OWN, *arguments]
        paceline_main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - as an interpreter shows it that ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}


def play(path: Path, skip: list[re.Pattern[str]]) -> tuple[str, str, int]:
    """(page as it is, page with what its commands print now, commands run)."""
    with tempfile.TemporaryDirectory(prefix="shown-") as scratch:
        folder = Path(scratch)
        for name in (".venv", "benchmarks", "docs", "examples", "pools", "recordings", "tests", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)
        page = Page(path, folder, skip)
        return page.text, page.played(), page.num_run


def main(arguments: Sequence[str | Path] | None = None) -> int:
    """Play the pages that are named; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write what the commands print into the pages")
    parser.add_argument("--models", action="store_true", help="also run the commands that run models")
    parser.add_argument("--measured", action="store_true", help="also run the benchmarks (minutes each)")
    parser.add_argument("--quick", action="store_true", help="leave commands alone that take some seconds")
    given = parser.parse_args(None if arguments is None else [str(word) for word in arguments])
    skip = [FOREIGN] + ([] if given.models else [RUNS_MODELS]) + ([] if given.measured else [MEASURES])
    skip += [LONG] if given.quick else []
    status = 0
    for path in given.pages:
        text, played, num_run = play(path, skip)
        if text == played:
            print(f"{path}: {num_run} commands print what the page shows")
        elif given.write:
            path.write_text(played, encoding="utf-8")
            print(f"{path}: {num_run} commands, written anew")
        else:
            status = 1
            print(
                "\n".join(difflib.unified_diff(text.splitlines(), played.splitlines(), str(path), "now", lineterm=""))
            )
    return status


if __name__ == "__main__":
    sys.exit(main())
