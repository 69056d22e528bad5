"""Every rule of a recording of contexts, broken once on the way out and once in a file whose hash is right."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paceline.traces import SyntheticSpec, TraceFormatError, TrieRecording, make_trace, read_trace, write_trace
from paceline.traces.contexts.trie import TreeRanks, arrays_of
from paceline.traces.meta import Closure, TreeClosure

from ..making import V, edit_table, edited, read_whole, refusal, trace, trie, with_cell


def with_trie(mode="greedy", request=0, **arrays):
    """The recording made by hand, of one of whose requests the trie has other arrays."""
    sound = trace(mode)
    requests = list(sound.requests)
    requests[request] = replace(requests[request], trie=replace(trie(mode), **arrays))
    return replace(sound, requests=tuple(requests))


def not_written(recording, path, rule):
    with pytest.raises(TraceFormatError, match=rule) as caught:
        write_trace(recording, path / "bad.trace")
    assert not list(path.iterdir())
    return caught.value


def not_read(path, table, *cells):
    """What is said of the recording made by hand with other cells, (column, row, value)."""
    write_trace(trace(), path / "t")
    for cell in cells:
        edit_table(path / "t", f"{table}.parquet", lambda table, cell=cell: with_cell(table, *cell))
    error = refusal(path / "t")
    return Path(error.path).stem, error.field, str(error)


# field of the trie, place, value; column in the file, its value there; what the refusal names.
BREACHES = [
    ("parent", 3, 3, "parent", 3, "earlier node"),
    ("parent", 3, 4, "parent", 4, "earlier node"),
    ("parent", 3, 5, "parent", 5, "earlier node"),  # in the next request
    ("parent", 3, 2**31 - 1, "parent", 2**31 - 1, "earlier node"),
    ("parent", 3, -2, "parent", -2, "earlier node"),
    ("parent", 3, -1, "parent", -1, "only the first node is a root"),
    ("parent", 0, 0, "parent", 0, "must be -1 at the first node"),
    ("depth", 4, 1, "depth", 1, "parent's plus 1"),
    ("depth", 0, 1, "depth", 1, "0 at the root"),
    ("token", 4, V, "token", V, "must lie in"),
    ("token", 0, 5, "token", 5, "at the root"),
    ("token", 3, 3, "token", 3, "other children"),
    ("next_token", (0, 2), V, "d.next_token", V, "must lie in"),
    ("on_trunk", 0, False, "on_trunk", False, "true at the root"),
    ("on_trunk", 1, False, "on_trunk", False, "path from the root"),
    ("on_trunk", 3, True, "on_trunk", True, "follow the target"),
    ("next_token", (1, 1), 5, "t.next_token", 5, "follow the target"),
    ("own_log_prob", (1, 0), -1.0, "t.own_log_prob", 1024, "0 at the root"),
]


@pytest.mark.parametrize(("field", "place", "value", "column", "code", "rule"), BREACHES)
def test_refused_on_write_and_on_read(tmp_path, field, place, value, column, code, rule):
    changed = edited(getattr(trie(), field), place, value)
    assert "request 'r1', node" in str(not_written(with_trie(request=1, **{field: changed}), tmp_path, rule))
    row = 5 + (place[1] if isinstance(place, tuple) else place)
    file, named, told = not_read(tmp_path, "nodes", (column, row, code))
    assert (file, named) in {("nodes", column), ("nodes", "on_trunk")}
    assert rule in told
    assert "request 'r1', node" in told


@pytest.mark.parametrize("token", [-1, -7])
def test_a_negative_token_in_memory(tmp_path, token):
    changed = edited(trie().token, 4, token)
    not_written(with_trie(token=changed), tmp_path, r"nodes.parquet: token: must lie in \[0, 16\)")


@pytest.mark.parametrize("field", ["next_log_prob", "top_log_prob", "gap", "entropy", "own_log_prob", "tvd"])
def test_numbers_off_the_grid_are_not_written(tmp_path, field):
    for value in (float("nan"), float("inf"), float("-inf"), -0.1234567, 0.1234567, 70.0, -70.0):
        changed = edited(getattr(trie("coupled"), field), (0, 1), value)
        not_written(with_trie("coupled", **{field: changed}), tmp_path, f"nodes.parquet: {field}: ")


def test_greedy_writes_its_top_token_and_a_sampled_one_is_at_most_as_probable(tmp_path):
    changed = edited(trie().top_log_prob, (0, 1), 0.0)
    not_written(with_trie(top_log_prob=changed), tmp_path, r"d\.top_log_prob: must equal next_log_prob")
    write_trace(trace("coupled"), tmp_path / "t")
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, "t.top_log_prob", 2, 513))
    assert refusal(tmp_path / "t").field == "t.top_log_prob"
    edit_table(tmp_path / "t", "nodes.parquet", lambda table: with_cell(table, "t.top_log_prob", 2, 512))
    read_whole(tmp_path / "t")


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
    not_written(with_trie(**{field: array}), tmp_path, rf"{field}: must be a \w+ array of shape .*request 'r0'")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "r0"),
        ("prompt", ()),
        ("prompt", (1, V)),
        ("prompt", (1, -1)),
        ("max_new_tokens", 0),
        ("max_new_tokens", 2**31),
    ],
)
def test_a_request_that_is_none_is_not_written(tmp_path, field, value):
    first, second = trace().requests
    recording = replace(trace(), requests=(first, replace(second, **{field: value})))
    error = not_written(recording, tmp_path, "requests.parquet")
    assert error.field == field.removeprefix("request_")


@pytest.mark.parametrize(
    ("table", "cells", "file", "field", "rule"),
    [
        ("requests", [("id", 1, "r0")], "requests", "id", "must be unique"),
        ("requests", [("prompt", 1, [])], "requests", "prompt", "at least one token"),
        ("requests", [("prompt", 0, [V])], "requests", "prompt", "must hold tokens in"),
        ("requests", [("prompt", 0, [2, -1])], "requests", "prompt", "must hold tokens in"),
        ("requests", [("max_new_tokens", 0, 0)], "requests", "max_new_tokens", "must lie in"),
        ("requests", [("max_new_tokens", 0, -3)], "requests", "max_new_tokens", "must lie in"),
        ("requests", [("num_nodes", 0, 4)], "requests", "num_nodes", "must add up"),
        ("requests", [("num_nodes", 0, 2**31 - 1)], "requests", "num_nodes", "must add up"),
        ("requests", [("num_nodes", 0, 0)], "requests", "num_nodes", "must be >= 1"),
        ("requests", [("num_nodes", 0, -5)], "requests", "num_nodes", "must be >= 1"),
        ("requests", [("num_nodes", 0, 4), ("num_nodes", 1, 6)], "nodes", "request", "(row 4)"),
        ("requests", [("max_new_tokens", 1, 1)], "nodes", "depth", "must be at most max_new_tokens"),
        ("requests", [("max_new_tokens", 1, 3)], "nodes", "depth", "max_new_tokens where it is no end of sequence"),
        *[("nodes", [("request", 7, value)], "nodes", "request", "(row 7)") for value in (-1, 2, 2**31 - 1, 0)],
        *[("nodes", [(name, 2, 32769)], "nodes", name, "at most 32768") for name in ("d.gap", "t.gap", "tvd.d.t")],
    ],
)
def test_what_is_none_is_not_read(tmp_path, table, cells, file, field, rule):
    found, named, told = not_read(tmp_path, table, *cells)
    assert (found, named) == (file, field)
    assert rule in told


def test_a_trunk_that_goes_on_beyond_its_end(tmp_path):
    sound = trace()
    meta = sound.meta.model_copy(update={"eos_token_ids": (3, int(sound.requests[0].trie.token[1]))})
    not_written(replace(sound, meta=meta), tmp_path, "must end at an end-of-sequence token")


def test_a_trace_without_rows_or_requests(tmp_path):
    not_written(replace(trace(), requests=()), tmp_path, "at least one request")
    for name, field in (("requests.parquet", "id"), ("nodes.parquet", "num_nodes")):
        write_trace(trace(), tmp_path / "t")
        edit_table(tmp_path / "t", name, lambda table: table.slice(0, 0))
        assert refusal(tmp_path / "t").field == field


# Branches of token trees: of the model below the target, which ranks 5 and 3 after the root, and 6 after node 3.

RANK, RANKED = [-1, 1, -1, 0, 0], [2, 0, 0, 1, 0]


def with_trees(mode="greedy", **changed):
    plain = trace(mode)
    closure = Closure(kind="monotone", reach=2, run=1, trees=(TreeClosure(model="d", shape="2x1"),))
    requests = []
    for request in plain.requests:
        own = request.trie.own_log_prob[:1]
        values = {"rank": [RANK], "ranked": [RANKED], "branch_log_prob": np.where(np.array([RANK]) >= 0, own, 0.0)}
        values |= {name: [row] for name, row in changed.items()}
        columns = {
            name: np.array(rows, np.float64 if name == "branch_log_prob" else np.int32) for name, rows in values.items()
        }
        requests.append(replace(request, trie=replace(request.trie, ranks=TreeRanks(**columns))))
    return replace(plain, meta=plain.meta.model_copy(update={"closure": closure}), requests=tuple(requests))


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_branches_that_were_written_are_read(mode, tmp_path):
    whole = with_trees(mode)
    write_trace(whole, tmp_path / "a.trace")
    found = read_trace(tmp_path / "a.trace")
    assert found.meta == whole.meta
    for before, after in zip(whole.requests, found.requests, strict=True):
        for name, array in arrays_of(before.trie.ranks).items():
            np.testing.assert_array_equal(array, getattr(after.trie.ranks, name))


@pytest.mark.parametrize(
    ("name", "row", "rule"),
    [
        ("rank", [0, 1, -1, 0, 0], "at the root"),
        ("rank", [-1, 2, -1, 0, 0], "below those asked for at the parent"),
        ("rank", [-1, -2, -1, 0, 0], "below those asked for at the parent"),
        ("rank", [-1, 0, -1, 1, 0], "0 of the model's next token only"),
        ("rank", [-1, 1, -1, -1, 0], "count up from 0"),
        ("rank", [-1, 1, -1, 0, -1], "must have its branches as children"),
        ("ranked", [2, 0, -1, 1, 0], "must be >= 0"),
        ("branch_log_prob", [0.0, -2.0, 0.0, -1.0, -1.0], "must equal own_log_prob if greedy"),
        ("branch_log_prob", [0.0, -0.5, 0.0, -1.0, -1.0], "must not grow with the rank"),
        ("branch_log_prob", [-1.0, -1.0, 0.0, -1.0, -1.0], "must be 0 without a rank"),
        ("branch_log_prob", [0.0, np.nan, 0.0, -1.0, -1.0], "must be numbers on its grid"),
    ],
)
def test_branches_that_cannot_be_are_refused(name, row, rule, tmp_path):
    not_written(with_trees(**{name: row}), tmp_path, rule)


def test_branches_go_with_what_the_closure_says(tmp_path):
    whole = with_trees()
    none, lacks = replace(whole, meta=trace().meta), replace(trace(), meta=whole.meta)
    for odd in (none, lacks, replace(whole, requests=(whole.requests[0], trace().requests[1]))):
        not_written(odd, tmp_path, "must be branches of")
    for name in ("t", "other"):
        closure = {"kind": "monotone", "reach": 2, "run": 1, "trees": [{"model": name, "shape": "2"}]}
        with pytest.raises(ValueError, match="must name models below the target"):
            type(whole.meta).model_validate({**trace().meta.model_dump(), "closure": closure})


def test_a_recording_without_trees_says_nothing_of_them(tmp_path):
    write_trace(trace(), tmp_path / "a.trace")
    assert "trees" not in (tmp_path / "a.trace" / "meta.json").read_text()
    assert read_trace(tmp_path / "a.trace").requests[0].trie.ranks is None


# What a recording holds, counted.


def test_counts_and_rates_of_a_trace_made_by_hand():
    two = trace()
    # Request r1 agrees nowhere: its draft writes 5 and 9 where the trunk goes on with 3 and 4.
    other = replace(trie(), next_token=np.array([[5, 9, 9, 6, 7], [3, 4, 8, 1, 2]], np.int32), tvd=trie().tvd * 2)
    requests = (two.requests[0], replace(two.requests[1], tag="code", prompt=(1, 2, 3), trie=other))
    summary = replace(two, requests=requests).summary()
    total, math, code = summary.total, summary.by_tag["math"], summary.by_tag["code"]
    counts = (total.num_requests, total.num_prompt_tokens, total.num_trunk_tokens, total.num_nodes)
    assert counts == (2, 5, 4, 10)
    assert [group.agreement["d"] for group in (total, math, code)] == [0.25, 0.5, 0.0]
    step = 1 / 32768
    assert [group.mean_tvd["d/t"] for group in (total, math, code)] == pytest.approx([0.3, 0.2, 0.4], abs=step)
    assert list(summary.by_tag) == ["math", "code"]
    assert (summary.nodes_per_trunk_token, summary.size_bytes, summary.bytes_per_node) == (2.5, None, None)


def test_bytes_are_those_of_the_files(tmp_path):
    path = tmp_path / "t.trace"
    write_trace(make_trace(SyntheticSpec(requests=2, tokens=8)), path)
    summary = read_trace(path).summary(path)
    assert summary.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert summary.bytes_per_node == summary.size_bytes / summary.total.num_nodes


def test_without_trunk_tokens_there_is_no_rate():
    root = replace(trie(), **{name: column[..., :1] for name, column in arrays_of(trie()).items()})
    requests = tuple(replace(request, trie=root) for request in trace().requests)
    summary = TrieRecording(meta=trace().meta, requests=requests).summary()
    assert summary.nodes_per_trunk_token is None
    assert (summary.total.agreement, summary.total.mean_tvd) == ({"d": None}, {"d/t": None})


def test_it_is_plain_json():
    made = make_trace(SyntheticSpec(requests=2, tokens=8, models=("a", "b", "c"), acceptance=(0.5, 0.7)))
    told = json.loads(json.dumps(made.summary().to_json(), allow_nan=False))
    assert told["meta"]["kind"] == "synthetic"
    assert list(told["total"]["mean_tvd"]) == ["a/b", "a/c", "b/c"]
