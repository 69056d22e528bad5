"""Recordings and workloads that others published, read whole, where they lie beside the checkout (PACELINE_DATA)."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.summary import summary_of

from ..data_folder import data_files, data_folder, with_data
from .sheets import all_of

DATA = data_folder()
SPEC_BENCH = data_files("specbench_yukiki", "*.jsonl.gz")
EAGLE = data_files("hsd_eagle3_h100", "h100_*.jsonl.gz")
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
# Tokens per step of SpS and EAGLE: all tokens of a subtask over all its steps.
PUBLISHED = {"MT-Bench": (2.62, 3.84), "translation": (1.51, 2.84), "summarization": (2.73, 3.31),
             "qa": (2.32, 3.11), "math_reasoning": (2.25, 3.92), "rag": (2.77, 3.21)}  # fmt: skip

with_spec_bench = pytest.mark.skipif(len(SPEC_BENCH) != 3, reason="no specbench_yukiki in PACELINE_DATA")
with_eagle = pytest.mark.skipif(len(EAGLE) != 4, reason="no hsd_eagle3_h100 in PACELINE_DATA")


@with_spec_bench
def test_spec_bench_has_the_published_tokens_per_step_by_subtask():
    trace = read_recording("spec-bench", SPEC_BENCH)
    drafters = {drafter.name: (drafter.window, drafter.by_start) for drafter in trace.meta.drafters}
    assert drafters == {"eagle": (5, True), "sps": (20, False)}
    assert len(trace.requests) == 560
    assert all(set(request.num_tokens) == {"", "sps", "eagle"} for request in trace.requests)
    grouped = tuple(
        replace(request, tag="MT-Bench" if request.tag in MT_BENCH else request.tag) for request in trace.requests
    )
    found = {
        tag: (group.methods["sps"].tokens_per_round, group.methods["eagle"].tokens_per_round)
        for tag, group in replace(trace, requests=grouped).summary().by_tag.items()
    }
    assert found == {tag: pytest.approx(rates, abs=0.01) for tag, rates in PUBLISHED.items()}


@with_eagle
def test_eagles_seconds_add_up_and_answers_without_their_times_keep_their_steps():
    """`idxs` and `new_tokens` alone: rounds are drawn, as many as there were, with as many tokens in all."""
    eagle = read_recording("auto", EAGLE)
    assert eagle.meta.source == "eagle-timed"
    assert {drafter.name: drafter.window for drafter in eagle.meta.drafters} == {"eagle": 6, "hsd": 6}
    assert len(eagle.requests) == 80
    every = [(request, method, rounds) for request in eagle.requests for method, rounds in request.rounds.items()]
    for request, method, rounds in every:
        timed = request.prefill_s[method] + rounds.draft_s.sum() + rounds.verify_s.sum()
        assert 0.98 < timed / request.wall_s[method] <= 1
        # The token that the last step sampled is counted only where it is all that the step gave.
        uncounted = int(rounds.accepted[-1] == 0)
        assert request.num_tokens[method] == rounds.accepted.sum() + len(rounds.start) + uncounted
        assert rounds.start[0] == 1
    assert max(int(rounds.drafted.max()) for *_, rounds in every) == 6  # the tree below its root
    assert sum(int(rounds.censored(6).sum()) for *_, rounds in every) > 2000
    timed = {request.request_id: request for request in eagle.requests}
    for path in (path for path in EAGLE if "_info" not in path.name):
        trace = read_recording("auto", [path], ImportOptions(names={path.name: "d"}, windows={"d": 6}))
        assert (trace.meta.source, trace.meta.form) == ("spec-bench", "request means")
        for request in trace.requests:
            known = timed[request.request_id].rounds["hsd" if "HSD" in path.name else "eagle"]
            drawn = request.rounds["d"]
            assert (len(drawn.start), drawn.accepted.sum()) == (len(known.start), known.accepted.sum())
            assert drawn.placed.all()


@with_data
def test_azure_and_mooncake():
    for what, requests, output in (("code", 8_819, 245_896), ("conv", 19_366, 4_088_665)):
        found = list(open_workload(DATA / "azure_llm_2023" / f"AzureLLMInferenceTrace_{what}.csv.gz"))
        assert (len(found), sum(one.output_tokens for one in found)) == (requests, output)
        times = np.array([one.arrives_ps for one in found])
        assert times[0] == 0
        assert (np.diff(times) >= 0).all()
    workload = open_workload(DATA / "mooncake_fast25" / "conversation_trace.jsonl.gz")
    summary = summary_of(workload)
    assert summary.num_requests == summary.num_arrivals == 12_031
    assert (summary.asked_blocks, summary.shared_blocks) == (288_500, 105_710)
    assert all(len(one.blocks) == -(-one.prompt_tokens // 512) for one in workload)


def first_of_sub_agents(path):
    """(id of the first request, whether the file says how long it took) of each sub-agent."""
    with gzip.open(path, "rt") as file:
        for line in file:
            session, number = json.loads(line), 1
            for request in session["requests"]:
                if request["type"] == "subagent":
                    yield f"{session['id']}/{number}", request.get("duration_ms") is not None
                number += len(request.get("requests", [request]))


@pytest.mark.slow
@with_data
def test_agent_sessions_and_the_time_of_a_sub_agent_is_its_end():
    """Read as its beginning, it would have come minutes after what launched it, and after its agent had gone on."""
    path = DATA / "agent_traces_kvcache_tester" / "agent_traces_compact.jsonl.gz"
    workload = open_workload(path, zero_tokens="one")
    summary = summary_of(workload)
    assert (summary.num_arrivals, summary.num_requests) == (692, 46_218)
    assert "requests without a token of prompt or output served with one: 27" in summary.about.notes
    waits = {request.request_id: wait_ps for first in workload for request, wait_ps in requests_of(first)}
    firsts = list(first_of_sub_agents(path))
    delays = [waits[name] / 10**12 for name, has_duration in firsts if has_duration]
    assert (len(delays), len(firsts) - len(delays)) == (59, 4)
    assert sum(0 < delay < 1.1 for delay in delays) == 57


@pytest.mark.slow
@with_data
def test_raw_sessions_are_the_compact_ones():
    """Field by field; blocks but for what tells sessions apart."""
    folder = DATA / "agent_traces_kvcache_tester"
    by_id = {one.request_id: one for one in open_workload(folder / "agent_traces_compact.jsonl.gz", zero_tokens="one")}
    raw = list(open_workload(folder / "raw_subset", zero_tokens="one"))
    assert len(raw) == 15
    for first in raw:
        for one, other in zip(all_of([first]), all_of([by_id[first.request_id]]), strict=True):
            assert one[:5] == other[:5]
            assert [block % 2**24 for block in one.blocks] == [block % 2**24 for block in other.blocks]
