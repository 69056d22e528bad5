"""Recordings of contexts: every rule, broken on the way out and in a signed file; what is counted; the disk."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.traces import (
    SyntheticSpec,
    TraceFormatError,
    TrieRecording,
    TrieRequest,
    make_trace,
    read_trace,
    write_trace,
)
from paceline.traces.contexts import on_disk as stored_requests
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS, CodeGrid
from paceline.traces.contexts.on_disk import StoredNodes, batches
from paceline.traces.contexts.trie import TreeRanks, arrays_of
from paceline.traces.folder import TRIE_FILES as FILES
from paceline.traces.meta import Closure, TreeClosure

from ..strategies import traces
from .making import (
    SPEC,
    V,
    assert_equal,
    content,
    edit_meta,
    edit_table,
    edited,
    read_whole,
    refusal,
    sign,
    trace,
    trie,
    with_cell,
)


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


@pytest.mark.parametrize("field", ["next_log_prob", "top_log_prob", "gap", "entropy", "own_log_prob", "tvd"])
def test_numbers_off_the_grid_and_negative_tokens_are_not_written(tmp_path, field):
    for token in (-1, -7):
        changed = edited(trie().token, 4, token)
        not_written(with_trie(token=changed), tmp_path, r"nodes.parquet: token: must lie in \[0, 16\)")
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


def test_an_array_of_another_shape_or_type_is_not_written(tmp_path):
    for field, shape, kind in (
        ("next_token", (3, 5), np.int32),
        ("next_token", (2, 5), np.int64),
        ("tvd", (2, 5), np.float64),
        ("gap", (2, 5), np.float32),
        ("depth", 4, np.int32),
        ("on_trunk", 5, np.int32),
    ):
        rule = rf"{field}: must be a \w+ array of shape .*request 'r0'"
        not_written(with_trie(**{field: np.zeros(shape, kind)}), tmp_path, rule)


def test_a_request_that_is_none_is_not_written(tmp_path):
    values = {"request_id": ["r0"], "prompt": [(), (1, V), (1, -1)], "max_new_tokens": [0, 2**31]}
    first, second = trace().requests
    for field, value in ((field, value) for field, odd in values.items() for value in odd):
        recording = replace(trace(), requests=(first, replace(second, **{field: value})))
        assert not_written(recording, tmp_path, "requests.parquet").field == field.removeprefix("request_")


@pytest.mark.parametrize(
    ("table", "cells", "file", "field", "rule"),
    [
        ("requests", [("id", 1, "r0")], "requests", "id", "must be unique"),
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
    own = trie(mode).own_log_prob[:1]
    values = {"rank": [RANK], "ranked": [RANKED], "branch_log_prob": np.where(np.array([RANK]) >= 0, own, 0.0)}
    values |= {name: [row] for name, row in changed.items()}
    kinds = {"branch_log_prob": np.float64}
    ranks = TreeRanks(**{name: np.array(rows, kinds.get(name, np.int32)) for name, rows in values.items()})
    requests = tuple(replace(one, trie=replace(one.trie, ranks=ranks)) for one in plain.requests)
    return replace(plain, meta=plain.meta.model_copy(update={"closure": closure}), requests=requests)


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
    write_trace(trace(), tmp_path / "a.trace")
    assert "trees" not in (tmp_path / "a.trace" / "meta.json").read_text()
    assert read_trace(tmp_path / "a.trace").requests[0].trie.ranks is None
    shutil.rmtree(tmp_path / "a.trace")
    whole = with_trees()
    none, lacks = replace(whole, meta=trace().meta), replace(trace(), meta=whole.meta)
    for odd in (none, lacks, replace(whole, requests=(whole.requests[0], trace().requests[1]))):
        not_written(odd, tmp_path, "must be branches of")
    for name in ("t", "other"):
        closure = {"kind": "monotone", "reach": 2, "run": 1, "trees": [{"model": name, "shape": "2"}]}
        with pytest.raises(ValueError, match="must name models below the target"):
            type(whole.meta).model_validate({**trace().meta.model_dump(), "closure": closure})


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


def test_bytes_are_those_of_the_files(stored):
    path, summary = stored, read_trace(stored).summary(stored)
    assert json.loads(json.dumps(summary.to_json(), allow_nan=False))["meta"]["kind"] == "synthetic"
    assert summary.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert summary.bytes_per_node == summary.size_bytes / summary.total.num_nodes


def test_without_trunk_tokens_there_is_no_rate():
    root = replace(trie(), **{name: column[..., :1] for name, column in arrays_of(trie()).items()})
    requests = tuple(replace(request, trie=root) for request in trace().requests)
    summary = TrieRecording(meta=trace().meta, requests=requests).summary()
    assert summary.nodes_per_trunk_token is None
    assert (summary.total.agreement, summary.total.mean_tvd) == ({"d": None}, {"d/t": None})


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "good.trace"
    write_trace(make_trace(SPEC), path)
    return path


@settings(max_examples=30)
@given(trace=traces())
def test_what_was_written_is_read_and_written_again_as_the_same_bytes(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    write_trace(trace, folder / "one")
    assert_equal(read_trace(folder / "one"), trace)
    write_trace(read_trace(folder / "one"), folder / "two")
    assert content(folder / "one") == content(folder / "two")


def test_top_log_prob_is_stored_under_coupled_sampling_only(stored):
    assert not [name for name in pq.read_schema(stored / "nodes.parquet").names if "top_log_prob" in name]
    edit_table(stored, "nodes.parquet", lambda table: table.append_column("a.top_log_prob", table["a.gap"]))
    assert refusal(stored).field == "a.top_log_prob"


def test_tokens_take_two_bytes_where_they_fit(tmp_path):
    for vocab_size, kind in ((65536, pa.uint16()), (65537, pa.int32())):
        write_trace(make_trace(SyntheticSpec(requests=1, tokens=4, vocab_size=vocab_size)), tmp_path / "t.trace")
        schema = pq.read_schema(tmp_path / "t.trace" / "nodes.parquet")
        assert {schema.field(name).type for name in ("token", "draft.next_token", "target.next_token")} == {kind}


@pytest.mark.parametrize("linked", [False, True])
def test_an_existing_trace_is_replaced_where_it_lies(stored, linked):
    path, other = stored.with_name("link.trace") if linked else stored, make_trace(replace(SPEC, requests=1))
    if linked:
        path.symlink_to(stored)
    write_trace(other, path)
    assert path.is_symlink() == linked
    assert_equal(read_trace(stored), other)
    assert {entry.name for entry in stored.parent.iterdir()} == {"good.trace", path.name}


def test_what_is_no_trace_is_not_replaced(tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("mine")
    (folder / "mine").mkdir(parents=True)
    for path in (file, folder):
        with pytest.raises(TraceFormatError, match="must be free, or a recording to replace"):
            write_trace(make_trace(SPEC), path)
    assert file.read_text() == "mine"
    assert (folder / "mine").is_dir()


@pytest.mark.parametrize(("name", "existing"), [*((name, True) for name in FILES), ("requests.parquet", False)])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, name, existing):
    path = tmp_path / "t.trace"
    if existing:
        write_trace(make_trace(SPEC), path)
        before = content(path)
    write_bytes, write_table = Path.write_bytes, pq.ParquetWriter.write_table

    def interrupted(file, data):
        write_bytes(file, data[: len(data) // 2])
        raise KeyboardInterrupt

    def interrupted_table(writer, table, **options):
        write_table(writer, table, **options)
        if ("prompt" in table.column_names) == (name == "requests.parquet"):
            raise KeyboardInterrupt

    if name == "meta.json":
        monkeypatch.setattr(Path, "write_bytes", interrupted)
    else:
        monkeypatch.setattr(pq.ParquetWriter, "write_table", interrupted_table)
    with pytest.raises(KeyboardInterrupt):
        write_trace(make_trace(replace(SPEC, seed=1)), path)
    assert [entry.name for entry in tmp_path.iterdir()] == (["t.trace"] if existing else [])
    assert not existing or content(path) == before


def test_a_failed_exchange_puts_the_former_trace_back(stored, monkeypatch):
    before, rename, new = content(stored), Path.rename, []

    def fails(source, target):
        if Path(target) == stored and not new:  # the first that comes there is the new one
            new.append(source)
            raise OSError("disk says no")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="disk says no"):
        write_trace(make_trace(replace(SPEC, seed=1)), stored)
    assert content(stored) == before
    assert [entry.name for entry in stored.parent.iterdir()] == ["good.trace"]


def one_end(token):
    return lambda meta: (meta.pop("eos_token_ids"), meta.update(eos_token_id=token))


META = [
    (lambda meta: meta.update(name=""), "name"),
    (lambda meta: meta["models"][0].update(colour="red"), "models.0.colour"),
    (lambda meta: meta.pop("vocab_size"), "vocab_size"),
    (lambda meta: meta["models"][1].pop("layers"), "models.1.layers"),
    (lambda meta: meta.update(vocab_size="many"), "vocab_size"),
    (lambda meta: meta.update(vocab_size="32000"), "vocab_size"),
    (lambda meta: meta.update(models=[]), "models"),
    (lambda meta: meta["models"][0].update(name="b"), "content"),
    (lambda meta: meta["models"][0].update(name="a/b"), "models.0.name"),
    (lambda meta: meta["models"][0].update(name="a:4"), "models.0.name"),
    (lambda meta: meta["models"][0].update(submodel_of="nobody"), "content"),
    (lambda meta: meta["costs"]["cpu"].update(nobody=meta["costs"]["cpu"]["a"]), "content"),
    (lambda meta: meta["costs"]["cpu"]["a"].update(seconds=[1.0]), "costs.cpu.a"),
    (lambda meta: meta["costs"]["cpu"]["a"]["seconds"].__setitem__(0, float("nan")), "costs.cpu.a"),
    (lambda meta: meta["sampling"].update(seed=1), "sampling"),
    (lambda meta: meta.update(eos_token_ids=[0, 32000]), "content"),
    (lambda meta: meta.update(eos_token_ids=[-1]), "content"),
    (lambda meta: meta.update(eos_token_ids=[0, 0]), "content"),
    (lambda meta: meta.update(eos_token_ids=[0, True]), "eos_token_ids.1"),
    (lambda meta: meta.update(eos_token_ids=[0.0]), "eos_token_ids.0"),
    (lambda meta: meta.update(eos_token_id=0), "eos_token_id"),
    (lambda meta: meta["closure"].update(reach=-1), "closure.reach"),
    *[(one_end(wrong), None) for wrong in (True, "0", 10**9, -1, 0.0)],
]


@pytest.mark.parametrize(("edit", "field"), META)
def test_meta_that_breaks_a_rule(stored, edit, field):
    edit_meta(stored, edit)
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == ("meta.json", field or error.field)


@pytest.mark.parametrize(("old", "now"), [(None, ()), (7, (7,))])
def test_a_recording_from_before_there_were_several_end_tokens_opens(stored, old, now):
    edit_meta(stored, one_end(old))
    assert read_trace(stored).meta.eos_token_ids == now


def test_model_names_that_make_columns_the_same(tmp_path):
    spec = SyntheticSpec(requests=1, tokens=2, models=("a", "b.c", "a.b", "c"), acceptance=(0.5,) * 3)
    not_written(make_trace(spec), tmp_path, r"meta.json: models: .*tvd.a.b.c")


def test_columns_in_another_order_are_read(stored):
    edit_table(stored, "nodes.parquet", lambda table: table.select(table.column_names[::-1]))
    assert_equal(read_trace(stored), make_trace(SPEC))


# Request by request.

MANY = SyntheticSpec(requests=12, tokens=10, prompt_tokens=3, models=("a", "b", "c"), acceptance=(0.5, 0.7), reach=3)
BATCH_NODES = 100


@pytest.fixture
def many(tmp_path, monkeypatch):
    """Twelve requests in several batches, of which few are kept."""
    monkeypatch.setattr(stored_requests, "BATCH_NODES", BATCH_NODES)
    monkeypatch.setattr(stored_requests, "MOST_KEPT_NODES", BATCH_NODES)
    path = tmp_path / "many.trace"
    write_trace(make_trace(MANY), path)
    return path


def test_a_row_group_holds_whole_requests_and_few_nodes(many):
    sizes = [request.num_nodes for request in make_trace(MANY).requests]
    groups = pq.ParquetFile(many / "nodes.parquet").metadata
    found = [groups.row_group(index).num_rows for index in range(groups.num_row_groups)]
    assert found == [sum(sizes[first:end]) for first, end in batches(sizes)]
    assert len(found) > 2
    assert max(found) < BATCH_NODES + max(sizes)


def test_requests_are_read_in_any_order(many):
    made, found = make_trace(MANY), read_trace(many)
    order = [7, 0, 11, 3, 7, 4, 0, -1, -12]
    picked = [replace(one, requests=[one.requests[place] for place in order]) for one in (found, made)]
    assert_equal(*picked)
    assert_equal(replace(found, requests=found.requests[2:9:3]), replace(made, requests=made.requests[2:9:3]))
    for place in (12, -13):
        with pytest.raises(IndexError):
            found.requests[place]


def test_row_groups_may_lie_anywhere(many):
    for rows in (7, 150, 10**6):
        pq.write_table(pq.read_table(many / "nodes.parquet"), many / "nodes.parquet", row_group_size=rows)
        sign(many, "nodes.parquet")
        assert_equal(read_trace(many), make_trace(MANY))


def test_nodes_are_read_for_who_asks_for_a_trie_only(many, monkeypatch):
    def never(*_):
        raise AssertionError("read")

    monkeypatch.setattr(StoredNodes, "trie", never)
    recording = read_trace(many)
    known = [(one.request_id, one.tag, one.prompt, one.max_new_tokens, one.num_nodes) for one in recording.requests]
    assert len(set(known)) == 12
    assert "12 requests" in recording.about.holds
    recording.shifted({"a": 0.0}, seed=1)


def test_what_is_wrong_is_told_when_it_is_read(many):
    row = sum(request.num_nodes for request in make_trace(MANY).requests) - 2
    edit_table(many, "nodes.parquet", lambda table: with_cell(table, "depth", row, 77))
    recording = read_trace(many)
    assert recording.requests[0].trie.num_nodes
    for _ in range(2):
        with pytest.raises(TraceFormatError, match=r"nodes.parquet: depth: .*request 'synthetic-11', node \d+"):
            _ = recording.requests[11].trie


def test_a_recording_that_is_replaced_can_still_be_read(many):
    recording = read_trace(many)
    write_trace(make_trace(replace(MANY, seed=9)), many)
    assert_equal(recording, make_trace(MANY))
    write_trace(recording, many)  # and written where it came from
    assert_equal(read_trace(many), make_trace(MANY))


def test_what_is_made_of_a_request_is_one_like_any_other(many):
    recording = read_trace(many)
    changed = replace(recording.requests[1], tag="other")
    assert type(changed) is TrieRequest
    assert changed.num_nodes == recording.requests[1].num_nodes
    with pytest.raises(AttributeError, match="mood"):
        _ = recording.requests[1].mood


GRIDS = st.sampled_from([LOG_PROBS, ENTROPIES, UNITS])


@st.composite
def values(draw: st.DrawFn, grid: CodeGrid) -> float:
    """Anything, and numbers on, between and just beyond the codes, as float32 or float64."""
    code = draw(st.integers(-3, grid.high + 3) | st.integers(-2, 2).map(lambda past: grid.high + past))
    near = (code + draw(st.sampled_from([-0.5, -0.25, 0.0, 0.25, 0.5]))) * grid.step * grid.sign
    value = draw(
        st.just(near) | st.floats(-20, 20) | st.floats(-1e300, 1e300) | st.sampled_from([math.inf, -math.inf, math.nan])
    )
    return draw(st.sampled_from([value, float(np.float32(min(max(value, -3e38), 3e38)))]))


def outcome(rounded):
    try:
        return math.copysign(1.0, found := rounded()), found
    except ValueError as error:
        return str(error)


@given(st.data(), GRIDS)
def test_nearest_is_round(data, grid):
    value = data.draw(values(grid))
    assert outcome(lambda: grid.nearest(value)) == outcome(lambda: float(grid.round(np.array([value]))[0]))


@pytest.mark.parametrize("grid", [LOG_PROBS, ENTROPIES, UNITS])
def test_every_code_stays(grid):
    codes = np.arange(0, grid.high + 1, dtype=np.uint16)
    held = grid.decode(codes)
    assert [grid.nearest(value) for value in held.tolist()] == held.tolist()
