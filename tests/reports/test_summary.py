"""Every figure of a run, from a log small enough to do it in the head; the rejection rate, counted token by token."""

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY, OpRecord, StepRecord
from paceline.policies import make_policy
from paceline.reports import LevelSummary, Quality, SideBySide, Spread, Summary, summarise_run
from paceline.reports.comparison import comparison_table, detail_tables
from paceline.reports.run_table import prefix_lines, run_table
from paceline.reports.summary import rejection_rate
from paceline.runs.log import RunLedger
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace

from ..sim.tries.small_traces import Anything, replay, with_ngram
from ..strategies import synthetic_traces
from .making import by_hand, by_hand_with_failures, text_of


def same(value):
    return Spread(mean=value, p50=value, p90=value, p95=value, p99=value)


def level(name, **counts):
    nothing = dict.fromkeys(("drafted", "judged", "accepted", "refused", "trees", "own"), 0)
    return LevelSummary(name=name, **nothing | counts)


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
        drawn=True,
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
            level("draft", forwards=5, duration_s=0.75, share_of_seconds=0.1875, drafted=5),
            level(
                "target", forwards=3, duration_s=3.25, share_of_seconds=0.8125, judged=5, accepted=4, refused=1, own=3
            ),
        ),
        quality=None,
    )


def summary_of(*entries, requests=("r0",), members=("a", "b"), divergent=None, **meta):
    """The summary of a run, and its log, of operations and steps as they came; all requests were there at 0 s."""
    ledger = RunLedger()
    for name in requests:
        ledger.note_admitted(name, tag="a", num_prompt=5, arrived_at_s=0.0, now_s=0.0)
    for entry in entries:
        (ledger.note_op if isinstance(entry, OpRecord) else ledger.note_step)(entry)
    meta = {"policy": "p", "members": list(members), **meta}
    log = ledger.finish(meta, reanchored={}, divergent=divergent or {})
    return summarise_run(log), log


def test_a_verifier_below_the_target_and_a_commit():
    """Three levels: mid keeps 1 of 2 and adds one; the first of the two is committed as it is, the second refused."""
    summary, _ = summary_of(
        OpRecord(DRAFT, 0, 1, 2, 2, 0.0, 1.0),
        StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 0, 1.0),
        OpRecord(VERIFY, 1, 1, 1, 3, 1.0, 1.0),
        StepRecord("r0", VERIFY, 1, 0, 0, 2, 1, 1, 0, 0, 2.0, refused=1),
        StepRecord("r0", COMMIT, 2, 0, 0, 0, 0, 0, 1, 0, 2.0),
        OpRecord(VERIFY, 2, 1, 1, 3, 2.0, 2.0),
        StepRecord("r0", VERIFY, 2, 0, 0, 1, 0, 1, 1, 0, 4.0, refused=1),
        members=("draft", "mid", "target"),
        divergent={"r0": 1},
    )
    assert summary.output_tokens == 2
    assert summary.wasted_tokens == 2 + 1 - 1  # two drafted and one written by mid; one of the three was committed
    assert (summary.acceptance_length, summary.draft_acceptance_rate) == (2.0, 0.0)
    assert summary.accepted_histogram == (1,)
    assert (summary.target_calls_per_token, summary.exact_share) == (0.5, 1.0)
    assert (summary.ttft_s, summary.tpot_s, summary.e2e_s) == (same(2.0), same(2.0), same(4.0))
    mid = summary.levels[1]
    assert (mid.judged, mid.accepted, mid.refused, mid.own, mid.share_of_seconds) == (2, 1, 1, 1, 0.25)


