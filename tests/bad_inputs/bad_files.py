"""Every kind of input file, spoiled in every way, given to the commands that read it."""

import json
from collections.abc import Iterator
from pathlib import Path

from paceline.traces.importers import format_names

from .case import Case
from .spoiling import flipped_bytes, json_fields, toml_values, whole_file

RUN = ("run", "--prompts", "prompts.jsonl", "--pool", "pool", "--max-new-tokens", "2", "--limit", "1")
# Files, and calls that read them.
READ = {
    "small.trace/meta.json": (("trace", "check", "small.trace"), ("compare", "--trace", "small.trace")),
    "small.trace/nodes.parquet": (("trace", "inspect", "small.trace"), ("compare", "--trace", "small.trace")),
    "small.trace/requests.parquet": (("trace", "check", "small.trace"),),
    "rounds.trace/meta.json": (("trace", "check", "rounds.trace"), ("compare", "--trace", "rounds.trace")),
    "rounds.trace/rounds.parquet": (("trace", "inspect", "rounds.trace"),),
    "rounds.trace/requests.parquet": (("trace", "check", "rounds.trace"),),
    "costs.json": (("compare", "--trace", "small.trace", "--policy", "plain", "--cost", "./costs.json"),),
    "cluster.toml": (("cluster", "cluster.toml", "--trace", "small.trace"),),
    "models.json": (
        ("trace", "import", "positions", "logs/pos.jsonl", "--out", "new.trace", "--models", "models.json"),
    ),
    "load.jsonl": (("workload", "load.jsonl"),),
    "served.run/meta.json": (("metrics", "served.run"),),
    "served.run/requests.parquet": (("metrics", "served.run"),),
    "served.run/series.parquet": (("metrics", "served.run"),),
    "served.run/gaps.parquet": (("metrics", "served.run"),),
    "prompts.jsonl": (RUN, ("record", "new.trace", *RUN[1:], "--no-costs"), ("agree", *RUN[1:])),
    "pool/pool.toml": (("pool", "show", "pool"), ("trace", "check", "small.trace", "--pool", "pool")),
    "pool/tokenizer.json": (("pool", "show", "pool"), RUN),
    "pool/target/config.json": (("pool", "show", "pool"),),
    "pool/target/model.safetensors": (("pool", "show", "pool"), RUN),
    "my_policy.py": (
        ("compare", "--trace", "small.trace", "--policy", "my_policy.py:Mine"),
        ("policy", "check", "my_policy.py:Mine"),
    ),
}
# What is no longer bad: text that Python or a tokenizer takes, and an empty file where nothing has to be said.
TAKEN = {"is a number", "is null", "is a text"}
# Fields of logs that every format which has them reads; others may be beside the point, or a text as well as a number.
READ_OF_LOGS = {"accept_lengths", "accept_length", "draft_length"}
# Of fields that may be sound all the same, one in so many.
THINNED = {"pool/pool.toml": 3, "pool/target/config.json": 4}
THINNED_LOGS = 4


def file_cases(world: Path, logs: dict[str, list[Path]]) -> dict[str, list[Case]]:
    """Cases by file."""
    cases = {name: list(_raw(name, calls)) for name, calls in READ.items()}
    for name in format_names():
        for path in logs[name]:
            given = tuple(map(str, logs[name]))
            call = ("trace", "import", name, *given, "--out", "new.trace")
            fields = _fields(world, str(path), call, lines=True) if _holds_json(world / path) else []
            cases[str(path)] = [*_raw(str(path), (call,)), *_thinned(fields, THINNED_LOGS)]
    for folder, files in {"small": ("nodes", "requests"), "rounds": ("rounds", "requests")}.items():
        for name in files:
            call = ("trace", "check", f"{folder}.trace")
            cases[f"{folder}.trace/{name}.parquet"] += [
                Case(name=f"{folder} {name} {what}", args=call, spoil=spoil, must=False)
                for what, spoil in flipped_bytes(f"{folder}.trace", f"{name}.parquet", 40)
            ]
    for name in (
        "small.trace/meta.json",
        "rounds.trace/meta.json",
        "served.run/meta.json",
        "costs.json",
        "models.json",
    ):
        cases[name] += _fields(world, name, READ[name][0])
    cases["pool/target/config.json"] += [
        Case(name=case.name, args=case.args, spoil=case.spoil, must=False)
        for case in _fields(world, "pool/target/config.json", READ["pool/target/config.json"][0])
    ]
    cases["load.jsonl"] += _fields(world, "load.jsonl", ("workload", "load.jsonl"), lines=True)
    cases["prompts.jsonl"] += _fields(world, "prompts.jsonl", RUN, lines=True)
    cases["cluster.toml"] += [
        Case(name=f"cluster.toml: {what}", args=READ["cluster.toml"][0], spoil=spoil, must=False)
        for what, spoil in toml_values("cluster.toml", (world / "cluster.toml").read_text())
    ]
    text = (world / "pool" / "pool.toml").read_text()
    cases["pool/pool.toml"] += [
        Case(
            name=f"pool.toml: {what}", args=("trace", "check", "small.trace", "--pool", "pool"), spoil=spoil, must=False
        )
        for what, spoil in toml_values("pool/pool.toml", text)
    ]
    return {name: _thinned(found, THINNED.get(name, 1)) for name, found in cases.items()}


def _thinned(cases: list[Case], step: int) -> list[Case]:
    """All that must be refused, and one in `step` of the others."""
    others = [case for case in cases if not case.must][::step]
    return [*(case for case in cases if case.must), *others]


def _raw(name: str, calls: tuple[tuple[str, ...], ...]) -> Iterator[Case]:
    for call in calls:
        for what, spoil in whole_file(name):
            must = not (what in TAKEN and name.endswith(".py"))
            must &= not (what == "holds a byte that is no text" and _is_server_log(name))
            yield Case(name=f"{' '.join(call[:2])}: {name} {what}", args=call, spoil=spoil, must=must)


def _fields(world: Path, name: str, call: tuple[str, ...], *, lines: bool = False) -> list[Case]:
    text = (world / name).read_text()
    content = json.loads(text.splitlines()[0] if lines else text)
    return [
        Case(
            name=f"{' '.join(call[:2])}: {name}: {what}", args=call, spoil=spoil, must=must and not _beside(name, what)
        )
        for what, spoil, must in json_fields(name, content, lines)
    ]


def _is_server_log(name: str) -> bool:
    """Lines of a server, most of which nobody reads: stray bytes there are no fault of the few that count."""
    return name.startswith("logs/") and not name.endswith((".json", ".jsonl"))


def _holds_json(path: Path) -> bool:
    """Whether the first line is a value by itself: some formats are text of other kinds."""
    try:
        json.loads(path.read_text().partition("\n")[0])
    except ValueError:
        return False
    return True


def _beside(name: str, what: str) -> bool:
    return name.startswith("logs/") and not READ_OF_LOGS & set(what.split(" ")[0].split("."))
