"""The log of a run: its rounds, its folder, what a ledger makes of steps, and seconds per token."""

import json
import math
from statistics import median

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, TREE, VERIFY, OpRecord, StepRecord
from paceline.policies import make_policy
from paceline.reports.seconds_by_tag import request_seconds
from paceline.runs.log import (
    OP_FIELDS,
    REQUEST_FIELDS,
    STEP_FIELDS,
    RunLedger,
    RunLog,
    added_seconds,
    seconds_per_token,
    to_columns,
    with_times_plain,
    write_run_log,
)
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


def a_run(batch=1):
    trace = make_trace(SyntheticSpec(requests=4, tokens=10, models=("draft", "mid", "target"), acceptance=(0.5, 0.7)))
    return replay(trace, make_policy("draft:3/mid:4/target", recorded_pool(trace)), batch=batch)[0]


def test_rounds_of_a_run_add_up():
    log = a_run(batch=3)
    rounds = log.rounds()
    assert rounds["emitted"].sum() + log.steps["prefill"].sum() == log.steps["emitted"].sum()
    assert log.steps["prefill"].sum() == len(log.requests["request_id"])
    assert rounds["drafted"].sum() == log.steps["drafted"].sum()
    none = RunLog(meta={"members": ["a"]}, ops={}, steps=to_columns(STEP_FIELDS, []), requests={})
    assert {name: len(column) for name, column in none.rounds().items()} == dict.fromkeys(ROUND_FIELDS, 0)


def test_what_was_written_is_read_and_the_same_run_gives_the_same_bytes(tmp_path):
    folder, log = tmp_path / "runs" / "first", a_run()
    # The part of a recording that was killed is left alone.
    (tmp_path / "runs" / "first.part").mkdir(parents=True)
    (tmp_path / "runs" / "first.part" / "000000.npz").write_text("half")
    write_run_log(log, folder, extra={"outputs.jsonl": "{}\n"})
    assert {file.name for file in folder.iterdir()} == FILES | {"outputs.jsonl"}
    assert (folder / "outputs.jsonl").read_text() == "{}\n"
    assert json.loads((folder / "meta.json").read_text()) == log.meta
    parts = {"ops": log.ops, "steps": log.steps, "requests": log.requests, "rounds": log.rounds()}
    for name, columns in parts.items():
        table = pq.read_table(folder / f"{name}.parquet")
        assert table.column_names == list(columns)
        for column, values in columns.items():
            np.testing.assert_array_equal(table.column(column).to_numpy(), values)
    write_run_log(a_run(), tmp_path / "runs" / "again")
    assert {file.name for file in (tmp_path / "runs").iterdir()} == {"first", "first.part", "again"}
    assert (tmp_path / "runs" / "first.part" / "000000.npz").read_text() == "half"
    for file in FILES:
        assert (tmp_path / "runs" / "again" / file).read_bytes() == (folder / file).read_bytes()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("mine")])
