"""Seconds by tag add up to those of the run, and regret is what they say it is."""

from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY, OpRecord, StepRecord
from paceline.policies import make_policy
from paceline.reports import SideBySide, summarise_run
from paceline.reports.comparison import regret_table, tag_table
from paceline.reports.regret import regret_of
from paceline.reports.seconds_by_tag import ByTag, TagShare, request_seconds, tag_shares, tag_speed_ups
from paceline.runs.log import RunLedger
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from rich.console import Console

from ..sim.tries.small_traces import Anything, replay
from ..strategies import traces
from .test_summary import by_hand, by_hand_ledger


def text_of(table):
    console = Console(file=StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def share(tokens, duration_s):
    return TagShare(requests=1, output_tokens=tokens, duration_s=duration_s)


def several_tags(requests=6):
    return make_trace(SyntheticSpec(requests=requests, tokens=12, prompt_tokens=4, tags=("math", "code", "prose")))


# -- seconds


def test_one_at_a_time_every_request_gets_the_time_it_ran():
    log = by_hand()
    ran = log.requests["finished_at_s"] - log.requests["admitted_at_s"]
    assert request_seconds(log).tolist() == ran.tolist()
    shares = tag_shares(log)
    assert {tag: part.duration_s for tag, part in shares.items()} == {"a": ran[0], "b": ran[1]}
    assert {tag: (part.requests, part.output_tokens) for tag, part in shares.items()} == {"a": (1, 6), "b": (1, 1)}


def test_rows_of_an_operation_share_it_and_steps_share_the_rest():
    ledger = RunLedger()
    for name, tag in (("r0", "a"), ("r1", "b")):
        ledger.note_admitted(name, tag=tag, num_prompt=3, arrived_at_s=0.0, now_s=0.0)
    # Half a second goes by before each of the two operations.
    ledger.note_op(OpRecord(VERIFY, 1, 2, 1, 8, 0.5, 2.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.5))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.5))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 3.0, 1.0))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 4.0))
    log = ledger.finish({"policy": "by hand", "members": ["draft", "target"]}, reanchored={}, divergent={})
    assert request_seconds(log) == pytest.approx([1.0 + 1 / 3, 1.0 + 1.0 + 2 / 3])


def test_a_request_that_failed_costs_its_tag_and_brings_it_nothing():
    ledger = by_hand_ledger()
    ledger.note_admitted("r2", tag="b", num_prompt=2, arrived_at_s=5.0, now_s=5.0)
    ledger.note_op(OpRecord(DRAFT, 0, 1, 1, 2, 5.0, 0.5))
    ledger.note_step(StepRecord("r2", DRAFT, 0, 1, 1, 0, 0, 0, 0, 0, 5.5))
    ledger.note_failed("r2", "broke", 5.5)
    log = ledger.finish({"policy": "by hand", "members": ["draft", "target"]}, reanchored={}, divergent={})
    before, shares = tag_shares(by_hand()), tag_shares(log)
    assert (shares["b"].requests, shares["b"].output_tokens) == (1, 1)
    assert shares["b"].duration_s > before["b"].duration_s
    assert sum(part.duration_s for part in shares.values()) == pytest.approx(summarise_run(log).duration_s)


@given(
    trace=traces(max_requests=4),
    seed=st.integers(0, 99),
    batch=st.integers(1, 4),
    decide_s=st.sampled_from([0.0, 0.25]),
)
def test_tags_add_up_to_the_run(trace, seed, batch, decide_s):
    policy = Anything(recorded_pool(trace), seed, commits=True)
    log, _ = replay(trace, policy, batch=batch, decide_s=decide_s)
    summary, shares = summarise_run(log), tag_shares(log)
    assert sum(part.duration_s for part in shares.values()) == pytest.approx(summary.duration_s, rel=1e-12)
    assert sum(part.output_tokens for part in shares.values()) == summary.output_tokens
    assert sum(part.requests for part in shares.values()) == summary.requests
    assert (request_seconds(log) > 0).all()
    if batch == 1:
        ran = log.requests["finished_at_s"] - log.requests["admitted_at_s"]
        assert np.allclose(request_seconds(log), ran, rtol=1e-12)


# -- speed-ups


