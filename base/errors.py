"""Errors in one line: of arguments (name, range, value), of foreign code (words and place), of missing extras.

Also what such lines are made of: counts with their noun, and text from outside that is safe to print.
"""

import inspect
import re
import shlex
import shutil
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from traceback import walk_tb
from types import CodeType, MappingProxyType, ModuleType
from typing import TypeVar

_NAMED = re.compile(r"`(\w+)`")
# Options whose name differs from that of the function's argument.
OPTIONS = {"policies": "policy", "recording": "trace", "batches": "batch", "tags": "tag", "decide_s": "decide_seconds"}
OPTIONS |= {"horizon_s": "horizon_seconds", "max_wait_s": "max_wait_seconds", "rates": "rate"}  # of workloads
OPTIONS |= {"record_every_s": "record_every", "follow_every_s": "follow_every"}  # of servers
OPTIONS |= {"timeout_s": "timeout_seconds", "drain_s": "drain_seconds"}
OPTIONS |= {"from_s": "from_seconds", "until_s": "until_seconds"}  # of timelines
OPTIONS |= {"names": "drafter", "token_drafters": "token_drafter", "windows": "window"}  # of `ImportOptions`
OPTIONS |= {
    "prefilled": "start",
    "load": "requests",
    "limit_bytes": "kv_limit_mib",
    "devices": "device",
    "limits": "find_rate",
    "chains": "sweep",
    "changes": "change",
    "candidate": "from",
}
# Options that rules of files name; anything else they have in backquotes is a field of the file.
_OF_RULES = re.compile("`(columns|line|models|names|output_tokens|replace|requests|windows|workload|zero_tokens)`")
_MOST_LISTED = 120  # characters of names that are known

Value = TypeVar("Value", bound=Hashable)


class ArgumentError(ValueError):
    """A bad argument.

    Its text has names of arguments in backquotes, "`batch` must be >= 1, got 0"; the command line prints its options
    instead.
    """


