"""Folders of recordings and runs, whichever kind: what is damaged, missing or of another format is one line."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from paceline.runs.observed import read_observed, write_observed
from paceline.runs.serving import SCHEMAS, read_serving, write_serving
from paceline.traces import TraceFormatError, make_trace, read_rounds, write_trace
from paceline.traces.folder import ROUNDS_FILES, TRIE_FILES

from ..runs.making import ABOUT, observed_run, told
from .making import SPEC, cast, content, edit_meta, edit_table, read_whole, refusal, sign, timed_trace, with_null, write

KINDS = {
    "tries": (TRIE_FILES, lambda path: write_trace(make_trace(SPEC), path), read_whole),
    "rounds": (ROUNDS_FILES, lambda path: write(timed_trace(), path), read_rounds),
    "serving": (("meta.json", *SCHEMAS), lambda path: write_serving(told().log(ABOUT), path), read_serving),
    "observed": (("meta.json", "requests.parquet"), lambda path: write_observed(observed_run(), path), read_observed),
}
TABLES = [(kind, name) for kind, (files, _, _) in KINDS.items() for name in files if name != "meta.json"]


@pytest.fixture
def stored(tmp_path):
    def storing(kind):
        path = tmp_path / "good"
        KINDS[kind][1](path)
        return path

    return storing


def refused(path, kind):
    error = refusal(path, KINDS[kind][2])
    return Path(error.path).name, error.field


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_folder_and_what_is_none(stored, tmp_path, kind):
    path, (files, write_again, read) = stored(kind), KINDS[kind]
    assert {file.name for file in path.iterdir()} == set(files)
    write_again(tmp_path / "again")
    assert content(tmp_path / "again") == content(path)
    if kind in ("serving", "observed"):
        with pytest.raises(ValueError, match="exists already; a run is never overwritten"):
            write_again(path)
    field = "trace" if kind in ("tries", "rounds") else "run"
    assert refused(tmp_path / "none", kind) == ("none", field)
    (tmp_path / "file").write_text("{}")
    assert refused(tmp_path / "file", kind) == ("file", field)
    assert "got 'a file" in str(refusal(tmp_path / "file", read))
    for name in files:
        data = (path / name).read_bytes()
        (path / name).unlink()
        is_none = name == "meta.json" and field == "run"  # such a folder is none of a run
        assert refused(path, kind) == ((path.name, field) if is_none else (name, "file"))
        (path / name).mkdir()
        assert refused(path, kind) == (name, "file")
        (path / name).rmdir()
        (path / name).write_bytes(data)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(stored):
    path = stored("tries")
    (path / "nodes.parquet").chmod(0)
    assert refused(path, "tries") == ("nodes.parquet", "file")


@pytest.mark.parametrize(("kind", "name"), TABLES)
def test_damaged_bytes_are_told_by_their_hash_and_signed_ones_are_no_parquet(stored, kind, name):
    path = stored(kind)
    data = (path / name).read_bytes()
    flipped = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    for damaged in (data[: len(data) // 2], data[:-1], b"", data + b"\0", flipped):
        (path / name).write_bytes(damaged)
        assert refused(path, kind) == (name, "sha256")
    for damaged in (data[: len(data) // 2], b"", b"PAR1" * 9):
        (path / name).write_bytes(damaged)
        sign(path, name)
        assert refused(path, kind) == (name, "content")


@pytest.mark.parametrize(("kind", "name"), [("tries", "nodes.parquet"), ("rounds", "rounds.parquet")])
def test_a_signed_file_with_a_flipped_byte_is_sound_or_refused(stored, kind, name):
    """Whatever Parquet makes of it: a sound recording or one line, never another exception."""
    path, messages = stored(kind), []
    data = (path / name).read_bytes()
    for place in range(0, len(data), max(7, len(data) // 60)):
        (path / name).write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        sign(path, name)
        try:
            KINDS[kind][2](path)
        except TraceFormatError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert not [message for message in messages if "\n" in message]


@pytest.mark.parametrize("kind", KINDS)
def test_meta_that_is_no_json_object(stored, kind):
    path = stored(kind)
    text = (path / "meta.json").read_bytes()
    for data in (b"", b"{", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000, text[: len(text) // 2]):
        (path / "meta.json").write_bytes(data)
        assert refused(path, kind)[0] == "meta.json"
    (path / "meta.json").write_bytes(text.replace(b'"name":', b'"name": "b", "name":', 1))
    if kind in ("tries", "rounds"):
        assert "key 'name' twice" in str(refusal(path, KINDS[kind][2]))


META = [
    *[(lambda meta, version=version: meta.update(version=version), "version") for version in (2, 1.0, True, "1", [1])],
    (lambda meta: meta.pop("version"), "version"),
    (lambda meta: meta.pop("format"), "format"),
    (lambda meta: meta.update(format="zip"), "format"),
    (lambda meta: meta.pop("kind"), "kind"),
    (lambda meta: meta.update(kind="odd"), "kind"),
    (lambda meta: meta.update(colour="red"), "colour"),
    (lambda meta: meta.pop("sha256"), "sha256"),
    (lambda meta: meta["sha256"].pop("requests.parquet"), "content"),
    (lambda meta: meta["sha256"].update({"other.parquet": "0"}), "content"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("edit", "field"), META)
def test_meta_of_another_format(stored, kind, edit, field):
    path = stored(kind)
    edit_meta(path, edit)
    name = path.name if (kind, field) == ("rounds", "kind") and "kind" in (path / "meta.json").read_text() else None
    found = refused(path, kind)
    assert found in {("meta.json", field), (name, field)}


# Of each kind a table, a column of it, and another type.
COLUMNS = [
    ("tries", "nodes.parquet", "depth", pa.int64()),
    ("tries", "nodes.parquet", "a.gap", pa.float64()),
    ("tries", "nodes.parquet", "on_trunk", pa.int32()),
    ("tries", "nodes.parquet", "tvd.a.c", pa.int32()),
    ("tries", "requests.parquet", "prompt", pa.list_(pa.int64())),
    ("tries", "requests.parquet", "tag", pa.binary()),
    ("rounds", "rounds.parquet", "start", pa.int64()),
    ("rounds", "requests.parquet", "num_tokens", pa.list_(pa.int64())),
    ("rounds", "requests.parquet", "methods", pa.list_(pa.binary())),
    ("serving", "requests.parquet", "tag", pa.binary()),
    ("serving", "gaps.parquet", "count", pa.int32()),
    ("observed", "requests.parquet", "outputs_at_ps", pa.list_(pa.int32())),
]


@pytest.mark.parametrize(("kind", "name", "column", "other"), COLUMNS)
def test_a_signed_file_with_other_columns(stored, kind, name, column, other):
    path = stored(kind)
    for edit, field, rule in (
        (lambda table: table.drop([column]), column, "must be a column"),
        (lambda table: table.append_column("mood", table[column]), "mood", "must not be there"),
        (lambda table: cast(table, column, other), column, "must be of type"),
        (lambda table: with_null(table, column), column, "must hold no nulls"),
        (lambda table: table.append_column(column, table[column]), "content", ""),
    ):
        data = (path / name).read_bytes()
        edit_table(path, name, edit)
        error = refusal(path, KINDS[kind][2])
        assert (Path(error.path).name, error.field) == (name, field)
        assert rule in error.rule
        (path / name).write_bytes(data)
        sign(path, name)


def test_the_error_survives_a_worker_process():
    error = TraceFormatError(Path("a.trace"), "depth", "must be\n0", "x" * 500)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 200