def test_a_prefill_is_a_call_of_the_target_and_no_round():
    """A prefill of two requests at once, then a round of one; the other's answer is its first token."""
    summary, log = summary_of(
        OpRecord(VERIFY, 1, 2, 1, 10, 0.0, 2.0),
        StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0, prefill=1),
        StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0, prefill=1),
        OpRecord(DRAFT, 0, 1, 3, 8, 2.0, 0.5),
        StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, 2.5),
        OpRecord(VERIFY, 1, 1, 1, 4, 2.5, 1.5),
        StepRecord("r0", VERIFY, 1, 0, 0, 3, 2, 1, 3, 0, 4.0, refused=1),
        requests=("r0", "r1"),
        decide_s=0.25,
    )
    assert summary.output_tokens == 5
    assert summary.acceptance_length == 3.0, "three tokens of one verification; the first tokens are of none"
    assert summary.accepted_histogram == (0, 0, 1)
    assert (summary.target_calls_per_token, summary.wasted_tokens) == (3 / 5, 1)
    assert (summary.draft_acceptance_rate, summary.rejection_rate) == (2 / 3, 1 / 3)
    assert (summary.ttft_s, summary.policy_s) == (same(2.0), 2 * 0.25)
    assert (log.rounds()["emitted"].tolist(), log.rounds()["round"].tolist()) == ([3], [0])
    assert summary.levels[1].own == 3


def test_a_run_without_the_target():
    """Lossy throughout: figures per verification of the target are 0, and there is no histogram."""
    summary, _ = summary_of(
        OpRecord(DRAFT, 0, 1, 2, 2, 0.0, 1.0),
        StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 0, 1.0),
        StepRecord("r0", COMMIT, 1, 0, 0, 0, 0, 0, 2, 0, 1.0),
    )
    assert (summary.acceptance_length, summary.draft_acceptance_rate, summary.target_calls_per_token) == (0, 0, 0)
    assert (summary.accepted_histogram, summary.wasted_tokens) == ((), 0)


def test_a_lookup_that_is_modelled_finds_nothing():
    """No token came of it, but it is a decision; the share stays one."""
    looked_up = [OpRecord(DRAFT, 0, 1, 0, 0, 0.0, 1.0), StepRecord("r0", DRAFT, 0, 2, 0, 0, 0, 0, 0, 1, 1.0)]
    verified = [OpRecord(VERIFY, 1, 1, 1, 1, 1.0, 1.0), StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 2.0)]
    assert summary_of(*looked_up * 3, *verified)[0].exact_share == 0.25