def as_options(text: str, *, rule: bool = False, own: Mapping[str, str] = MappingProxyType({})) -> str:
    """The text of an ArgumentError with options in place of arguments.

    Args:
        text: of the error.
        rule: whether it is the rule of a file.
        own: what the command calls arguments of that name, before `OPTIONS`: `--rate`, or `RUN`.
    """
    named = _OF_RULES if rule else _NAMED

    def called(name: re.Match[str]) -> str:
        option = OPTIONS.get(name[1], name[1])
        return own.get(name[1]) or own.get(option) or f"--{option.replace('_', '-')}"

    return named.sub(called, text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question that names at most three of `known`, spelt nearly like `name`; empty if there is none."""
    spelt = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), spelt, n=3, cutoff=0.78) if isinstance(name, str) else []
    return f"did you mean {' or '.join(spelt[each] for each in near)}?" if near else ""


def known_are(name: object, known: Iterable[str], *others: str, where: str = "") -> str:
    """What to say after an unknown name: `did_you_mean`, else what is known, and `others` in words.

    Of a long list: its beginning, its length, and `where` to find all.
    """
    names = list(known)
    return did_you_mean(name, names) or f"known are {', '.join([_beginning(names, where), *others])}"


def check_within(name: str, value: float, interval: str) -> None:
    """Raise ArgumentError, which names the argument, unless a value lies in an interval, as in "[0, 1)".

    An end may say what it is, "[1, most=16]"; an open end at "inf" asks for a finite value. NaN lies in none.
    """
    low, high, words = _read(interval)
    if not (
        (low <= value if interval[0] == "[" else low < value)
        and (value <= high if interval[-1] == "]" else value < high)
    ):
        raise ArgumentError(f"{name} must be {words}, got {value!r}")


def check_least(name: str, value: float, least: float) -> None:
    """Raise ArgumentError, which names the argument, unless a value is `least` or more."""
    if not value >= least:
        raise ArgumentError(f"{name} must be >= {least}, got {value!r}")


def repeated(values: Iterable[Value]) -> list[Value]:
    """Values that came before, in order, once for each repetition; takes time linear in their number."""
    seen: set[Value] = set()
    again = []
    for value in values:
        if value in seen:
            again.append(value)
        seen.add(value)
    return again


def check_each_once(name: str, values: Sequence[Hashable]) -> None:
    """Raise ArgumentError, which names the argument, for no values, or one that is given twice."""
    if not values:
        raise ArgumentError(f"`{name}` must hold one, got none")
    if twice := repeated(values):
        raise ArgumentError(f"`{name}` {twice[0]} is given twice")


def _beginning(names: Sequence[str], where: str) -> str:
    ends = list(accumulate(len(name) + 2 for name in names))
    shown = bisect_right(ends, _MOST_LISTED)
    if shown == len(names):
        return ", ".join(names)
    return f"{', '.join(names[:shown])}, ... ({len(names)} in all{where and ': '}{where})"


@lru_cache
def _read(interval: str) -> tuple[float, float, str]:
    """(low, high, the rule in words) of an interval."""
    low, high = interval[1:-1].split(", ")
    least = ">=" if interval[0] == "[" else ">"
    words = f"{least} {low} and finite" if interval.endswith("inf)") else f"in {interval}"
    return float(low), float(high.rpartition("=")[2].replace(",", "")), words


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`count` >= 0, with commas, and the noun in its number; `plural` None is the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


OURS = {__name__.partition(".")[0], "paceline_laboratory"}
INSTALLED = {"site-packages", "dist-packages"}
LONGEST = 300  # characters of a value's text


def told(error: BaseException) -> str:
    """An error of foreign code in words, with file and line: `KeyError: 'x' (my_policy.py:7)`."""
    return f"{type(error).__name__}: {said(error)}{at(error)}"


def pass_interrupt(error: BaseException) -> None:
    """Raise an error on if it is Ctrl-C, which is the user's; a class derived from it is the policy's own."""
    if type(error) is KeyboardInterrupt:
        raise error


ADDRESS = re.compile(" at 0x[0-9a-f]+(?=>)", re.IGNORECASE)  # of a thing without a repr of its own


def said(value: object, words: Callable[[object], str] = str) -> str:
    """A value's text, cut to `LONGEST`, without addresses, which differ by run; if it raises, words that say so."""
    try:
        text = ADDRESS.sub("", words(value))
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

    The user's file is the first that is neither ours nor of the standard library. An error that was raised from another
    one is where that one was, if it passed no such file itself. `installed`: the file may be of an installed package;
    not where the error was caught far above, since what came through libraries alone may be our own mistake.
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
    """Whether a class is of none of our packages."""
    return not _is_ours(cls.__module__)


def innermost(part: object) -> object:
    """The policy or cost that ones of ours wrap."""
    while _is_ours(type(part).__module__) and hasattr(part, "wrapped"):
        part = part.wrapped
    return part


def decides_at(policy: object) -> str | None:
    """Where a policy of foreign code defines its `decide`; None of one of ours, or not written in Python."""
    policy = innermost(policy)
    decide = getattr(policy, "decide", None)
    code = getattr(decide, "__code__", None)
    if not isinstance(code, CodeType) or _is_ours(str(getattr(decide, "__module__", ""))):
        return None
    return _shown(code.co_filename, code.co_firstlineno)


def _foreign_lines(error: BaseException) -> Iterator[tuple[str, int]]:
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith("<") and not _is_ours(str(frame.f_globals.get("__name__"))) and not _is_standard(name):
            yield name, line


def _is_ours(module: str) -> bool:
    """Whether a module is of our packages: by name, since a user's file may lie in a checkout of them."""
    return module.partition(".")[0] in OURS


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


ROOT = Path(__file__).parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDS_TORCH = "runtime"
CONSTRAINTS = "constraints.txt"  # of pip; only checkouts have them
LABORATORY = "laboratory"  # a package of its own, in a folder of the checkout
BRING_TORCH = (NEEDS_TORCH, "parallel", "gguf", LABORATORY)
# Modules of `NEEDS_TORCH`, best known first; which one an import misses first is chance.
KNOWN_BY = ("torch", "transformers", "tokenizers")
# What drivers of NVIDIA (also below Windows) and AMD leave behind.
GPU_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@contextmanager
def needs_torch(who: str = "this command") -> Iterator[None]:
    """Around imports of modules that run real models; raises ModuleNotFoundError, which says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and _is_ours(error.name):
            raise
        missing = next((module for module in KNOWN_BY if find_spec(module) is None), error.name)
        raise ModuleNotFoundError(f"{who} runs real models and needs {missing}: {install_hint(NEEDS_TORCH)}") from error


def load_optuna(who: str) -> ModuleType:
    """The library, with its log off; raises ModuleNotFoundError, which says what to install."""
    try:
        import optuna  # noqa: PLC0415 - an optional dependency at its one door
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{who} needs {error.name}: {install_hint('search')}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def install_hint(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, or `LABORATORY`, which only checkouts have.

    Where the extra brings torch and no GPU is found, the command names the index of CPU builds: on Linux the default
    ones are several gigabytes of CUDA. pip takes the newest of both indexes, so that in a checkout the command names
    its constraints too, for one version: of it the CPU build counts as newer.
    """
    command = f"{_pip()} install {_requirement(extra)}"
    if extra in BRING_TORCH and sys.platform == "linux" and not _has_gpu():
        if (ROOT / CONSTRAINTS).is_file():
            command += f" --constraint {_in_checkout(f'./{CONSTRAINTS}')}"
        command += f" --extra-index-url {CPU_INDEX}"
    return command


def _pip() -> str:
    """The pip of the Python that runs: another one may come first on the path of a shell."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    python, here = Path(sys.executable), Path.cwd()
    return f"{shlex.quote(str(python.relative_to(here) if python.is_relative_to(here) else python))} -m pip"


def _requirement(extra: str) -> str:
    if not (ROOT / "pyproject.toml").is_file():
        return f"--editable ./{extra}" if extra == LABORATORY else f"'paceline[{extra}]'"
    return f"--editable {_in_checkout(f'./{extra}' if extra == LABORATORY else f'.[{extra}]')}"


def _in_checkout(path: str) -> str:
    """A path that begins at the checkout, as a word for a shell."""
    root = ROOT.resolve()
    return shlex.quote(path if Path.cwd() == root else f"{root}{path.removeprefix('.')}")


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or any(Path(sign).exists() for sign in GPU_SIGNS)


LONGEST_MESSAGE = 300  # characters, of a server

# Control characters except the line break and the tab, those that change the direction of text, and halves of surrogate
# pairs, which no encoding writes.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """The text with control characters written as escapes; it can always be encoded as UTF-8."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line_of(text: str, most: int) -> str:
    """The escaped text on one line of at most `most` characters, >= 3; a longer one is cut and ends in `...`."""
    # Cut first: splitting would take time for the whole text, however long.
    line = escaped(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."


def message_of(content: object, most: int = LONGEST_MESSAGE) -> str:
    """The message of an error, in any of the forms that servers give it: one line, without control characters."""
    found = content
    while isinstance(found, dict):
        inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        if inner is None:
            break
        found = inner
    try:
        return one_line_of(found if isinstance(found, str) else str(found), most)
    except RecursionError:
        return "brackets nested too deep"
