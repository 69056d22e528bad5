"""Every figure of a run, from a log small enough to do it in the head."""

import json
import re
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY, OpRecord, StepRecord
from paceline.reports import LevelSummary, Quality, SideBySide, Spread, Summary, summarise_run
from paceline.reports.comparison import comparison_table, detail_tables
from paceline.reports.run_table import run_table
from paceline.reports.summary import rejection_rate
from paceline.runs.log import RunLedger, RunLog
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from rich.console import Console

from ..sim.tries.small_traces import Anything, replay, with_ngram
from ..strategies import synthetic_traces

# What docs/compare.md lists.
SPREAD_KEYS = {"mean", "p50", "p90", "p95", "p99"}
LEVEL_KEYS = {
    "name",
    "forwards",
    "duration_s",
    "share_of_seconds",
    "drafted",
    "judged",
    "accepted",
    "refused",
    "trees",
    "own",
    "asked_tokens",
    "hit_tokens",
    "evicted_blocks",
}
COMPARED_KEYS = {
    "speed_up",
    "speed_up_ci",
    "speed_up_mean_of_requests",
    "speed_up_mean_of_requests_ci",
    "output_tokens_per_s_ci",
    "seeds",
}
POLICY_KEYS = COMPARED_KEYS | {
    "policy",
    "requests",
    "output_tokens",
    "duration_s",
    "output_tokens_per_s",
    "mean_request_tokens_per_s",
    "requests_per_s",
    "acceptance_length",
    "draft_acceptance_rate",
    "rejection_rate",
    "accepted_histogram",
    "target_calls_per_token",
    "wasted_tokens",
    "exact_share",
    "reanchored",
    "divergent_tokens",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "failed",
    "preempted",
    "thrashed",
    "policy_s",
    "policy_share",
    "levels",
    "quality",
}


def by_hand() -> RunLog:
    """What `by_hand_ledger` wrote down."""
    meta = {"policy": "by hand", "members": ["draft", "target"]}
    return by_hand_ledger().finish(meta, reanchored={"r0": 1}, divergent={"r0": 2})


def by_hand_ledger() -> RunLedger:
    """Two requests, `draft` and `target`, one at a time; seconds in eighths.

    r0: draft 3, keep 2 and add one; draft 2, keep both and add one: 6 tokens. r1: one token by the target alone.
    """
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=5, arrived_at_s=0.0, now_s=0.0)
    # verify, level, rows, forwards, new tokens, start, duration
    ledger.note_op(OpRecord(DRAFT, 0, 1, 3, 7, 0.0, 0.5))
    # request, verify, level, asked, drafted, judged, accepted, own, emitted, modelled, end
    ledger.note_step(StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, 0.5))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 8, 0.5, 1.5))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 3, 2, 1, 3, 0, 2.0, refused=1))
    ledger.note_op(OpRecord(DRAFT, 0, 1, 2, 2, 2.0, 0.25))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 1, 2.25))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 3, 2.25, 1.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 2, 2, 1, 3, 0, 3.25))
    ledger.note_admitted("r1", tag="b", num_prompt=4, arrived_at_s=3.25, now_s=3.25)
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 4, 3.25, 0.75))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 4.0))
    return ledger


def by_hand_with_failures() -> RunLog:
    """As `by_hand`, with two more that fail: r2 at once, r3 after a first token; seconds of deciding were measured."""
    ledger = by_hand_ledger()
    ledger.note_admitted("r2", tag="b", num_prompt=4, arrived_at_s=4.0, now_s=4.0)
    ledger.note_admitted("r3", tag="b", num_prompt=4, arrived_at_s=4.0, now_s=4.0)
    for request_id in ("r1", "r3", "r3"):
        ledger.note_preempted(request_id)
    ledger.note_op(OpRecord(VERIFY, 1, 2, 1, 8, 4.0, 1.0))
    ledger.note_failed("r2", "logits are not finite", 5.0)
    ledger.note_step(StepRecord("r3", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 5.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 5.0, 3.0))
    ledger.note_failed("r3", "logits are not finite", 8.0)
    meta = {"policy": "by hand", "members": ["draft", "target"], "policy_s": 0.5}
    return ledger.finish(meta, reanchored={}, divergent={}, times_plain={"r0": 1.25, "r1": 1.0})


