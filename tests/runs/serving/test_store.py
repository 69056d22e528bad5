"""The folder of a run reads back as it was written; anything spoiled is one line that names the file."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from paceline.runs.serving import SCHEMAS, read_serving, write_serving
from paceline.traces.errors import TraceFormatError
from paceline.traces.folder import hash_file
from paceline.traces.workloads.arrival import Arrival

from .test_recorder import told
from .toy_engine import ABOUT, played

FILES = {"meta.json", *SCHEMAS}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=played())
def test_round_trip(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "run"
    log = run.log
    write_serving(log, path)
    assert {file.name for file in path.iterdir()} == FILES
    found = read_serving(path)
    assert found.meta == log.meta
    for table in ("requests", "preemptions", "series", "gaps"):
        written, read = getattr(log, table), getattr(found, table)
        assert list(read) == list(written)
        for name, column in written.items():
            assert read[name].dtype == column.dtype, name
            np.testing.assert_array_equal(read[name], column)


@pytest.fixture
def stored(tmp_path):
    write_serving(told().log(ABOUT), tmp_path / "run")
    return tmp_path / "run"


def test_the_same_run_gives_the_same_bytes(stored, tmp_path):
    write_serving(told().log(ABOUT), tmp_path / "again")
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (stored / name).read_bytes(), name


def test_a_run_is_never_overwritten(stored):
    with pytest.raises(ValueError, match="exists already; a run is never overwritten"):
        write_serving(told().log(ABOUT), stored)


def test_what_did_not_happen_is_null(stored):
    recorder = told()
    recorder.stopped(40, "interrupt")
    recorder.emitted(recorder.arrived(Arrival("late", 35, 4, 4), 0), 0)
    write_serving(recorder.log(ABOUT), stored.with_name("partial"))
    table = pq.read_table(stored.with_name("partial") / "requests.parquet").to_pydict()
    assert table["first_token_at_ps"] == [20, None]
    assert read_serving(stored.with_name("partial")).meta.stopped == "interrupt"


def changed(path, name, change):
    """Rewrite a table and sign it, so that only its content is wrong."""
    table = change(pq.read_table(path / name))
    pq.write_table(table, path / name, store_schema=False)
    meta = json.loads((path / "meta.json").read_text())
    meta["sha256"][name] = hash_file(path / name)
    (path / "meta.json").write_text(json.dumps(meta))


def with_column(field, values, kind=None):
    def change(table):
        place = table.column_names.index(field)
        return table.set_column(
            place, table.schema.field(place), pa.array(values, type=kind or table.schema.field(place).type)
        )

    return change


SPOILED = {
    "requests.parquet": {
        "a time before the start": (with_column("first_token_at_ps", [-5]), "first_token_at_ps: must be >= 0, or null"),
        "an early end": (with_column("ended_at_ps", [19]), "ended_at_ps: must not be before the first token (row 0)"),
        "a negative length": (with_column("prompt_tokens", [-1]), "prompt_tokens: must be in [1, 2147483647] (row 0)"),
        "one level": (with_column("cached_tokens", [[1]]), "cached_tokens: must hold one per member, 2, got 1"),
        "no column": (lambda table: table.drop_columns(["tag"]), "tag: must be a column of the file"),
        "a column too many": (lambda table: table.append_column("x", pa.array([1])), "x: must not be there"),
        "no row": (lambda table: table.slice(0, 0), ""),
    },
    "gaps.parquet": {
        "no gap": (with_column("count", [0]), "count: must be in [1, 2147483647] (row 0), got 0"),
        "a negative gap": (with_column("first_ps", [-1]), "first_ps: must be in [0,"),
        "another gap": (with_column("first_ps", [11]), "first_ps: must add up to the 10 ps between first and last"),
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, ways in SPOILED.items() for what in ways])
def test_a_spoiled_table_is_one_line(stored, name, what):
    change, line = SPOILED[name][what]
    changed(stored, name, change)
    with pytest.raises(TraceFormatError) as refused:
        read_serving(stored)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{stored}/")
    assert line in str(refused.value)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_broken_file_is_named(stored, name):
    content = (stored / name).read_bytes()
    for broken in (b"", content[: len(content) // 2], b"\xff" * len(content), None):
        (stored / name).unlink()
        if broken is not None:
            (stored / name).write_bytes(broken)
        with pytest.raises(TraceFormatError, match=name):
            read_serving(stored)
        (stored / name).write_bytes(content)
    read_serving(stored)


META = {
    "another kind": (lambda meta: meta.update(kind="recorded"), "kind: "),
    "a later version": (lambda meta: meta.update(version=2), "version: "),
    "an unknown key": (lambda meta: meta.update(odd=1), "odd: "),
    "no format": (lambda meta: meta.pop("format"), "format: field required"),
    "a member too many": (lambda meta: meta["members"].append("x"), "levels must be one per member, 3, got '2'"),
    "a sum below zero": (lambda meta: meta["replicas"][0].update(running_ps=-1), "replicas.0.running_ps: "),
    "more accepted than judged": (lambda meta: meta["levels"][0].update(accepted=1), "accepted must be at most judged"),
    "a late end": (lambda meta: meta.update(ended_at_ps=10**30), "ended_at_ps: must be at most"),
}


@pytest.mark.parametrize("what", META)
def test_a_spoiled_meta_is_one_line(stored, what):
    change, line = META[what]
    meta = json.loads((stored / "meta.json").read_text())
    change(meta)
    (stored / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(TraceFormatError) as refused:
        read_serving(stored)
    assert "\n" not in str(refused.value)
    assert line in str(refused.value)


def test_what_is_no_folder(tmp_path):
    with pytest.raises(TraceFormatError, match="run: must be the folder of a serving run, got 'nothing'"):
        read_serving(tmp_path / "none")
