"""Published workloads, read whole; skipped where they do not lie beside the checkout."""

import gzip
import json

import numpy as np
import pytest
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.summary import summary_of

from ...data_folder import data_folder
from .files import all_of

DATA = data_folder()
pytestmark = pytest.mark.skipif(DATA is None, reason="no folder of real data beside the checkout, nor in PACELINE_DATA")


@pytest.mark.parametrize(("what", "requests", "output"), [("code", 8_819, 245_896), ("conv", 19_366, 4_088_665)])
def test_azure(what, requests, output):
    found = list(open_workload(DATA / "azure_llm_2023" / f"AzureLLMInferenceTrace_{what}.csv.gz"))
    assert len(found) == requests
    assert sum(one.output_tokens for one in found) == output
    times = np.array([one.arrives_ps for one in found])
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()


def test_mooncake():
    workload = open_workload(DATA / "mooncake_fast25" / "conversation_trace.jsonl.gz")
    summary = summary_of(workload)
    assert summary.num_requests == summary.num_arrivals == 12_031
    assert (summary.asked_blocks, summary.shared_blocks) == (288_500, 105_710)
    assert all(len(one.blocks) == -(-one.prompt_tokens // 512) for one in workload)


@pytest.mark.slow
def test_agent_sessions():
    workload = open_workload(DATA / "agent_traces_kvcache_tester" / "agent_traces_compact.jsonl.gz", zero_tokens="one")
    summary = summary_of(workload)
    assert (summary.num_arrivals, summary.num_requests) == (692, 46_218)
    assert "requests without a token of prompt or output served with one: 27" in summary.about.notes


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
def test_the_time_of_a_sub_agent_is_its_end():
    """Read as its beginning, it would have come minutes after what launched it, and after its agent had gone on."""
    path = DATA / "agent_traces_kvcache_tester" / "agent_traces_compact.jsonl.gz"
    workload = open_workload(path, zero_tokens="one")
    waits = {request.request_id: wait_ps for first in workload for request, wait_ps in requests_of(first)}
    firsts = list(first_of_sub_agents(path))
    delays = [waits[name] / 10**12 for name, has_duration in firsts if has_duration]
    assert (len(delays), len(firsts) - len(delays)) == (59, 4)
    assert sum(0 < delay < 1.1 for delay in delays) == 57


@pytest.mark.slow
def test_raw_sessions_are_the_compact_ones():
    """Field by field; blocks but for what tells sessions apart."""
    folder = DATA / "agent_traces_kvcache_tester"
    compact = open_workload(folder / "agent_traces_compact.jsonl.gz", zero_tokens="one")
    by_id = {one.request_id: one for one in compact}
    raw = list(open_workload(folder / "raw_subset", zero_tokens="one"))
    assert len(raw) == 15
    for first in raw:
        pairs = list(zip(all_of([first]), all_of([by_id[first.request_id]]), strict=True))
        assert [one[:5] for one, _ in pairs] == [other[:5] for _, other in pairs]
        assert [[block % 2**24 for block in one.blocks] for one, _ in pairs] == [
            [block % 2**24 for block in other.blocks] for _, other in pairs
        ]
