"""What a ledger makes of requests that fail, wait for memory, or thrash."""

import json
import math
from statistics import median

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY, OpRecord, StepRecord
from paceline.runs.log import REQUEST_FIELDS, RunLedger, seconds_per_token, write_run_log

META = {"policy": "p", "members": ["draft", "target"]}


def admitted(*request_ids):
    ledger = RunLedger()
    for request_id in request_ids:
        ledger.note_admitted(request_id, tag="a", num_prompt=3, arrived_at_s=0.5, now_s=1.0)
    return ledger


def finished(ledger, **options):
    return ledger.finish(META, reanchored={}, divergent={}, **options)


def row(log, index):
    return {name: log.requests[name].tolist()[index] for name in REQUEST_FIELDS}


def test_a_failed_request_has_a_row():
    ledger = admitted("early", "late", "well")
    ledger.note_op(OpRecord(VERIFY, 1, 3, 1, 9, 1.0, 1.0))
    ledger.note_failed("early", "layer 2: logits are not finite", 2.0)
    ledger.note_step(StepRecord("late", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0))
    ledger.note_step(StepRecord("well", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 2.0, 1.0))
    ledger.note_failed("late", "cache lost", 3.0)
    log = finished(ledger)
    early, late, well = (row(log, index) for index in range(3))
    assert math.isnan(early["first_token_at_s"])
    assert (early["finished_at_s"], early["emitted_tokens"]) == (2.0, 0)
    assert (late["first_token_at_s"], late["finished_at_s"], late["emitted_tokens"]) == (2.0, 3.0, 1)
    assert [early["failed"], late["failed"], well["failed"]] == ["layer 2: logits are not finite", "cache lost", ""]
    assert well["finished_at_s"] == 2.0


def test_a_failure_has_a_reason():
    with pytest.raises(ValueError, match="request r0: failed must give a reason, got ''"):
        admitted("r0").note_failed("r0", "", 1.0)


def test_preemptions_are_counted():
    ledger = admitted("r0", "r1", "r2")
    for request_id in ("r2", "r0", "r2"):
        ledger.note_preempted(request_id)
    assert finished(ledger).requests["preempted"].tolist() == [1, 0, 2]


def test_times_plain_is_nan_where_not_known():
    ledger = admitted("r0", "r1")
    assert all(map(math.isnan, finished(ledger).requests["times_plain"]))
    known, unknown = finished(ledger, times_plain={"r0": 1.5, "gone": 2.0}).requests["times_plain"].tolist()
    assert known == 1.5
    assert math.isnan(unknown)


def test_the_new_columns_are_on_the_disk(tmp_path):
    ledger = admitted("r0", "r1")
    ledger.note_failed("r1", "no memory", 2.0)
    ledger.note_preempted("r1")
    write_run_log(finished(ledger, times_plain={"r0": 0.5}), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "requests.parquet").to_pydict()
    assert tuple(table) == REQUEST_FIELDS
    assert table["failed"] == ["", "no memory"]
    assert table["preempted"] == [0, 1]
    assert table["times_plain"][0] == 0.5
    assert json.loads((tmp_path / "run" / "meta.json").read_text()) == META


def test_seconds_per_token_by_hand():
    """Behind the first commit: a draft of 1 s, a verification of 2 s shared with r1, and a Commit of one more token."""
    ledger = admitted("r0", "r1", "r2")
    ledger.note_op(OpRecord(VERIFY, 1, 3, 1, 9, 0.0, 100.0))
    for request_id in ("r0", "r1", "r2"):
        ledger.note_step(StepRecord(request_id, VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 100.0))
    ledger.note_op(OpRecord(DRAFT, 0, 1, 2, 6, 100.0, 1.0))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 0, 101.0))
    ledger.note_op(OpRecord(VERIFY, 1, 2, 1, 4, 101.0, 2.0))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 103.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 2, 2, 1, 3, 0, 103.0))
    ledger.note_step(StepRecord("r0", COMMIT, 1, 0, 0, 0, 0, 0, 1, 0, 103.0))
    assert seconds_per_token(finished(ledger)) == {"r0": 3.0 / 4, "r1": 2.0}


def test_reading_another_prompt_counts_as_the_median_of_its_kind():
    ledger = admitted("r0", "r1")
    for number, (requests, seconds) in enumerate(
        [(("r0",), 50.0), (("r0",), 1.0), (("r0", "r1"), 90.0), (("r0",), 3.0)]
    ):
        ledger.note_op(OpRecord(VERIFY, 1, len(requests), 1, 1, float(number), seconds))
        for request_id in requests:
            ledger.note_step(StepRecord(request_id, VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, number + 1.0))
    assert seconds_per_token(finished(ledger)) == {"r0": (1.0 + 2.0 + 3.0) / 3}


def test_seconds_per_token_of_nothing():
    assert seconds_per_token(finished(RunLedger())) == {}
    assert seconds_per_token(finished(admitted("r0"))) == {}


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
    ledger = admitted("r0", "r1", "r2", "r3")
    for number, (verify, rows) in enumerate(steps):
        ledger.note_op(OpRecord(verify, int(verify), len(rows), 1, 1, float(number), 0.25 * (number + 1)))
        for request, emitted in rows:
            ledger.note_step(StepRecord(f"r{request}", verify, int(verify), 0, 0, 0, 0, 0, emitted, 0, number + 1.0))
            if emitted == 2:
                ledger.note_step(StepRecord(f"r{request}", COMMIT, 1, 0, 0, 0, 0, 0, 1, 0, number + 1.0))
    log = finished(ledger)
    assert set(log.steps["kind"].tolist()) <= {0, 1, COMMIT}
    assert seconds_per_token(log) == pytest.approx(naive(log))
