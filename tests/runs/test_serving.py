"""The folder of a run reads back as it was written; anything spoiled is one line that names the file."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from paceline.runs.serving import read_serving, write_serving
from paceline.traces.errors import TraceFormatError
from paceline.traces.workloads.arrival import Arrival

from ..traces.making import edit_meta, edit_table, with_column
from .making import ABOUT, played, told


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=played())
def test_round_trip(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "run"
    log = run.log
    write_serving(log, path)
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


def test_what_did_not_happen_is_null(stored):
    recorder = told()
    recorder.stopped(40, "interrupt")
    recorder.emitted(recorder.arrived(Arrival("late", 35, 4, 4), 0), 0)
    write_serving(recorder.log(ABOUT), stored.with_name("partial"))
    table = pq.read_table(stored.with_name("partial") / "requests.parquet").to_pydict()
    assert table["first_token_at_ps"] == [20, None]
    assert read_serving(stored.with_name("partial")).meta.stopped == "interrupt"


def column(name, values):
    return lambda table: with_column(table, name, values)


SPOILED = [
    ("requests", column("first_token_at_ps", [-5]), "first_token_at_ps: must be >= 0, or null"),
    ("requests", column("ended_at_ps", [19]), "ended_at_ps: must not be before the first token (row 0)"),
    ("requests", column("prompt_tokens", [-1]), "prompt_tokens: must be in [1, 2147483647] (row 0)"),
    ("requests", column("cached_tokens", [[1]]), "cached_tokens: must hold one per member, 2, got 1"),
    ("requests", lambda table: table.slice(0, 0), ""),
    ("gaps", column("count", [0]), "count: must be in [1, 2147483647] (row 0), got 0"),
    ("gaps", column("first_ps", [-1]), "first_ps: must be in [0,"),
    ("gaps", column("first_ps", [11]), "first_ps: must add up to the 10 ps between first and last"),
    (None, lambda meta: meta["members"].append("x"), "levels must be one per member, 3, got '2'"),
    (None, lambda meta: meta["replicas"][0].update(running_ps=-1), "replicas.0.running_ps: "),
    (None, lambda meta: meta["levels"][0].update(accepted=1), "accepted must be at most judged"),
    (None, lambda meta: meta.update(ended_at_ps=10**30), "ended_at_ps: must be at most"),
]


@pytest.mark.parametrize(("table", "edit", "line"), SPOILED)
def test_what_is_spoiled_is_one_line(stored, table, edit, line):
    if table is None:
        edit_meta(stored, edit)
    else:
        edit_table(stored, f"{table}.parquet", edit)
    with pytest.raises(TraceFormatError) as refused:
        read_serving(stored)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{stored}/")
    assert line in str(refused.value)