def test_a_run_is_never_overwritten(tmp_path, make):
    make(tmp_path / "run")
    with pytest.raises(ValueError, match=r"run: exists already; a run is never overwritten"):
        write_run_log(a_run(), tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").is_dir() or (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("failing", ["meta", "extra", "columns"])
def test_a_run_is_written_whole_or_not_at_all(tmp_path, failing):
    log, extra = a_run(), {"no/such/folder.txt": ""} if failing == "extra" else {}
    if failing == "meta":
        log.meta["strange"] = object()
    elif failing == "columns":
        log.steps["own"] = log.steps["own"][:-1]
    with pytest.raises((TypeError, OSError, ValueError)):
        write_run_log(log, tmp_path / "run", extra=extra)
    assert not list(tmp_path.iterdir())


def test_an_id_comes_back_as_it_was():
    ids = ["a", "a\0", "\0"]
    assert to_columns(("request_id", "tokens"), [(name, 1) for name in ids])["request_id"].tolist() == ids


# What a ledger makes of steps.

META = {"policy": "p", "members": ["draft", "target"]}


def admitted(*request_ids):
    ledger = RunLedger()
    for request_id in request_ids:
        ledger.note_admitted(request_id, tag="a", num_prompt=3, arrived_at_s=0.5, now_s=1.0)
    return ledger


def finished(ledger):
    return ledger.finish(META, reanchored={}, divergent={})


def test_a_failed_request_has_a_row():
    ledger = admitted("early", "late", "well")
    ledger.note_op(OpRecord(VERIFY, 1, 3, 1, 9, 1.0, 1.0))
    ledger.note_failed("early", "layer 2: logits are not finite", 2.0)
    for name in ("late", "well"):
        ledger.note_step(StepRecord(name, VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 2.0, 1.0))
    ledger.note_failed("late", "cache lost", 3.0)
    requests = finished(ledger).requests
    np.testing.assert_array_equal(requests["first_token_at_s"], [math.nan, 2.0, 2.0])
    assert requests["finished_at_s"].tolist() == [2.0, 3.0, 2.0]
    assert requests["emitted_tokens"].tolist() == [0, 1, 1]
    assert requests["failed"].tolist() == ["layer 2: logits are not finite", "cache lost", ""]


def test_a_failure_has_a_reason_and_preemptions_are_counted():
    ledger = admitted("r0", "r1", "r2")
    with pytest.raises(ValueError, match="request r0: failed must give a reason, got ''"):
        ledger.note_failed("r0", "", 1.0)
    for request_id in ("r2", "r0", "r2"):
        ledger.note_preempted(request_id)
    log = finished(ledger)
    assert log.requests["preempted"].tolist() == [1, 0, 2]
    assert all(map(math.isnan, log.requests["times_plain"]))


NAMES = ("r0", "r1", "r2", "r3")


def naive(log):
    """Request by request, step by step."""
    op_s = naive_seconds(log)
    found = {}
    for index, request_id in enumerate(log.requests["request_id"].tolist()):
        seconds = tokens = 0
        begun = False
        for at in range(len(log.steps["op"])):
            if log.steps["request"][at] != index:
                continue
            if begun:
                op = log.steps["op"][at]
                seconds += 0 if op < 0 else op_s[op]
                tokens += log.steps["emitted"][at]
            begun = begun or log.steps["emitted"][at] > 0
        if tokens:
            found[request_id] = seconds / tokens
    return found


def naive_seconds(log):
    """An operation that is the first of its member for some request reads a prompt: the median of the others."""
    steps, ops = log.steps, log.ops
    seen, reads = set(), set()
    for op, request, level in zip(
        steps["op"].tolist(), steps["request"].tolist(), steps["level"].tolist(), strict=True
    ):
        if op >= 0 and (request, level) not in seen:
            seen.add((request, level))
            reads.add(op)
    kinds = list(zip(ops["kind"].tolist(), ops["level"].tolist(), strict=True))
    seconds = ops["duration_s"].tolist()
    others = {
        kind: [seconds[op] for op in range(len(kinds)) if kinds[op] == kind and op not in reads] for kind in kinds
    }
    return [median(others[kind]) if op in reads and others[kind] else seconds[op] for op, kind in enumerate(kinds)]


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4)), max_size=12
    )
)
def test_seconds_per_token_of_any_steps(steps):
    ledger = admitted(*NAMES)
    for number, (verify, rows) in enumerate(steps):
        ledger.note_op(OpRecord(verify, int(verify), len(rows), 1, 1, float(number), 0.25 * (number + 1)))
        for request, emitted in rows:
            drafted = 0 if verify else emitted
            ledger.note_step(
                StepRecord(f"r{request}", verify, int(verify), 0, drafted, 0, 0, 0, emitted, 0, number + 1.0)
            )
            if emitted == 2:
                ledger.note_step(StepRecord(f"r{request}", COMMIT, 1, 0, 0, 0, 0, 0, 1, 0, number + 1.0))
    log = finished(ledger)
    each_s = naive(log)
    assert set(log.steps["kind"].tolist()) <= {0, 1, COMMIT}
    assert seconds_per_token(log) == pytest.approx(each_s)
    drafting = {f"r{request}" for verify, rows in steps for request, emitted in rows if emitted and not verify}
    times = {name: each_s[name] / 0.5 if name in each_s and name in drafting else math.nan for name in NAMES}
    found = with_times_plain(log, 0.5).requests["times_plain"].tolist()
    assert dict(zip(NAMES, found, strict=True)) == pytest.approx(times, nan_ok=True)


# Operations that run at the same time.


def log_of(*ops):
    """A run of one request by these operations, (kind, level, start_s, duration_s, part, emitted)."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=3, arrived_at_s=0.0, now_s=0.0)
    end_s = max(start_s + duration_s for _, _, start_s, duration_s, _, _ in ops)
    for kind, level, start_s, duration_s, part, emitted in ops:
        ledger.note_op(OpRecord(kind, level, 1, 1, 1, start_s, duration_s))
        ledger.note_step(StepRecord("r0", kind, level, 0, 0, 0, 0, 0, emitted, 0, end_s, 0, 0, part))
    meta = {"policy": "by hand", "members": ["draft", "mid", "target"]}
    return ledger.finish(meta, reanchored={}, divergent={})


@pytest.mark.parametrize(
    ("parts", "added"),
    [
        ([(0.0, 4.0), (0.0, 3.0)], [4.0, 0.0]),  # two devices, the first is the longest
        ([(0.0, 3.0), (0.0, 4.0)], [3.0, 1.0]),
        ([(0.0, 3.0), (3.0, 4.0)], [3.0, 4.0]),  # one device
        ([(0.0, 2.0), (2.0, 1.0), (0.0, 4.0)], [2.0, 1.0, 1.0]),
    ],
)
def test_parts_of_an_overlap_add_up_to_its_seconds(parts, added):
    before = (VERIFY, 2, 0.0, 1.0, 0, 1)
    ahead = [
        (VERIFY, 2 - part, 1.0 + after_s, duration_s, part, 1 - min(part, 1))
        for part, (after_s, duration_s) in enumerate(parts)
    ]
    log = log_of(before, *ahead)
    assert added_seconds(log).tolist() == [1.0, *added]
    whole_s = max(after_s + duration_s for after_s, duration_s in parts)
    assert request_seconds(log).tolist() == [pytest.approx(1.0 + whole_s)]
    assert seconds_per_token(log) == {"r0": pytest.approx(whole_s)}


def test_a_tree_is_no_verification_of_the_next_member():
    ops = [
        (VERIFY, 2, 0.0, 9.0, 0, 1),  # reads the prompt
        (TREE, 1, 9.0, 5.0, 0, 0),  # likewise, by the drafter: as long as other trees
        (VERIFY, 2, 14.0, 1.0, 0, 1),
        (TREE, 1, 15.0, 2.0, 0, 0),
        (VERIFY, 2, 17.0, 1.0, 0, 1),
        (DRAFT, 1, 18.0, 1.5, 0, 0),
        (VERIFY, 2, 19.5, 1.0, 0, 1),
    ]
    assert seconds_per_token(log_of(*ops)) == {"r0": pytest.approx((2.0 + 1.0 + 2.0 + 1.0 + 1.5 + 1.0) / 3)}
