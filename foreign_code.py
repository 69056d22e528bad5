"""What foreign code, a policy that somebody else wrote, raised: in words, and where; it may be unable to say itself."""

import inspect
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType

OURS = __name__.partition(".")[0]
INSTALLED = {"site-packages", "dist-packages"}
LONGEST = 300  # characters of what a value says of itself


def told(error: BaseException) -> str:
    """An error of foreign code in words, with file and line: `KeyError: 'x' (my_policy.py:7)`."""
    return f"{type(error).__name__}: {said(error)}{at(error)}"


def pass_interrupt(error: BaseException) -> None:
    """Raise an error on if it is Ctrl-C, which is the user's; a class derived from it is the policy's own."""
    if type(error) is KeyboardInterrupt:
        raise error


def said(value: object, words: Callable[[object], str] = str) -> str:
    """What a value says of itself, at a length that can be read; if it cannot, that."""
    try:
        text = words(value)
    except BaseException as error:  # noqa: BLE001 - even printing may raise anything
        pass_interrupt(error)
        return f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def at(error: BaseException) -> str:
    """Where it was raised as the end of a sentence, ` (my_policy.py:7)`; empty if no foreign code is known."""
    place = raised_at(error)
    return "" if place is None else f" ({place})"


def raised_at(error: BaseException, *, installed: bool = True) -> str | None:
    """The deepest line of the user's file that an error passed: `my_policy.py:7`; None if it passed none.

    The user's file is the first that is neither ours nor of the standard library: what it calls may be anybody's. An
    error that was raised from another one is where that one was, if it passed no such file itself.

    Args:
        error: caught where foreign code was called, or anywhere above.
        installed: whether the file may be of an installed package. Not where the error was caught far above: what came
            through libraries alone may be our own mistake.
    """
    seen: BaseException | None = error
    while seen is not None:
        lines = [line for line in _foreign_lines(seen) if installed or not _is_installed(line[0])]
        if lines:
            user_file = lines[0][0]
            return _shown(*[line for line in lines if line[0] == user_file][-1])
        seen = seen.__cause__
    return None


def defined_at(cls: object) -> str:
    """Where a class of foreign code is defined, as the end of a sentence; empty if it is not known."""
    if not inspect.isclass(cls) or _is_ours(cls.__module__):
        return ""
    try:
        _, line = inspect.getsourcelines(cls)
        return f" ({_shown(inspect.getfile(cls), line)})"
    except (OSError, TypeError):  # no source, or a built-in
        return ""


def is_foreign(cls: type) -> bool:
    """Whether a class is not of this package."""
    return not _is_ours(cls.__module__)


def decides_at(policy: object) -> str | None:
    """Where a policy of foreign code defines its `decide`; None of one of ours, or not written in Python."""
    while _is_ours(type(policy).__module__) and hasattr(policy, "wrapped"):
        policy = policy.wrapped
    decide = getattr(policy, "decide", None)
    code = getattr(decide, "__code__", None)
    if not isinstance(code, CodeType) or _is_ours(str(getattr(decide, "__module__", ""))):
        return None
    return _shown(code.co_filename, code.co_firstlineno)


def _foreign_lines(error: BaseException) -> Iterator[tuple[str, int]]:
    """File and line of each frame of foreign code, the outermost first."""
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith("<") and not _is_ours(str(frame.f_globals.get("__name__"))) and not _is_standard(name):
            yield name, line


def _is_ours(module: str) -> bool:
    """Whether a module is of this package: by name, since a user's file may lie in a checkout of it."""
    return module.partition(".")[0] == OURS


def _is_standard(file: str) -> bool:
    """Whether a file is of the standard library, through which imports and decorators go."""
    path = Path(file)
    library = Path(sysconfig.get_path("stdlib"))
    return path.is_relative_to(library) and not _is_installed(file)


def _is_installed(file: str) -> bool:
    return bool(INSTALLED & set(Path(file).parts))


def _shown(file: str, line: int) -> str:
    path = Path(file)
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