def test_a_run_in_which_no_request_finished():
    for failed in (False, True):
        ledger = RunLedger()
        if failed:
            ledger.note_admitted("r0", tag="a", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
            ledger.note_failed("r0", "no memory", 1.0)
        with pytest.raises(ValueError, match="no request finished in this run"):
            summarise_run(ledger.finish({"policy": "p", "members": ["a", "b"]}, reanchored={}, divergent={}))


def test_failed_requests_are_counted_and_have_no_latency():
    summary, without = summarise_run(by_hand_with_failures()), summarise_run(by_hand())
    assert (summary.failed, summary.preempted, summary.thrashed) == (2, 3, 1)
    assert (summary.policy_s, summary.policy_share) == (0.5, 0.5 / 8)
    assert (summary.requests, summary.output_tokens, summary.duration_s) == (2, without.output_tokens, 8.0)
    assert (summary.ttft_s, summary.tpot_s, summary.e2e_s) == (without.ttft_s, without.tpot_s, without.e2e_s)
    json.dumps(asdict(summary), allow_nan=False)


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
    meta = {"trace": "t", "kind": "synthetic", "sampling": "greedy", "cost": "cpu", "batch": 1, "seed": 0}
    meta |= {"decide_s": 0.0}
    return SideBySide(meta=meta, baseline=summary, rows=(summary,))


def test_the_documentation_lists_every_key():
    data = json.loads(json.dumps(comparison().to_json(), allow_nan=False))
    assert set(data) == {"meta", "policies"}
    (policy,) = data["policies"]
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `policies\[\]\.(\w+)`", text, re.MULTILINE)) == set(policy)
    levels = set(re.findall(r"^\| `policies\[\]\.levels\[\]\.(\w+)`", text, re.MULTILINE))
    assert levels == {field.name for field in fields(LevelSummary)}
    assert all(set(level) == levels for level in policy["levels"])
    listed = set(re.findall(r"^\| `policies\[\]\.quality\.(\w+)`", text, re.MULTILINE))
    assert listed == {field.name for field in fields(Quality)}
    spread = {field.name for field in fields(Spread)}
    assert all(f"`{key}`" in text for key in spread)
    assert all(set(policy[name]) == spread for name in ("ttft_s", "tpot_s", "e2e_s"))


def test_speed_up_is_tokens_per_second_over_the_baseline():
    fast = comparison().rows[0]
    slow = replace(fast, output_tokens_per_s=fast.output_tokens_per_s / 4)
    assert SideBySide(meta={}, baseline=slow, rows=(fast,)).speed_up(fast) == 4.0


def test_an_exact_run_says_so_only_if_it_is():
    summary = comparison().rows[0]
    nearly = replace(summary, exact_share=0.99999)
    text = text_of(comparison_table(SideBySide(meta=comparison().meta, baseline=summary, rows=(nearly,))))
    assert "1.0000" not in text
    assert "0.9999" in text
    exact = replace(summary, exact_share=1.0)
    assert "0.8571" not in text_of(comparison_table(SideBySide(meta=comparison().meta, baseline=exact, rows=(exact,))))


def test_the_table_says_what_went_wrong():
    log = by_hand_with_failures()
    told = "2 requests failed; 3 steps put off for lack of KV memory; 1 request slower than the target alone"
    assert f"policy 0.500 s (6.2%); {told}" in text_of(run_table(summarise_run(log)))


def test_percentiles_are_interpolated():
    names, entries = [f"r{index}" for index in range(11)], []
    for end_s, name in enumerate(names):
        entries.append(OpRecord(VERIFY, 0, 1, 1, 1, float(end_s), 1.0))
        entries.append(StepRecord(name, VERIFY, 0, 0, 0, 0, 0, 1, 1, 0, float(end_s)))
    summary, _ = summary_of(*entries, requests=names, members=("t",))
    e2e = summary.e2e_s
    assert (e2e.mean, e2e.p50, e2e.p90, e2e.p95, e2e.p99) == pytest.approx((5.0, 5.0, 9.0, 9.5, 9.9))
    assert np.isfinite(summary.tpot_s.mean)


def test_drafts_ahead_are_looked_at_by_the_smallest_verifier_of_the_next_step():
    """Two steps of three parts: 3 tokens written ahead, of which mid looks at 2 and refuses the second."""
    entries = []
    for end_s, looked_at in ((1.0, ((2, 0, 0), (1, 0, 0))), (2.0, ((2, 0, 0), (1, 3, 1)))):
        for part, (level, judged, accepted) in enumerate(looked_at):
            entries.append(OpRecord(VERIFY, level, 1, 1, 1, end_s - 1.0, 1.0))
            figures = ("r0", VERIFY, level, 0, 0, judged, accepted, 1, 1 - part, 0, end_s)
            entries.append(StepRecord(*figures, part=part, refused=int(accepted < judged)))
        entries.append(OpRecord(DRAFT, 0, 1, 3, 3, end_s - 1.0, 0.5))
        entries.append(StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, end_s, part=2))
    summary, log = summary_of(*entries, members=("d", "m", "t"), decide_s=0.25)
    assert rejection_rate(log.steps) == 1 / 2
    assert summary.policy_s == 0.5, "one decision for all parts of a step"


def test_members_tell_what_their_prefix_caches_found():
    entries = []
    for now_s, found in ((0.0, (30, 16, 1, 2)), (1.0, (10, 3, 0, 1))):
        entries.append(OpRecord(VERIFY, 1, 1, 1, 14, now_s, 1.0, *found))
        entries.append(StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, now_s + 1.0))
    summary, _ = summary_of(*entries, members=("d", "t"))
    found_by_member = [(level.asked_tokens, level.hit_tokens, level.evicted_blocks) for level in summary.levels]
    assert found_by_member == [(0, 0, 0), (40, 19, 3)]
    assert prefix_lines(summary) == ["prefix cache of t: 47.5% of 40 tokens found, 3 blocks evicted"]
    _, by_member = detail_tables(SideBySide(meta={"seed": 0}, baseline=summary, rows=(summary,)))
    assert by_member.columns[-1].heading == "found / asked"
    assert by_member.rows[-1][-1] == "19/40"


COLUMNS = ("request", "kind", "level", "drafted", "judged", "accepted", "own", "emitted")
TARGET = 2


def drafted(tokens, level=0, request=0):
    return request, DRAFT, level, tokens, 0, 0, 0, 0


def judged(tokens, accepted, level=TARGET, request=0):
    """A verification that adds a token of its own."""
    return request, VERIFY, level, 0, tokens, accepted, 1, accepted + 1 if level == TARGET else 0


