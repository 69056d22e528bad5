import hashlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from paceline.traces import SyntheticSpec, TraceFormatError, TrieRecording, make_trace, read_trace, write_trace
from paceline.traces.contexts.trie import arrays_of
from paceline.traces.folder import TRIE_FILES as FILES

from ...strategies import traces

SPEC = SyntheticSpec(requests=2, tokens=8, prompt_tokens=3, models=("a", "b", "c"), acceptance=(0.5, 0.7), reach=3)


def assert_equal(one: TrieRecording, other: TrieRecording):
    assert one.meta == other.meta
    assert len(one.requests) == len(other.requests)
    for left, right in zip(one.requests, other.requests, strict=True):
        assert replace(left, trie=None) == replace(right, trie=None)
        for name in arrays_of(left.trie):
            here, there = getattr(left.trie, name), getattr(right.trie, name)
            assert here.dtype == there.dtype
            np.testing.assert_array_equal(here, there, err_msg=name)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def edit_table(path: Path, name: str, edit):
    """Change a Parquet file and give `meta.json` its new hash: only its content can be refused."""
    table = edit(pq.read_table(path / name))
    pq.write_table(table, path / name)
    sign(path, name)


def sign(path: Path, name: str):
    meta = json.loads((path / "meta.json").read_text())
    meta["sha256"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "meta.json").write_text(json.dumps(meta))


def edit_meta(path: Path, edit):
    meta = json.loads((path / "meta.json").read_text())
    edit(meta)
    (path / "meta.json").write_text(json.dumps(meta))


def read_whole(path: Path) -> TrieRecording:
    """A recording whose every trie was read once."""
    recording = read_trace(path)
    for request in recording.requests:
        assert request.trie.num_nodes == request.num_nodes
    return recording


def refusal(path: Path) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_whole(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "good.trace"
    write_trace(make_trace(SPEC), path)
    return path


@given(trace=traces())
def test_what_was_written_is_read(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("round") / "t.trace"
    write_trace(trace, path)
    assert_equal(read_trace(path), trace)


@settings(max_examples=20)
@given(trace=traces())
def test_reading_and_writing_gives_the_same_bytes(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    write_trace(trace, folder / "one")
    write_trace(read_trace(folder / "one"), folder / "two")
    assert content(folder / "one") == content(folder / "two")
    assert sorted(content(folder / "one")) == sorted(FILES)


def test_top_log_prob_is_stored_under_coupled_sampling_only(stored):
    assert not [name for name in pq.read_schema(stored / "nodes.parquet").names if "top_log_prob" in name]


@pytest.mark.parametrize(("vocab_size", "kind"), [(65536, pa.uint16()), (65537, pa.int32())])
def test_tokens_take_two_bytes_where_they_fit(tmp_path, vocab_size, kind):
    path = tmp_path / "t.trace"
    write_trace(make_trace(SyntheticSpec(requests=1, tokens=4, vocab_size=vocab_size)), path)
    schema = pq.read_schema(path / "nodes.parquet")
    assert {schema.field(name).type for name in ("token", "draft.next_token", "target.next_token")} == {kind}


def test_an_existing_trace_is_replaced(stored):
    other = make_trace(SyntheticSpec(requests=1, tokens=4))
    write_trace(other, stored)
    assert_equal(read_trace(stored), other)
    assert [entry.name for entry in stored.parent.iterdir()] == ["good.trace"]


def test_a_trace_behind_a_link_is_replaced_where_it_lies(stored):
    link = stored.with_name("link.trace")
    link.symlink_to(stored)
    other = make_trace(SyntheticSpec(requests=1, tokens=4))
    write_trace(other, link)
    assert link.is_symlink()
    assert_equal(read_trace(stored), other)
    assert sorted(entry.name for entry in stored.parent.iterdir()) == ["good.trace", "link.trace"]


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
    before = content(stored)
    rename = Path.rename
    new = []

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


def test_a_key_twice_in_the_meta_is_named(stored):
    text = (stored / "meta.json").read_text()
    (stored / "meta.json").write_text(text.replace('"near_ties":', '"near_ties": 3, "near_ties":', 1))
    assert "key 'near_ties' twice" in str(refusal(stored))


@pytest.mark.parametrize("version", [1.0, True, "1", [1]])
def test_a_version_is_a_whole_number(stored, version):
    edit_meta(stored, lambda meta: meta.update(version=version))
    assert refusal(stored).field == "version"


def test_nothing_there(tmp_path):
    assert refusal(tmp_path / "no.trace").field == "trace"


def test_a_file_is_no_trace(tmp_path):
    (tmp_path / "file.trace").write_text("{}")
    assert "a file" in str(refusal(tmp_path / "file.trace"))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(stored, name):
    (stored / name).unlink()
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (name, "file")


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_place_of_a_file_is_named(stored, name):
    (stored / name).unlink()
    (stored / name).mkdir()
    assert refusal(stored).field == "file"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(stored):
    (stored / "nodes.parquet").chmod(0)
    assert refusal(stored).field == "file"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000], ids=lambda data: repr(data[:8])
)
def test_meta_that_is_no_json_object(stored, data):
    (stored / "meta.json").write_bytes(data)
    assert Path(refusal(stored).path).name == "meta.json"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda meta: meta.update(version=2), "version"),
        (lambda meta: meta.pop("version"), "version"),
        (lambda meta: meta.pop("format"), "format"),
        (lambda meta: meta.update(name=""), "name"),
        (lambda meta: meta.update(format="zip"), "format"),
        (lambda meta: meta.update(colour="red"), "colour"),
        (lambda meta: meta["models"][0].update(colour="red"), "models.0.colour"),
        (lambda meta: meta.pop("vocab_size"), "vocab_size"),
        (lambda meta: meta["models"][1].pop("layers"), "models.1.layers"),
        (lambda meta: meta.pop("sha256"), "sha256"),
        (lambda meta: meta["sha256"].pop("nodes.parquet"), "content"),
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
    ],
)
def test_meta_that_breaks_a_rule(stored, edit, field):
    edit_meta(stored, edit)
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == ("meta.json", field)


