import json
from dataclasses import replace

import numpy as np
import pytest
from paceline.traces import SyntheticSpec, TrieRecording, make_trace, read_trace, write_trace
from paceline.traces.contexts.trie import arrays_of

from .test_validate import trace, trie


def test_counts_and_rates_of_a_trace_made_by_hand():
    two = trace()
    # Request r1 agrees nowhere: its draft writes 5 and 9 where the trunk goes on with 3 and 4.
    other = replace(trie(), next_token=np.array([[5, 9, 9, 6, 7], [3, 4, 8, 1, 2]], np.int32), tvd=trie().tvd * 2)
    requests = (two.requests[0], replace(two.requests[1], tag="code", prompt=(1, 2, 3), trie=other))
    summary = TrieRecording(meta=two.meta, requests=requests).summary()
    step = 1 / 32768
    assert summary.total.num_requests == 2
    assert summary.total.num_prompt_tokens == 5
    assert summary.total.num_trunk_tokens == 4
    assert summary.total.num_nodes == 10
    assert summary.total.agreement == {"d": 0.25}
    assert summary.total.mean_tvd["d/t"] == pytest.approx(0.3, abs=step)
    assert list(summary.by_tag) == ["math", "code"]
    assert summary.by_tag["math"].agreement == {"d": 0.5}
    assert summary.by_tag["code"].agreement == {"d": 0.0}
    assert summary.by_tag["code"].mean_tvd["d/t"] == pytest.approx(0.4, abs=step)
    assert summary.nodes_per_trunk_token == 2.5
    assert summary.size_bytes is None
    assert summary.bytes_per_node is None


def test_bytes_are_those_of_the_files(tmp_path):
    path = tmp_path / "t.trace"
    write_trace(make_trace(SyntheticSpec(requests=2, tokens=8)), path)
    summary = read_trace(path).summary(path)
    assert summary.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert summary.bytes_per_node == summary.size_bytes / summary.total.num_nodes


def test_without_trunk_tokens_there_is_no_rate():
    alone = trace()
    root = {name: column[..., :1] for name, column in arrays_of(trie()).items()}
    requests = tuple(replace(request, trie=replace(trie(), **root)) for request in alone.requests)
    summary = TrieRecording(meta=alone.meta, requests=requests).summary()
    assert summary.nodes_per_trunk_token is None
    assert summary.total.agreement == {"d": None}
    assert summary.total.mean_tvd == {"d/t": None}


def test_it_is_plain_json():
    made = make_trace(SyntheticSpec(requests=2, tokens=8, models=("a", "b", "c"), acceptance=(0.5, 0.7)))
    text = json.dumps(made.summary().to_json(), allow_nan=False)
    assert json.loads(text)["meta"]["kind"] == "synthetic"
    assert list(json.loads(text)["total"]["mean_tvd"]) == ["a/b", "a/c", "b/c"]
