"""A folder with one small sound input of every kind, and neighbours that no command may touch."""

import json
import os
import shutil
from pathlib import Path

from paceline.runs.serving import write_serving
from paceline.traces import SyntheticSpec, make_trace, write_trace

from ..cli.command_line import done
from ..cli.untrained_pool import write_untrained_pool
from ..reports.making import worked_log
from ..sim.tries.small_traces import THREE, with_ngram
from ..traces.importers.foreign_files import one_file_each

NEIGHBOURS = ("out.json.part", "other.trace.part", "new.part", ".hidden.part", "out.json.tmp")

TABLE = {"new_tokens": [1, 2, 4, 8, 16, 32, 64, 128], "seconds": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]}
COSTS = {
    "draft": TABLE,
    "mid": {"intercept_s": 0.5, "per_new_token_s": 0.01, "per_kv_token_s": 0.0},
    "target": {
        "new_tokens": [1, 64],
        "context_tokens": [1, 512],
        "seconds": [[1.0, 1.5], [2.0, 2.5]],
    },
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
