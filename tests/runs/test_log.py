"""Rounds of a run, and its log on the disk."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY
from paceline.policies import make_policy
from paceline.runs.log import OP_FIELDS, REQUEST_FIELDS, STEP_FIELDS, RunLog, to_columns, write_run_log
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace

from ..sim.tries.small_traces import replay

ROUND_FIELDS = ("request", "round", "end_s", "drafted", "judged", "accepted", "emitted")
FILES = {"meta.json", "ops.parquet", "steps.parquet", "rounds.parquet", "requests.parquet"}


def naive_rounds(log):
    """One request after the other, step by step."""
    target = len(log.meta["members"]) - 1
    rows = []
    steps = {name: column.tolist() for name, column in log.steps.items()}
    for request in sorted(set(steps["request"])):
        number = drafted = 0
        for index, owner in enumerate(steps["request"]):
            if owner != request:
                continue
            drafted += steps["drafted"][index]
            if steps["kind"][index] == VERIFY and steps["level"][index] == target and not steps["prefill"][index]:
                told = [steps[name][index] for name in ("judged", "accepted", "emitted")]
                rows.append((request, number, steps["end_s"][index], drafted, *told))
                number, drafted = number + 1, 0
    return rows


@st.composite
def logs(draw):
    """Steps in any order, of requests that may end with or without a verification by the target."""
    num_members, num_requests = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows = []
    for end in range(draw(st.integers(1, 25))):
        kind, level = draw(st.sampled_from([DRAFT, VERIFY, COMMIT])), draw(st.integers(0, num_members - 1))
        counts = [draw(st.integers(0, 9)) for _ in range(6)]
        drafted = counts[0] if kind == DRAFT else 0
        request = draw(st.integers(0, num_requests - 1))
        rows.append((0, request, kind, level, 0, drafted, *counts[1:], float(end), 0, int(draw(st.booleans())), 0, 0))
    assert all(len(row) == len(STEP_FIELDS) for row in rows)
    return RunLog(
        meta={"members": list("abc"[:num_members])},
        ops=to_columns(OP_FIELDS, []),
        steps=to_columns(STEP_FIELDS, rows),
        requests=to_columns(REQUEST_FIELDS, []),
    )


@given(log=logs())
def test_rounds_of_any_steps(log):
    rounds = log.rounds()
    assert tuple(rounds) == ROUND_FIELDS
    assert list(zip(*(rounds[name].tolist() for name in ROUND_FIELDS), strict=True)) == naive_rounds(log)


def test_rounds_of_a_run_add_up():
    log = a_run(batch=3)
    rounds = log.rounds()
    assert rounds["emitted"].sum() + log.steps["prefill"].sum() == log.steps["emitted"].sum()
    assert log.steps["prefill"].sum() == len(log.requests["request_id"])
    assert rounds["drafted"].sum() == log.steps["drafted"].sum()
    assert list(zip(*(rounds[name].tolist() for name in ROUND_FIELDS), strict=True)) == naive_rounds(log)


def test_no_rounds():
    log = RunLog(meta={"members": ["a"]}, ops={}, steps=to_columns(STEP_FIELDS, []), requests={})
    assert {name: len(column) for name, column in log.rounds().items()} == dict.fromkeys(ROUND_FIELDS, 0)


def a_run(batch=1):
    trace = make_trace(SyntheticSpec(requests=4, tokens=10, models=("draft", "mid", "target"), acceptance=(0.5, 0.7)))
    log, _ = replay(trace, make_policy("draft:3/mid:4/target", recorded_pool(trace)), batch=batch)
    return log


def test_what_was_written_is_read(tmp_path):
    log = a_run()
    write_run_log(log, tmp_path / "runs" / "first", extra={"outputs.jsonl": "{}\n"})
    folder = tmp_path / "runs" / "first"
    assert {file.name for file in folder.iterdir()} == FILES | {"outputs.jsonl"}
    assert (folder / "outputs.jsonl").read_text() == "{}\n"
    assert json.loads((folder / "meta.json").read_text()) == log.meta
    parts = {"ops": log.ops, "steps": log.steps, "requests": log.requests, "rounds": log.rounds()}
    for name, columns in parts.items():
        table = pq.read_table(folder / f"{name}.parquet")
        assert table.column_names == list(columns)
        for column, values in columns.items():
            np.testing.assert_array_equal(table.column(column).to_numpy(), values)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_run_log(a_run(), tmp_path / name)
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_run_is_never_overwritten(tmp_path, kind):
    path = tmp_path / "run"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_text("mine")
    with pytest.raises(ValueError, match=r"run: exists already; a run is never overwritten"):
        write_run_log(a_run(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert kind == "folder" or path.read_text() == "mine"


@pytest.mark.parametrize("failing", ["meta", "extra", "columns"])
def test_a_run_is_written_whole_or_not_at_all(tmp_path, failing):
    log = a_run()
    extra = {}
    if failing == "meta":
        log.meta["strange"] = object()
    elif failing == "extra":
        extra = {"no/such/folder.txt": ""}
    else:
        log.steps["own"] = log.steps["own"][:-1]
    with pytest.raises((TypeError, OSError, ValueError)):
        write_run_log(log, tmp_path / "run", extra=extra)
    assert not list(tmp_path.iterdir())


def test_the_part_of_a_killed_recording_is_left_alone(tmp_path):
    (tmp_path / "run.part").mkdir()
    (tmp_path / "run.part" / "000000.npz").write_text("half")
    write_run_log(a_run(), tmp_path / "run")
    assert {file.name for file in tmp_path.iterdir()} == {"run", "run.part"}
    assert (tmp_path / "run.part" / "000000.npz").read_text() == "half"
    assert {file.name for file in (tmp_path / "run").iterdir()} == FILES


def test_an_id_comes_back_as_it_was():
    ids = ["a", "a\0", "\0"]
    assert to_columns(("request_id", "tokens"), [(name, 1) for name in ids])["request_id"].tolist() == ids