def same(value):
    return Spread(mean=value, p50=value, p90=value, p95=value, p99=value)


def test_every_field_by_hand():
    summary = summarise_run(by_hand())
    assert summary == Summary(
        policy="by hand",
        requests=2,
        output_tokens=7,
        duration_s=4.0,
        output_tokens_per_s=7 / 4,
        mean_request_tokens_per_s=(6 / 3.25 + 1 / 0.75) / 2,
        requests_per_s=0.5,
        acceptance_length=7 / 3,  # three verifications by the target
        draft_acceptance_rate=4 / 5,
        rejection_rate=1 / 5,  # five drafted tokens were looked at, one of them refused
        accepted_histogram=(1, 0, 2),
        target_calls_per_token=3 / 7,
        wasted_tokens=1,  # 5 drafted, 4 of them in the answer
        # 5 drafted, 3 + 2 judged up to the refused one, 3 own, 1 way back to the trunk; 1 modelled, and the way back
        exact_share=1 - 2 / 14,
        reanchored=1,
        divergent_tokens=2,
        ttft_s=Spread(mean=1.375, p50=1.375, p90=1.875, p95=1.9375, p99=1.9875),  # 2.0 and 0.75
        tpot_s=same((3.25 - 2.0) / 5),  # a single token has no time per later token
        e2e_s=Spread(mean=2.0, p50=2.0, p90=3.0, p95=3.125, p99=3.225),  # 3.25 and 0.75
        failed=0,
        preempted=0,
        thrashed=0,
        policy_s=0.0,
        policy_share=0.0,
        levels=(
            LevelSummary(
                name="draft",
                forwards=5,
                duration_s=0.75,
                share_of_seconds=0.1875,
                drafted=5,
                judged=0,
                accepted=0,
                refused=0,
                trees=0,
                own=0,
            ),
            LevelSummary(
                name="target",
                forwards=3,
                duration_s=3.25,
                share_of_seconds=0.8125,
                drafted=0,
                judged=5,
                accepted=4,
                refused=1,
                trees=0,
                own=3,
            ),
        ),
        quality=None,
    )


def test_a_verifier_below_the_target_and_a_commit():
    """Three levels: mid keeps 1 of 2 and adds one; the first of the two is committed as it is, the second refused."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    ledger.note_op(OpRecord(DRAFT, 0, 1, 2, 2, 0.0, 1.0))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 0, 1.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 3, 1.0, 1.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 2, 1, 1, 0, 0, 2.0, refused=1))
    ledger.note_step(StepRecord("r0", COMMIT, 2, 0, 0, 0, 0, 0, 1, 0, 2.0))
    ledger.note_op(OpRecord(VERIFY, 2, 1, 1, 3, 2.0, 2.0))
    ledger.note_step(StepRecord("r0", VERIFY, 2, 0, 0, 1, 0, 1, 1, 0, 4.0, refused=1))
    meta = {"policy": "p", "members": ["draft", "mid", "target"]}
    summary = summarise_run(ledger.finish(meta, reanchored={}, divergent={"r0": 1}))
    assert summary.output_tokens == 2
    assert summary.wasted_tokens == 2 + 1 - 1  # two drafted and one written by mid; one of the three was committed
    assert summary.acceptance_length == 2.0
    assert summary.draft_acceptance_rate == 0.0
    assert summary.accepted_histogram == (1,)
    assert summary.target_calls_per_token == 0.5
    assert summary.exact_share == 1.0
    assert (summary.ttft_s, summary.tpot_s, summary.e2e_s) == (same(2.0), same(2.0), same(4.0))
    mid = summary.levels[1]
    assert (mid.judged, mid.accepted, mid.refused, mid.own, mid.share_of_seconds) == (2, 1, 1, 1, 0.25)


def test_a_prefill_is_a_call_of_the_target_and_no_round():
    """A prefill of two requests at once, then a round of one; the other's answer is its first token."""
    ledger = RunLedger()
    for request_id in ("r0", "r1"):
        ledger.note_admitted(request_id, tag="a", num_prompt=5, arrived_at_s=0.0, now_s=0.0)
    ledger.note_op(OpRecord(VERIFY, 1, 2, 1, 10, 0.0, 2.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0, prefill=1))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0, prefill=1))
    ledger.note_op(OpRecord(DRAFT, 0, 1, 3, 8, 2.0, 0.5))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, 2.5))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 4, 2.5, 1.5))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 3, 2, 1, 3, 0, 4.0, refused=1))
    log = ledger.finish({"policy": "p", "members": ["draft", "target"], "decide_s": 0.25}, reanchored={}, divergent={})
    summary = summarise_run(log)
    assert summary.output_tokens == 5
    assert summary.acceptance_length == 3.0, "three tokens of one verification; the first tokens are of none"
    assert summary.accepted_histogram == (0, 0, 1)
    assert summary.target_calls_per_token == 3 / 5
    assert summary.wasted_tokens == 1
    assert summary.draft_acceptance_rate == 2 / 3
    assert summary.rejection_rate == 1 / 3
    assert summary.ttft_s == same(2.0)
    assert summary.policy_s == 2 * 0.25
    assert log.rounds()["emitted"].tolist() == [3]
    assert log.rounds()["round"].tolist() == [0]
    assert summary.levels[1].own == 3


