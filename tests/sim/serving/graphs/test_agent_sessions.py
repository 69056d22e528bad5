"""Published sessions of agents, replayed with a prefix cache that never evicts; skipped where they do not lie here.

What it finds is what a few lines of Python find in the file: of each request the leading full blocks that earlier ones
of its session had, and never its last token.
"""

import gzip
import json

import pytest
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.traces.workloads import open_workload

from ....data_folder import data_folder
from ..engine.served_runs import Run, target_only
from ..jumps.lined_costs import LinedLineCost

DATA = data_folder()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DATA is None, reason="no folder of real data beside the checkout, nor in PACELINE_DATA"),
]
BLOCKS = 10**8


def counted(path):
    """(full blocks asked for, found; tokens asked for, found), sub-agents in the line of their parents."""
    sums = [0, 0, 0, 0]
    with gzip.open(path, "rt") as file:
        for line in file:
            session = json.loads(line)
            count_all(session["requests"], session["block_size"], set(), sums)
    return tuple(sums)


def count_all(requests, unit, seen, sums):
    ids = []
    for request in requests:
        if request["type"] == "subagent":
            count_all(request["requests"], unit, seen, sums)
            continue
        ids = ids[: request["reuse_prev"]]
        for first, last in request["new_runs"]:
            ids += range(first, last + 1)
        tokens = request["in"] or 1
        full = ids[: tokens // unit]
        leading = next((place for place, block in enumerate(full) if block not in seen), len(full))
        found = min(leading, (tokens - 1) // unit)
        for place, more in enumerate((len(full), found, tokens, found * unit)):
            sums[place] += more
        seen.update(full)


def test_hits_are_those_that_the_file_holds():
    path = DATA / "agent_traces_kvcache_tester" / "agent_traces_compact.jsonl.gz"
    tables = target_only()
    kv = dict.fromkeys(tables.pool.names, KvLimits(num_blocks=BLOCKS, block_tokens=64))
    limits = EngineLimits(max_num_seqs=10**6, token_budget=10**9, kv=kv)
    workload = open_workload(path, zero_tokens="one")
    run = Run(workload, tables, limits=limits, cost=LinedLineCost(tables), unit_tokens=64, outputs=None).go()
    lookups = run.log.meta.replicas[0].members[-1].lookups
    asked, found, asked_tokens, found_tokens = counted(path)
    assert len(run.log.requests["request_id"]) == 46_218
    assert (lookups.asked_blocks, lookups.found_blocks) == (asked, found)
    assert (lookups.asked_tokens, lookups.found_tokens) == (asked_tokens, found_tokens)
    assert found_tokens / asked_tokens == pytest.approx(0.962326, abs=1e-6)
