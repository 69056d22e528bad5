"""One bad input: what is spoiled, what is called, and what must come of it."""

import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.errors import LONGEST_LINE

from ..cli.command_line import Ran, paceline
from .world import snapshot

SECONDS = 600  # a case that takes longer hangs
ERROR = "paceline: error: "


class Hung(BaseException):
    """A case took too long; no Exception, so that nobody catches it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call in a copy of the world.

    Attributes:
        name: for the report.
        args: of the command line.
        spoil: changes the copy first.
        must: whether it has to be refused; else it may be accepted, but soundly.
    """

    name: str
    args: tuple[str, ...]
    spoil: Callable[[Path], None] | None = None
    must: bool = True


def faults(cases: list[Case], master: Path, work: Path) -> list[str]:
    """What is wrong with how the cases ended, one line each; every one runs in a fresh copy, `work`, which is here."""
    found = []
    for case in cases:
        refresh(master, work)
        if case.spoil is not None:
            case.spoil(work)
        before = snapshot(work)
        ran = _run(case)
        found += [f"{case.name}: {fault}" for fault in _faults(case, ran, before, snapshot(work))]
    return found


def refresh(master: Path, work: Path) -> None:
    """Make the copy what it was."""
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(master, work, symlinks=True, dirs_exist_ok=True)


def _run(case: Case) -> Ran | str:
    """What came of it; a traceback as text."""

    def hung(*_: object) -> None:
        raise Hung

    former = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    try:
        return paceline(*case.args)
    except Hung:
        return "it hangs"
    except BaseException as error:  # noqa: BLE001 - whatever escapes is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {str(error)[:200]} ({last.filename}:{last.lineno})"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def _faults(case: Case, ran: Ran | str, before: dict[str, object], after: dict[str, object]) -> list[str]:
    if isinstance(ran, str):
        return [ran]
    if ran.code == 2:
        return [*_of_the_line(ran), *([] if after == before else [f"changed {_differing(before, after)}"])]
    if ran.code not in (0, 1):
        return [f"exit code {ran.code}: {ran.err[-200:]}"]
    if case.must:
        return [f"accepted, exit code {ran.code}: {(ran.out + ran.err)[:200]}"]
    odd = [path for path in _differing(before, after) if not _asked(path, case.args) or ".part" in path]
    return [f"accepted, and changed {odd}"] if odd else []


def _of_the_line(ran: Ran) -> list[str]:
    *others, line = ran.err.splitlines() or [""]
    told = [f"said {ran.out[:100]!r}"] if ran.out else []
    if not line.startswith(ERROR) or any(other.startswith(ERROR) for other in others):
        told.append(f"not one line that says what is wrong: {ran.err[-200:]!r}")
    if not line.removeprefix(ERROR).strip():
        told.append("an empty line")
    if len(line) > LONGEST_LINE + len(ERROR):
        told.append(f"a line of {len(line)} characters")
    return told


def _differing(before: dict[str, object], after: dict[str, object]) -> list[str]:
    nothing = object()
    return sorted(key for key in {*before, *after} if before.get(key, nothing) != after.get(key, nothing))


def _asked(path: str, args: tuple[str, ...]) -> bool:
    """Whether a path is named in the call, or lies within or above what is."""
    for arg in args:
        named = arg.removeprefix("./").rstrip("/")
        if named and (path == named or path.startswith(f"{named}/") or named.startswith(f"{path}/")):
            return True
    return False