def test_a_run_without_the_target():
    """Lossy throughout: figures per verification of the target are 0, and there is no histogram."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    ledger.note_op(OpRecord(DRAFT, 0, 1, 2, 2, 0.0, 1.0))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 0, 1.0))
    ledger.note_step(StepRecord("r0", COMMIT, 1, 0, 0, 0, 0, 0, 2, 0, 1.0))
    summary = summarise_run(ledger.finish({"policy": "p", "members": ["a", "b"]}, reanchored={}, divergent={}))
    assert (summary.acceptance_length, summary.draft_acceptance_rate, summary.target_calls_per_token) == (0, 0, 0)
    assert summary.accepted_histogram == ()
    assert summary.wasted_tokens == 0


def test_a_lookup_that_is_modelled_finds_nothing():
    """No token came of it, but it is a decision; the share stays one."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    for _ in range(3):
        ledger.note_op(OpRecord(DRAFT, 0, 1, 0, 0, 0.0, 1.0))
        ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 0, 0, 0, 0, 0, 1, 1.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 1.0, 1.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0))
    summary = summarise_run(ledger.finish({"policy": "p", "members": ["a", "b"]}, reanchored={}, divergent={}))
    assert summary.exact_share == 0.25


def test_a_run_without_a_request():
    log = RunLedger().finish({"policy": "p", "members": ["a", "b"]}, reanchored={}, divergent={})
    with pytest.raises(ValueError, match="no request finished"):
        summarise_run(log)


def test_failed_requests_are_counted_and_have_no_latency():
    summary, without = summarise_run(by_hand_with_failures()), summarise_run(by_hand())
    assert (summary.failed, summary.preempted, summary.thrashed) == (2, 3, 1)
    assert (summary.policy_s, summary.policy_share) == (0.5, 0.5 / 8)
    assert (summary.requests, summary.output_tokens, summary.duration_s) == (2, without.output_tokens, 8.0)
    assert (summary.ttft_s, summary.tpot_s, summary.e2e_s) == (without.ttft_s, without.tpot_s, without.e2e_s)
    json.dumps(asdict(summary), allow_nan=False)


def test_a_run_in_which_all_requests_failed():
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    ledger.note_failed("r0", "no memory", 1.0)
    with pytest.raises(ValueError, match="no request finished in this run"):
        summarise_run(ledger.finish({"policy": "p", "members": ["a", "b"]}, reanchored={}, divergent={}))


