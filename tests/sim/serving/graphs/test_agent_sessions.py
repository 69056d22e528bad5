"""Published sessions of agents, replayed with a prefix cache that never evicts; skipped where they do not lie here.

What it finds is what a few lines of Python find in the file: of each request the leading full blocks that others of its
session have read by then, and never its last token. The run says only who was read when: sub-agents that begin together
read the same text side by side.
"""

import gzip
import json
from collections import defaultdict
from itertools import count

import pytest
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.traces.workloads import open_workload

from ....data_folder import data_folder, with_data
from ..engine.lined_costs import LinedLineCost
from ..engine.served_runs import Run, target_only

DATA = data_folder()
pytestmark = [pytest.mark.slow, with_data]
BLOCKS = 10**8


def prompts_of(path):
    """(session, id, full blocks, tokens) of every request."""
    with gzip.open(path, "rt") as file:
        for line in file:
            session = json.loads(line)
            numbers = count(1)
            for ids, tokens in prompts_in(session["requests"]):
                full = ids[: tokens // session["block_size"]]
                yield session["id"], f"{session['id']}/{next(numbers)}", full, tokens


def prompts_in(requests):
    ids = []
    for request in requests:
        if request["type"] == "subagent":
            yield from prompts_in(request["requests"])
            continue
        ids = ids[: request["reuse_prev"]]
        for first, last in request["new_runs"]:
            ids += range(first, last + 1)
        yield ids, request["in"] or 1


def counted(path, requests):
    """(full blocks asked for, found; tokens asked for, found) in the order in which prompts were looked up and read."""
    times = {
        name: (scheduled, read)
        for name, scheduled, read in zip(
            *(requests[key].tolist() for key in ("request_id", "scheduled_at_ps", "first_token_at_ps")), strict=True
        )
    }
    events = []
    for session, name, full, tokens in prompts_of(path):
        scheduled, read = times[name]
        events += [(read, 0, session, full, tokens), (scheduled, 1, session, full, tokens)]
    seen, sums = defaultdict(set), [0, 0, 0, 0]
    for _, looks, session, full, tokens in sorted(events, key=lambda event: event[:2]):
        if not looks:
            seen[session].update(full)
            continue
        leading = next((place for place, block in enumerate(full) if block not in seen[session]), len(full))
        found = min(leading, (tokens - 1) // 64)
        for place, more in enumerate((len(full), found, tokens, found * 64)):
            sums[place] += more
    return tuple(sums)


def test_hits_are_those_that_the_file_holds():
    path = DATA / "agent_traces_kvcache_tester" / "agent_traces_compact.jsonl.gz"
    tables = target_only()
    kv = dict.fromkeys(tables.pool.names, KvLimits(num_blocks=BLOCKS, block_tokens=64))
    limits = EngineLimits(max_num_seqs=10**6, token_budget=10**9, kv=kv)
    workload = open_workload(path, zero_tokens="one")
    run = Run(workload, tables, limits=limits, cost=LinedLineCost(tables), unit_tokens=64, outputs=None).go()
    lookups = run.log.meta.replicas[0].members[-1].lookups
    asked, found, asked_tokens, found_tokens = counted(path, run.log.requests)
    assert len(run.log.requests["request_id"]) == 46_218
    assert (lookups.asked_blocks, lookups.found_blocks) == (asked, found)
    assert (lookups.asked_tokens, lookups.found_tokens) == (asked_tokens, found_tokens)
    assert found_tokens / asked_tokens == pytest.approx(0.962295, abs=1e-6)
