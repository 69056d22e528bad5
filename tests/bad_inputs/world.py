"""A folder with one small sound input of every kind, and what is wrong with how a call in a spoiled copy ended."""

import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.errors import LONGEST_LINE
from paceline.runs.serving import write_serving
from paceline.traces import SyntheticSpec, make_trace, write_trace

from ..cli.command_line import Ran, done, paceline
from ..cli.untrained_pool import write_untrained_pool
from ..reports.making import worked_log
from ..sim.tries.small_traces import THREE, with_ngram
from ..traces.importers.foreign_files import one_file_each

NEIGHBOURS = ("out.json.part", "other.trace.part", "new.part", ".hidden.part", "out.json.tmp")
TABLE = {"new_tokens": [1, 2, 4, 8, 16, 32, 64, 128], "seconds": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]}
COSTS = {
    "draft": TABLE,
    "mid": {"intercept_s": 0.5, "per_new_token_s": 0.01, "per_kv_token_s": 0.0},
    "target": {"new_tokens": [1, 64], "context_tokens": [1, 512], "seconds": [[1.0, 1.5], [2.0, 2.5]]},
}
SHAPE = {"parameters": 68, "layers": 2, "hidden_size": 8, "kv_bytes_per_token": 64, "dtype": "float16"}
CLUSTER = """
name = "mine"
horizon_s = 3600

[devices.mine]
like = "h100"
memory_bytes = 24e9

[router]
name = "least-loaded,by=kv"
stale_s = 0.1

[[replicas]]
name = "chat"
count = 2
device = "mine"
tensor_parallel = 1
policy = "draft:4/target"
cost = "mine"
max_num_seqs = 64
token_budget = 2048
block_tokens = 16
memory_share = 0.9
activation_reserve_bytes = 2e9
prefix_cache = true
drop_units = 1

[replicas.members.draft]
kv_blocks = 100
"""
LOAD = """
{"arrives_s": 0.5, "prompt_tokens": 4, "output_tokens": 3, "turns": []}
{"request_id": "b", "arrives_s": 0.75, "prompt_tokens": 5, "output_tokens": 2, "tag": "math", "slo": "fast"}
""".lstrip()
POLICY = """
from paceline.policies import Draft, Verify


class Mine:
    def __init__(self, pool):
        self.pool = pool

    def decide(self, seen):
        return Verify(self.pool.target)

    def learn(self, outcome):
        pass
"""


def make_world(folder: Path) -> dict[str, list[Path]]:
    """Fill `folder`; gives the files of every foreign format, relative to it."""
    folder.mkdir()
    spec = SyntheticSpec(
        name="small",
        requests=4,
        tokens=8,
        prompt_tokens=4,
        models=THREE,
        acceptance=(0.6, 0.8),
        reach=6,
        run=4,
        tags=("math", "code"),
    )
    write_trace(with_ngram(make_trace(spec)), folder / "small.trace")
    (folder / "logs").mkdir()
    logs = one_file_each(folder / "logs")
    done("trace", "import", "positions", *logs["positions"], "--out", folder / "rounds.trace")
    (folder / "pool").mkdir()
    write_untrained_pool(folder / "pool")
    shutil.copy(folder / "pool" / "prompts.jsonl", folder / "prompts.jsonl")
    (folder / "costs.json").write_text(json.dumps(COSTS))
    (folder / "models.json").write_text(json.dumps([{"name": "draft", **SHAPE}, {"name": "target", **SHAPE}]))
    (folder / "load.jsonl").write_text(LOAD)
    (folder / "my_policy.py").write_text(POLICY)
    (folder / "cluster.toml").write_text(CLUSTER)
    write_serving(worked_log(), folder / "served.run")
    _odd_files(folder)
    return {name: [path.relative_to(folder) for path in paths] for name, paths in logs.items()}


def _odd_files(folder: Path) -> None:
    """What may be given in place of a sound input, and what lies about."""
    (folder / "empty.txt").write_bytes(b"")
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "deep.json").write_text("[" * 50_000 + "]" * 50_000)
    (folder / "empty.folder").mkdir()
    (folder / "loop").symlink_to("loop")
    for name in NEIGHBOURS:
        (folder / name).write_text("mine")


def snapshot(folder: Path) -> dict[str, object]:
    """Everything below a folder: bytes of files, targets of links; without what Python keeps of policies."""
    found: dict[str, object] = {}
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in (*folders, *files):
            path = Path(top) / name
            key = str(path.relative_to(folder))
            found[key] = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


SECONDS = 600  # a case that takes longer hangs
ERROR = "paceline: error: "


class Hung(BaseException):
    """A case took too long; no Exception, so that nobody catches it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call in a copy of the world."""

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