@pytest.mark.parametrize("batch", [1, 3])
def test_deciding_is_charged_by_the_step_in_the_simulator(batch):
    trace = make_trace(SyntheticSpec(requests=4, tokens=12, models=("draft", "target"), acceptance=(0.7,)))
    log, _ = replay(trace, Anything(recorded_pool(trace), 3), batch=batch, decide_s=0.125)
    summary = summarise_run(log)
    assert summary.policy_s == 0.125 * (len(log.steps["op"]) - 4), "nobody decides on the prefills"
    assert summary.policy_share == pytest.approx(1 - log.ops["duration_s"].sum() / summary.duration_s)


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_figures_agree_with_one_another(trace, seed, batch):
    trace = with_ngram(trace)
    log, outputs = replay(trace, Anything(recorded_pool(trace), seed), batch=batch)
    summary = summarise_run(log)
    assert summary.output_tokens == sum(map(len, outputs.values()))
    assert summary.requests == len(outputs)
    assert sum(level.share_of_seconds for level in summary.levels) == pytest.approx(1.0)
    assert sum(level.duration_s for level in summary.levels) == pytest.approx(log.ops["duration_s"].sum())
    assert sum(level.duration_s for level in summary.levels) <= summary.duration_s + 1e-9
    target = summary.levels[-1]
    assert sum(summary.accepted_histogram) == len(log.rounds()["round"])
    assert sum(count * length for length, count in enumerate(summary.accepted_histogram)) == target.accepted
    assert summary.output_tokens == target.accepted + target.own  # lossless: the target commits everything
    assert 0 <= summary.wasted_tokens <= sum(level.drafted + level.own for level in summary.levels)
    for level in summary.levels:
        assert level.accepted + level.refused <= level.judged
    for spread in (summary.ttft_s, summary.tpot_s, summary.e2e_s):
        assert 0 <= spread.p50 <= spread.p90 <= spread.p95 <= spread.p99


def comparison() -> SideBySide:
    summary = summarise_run(by_hand())
    meta = {
        "trace": "t",
        "kind": "synthetic",
        "sampling": "greedy",
        "cost": "cpu",
        "batch": 1,
        "seed": 0,
        "decide_s": 0.0,
    }
    return SideBySide(meta=meta, baseline=summary, rows=(summary,))


def test_the_documented_keys():
    data = json.loads(json.dumps(comparison().to_json(), allow_nan=False))
    assert set(data) == {"meta", "policies"}
    (policy,) = data["policies"]
    assert set(policy) == POLICY_KEYS == {field.name for field in fields(Summary)} | COMPARED_KEYS
    assert {field.name for field in fields(LevelSummary)} == LEVEL_KEYS
    assert {field.name for field in fields(Spread)} == SPREAD_KEYS
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert set(policy[name]) == SPREAD_KEYS
    for level in policy["levels"]:
        assert set(level) == LEVEL_KEYS
    assert policy["speed_up"] == 1.0
    assert {**asdict(comparison().rows[0]), "speed_up": 1.0}.keys() | COMPARED_KEYS == policy.keys()


def test_the_documentation_lists_every_key():
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `policies\[\]\.(\w+)`", text, re.MULTILINE))
    assert listed == POLICY_KEYS
    listed = set(re.findall(r"^\| `policies\[\]\.levels\[\]\.(\w+)`", text, re.MULTILINE))
    assert listed == LEVEL_KEYS
    listed = set(re.findall(r"^\| `policies\[\]\.quality\.(\w+)`", text, re.MULTILINE))
    assert listed == {field.name for field in fields(Quality)}
    for key in SPREAD_KEYS:
        assert f"`{key}`" in text


def test_speed_up_is_tokens_per_second_over_the_baseline():
    fast = comparison().rows[0]
    slow = Summary(**{**asdict_shallow(fast), "output_tokens_per_s": fast.output_tokens_per_s / 4})
    assert SideBySide(meta={}, baseline=slow, rows=(fast,)).speed_up(fast) == 4.0


def asdict_shallow(summary):
    return {field.name: getattr(summary, field.name) for field in fields(summary)}


def shown(renderable):
    console = Console(width=200, file=StringIO())
    console.print(renderable)
    return " ".join(console.file.getvalue().split())