def test_speed_up_of_a_tag_is_that_of_its_requests_replayed_alone():
    trace = several_tags()
    pool = recorded_pool(trace)
    runs = {name: tag_shares(replay(trace, make_policy(name, pool))[0]) for name in ("plain", "draft:3/target")}
    found = tag_speed_ups(runs["draft:3/target"], runs["plain"])
    assert list(found) == ["code", "math", "prose"]
    for tag, speed_up in found.items():
        own = tuple(request for request in trace.requests if request.tag == tag)
        alone = type(trace)(meta=trace.meta, requests=own)
        seconds = [replay(alone, make_policy(name, pool))[0].ops["duration_s"].sum() for name in runs]
        assert speed_up == pytest.approx(seconds[0] / seconds[1])


def test_runs_that_do_not_compare():
    with pytest.raises(ValueError, match="tags must be those of the baseline"):
        tag_speed_ups({"a": share(1, 1.0)}, {"b": share(1, 1.0)})
    with pytest.raises(ValueError, match="must have finished a request of every tag, got none of a"):
        tag_speed_ups({"a": share(1, 1.0)}, {"a": share(0, 1.0)})


def test_a_table_by_tag():
    rows = {"x": {"a": share(4, 1.0), "b": share(3, 2.0)}, "plain": {"a": share(4, 2.0), "b": share(3, 1.0)}}
    lines = text_of(tag_table(ByTag(baseline=rows["plain"], policies=rows))).splitlines()
    shown = [[cell.strip() for cell in line.split("│")[1:4]] for line in lines if "x " in line and "│" in line]
    assert shown == [["x", "2.00x", "0.50x"], ["plain", "1.00x", "1.00x"]]
    unknown = ByTag(baseline=None, policies=rows)
    assert unknown.speed_ups("x") is None
    assert text_of(tag_table(unknown)).count("unknown") == 4


def test_requests_without_a_tag_have_a_heading():
    rows = {"plain": {"": share(4, 2.0)}}
    assert "no tag" in text_of(tag_table(ByTag(baseline=rows["plain"], policies=rows)))


# -- regret


def compared(trace, names):
    pool = recorded_pool(trace)
    logs = {name: replay(trace, make_policy(name, pool))[0] for name in names}
    rows = tuple(summarise_run(log) for log in logs.values())
    rows = tuple(type(row)(**{**fields_of(row), "policy": name}) for name, row in zip(names, rows, strict=True))
    shares = {name: tag_shares(log) for name, log in logs.items()}
    return SideBySide(meta={}, baseline=rows[0], rows=rows), ByTag(baseline=shares[names[0]], policies=shares)


def fields_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_regret_is_seconds_per_token_over_those_of_the_reference():
    names = ["plain", "draft:1/target", "draft:4/target", "adaptive"]
    comparison, by_tag = compared(several_tags(), names)
    found = regret_of(comparison, by_tag, static=names[:3], reference="draft:4/target")
    seconds = {row.policy: row.duration_s / row.output_tokens for row in comparison.rows}
    for name in names:
        assert found.over_reference[name] == pytest.approx(seconds[name] / seconds["draft:4/target"] - 1)
        for tag, best in found.best_static.items():
            assert best in names[:3]
            assert by_tag.policies[best][tag].duration_s == min(by_tag.policies[n][tag].duration_s for n in names[:3])
            over = by_tag.policies[name][tag].duration_s / by_tag.policies[best][tag].duration_s - 1
            assert found.over_static[name][tag] == pytest.approx(over)
    assert min(found.over_static["plain"].values()) >= 0
    shown = text_of(regret_table(found, by_tag=True))
    assert "0.0%" in shown
    assert "math: " in shown
    assert "math" not in text_of(regret_table(found, by_tag=False))


def test_regret_without_a_static_policy():
    comparison, by_tag = compared(several_tags(3), ["plain", "adaptive"])
    found = regret_of(comparison, by_tag, static=[], reference="adaptive")
    assert (found.best_static, found.over_static) == ({}, {"plain": {}, "adaptive": {}})
    assert found.to_json() == {
        "reference": "adaptive",
        "best_static": {},
        "policies": [
            {"policy": name, "over_reference": found.over_reference[name], "over_static": {}}
            for name in ("plain", "adaptive")
        ],
    }
