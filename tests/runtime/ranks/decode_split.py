"""Run by torchrun in each process: decodes with a pool that is split, and writes down what this process saw.

Arguments: the pool's folder, a folder for RANK.json, and JSON of the runs as (policy, sampling, batch, cache).
"""

import json
import os
import sys
from pathlib import Path

from paceline.base.terminal import quiet
from paceline.runtime.prompts import Prompt
from paceline.runtime.ranks import leave
from paceline.runtime.threads import Memory
from paceline.studies.decode import decode, load_pool
from paceline.traces.meta import Sampling

TEXTS = ("a", "hello there, how do you do?", "the cat, the cat, the ca")
NUM_TOKENS = 20


def decoded(pool, policy, sampling, batch, cache):
    """Tokens of the answers, and the log."""
    prompts = [Prompt(request_id=str(index), text=text) for index, text in enumerate(TEXTS)]
    with quiet():
        done = decode(
            pool,
            prompts,
            policy,
            sampling=Sampling(**sampling),
            max_new_tokens=NUM_TOKENS,
            batch=batch,
            memory=Memory(cache=cache),
            debug=True,
        )
    assert not done.failed
    return [list(output.tokens) for output in done.outputs], done.log


def main(pool, out, runs):
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


if __name__ == "__main__":
    main(*sys.argv[1:])