def test_the_table_says_what_is_synthetic_and_modelled():
    text = shown(comparison_table(comparison()))
    assert "SYNTHETIC trace t (greedy), 2 requests, 7 tokens; cost cpu, batch 1, seed 0" in text
    assert "0.8571" in text  # the exact share is never rounded to 1
    further, members = map(shown, detail_tables(comparison()))
    assert "│ by hand │ 0.429 │ 80.0% │ 1 │" in further
    assert "│ draft │ 19% │ 5 │ │ │ │" in members
    assert "│ target │ 81% │ │ 4/5 │ 1 │ 3 │" in members


def test_an_exact_run_says_so_only_if_it_is():
    summary = comparison().rows[0]
    nearly = Summary(**{**asdict_shallow(summary), "exact_share": 0.99999})
    text = shown(comparison_table(SideBySide(meta=comparison().meta, baseline=summary, rows=(nearly,))))
    assert "1.0000" not in text
    assert "0.9999" in text
    exact = Summary(**{**asdict_shallow(summary), "exact_share": 1.0})
    assert "0.8571" not in shown(comparison_table(SideBySide(meta=comparison().meta, baseline=exact, rows=(exact,))))


def test_one_run_as_a_table():
    text = shown(run_table(summarise_run(by_hand())))
    assert "by hand: 2 requests, 7 tokens, 1.8 tokens/s, acceptance length 2.33, TTFT 1375.0 ms, TPOT 250.00 ms" in text
    assert "policy 0.000 s (0.0%)" in text
    assert "│ draft │ 0.750 │ 18.8% │ 5 │ 5 │ 0 │ 0 │ │ 0 │" in text
    assert "│ target │ 3.250 │ 81.2% │ 3 │ 0 │ 5 │ 4 │ 80.0% │ 1 │" in text
    assert not any(word in text for word in ("failed", "put off", "slower than"))


def test_the_table_says_what_went_wrong():
    log = by_hand_with_failures()
    told = "2 requests failed; 3 steps put off for lack of KV memory; 1 request slower than the target alone"
    assert f"policy 0.500 s (6.2%); {told}" in shown(run_table(summarise_run(log)))


def test_percentiles_are_interpolated():
    ledger = RunLedger()
    for index in range(11):
        ledger.note_admitted(f"r{index}", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    for index in range(11):
        ledger.note_op(OpRecord(VERIFY, 0, 1, 1, 1, float(index), 1.0))
        ledger.note_step(StepRecord(f"r{index}", VERIFY, 0, 0, 0, 0, 0, 1, 1, 0, float(index)))
    summary = summarise_run(ledger.finish({"policy": "p", "members": ["t"]}, reanchored={}, divergent={}))
    e2e = summary.e2e_s
    assert (e2e.mean, e2e.p50, e2e.p90) == (5.0, 5.0, 9.0)
    assert (e2e.p95, e2e.p99) == (pytest.approx(9.5), pytest.approx(9.9))
    assert np.isfinite(summary.tpot_s.mean)


def test_drafts_ahead_are_looked_at_by_the_smallest_verifier_of_the_next_step():
    """Two steps of three parts: 3 tokens written ahead, of which mid looks at 2 and refuses the second."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="", num_prompt=4, arrived_at_s=0.0, now_s=0.0)
    for end_s, mid, target in ((1.0, (0, 0), (0, 0)), (2.0, (3, 1), (0, 0))):
        for part, (judged, accepted) in enumerate((target, mid)):
            ledger.note_op(OpRecord(VERIFY, 2 - part, 1, 1, 1, end_s - 1.0, 1.0))
            ledger.note_step(
                StepRecord(
                    *("r0", VERIFY, 2 - part, 0, 0, judged, accepted, 1, 1 - part, 0, end_s),
                    part=part,
                    refused=int(accepted < judged),
                )
            )
        ledger.note_op(OpRecord(DRAFT, 0, 1, 3, 3, end_s - 1.0, 0.5))
        ledger.note_step(StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, end_s, part=2))
    log = ledger.finish({"policy": "p", "members": ["d", "m", "t"], "decide_s": 0.25}, reanchored={}, divergent={})
    assert rejection_rate(log.steps) == 1 / 2
    assert summarise_run(log).policy_s == 0.5, "one decision for all parts of a step"
