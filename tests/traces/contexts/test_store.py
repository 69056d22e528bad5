"""Recordings of contexts on the disk: written whole, read request by request, told what is wrong when it is read."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from paceline.traces import SyntheticSpec, TraceFormatError, TrieRequest, make_trace, read_trace, write_trace
from paceline.traces.contexts import store as stored_requests
from paceline.traces.contexts.store import StoredNodes, batches
from paceline.traces.folder import TRIE_FILES as FILES

from ...strategies import traces
from ..making import SPEC, assert_equal, content, edit_meta, edit_table, refusal, sign, with_cell


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


@pytest.mark.parametrize(("vocab_size", "kind"), [(65536, pa.uint16()), (65537, pa.int32())])
def test_tokens_take_two_bytes_where_they_fit(tmp_path, vocab_size, kind):
    path = tmp_path / "t.trace"
    write_trace(make_trace(SyntheticSpec(requests=1, tokens=4, vocab_size=vocab_size)), path)
    schema = pq.read_schema(path / "nodes.parquet")
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


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text("mine"), lambda path: (path / "mine").mkdir(parents=True)]
)
def test_what_is_no_trace_is_not_replaced(tmp_path, make):
    path = tmp_path / "mine.trace"
    make(path)
    with pytest.raises(TraceFormatError, match="must be free, or a recording to replace"):
        write_trace(make_trace(SPEC), path)
    assert path.is_file() or (path / "mine").is_dir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("existing", [False, True])
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
    def edit(meta):
        del meta["eos_token_ids"]
        meta["eos_token_id"] = token

    return edit


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
    trace = make_trace(SyntheticSpec(requests=1, tokens=2, models=("a", "b.c", "a.b", "c"), acceptance=(0.5,) * 3))
    with pytest.raises(TraceFormatError, match=r"meta.json: models: .*tvd.a.b.c"):
        write_trace(trace, tmp_path / "t.trace")


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


@pytest.mark.parametrize("rows", [7, 150, 10**6])
def test_row_groups_may_lie_anywhere(many, rows):
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
