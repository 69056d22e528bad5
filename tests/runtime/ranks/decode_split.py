"""Two processes decode with a pool that is split, as torchrun starts them, and write down what each saw.

They are forks of one, which has imported torch and transformers for both. Arguments: the pool's folder, a folder for
RANK.json, and JSON of the runs as (policy, sampling, batch, cache).
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch.distributed as dist
from paceline.base.terminal import quiet
from paceline.runtime.prompts import Prompt
from paceline.runtime.ranks import leave
from paceline.runtime.threads import Memory
from paceline.studies.decode import decode, load_pool
from paceline.traces.meta import Sampling

TEXTS = ("a", "hello there, how do you do?", "the cat, the cat, the ca")
NUM_TOKENS = 12


def decoded(pool, policy, sampling, batch, cache):
    """Tokens of the answers, and the log."""
    prompts = [Prompt(request_id=str(index), text=text) for index, text in enumerate(TEXTS)]
    options = {"sampling": Sampling(**sampling), "max_new_tokens": NUM_TOKENS, "batch": batch, "debug": True}
    with quiet():
        done = decode(pool, prompts, policy, memory=Memory(cache=cache), **options)
    assert not done.failed
    return [list(output.tokens) for output in done.outputs], done.log


def see(pool, out, runs):
    models = load_pool(pool)
    seen = {
        "kv_bytes_per_token": {member.name: member.kv_bytes_per_token for member in models.members},
        "num_parameters": {member.name: member.num_parameters for member in models.members},
        "heads": [models.forward(level, "auto", share_weights=True).kv_shape.num_heads for level in (1, 2, 3, 4)],
        "runs": [],
    }
    for run in json.loads(runs):
        tokens, log = decoded(models, *run)
        ops = list(zip(*(log.ops[name].tolist() for name in ("kind", "level", "start_s", "duration_s")), strict=True))
        seen["runs"].append({"tokens": tokens, "ops": ops, "forward": log.meta["forward"]})
    leave()
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(seen), encoding="utf-8")


def fork(rank, port, arguments):
    """The process of a rank: its id."""
    child = os.fork()
    if child:
        return child
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in said.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True")
    status = 1
    try:
        see(*arguments)
        status = 0
    finally:  # a fork must not go on as its parent does
        if status:
            traceback.print_exc()
        os._exit(status)


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = [fork(rank, store.port, sys.argv[1:]) for rank in (0, 1)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))