@pytest.mark.parametrize(("old", "now"), [(None, ()), (7, (7,))])
def test_a_recording_from_before_there_were_several_end_tokens_opens(stored, old, now):
    def as_before(meta):
        del meta["eos_token_ids"]
        meta["eos_token_id"] = old

    edit_meta(stored, as_before)
    assert read_trace(stored).meta.eos_token_ids == now


@pytest.mark.parametrize("wrong", [True, "0", 10**9, -1, 0.0])
def test_one_end_token_is_as_strict_as_several(stored, wrong):
    def as_before(meta):
        del meta["eos_token_ids"]
        meta["eos_token_id"] = wrong

    edit_meta(stored, as_before)
    assert Path(refusal(stored).path).name == "meta.json"


def test_model_names_that_make_columns_the_same(tmp_path):
    trace = make_trace(SyntheticSpec(requests=1, tokens=2, models=("a", "b.c", "a.b", "c"), acceptance=(0.5,) * 3))
    with pytest.raises(TraceFormatError, match=r"meta.json: models: .*tvd.a.b.c"):
        write_trace(trace, tmp_path / "t.trace")


@pytest.mark.parametrize("name", ["requests.parquet", "nodes.parquet"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    ],
    ids=["half", "cut", "empty", "longer", "flipped"],
)
def test_damaged_bytes_are_told_by_their_hash(stored, name, damage):
    (stored / name).write_bytes(damage((stored / name).read_bytes()))
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (name, "sha256")


@pytest.mark.parametrize("name", ["requests.parquet", "nodes.parquet"])
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"PAR1" * 9])
def test_a_signed_file_that_is_no_parquet(stored, name, damage):
    (stored / name).write_bytes(damage((stored / name).read_bytes()))
    sign(stored, name)
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (name, "content")


def test_a_signed_file_with_a_flipped_byte_is_sound_or_refused(stored):
    """Whatever Parquet makes of it: a sound trace or one line, never another exception."""
    data = (stored / "nodes.parquet").read_bytes()
    messages = []
    for place in range(0, len(data), 29):
        (stored / "nodes.parquet").write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        sign(stored, "nodes.parquet")
        try:
            read_whole(stored)
        except TraceFormatError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert not [message for message in messages if "\n" in message]


def cast(table, name, kind):
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, table.column(name).cast(kind))


def with_null(table, name):
    place = table.schema.get_field_index(name)
    values = [None, *table.column(name).to_pylist()[1:]]
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("name", "edit", "field", "rule"),
    [
        ("nodes", lambda table: table.drop(["depth"]), "depth", "must be a column"),
        ("nodes", lambda table: table.drop(["tvd.a.c"]), "tvd.a.c", "must be a column"),
        ("requests", lambda table: table.drop(["tag"]), "tag", "must be a column"),
        ("nodes", lambda table: table.append_column("mood", table["depth"]), "mood", "must not be there"),
        ("nodes", lambda table: table.append_column("a.top_log_prob", table["a.gap"]), "a.top_log_prob", "must not be"),
        ("requests", lambda table: table.append_column("mood", table["tag"]), "mood", "must not be there"),
        ("nodes", lambda table: cast(table, "depth", pa.int64()), "depth", "must be of type int32"),
        ("nodes", lambda table: cast(table, "a.gap", pa.float64()), "a.gap", "must be of type uint16"),
        ("nodes", lambda table: cast(table, "on_trunk", pa.int32()), "on_trunk", "must be of type bool"),
        ("requests", lambda table: cast(table, "prompt", pa.list_(pa.int64())), "prompt", "must be of type list"),
        ("nodes", lambda table: with_null(table, "parent"), "parent", "must hold no nulls"),
        ("requests", lambda table: with_null(table, "prompt"), "prompt", "must hold no nulls"),
        ("requests", lambda table: with_null(table, "id"), "id", "must hold no nulls"),
        ("nodes", lambda table: table.append_column("depth", table["depth"]), "content", ""),
    ],
)
def test_a_signed_file_with_other_columns(stored, name, edit, field, rule):
    edit_table(stored, f"{name}.parquet", edit)
    error = refusal(stored)
    assert (Path(error.path).name, error.field) == (f"{name}.parquet", field)
    assert rule in error.rule


def test_columns_in_another_order_are_read(stored):
    edit_table(stored, "nodes.parquet", lambda table: table.select(table.column_names[::-1]))
    assert_equal(read_trace(stored), make_trace(SPEC))


def test_files_of_two_traces_do_not_mix(stored, tmp_path):
    write_trace(make_trace(replace(SPEC, seed=5)), tmp_path / "other.trace")
    shutil.copy(tmp_path / "other.trace" / "nodes.parquet", stored)
    assert refusal(stored).field == "sha256"


def test_the_error_survives_a_worker_process():
    error = TraceFormatError(Path("a.trace"), "depth", "must be\n0", "x" * 500)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 200