def committed(tokens, request=0):
    return request, COMMIT, TARGET, 0, 0, 0, 0, tokens


def steps_of(*rows):
    """Columns of steps, none of them part of an Overlap."""
    columns = dict(zip(COLUMNS, np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T, strict=True))
    refused = (columns["accepted"] < columns["judged"]).astype(np.int8)
    return {**columns, "part": np.zeros(len(rows), dtype=np.int64), "refused": refused}


def by_token(steps, among=None):
    """(refusals, drafted tokens looked at), with each request's pending tokens kept in a list."""
    refusals = looked_at = 0
    target, pending = max(steps["level"].tolist(), default=0), dict[int, list[str]]()
    rows = zip(*(steps[name].tolist() for name in COLUMNS), strict=True)
    for index, (request, kind, level, drafted, judged, accepted, own, emitted) in enumerate(rows):
        text = pending.setdefault(request, [])
        if kind == DRAFT:
            text.extend(["new"] * drafted)
        elif kind == COMMIT:
            del text[:emitted]
        else:
            first = len(text) - judged
            if among is None or among[index]:
                refusals += accepted < judged
                looked_at += text[first : first + accepted + 1].count("new")
            text[first:] = ["old"] * (accepted + own)
            if level == target:
                text.clear()
    return refusals, looked_at


def test_of_two_levels_by_hand():
    assert rejection_rate(by_hand().steps) == 1 / 5  # of three drafted tokens the third was refused, then both kept
    assert summarise_run(by_hand()).rejection_rate == 1 / 5


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        pytest.param([], 0.0, id="nothing happened"),
        pytest.param([judged(0, 0)], 0.0, id="plain decoding"),
        pytest.param([drafted(4), judged(4, 1)], 1 / 2, id="tokens after a refusal do not count"),
        pytest.param([drafted(2), judged(2, 1, level=1), judged(2, 1)], 1.0, id="two levels refuse of two tokens"),
        pytest.param([drafted(1), judged(1, 0, level=1), judged(1, 0)], 2.0, id="an own token is refused too"),
        pytest.param(
            [drafted(2), judged(2, 2, level=1), drafted(1), judged(4, 4)],
            0.0,
            id="what a level below has judged is not looked at first again",
        ),
        pytest.param([drafted(2), drafted(2), judged(4, 3)], 1 / 4, id="two drafts and one verdict"),
        pytest.param([drafted(4), committed(3), judged(1, 0)], 1.0, id="committed tokens do not count"),
        pytest.param(
            [drafted(2, level=1), drafted(1), judged(1, 0, level=1), judged(3, 2)],
            2 / 3,
            id="a verifier's own draft waits for the next one",
        ),
        pytest.param(
            [drafted(2), drafted(3, request=1), judged(2, 0), judged(3, 3, request=1)], 1 / 4, id="two requests in turn"
        ),
    ],
)
def test_what_counts(rows, rate):
    assert rejection_rate(steps_of(*rows)) == rate


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_it_is_the_count_token_by_token(trace, seed, batch):
    trace = with_ngram(trace)
    log, _ = replay(trace, Anything(recorded_pool(trace), seed), batch=batch)
    refusals, looked_at = by_token(log.steps)
    assert rejection_rate(log.steps) == (refusals / looked_at if looked_at else 0.0)
    first = log.steps["request"] == 0
    refusals, looked_at = by_token(log.steps, first)
    assert rejection_rate(log.steps, first) == (refusals / looked_at if looked_at else 0.0)


@settings(max_examples=20)
@given(trace=synthetic_traces(max_models=2), batch=st.integers(1, 3))
def test_a_batch_changes_nothing(trace, batch):
    pool = recorded_pool(trace)
    chain = f"{pool.names[0]}:3/{pool.target}" if len(pool.names) > 1 else "plain"
    alone, together = (replay(trace, make_policy(chain, pool), batch=size)[0] for size in (1, batch))
    assert rejection_rate(alone.steps) == rejection_rate(together.steps)


def test_requests_that_failed_do_not_count_in_a_summary():
    log = by_hand_with_failures()
    assert summarise_run(log).rejection_rate == summarise_run(by_hand()).rejection_rate
    assert log.requests["failed"].tolist().count("") == 2
