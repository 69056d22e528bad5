"""Every rule of `traces.validate`, broken once on the way out and once in a file whose hash is right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from paceline.traces import (
    Closure,
    Sampling,
    TraceFormatError,
    Trie,
    TrieMeta,
    TrieRecording,
    TrieRequest,
    write_trace,
)
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS

from ...strategies import model_info
from .test_store import edit_table, read_whole, refusal

V = 16


def trie(mode="greedy") -> Trie:
    """Trunk 0-1-2 (tokens 3, 4); off the trunk node 3 after the root (5), node 4 after node 3 (6)."""
    next_log_prob = LOG_PROBS.round(np.full((2, 5), -0.5))
    return Trie(
        parent=np.array([-1, 0, 1, 0, 3], np.int32),
        token=np.array([-1, 3, 4, 5, 6], np.int32),
        depth=np.array([0, 1, 2, 1, 2], np.int32),
        on_trunk=np.array([True, True, True, False, False]),
        next_token=np.array([[5, 4, 9, 6, 7], [3, 4, 8, 1, 2]], np.int32),
        next_log_prob=next_log_prob,
        top_log_prob=next_log_prob if mode == "greedy" else LOG_PROBS.round(np.full((2, 5), -0.25)),
        gap=UNITS.round(np.full((2, 5), 0.3)),
        entropy=ENTROPIES.round(np.full((2, 5), 1.0)),
        own_log_prob=LOG_PROBS.round(np.array([[0, -1, -2, -1, -1]] * 2)),
        tvd=UNITS.round(np.full((1, 5), 0.2)),
    )


def trace(mode="greedy") -> TrieRecording:
    coupled = Sampling(mode="coupled", temperature=1.0, seed=0)
    meta = TrieMeta(
        name="small",
        kind="recorded",
        models=(model_info("d"), model_info("t")),
        vocab_size=V,
        sampling=Sampling(mode="greedy") if mode == "greedy" else coupled,
        closure=Closure(kind="monotone", reach=2, run=1),
    )
    requests = tuple(
        TrieRequest(request_id=name, tag="math", prompt=(1, 2), max_new_tokens=2, trie=trie(mode))
        for name in ("r0", "r1")
    )
    return TrieRecording(meta=meta, requests=requests)


def edited(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


# field of the trie, place, value; column in the file, its value there; what the refusal names.
BREACHES = [
    pytest.param("parent", 3, 3, "parent", 3, "earlier node", id="own parent"),
    pytest.param("parent", 3, 4, "parent", 4, "earlier node", id="parent after child"),
    pytest.param("parent", 3, 5, "parent", 5, "earlier node", id="parent in the next request"),
    pytest.param("parent", 3, 2**31 - 1, "parent", 2**31 - 1, "earlier node", id="parent out of range"),
    pytest.param("parent", 3, -2, "parent", -2, "earlier node", id="negative parent"),
    pytest.param("parent", 3, -1, "parent", -1, "only the first node is a root", id="second root"),
    pytest.param("parent", 0, 0, "parent", 0, "must be -1 at the first node", id="no root"),
    pytest.param("depth", 4, 1, "depth", 1, "parent's plus 1", id="depth"),
    pytest.param("depth", 0, 1, "depth", 1, "0 at the root", id="depth of root"),
    pytest.param("token", 4, V, "token", V, "must lie in", id="token beyond vocabulary"),
    pytest.param("token", 0, 5, "token", 5, "at the root", id="token at root"),
    pytest.param("token", 3, 3, "token", 3, "other children", id="children with equal tokens"),
    pytest.param("next_token", (0, 2), V, "d.next_token", V, "must lie in", id="next token beyond vocabulary"),
    pytest.param("on_trunk", 0, False, "on_trunk", False, "true at the root", id="root off trunk"),
    pytest.param("on_trunk", 1, False, "on_trunk", False, "path from the root", id="trunk with a hole"),
    pytest.param("on_trunk", 3, True, "on_trunk", True, "follow the target", id="trunk with a fork"),
    pytest.param("next_token", (1, 1), 5, "t.next_token", 5, "follow the target", id="trunk of another's tokens"),
    pytest.param("own_log_prob", (1, 0), -1.0, "t.own_log_prob", 1024, "0 at the root", id="probability of root"),
]


@pytest.mark.parametrize(("field", "place", "value", "column", "code", "rule"), BREACHES)
def test_refused_on_write_and_on_read(tmp_path, field, place, value, column, code, rule):
    sound = trace()
    bad = replace(sound.requests[1], trie=replace(trie(), **{field: edited(getattr(trie(), field), place, value)}))
    with pytest.raises(TraceFormatError, match=rule) as caught:
        write_trace(TrieRecording(meta=sound.meta, requests=(sound.requests[0], bad)), tmp_path / "bad.trace")
    assert "request 'r1', node" in str(caught.value)
    assert not list(tmp_path.iterdir())

    path = tmp_path / "good.trace"
    write_trace(sound, path)
    row = 5 + (place[1] if isinstance(place, tuple) else place)
    edit_table(path, "nodes.parquet", lambda table: with_cell(table, column, row, code))
    on_read = refusal(path)
    assert Path(on_read.path).name == "nodes.parquet"
    assert on_read.field in (column, "on_trunk")
    assert rule in str(on_read)
    assert "request 'r1', node" in str(on_read)


def with_cell(table, column, row, value):
    values = table.column(column).to_pylist()
    values[row] = value
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))


@pytest.mark.parametrize("token", [-1, -7])
def test_a_negative_token_in_memory(tmp_path, token):
    sound = trace()
    bad = replace(sound.requests[0], trie=replace(trie(), token=edited(trie().token, 4, token)))
    with pytest.raises(TraceFormatError, match=r"nodes.parquet: token: must lie in \[0, 16\)"):
        write_trace(TrieRecording(meta=sound.meta, requests=(bad,)), tmp_path / "t")


@pytest.mark.parametrize("field", ["next_log_prob", "top_log_prob", "gap", "entropy", "own_log_prob", "tvd"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.1234567, 0.1234567, 70.0, -70.0])
def test_numbers_off_the_grid_are_not_written(tmp_path, field, value):
    sound = trace("coupled")
    bad = replace(
        sound.requests[0], trie=replace(trie("coupled"), **{field: edited(getattr(trie(), field), (0, 1), value)})
    )
    with pytest.raises(TraceFormatError, match=f"nodes.parquet: {field}: "):
        write_trace(TrieRecording(meta=sound.meta, requests=(bad,)), tmp_path / "t")


@pytest.mark.parametrize("column", ["d.gap", "t.gap", "tvd.d.t"])
def test_codes_beyond_one_are_not_read(tmp_path, column):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, column, 2, 32769))
    assert refusal(tmp_path / "t").field == column


def test_greedy_writes_its_top_token(tmp_path):
    sound = trace()
    bad = replace(trie(), top_log_prob=edited(trie().top_log_prob, (0, 1), 0.0))
    with pytest.raises(TraceFormatError, match=r"d\.top_log_prob: must equal next_log_prob"):
        write_trace(TrieRecording(meta=sound.meta, requests=(replace(sound.requests[0], trie=bad),)), tmp_path / "t")


def test_a_sampled_token_is_at_most_as_probable_as_the_top_one(tmp_path):
    write_trace(trace("coupled"), tmp_path / "t")
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, "t.top_log_prob", 2, 513))
    assert refusal(tmp_path / "t").field == "t.top_log_prob"
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, "t.top_log_prob", 2, 512))
    read_whole(tmp_path / "t")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_id": "r0"}, "id"),
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, V)}, "prompt"),
        ({"prompt": (1, -1)}, "prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 2**31}, "max_new_tokens"),
    ],
)
def test_a_request_that_is_none_is_not_written(tmp_path, changes, field):
    sound = trace()
    with pytest.raises(TraceFormatError) as caught:
        write_trace(
            TrieRecording(meta=sound.meta, requests=(sound.requests[0], replace(sound.requests[1], **changes))),
            tmp_path,
        )
    assert (Path(caught.value.path).name, caught.value.field) == ("requests.parquet", field)


@pytest.mark.parametrize(
    ("column", "row", "value", "field", "rule"),
    [
        ("id", 1, "r0", "id", "must be unique"),
        ("prompt", 1, [], "prompt", "at least one token"),
        ("prompt", 0, [V], "prompt", "must hold tokens in"),
        ("prompt", 0, [2, -1], "prompt", "must hold tokens in"),
        ("max_new_tokens", 0, 0, "max_new_tokens", "must lie in"),
        ("max_new_tokens", 0, -3, "max_new_tokens", "must lie in"),
        ("num_nodes", 0, 4, "num_nodes", "must add up"),
        ("num_nodes", 0, 2**31 - 1, "num_nodes", "must add up"),
        ("num_nodes", 0, 0, "num_nodes", "must be >= 1"),
        ("num_nodes", 0, -5, "num_nodes", "must be >= 1"),
    ],
)
def test_a_request_that_is_none_is_not_read(tmp_path, column, row, value, field, rule):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", "requests.parquet", lambda table: with_cell(table, column, row, value))
    error = refusal(tmp_path / "t")
    assert (Path(error.path).name, error.field) == ("requests.parquet", field)
    assert rule in error.rule


def test_counts_that_add_up_but_are_wrong(tmp_path):
    write_trace(trace(), tmp_path / "t")
    for row, count in ((0, 4), (1, 6)):
        edit_table(tmp_path / "t", "requests.parquet", lambda t, r=row, c=count: with_cell(t, "num_nodes", r, c))
    assert refusal(tmp_path / "t").field == "request"


@pytest.mark.parametrize("value", [-1, 2, 2**31 - 1, 0])
def test_a_node_of_another_request(tmp_path, value):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, "request", 7, value))
    assert refusal(tmp_path / "t").field == "request"


def test_a_trunk_longer_than_the_budget(tmp_path):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", "requests.parquet", lambda table: with_cell(table, "max_new_tokens", 1, 1))
    error = refusal(tmp_path / "t")
    assert (error.field, error.value) == ("depth", 2)


def test_a_trunk_that_ends_before_its_budget(tmp_path):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", "requests.parquet", lambda table: with_cell(table, "max_new_tokens", 1, 3))
    error = refusal(tmp_path / "t")
    assert (error.field, error.value) == ("depth", 2)
    assert "max_new_tokens where it is no end of sequence" in error.rule


def test_a_trunk_that_goes_on_beyond_its_end(tmp_path):
    sound = trace()
    meta = sound.meta.model_copy(update={"eos_token_ids": (3, int(sound.requests[0].trie.token[1]))})
    with pytest.raises(TraceFormatError, match="must end at an end-of-sequence token"):
        write_trace(TrieRecording(meta=meta, requests=sound.requests), tmp_path / "t")


@pytest.mark.parametrize("name", ["requests.parquet", "nodes.parquet"])
def test_a_trace_without_rows(tmp_path, name):
    write_trace(trace(), tmp_path / "t")
    edit_table(tmp_path / "t", name, lambda table: table.slice(0, 0))
    assert refusal(tmp_path / "t").field in ("id", "num_nodes")


def test_a_trace_without_requests_is_not_written(tmp_path):
    with pytest.raises(TraceFormatError, match="at least one request"):
        write_trace(replace(trace(), requests=()), tmp_path / "t")


@pytest.mark.parametrize(
    ("field", "array"),
    [
        ("next_token", np.zeros((3, 5), np.int32)),
        ("next_token", np.zeros((2, 5), np.int64)),
        ("tvd", np.zeros((2, 5))),
        ("gap", np.zeros((2, 5), np.float32)),
        ("depth", np.zeros(4, np.int32)),
        ("on_trunk", np.zeros(5, np.int32)),
    ],
)
def test_an_array_of_another_shape_or_type_is_not_written(tmp_path, field, array):
    sound = trace()
    bad = replace(sound.requests[0], trie=replace(trie(), **{field: array}))
    with pytest.raises(TraceFormatError, match=rf"{field}: must be a \w+ array of shape .*request 'r0'"):
        write_trace(TrieRecording(meta=sound.meta, requests=(bad,)), tmp_path / "t")
