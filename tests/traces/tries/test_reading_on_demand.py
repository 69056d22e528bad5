"""A stored recording is read request by request; what is wrong with one is told when it is read."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from paceline.traces import SyntheticSpec, TraceFormatError, TrieRequest, make_trace, read_trace, write_trace
from paceline.traces.contexts import store as stored_requests
from paceline.traces.contexts.store import StoredNodes, batches

from .test_store import assert_equal, edit_table, sign
from .test_validate import with_cell

SPEC = SyntheticSpec(requests=12, tokens=10, prompt_tokens=3, models=("a", "b", "c"), acceptance=(0.5, 0.7), reach=3)
BATCH_NODES = 100


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Twelve requests in several batches, of which few are kept."""
    monkeypatch.setattr(stored_requests, "BATCH_NODES", BATCH_NODES)
    monkeypatch.setattr(stored_requests, "MOST_KEPT_NODES", BATCH_NODES)
    path = tmp_path / "good.trace"
    write_trace(make_trace(SPEC), path)
    return path


def test_a_row_group_holds_whole_requests_and_few_nodes(stored):
    sizes = [request.num_nodes for request in make_trace(SPEC).requests]
    groups = pq.ParquetFile(stored / "nodes.parquet").metadata
    found = [groups.row_group(index).num_rows for index in range(groups.num_row_groups)]
    assert found == [sum(sizes[first:end]) for first, end in batches(sizes)]
    assert len(found) > 2
    assert max(found) < BATCH_NODES + max(sizes)


def test_requests_are_read_in_any_order(stored):
    made, found = make_trace(SPEC), read_trace(stored)
    order = [7, 0, 11, 3, 7, 4, 0, -1, -12]
    assert_equal(
        replace(found, requests=[found.requests[place] for place in order]),
        replace(made, requests=[made.requests[place] for place in order]),
    )
    assert_equal(replace(found, requests=found.requests[2:9:3]), replace(made, requests=made.requests[2:9:3]))
    for place in (12, -13):
        with pytest.raises(IndexError):
            found.requests[place]


@pytest.mark.parametrize("rows", [7, 150, 10**6])
def test_row_groups_may_lie_anywhere(stored, rows):
    pq.write_table(pq.read_table(stored / "nodes.parquet"), stored / "nodes.parquet", row_group_size=rows)
    sign(stored, "nodes.parquet")
    assert_equal(read_trace(stored), make_trace(SPEC))


def test_nodes_are_read_for_who_asks_for_a_trie_only(stored, monkeypatch):
    def never(*_):
        raise AssertionError("read")

    monkeypatch.setattr(StoredNodes, "trie", never)
    recording = read_trace(stored)
    known = [(one.request_id, one.tag, one.prompt, one.max_new_tokens, one.num_nodes) for one in recording.requests]
    assert len(set(known)) == 12
    assert "12 requests" in recording.about.holds
    recording.shifted({"a": 0.0}, seed=1)


def test_what_is_wrong_is_told_when_it_is_read(stored):
    row = sum(request.num_nodes for request in make_trace(SPEC).requests) - 2
    edit_table(stored, "nodes.parquet", lambda table: with_cell(table, "depth", row, 77))
    recording = read_trace(stored)
    assert recording.requests[0].trie.num_nodes
    for _ in range(2):
        with pytest.raises(TraceFormatError, match=r"nodes.parquet: depth: .*request 'synthetic-11', node \d+"):
            _ = recording.requests[11].trie


def test_a_recording_that_is_replaced_can_still_be_read(stored):
    recording = read_trace(stored)
    write_trace(make_trace(replace(SPEC, seed=9)), stored)
    assert_equal(recording, make_trace(SPEC))
    write_trace(recording, stored)  # and written where it came from
    assert_equal(read_trace(stored), make_trace(SPEC))


def test_what_is_made_of_a_request_is_one_like_any_other(stored):
    recording = read_trace(stored)
    changed = replace(recording.requests[1], tag="other")
    assert type(changed) is TrieRequest
    assert changed.num_nodes == recording.requests[1].num_nodes
    with pytest.raises(AttributeError, match="mood"):
        _ = recording.requests[1].mood
