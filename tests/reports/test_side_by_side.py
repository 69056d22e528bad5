"""What stands beside the rows of a comparison: intervals over seeds, seconds by tag, regret, quality, the last line."""

import json
import re
from dataclasses import asdict, fields, replace
from math import inf, sqrt
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY, OpRecord, StepRecord
from paceline.policies import make_policy
from paceline.reports import LevelSummary, Quality, SideBySide, quality_of, summarise_run
from paceline.reports.comparison import comparison_table, conclusion, prefix_words, told_apart
from paceline.reports.intervals import enough_in_words, enough_values, mean_interval, t_quantile
from paceline.reports.regret import regret_of, regret_table
from paceline.reports.resampled import RequestShares, Resampled
from paceline.reports.run_table import quality_line, quality_table, run_table
from paceline.reports.seconds_by_tag import ByTag, TagShare, request_seconds, tag_shares, tag_speed_ups, tag_table
from paceline.runs.log import QUALITY_FIELDS, RunLedger, TextQuality, with_quality
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from scipy.stats import t as student

from ..sim.tries.small_traces import Anything, replay
from ..strategies import traces
from .making import by_hand, by_hand_ledger, text_of

META = {
    "trace": "log",
    "kind": "imported",
    "source": "spec-bench",
    "cost": "timed",
    "batch": 1,
    "seed": 3,
    "decide_s": 0,
}


# -- the interval
@pytest.mark.parametrize("degrees", [*range(1, 31), 99, 100, 1000])
def test_quantiles_of_students_t(degrees):
    assert t_quantile(degrees) == pytest.approx(student.ppf(0.975, degrees), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_95_of_100_intervals_hold_the_mean_of_normal_draws(count):
    draws = np.random.default_rng(count).normal(5.0, 2.0, size=(2000, count))
    held = [low <= 5.0 <= high for low, high in (mean_interval(values).bounds for values in draws.tolist())]
    assert abs(np.mean(held) - 0.95) < 4 * sqrt(0.95 * 0.05 / 2000)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8),
    shift=st.floats(-100, 100),
    scale=st.floats(0.01, 100),
)
def test_an_interval_moves_with_its_values(values, shift, scale):
    interval = mean_interval(values)
    low, high = interval.bounds
    assert interval.half_width >= 0
    assert low <= interval.mean <= high
    assert min(values) - 1e-9 <= interval.mean <= max(values) + 1e-9
    moved = mean_interval([scale * value + shift for value in values])
    assert moved.mean == pytest.approx(scale * interval.mean + shift, abs=1e-6)
    assert moved.half_width == pytest.approx(scale * interval.half_width, abs=1e-6)


def test_equal_values_leave_no_doubt():
    assert mean_interval([0.1] * 3).bounds == (0.1, 0.1)
    assert mean_interval([1.0, 3.0]).half_width == pytest.approx(12.706, abs=1e-3)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_one_value_has_no_interval(values):
    with pytest.raises(ValueError, match="an interval needs at least 2 values, got"):
        mean_interval(values)


# -- resampled requests
def shares(tokens, seconds, tags=None):
    """Of requests with these tokens and seconds, each by itself."""
    count = len(tokens)
    tokens, seconds = np.array(tokens, dtype=float), np.array(seconds, dtype=float)
    return RequestShares(
        request_id=np.array([f"q{index:05}" for index in range(count)], dtype=object),
        tag=np.array(["" if tags is None else tags[index] for index in range(count)], dtype=object),
        tokens=tokens,
        seconds=seconds,
        speed=tokens / seconds,
    )


def test_policies_are_compared_on_the_same_requests():
    """Requests differ by much, what one policy gains on each of them does not: the pairs are all that counts."""
    rng = np.random.default_rng(3)
    tokens, seconds = rng.integers(10, 400, 60), rng.uniform(0.1, 9, 60)
    found = Resampled({"a": [shares(tokens, seconds)], "b": [shares(tokens, 2 * seconds)]})
    alone, twice = found.rate("a"), found.rate_over("a", "b")
    assert alone.mean == pytest.approx(tokens.sum() / seconds.sum())
    assert alone.low < 0.9 * alone.mean < 1.1 * alone.mean < alone.high
    assert (twice.mean, twice.low, twice.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.speed_over("a", "b").bounds == pytest.approx((2.0, 2.0))
    assert found.rate_over("a", "a").bounds == (1.0, 1.0)
    assert found.enough_units("a", "a") is None


@pytest.mark.parametrize("fixed_mix", [True, False])
@pytest.mark.parametrize(("count", "num_tags", "least"), [(40, 1, 0.92), (40, 8, 0.92), (10, 1, 0.9), (10, 3, 0.9)])
@pytest.mark.one_in(4)
def test_intervals_hold_what_they_promise(count, num_tags, least, fixed_mix):
    """Samples of a population of which all is known; tags differ in what is gained, and come as each reading says.

    A share of 300 is off by chance: two standard errors below what is promised are allowed. Of 2,000 samples of 40
    requests with eight tags as they come 93.3% held.
    """
    rng, runs, held = np.random.default_rng(count + num_tags), 300, 0
    true = 1 / np.mean(1 / (1.0 + 0.3 * np.arange(num_tags)))  # the other policy's tokens and seconds know no tags
    for _ in range(runs):
        place = np.arange(count) % num_tags if fixed_mix else rng.integers(num_tags, size=count)
        tokens = rng.integers(20, 200, count)
        alone = tokens * 0.1
        ours = alone / (1.0 + 0.3 * place) * rng.lognormal(0.0, 0.25, count)
        tags = [f"t{number}" for number in place]
        found = Resampled({"a": [shares(tokens, ours, tags)], "b": [shares(tokens, alone, tags)]}, fixed_mix=fixed_mix)
        interval = found.rate_over("a", "b")
        held += interval.low <= true / np.exp(0.25**2 / 2) <= interval.high
    assert held / runs >= least - 2 * sqrt(least * (1 - least) / runs)


def test_a_fixed_mix_leaves_tags_out_of_the_spread():
    """Requests of a tag are alike: all that differs is how many of each there are."""
    tags = ["a", "b"] * 20
    ours = np.array([1.0, 3.0] * 20)
    runs = {"x": [shares(np.full(40, 100), ours, tags)], "y": [shares(np.full(40, 100), np.full(40, 3.0), tags)]}
    assert Resampled(runs, fixed_mix=True).rate_over("x", "y").bounds == pytest.approx((1.5, 1.5))
    assert Resampled(runs).rate_over("x", "y").half_width > 0.1


def test_seeds_are_drawn_as_well():
    """Of a policy that chance moves as a whole, seeds are all of the spread; of one without chance they are none."""
    tokens, seconds = np.full(50, 100), np.full(50, 1.0)
    luck = [shares(tokens, seconds * factor) for factor in (0.8, 0.9, 1.0, 1.1, 1.2)]
    found = Resampled({"luck": luck, "b": [shares(tokens, seconds)]})
    by_seed = [100 / factor for factor in (0.8, 0.9, 1.0, 1.1, 1.2)]
    interval = found.rate("luck")
    assert interval.mean == pytest.approx(np.mean(by_seed))
    assert interval.half_width == pytest.approx(1.96 * np.std(by_seed) / sqrt(5), rel=0.1)
    assert found.rate("b").half_width == 0


@pytest.mark.slow
def test_an_interval_does_not_depend_on_other_policies_or_their_order():
    tokens = [10] * 9
    lucky, other = ([shares(tokens, [1 + own + at / (20 + k) for at in range(9)]) for k in range(3)] for own in (0, 1))
    runs = {"lucky": lucky, "other": other, "plain": [shares(tokens, [2.0] * 9)]}
    every = Resampled(runs)
    for names in (("plain", "other"), ("other", "plain"), ("plain", "lucky", "other")):
        assert Resampled({name: runs[name] for name in names}).rate_over("other", "plain") == every.rate_over(
            "other", "plain"
        )


def test_how_many_requests_would_do():
    """Of so many, most samples tell the two apart; of a quarter of them most do not."""
    rng = np.random.default_rng(5)

    def found(count):
        tokens = rng.integers(20, 200, count)
        return Resampled({
            "a": [shares(tokens, tokens * 0.1 / 1.05 * rng.lognormal(0, 0.25, count))],
            "b": [shares(tokens, tokens * 0.1)],
        })  # fmt: skip

    enough = int(median([found(60).enough_units("a", "b") for _ in range(40)]))
    told = {
        count: sum(found(count).rate_over("a", "b").low > 1 for _ in range(40)) for count in (enough // 4, 4 * enough)
    }
    assert told[enough // 4] < 20 < told[4 * enough]


@pytest.mark.one_in(4)
def test_turns_of_a_session_know_no_more_than_the_session():
    """Of 40 sessions of five turns that gain alike. Drawn one by one, requests promise what few intervals hold."""
    rng, runs, held = np.random.default_rng(7), 100, {"sessions": 0, "requests": 0}
    for run in range(runs):
        gain = np.repeat(rng.lognormal(0.0, 0.4, 40), 5)
        alone = rng.uniform(5, 20, 200)
        ours = shares(np.full(200, 100), alone / gain * rng.lognormal(0.0, 0.05, 200))
        both = {"a": [ours], "b": [shares(np.full(200, 100), alone)]}
        sessions = {name: f"s{place // 5}" for place, name in enumerate(ours.request_id)}
        for found in (Resampled(both, sessions=sessions), Resampled(both))[: 1 if run % 5 else 2]:
            interval = found.rate_over("a", "b")
            held[found.units] += interval.low <= np.exp(-(0.4**2 + 0.05**2) / 2) <= interval.high
    assert held["sessions"] / runs >= 0.92 - 2 * sqrt(0.92 * 0.08 / runs)
    assert held["requests"] / (runs / 5) < 0.8


@pytest.mark.parametrize(("lone", "strata"), [("", [20]), ("b", [21]), ("bc", [20, 2])])
def test_the_only_request_of_a_tag_is_drawn_among_others(lone, strata):
    tags = [*("a" * 20), *lone]
    found = Resampled({"x": [shares([10, 20] * 10 + [15] * len(lone), [1.0] * len(tags), tags)]}, fixed_mix=True)
    assert [len(places) for places in found._strata] == strata
    assert found.rate("x").low < 15 < found.rate("x").high


@given(fixed_mix=st.booleans(), data=st.data())
def test_sessions_of_one_request_each_are_requests(fixed_mix, data):
    count = data.draw(st.integers(5, 12))
    tags = data.draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count))
    rng = np.random.default_rng(count)
    runs = {name: [shares(rng.integers(20, 200, count), rng.uniform(1, 9, count), tags)] for name in ("ours", "alone")}
    named = {name: f"of {name}" for name in data.draw(st.sets(st.sampled_from(list(runs["ours"][0].request_id))))}
    one, other = Resampled(runs, fixed_mix=fixed_mix), Resampled(runs, sessions=named, fixed_mix=fixed_mix)
    assert other.units == "requests"
    assert one.rate_over("ours", "alone") == other.rate_over("ours", "alone")
    assert one.speed_over("ours", "alone") == other.speed_over("ours", "alone")


def test_a_fixed_mix_draws_sessions_of_several_tags_among_their_like():
    """Turns of the same two tags in every session: sessions are one stratum, and a tag is never left out."""
    tags, ours = ["a", "b"] * 20, np.array([1.0, 3.0] * 20)
    runs = {"x": [shares(np.full(40, 100), ours, tags)], "y": [shares(np.full(40, 100), np.full(40, 3.0), tags)]}
    sessions = {name: f"s{place // 2}" for place, name in enumerate(runs["x"][0].request_id)}
    found = Resampled(runs, sessions=sessions, fixed_mix=True)
    assert found.drawn_from == "40 requests of 20 sessions"
    assert found.rate_over("x", "y").bounds == pytest.approx((1.5, 1.5))


def test_of_few_sessions_nobody_knows():
    runs = {"draft": [shares([100] * 8, [0.5] * 8)], "plain": [shares([100] * 8, [1.0] * 8)]}
    sessions = {name: f"s{place // 2}" for place, name in enumerate(runs["plain"][0].request_id)}
    compared = replace(seeded(), resampled=Resampled(runs, sessions=sessions))
    assert "fewer than 5 sessions: how much others would differ is not known" in first_table(compared)
    assert conclusion(compared).startswith("best: draft, 2.00x; 8 requests of 4 sessions cannot tell for certain")


def test_runs_of_other_requests_are_not_paired():
    with pytest.raises(ValueError, match="runs must be of the same requests, b had others"):
        Resampled({"a": [shares([1, 2], [1, 1])], "b": [shares([1], [1])]})


def test_of_few_requests_nobody_knows():
    runs = {"draft": [shares([100] * 4, [0.5] * 4)], "plain": [shares([100] * 4, [1.0] * 4)]}
    compared = replace(seeded(), resampled=Resampled(runs))
    assert compared.speed_up_interval(compared.rows[0]) is None
    text = first_table(compared)
    assert "±" not in text
    assert "fewer than 5 requests: how much others would differ is not known" in text
    assert conclusion(compared).startswith("best: draft, 2.00x; 4 requests cannot tell for certain")
    assert "for certain" not in conclusion(replace(compared, baseline=None))
    five = Resampled({"draft": [shares([100] * 5, [0.5] * 5)], "plain": [shares([100] * 5, [1.0] * 5)]})
    assert "for certain" not in conclusion(replace(compared, resampled=five))
    # Resamples without the one request that finished have no token.
    one = Resampled({"draft": [shares([100, 0, 0, 0, 0], [0.5] * 5)], "plain": [shares([100] * 5, [1.0] * 5)]})
    assert one.rate("draft") is one.rate_over("draft", "plain") is one.rate_over("plain", "draft") is None
    assert "means over seeds 3 to 5 where chance has a part" in first_table(replace(seeded(1.0, 2.0), resampled=None))


# -- a comparison
def seeded(*further, baseline=100.0):
    """Of a policy that emitted 200 tokens/s at the first seed and `further` at others, on six requests alike."""
    summary = replace(summarise_run(by_hand()), policy="draft", exact_share=0.5, drawn=True)
    row = replace(summary, output_tokens_per_s=200.0)
    repeats = tuple(replace(summary, output_tokens_per_s=speed) for speed in further)
    alone = None if baseline is None else replace(summary, policy="plain", output_tokens_per_s=baseline)
    runs = {"draft": [shares([100] * 6, [100 / speed] * 6) for speed in (200.0, *further)]}
    if baseline is not None:
        runs["plain"] = [shares([100] * 6, [100 / baseline] * 6)]
    return SideBySide(
        meta=META | {"seeds": 1 + len(further)},
        baseline=alone,
        rows=(row,),
        repeats={"draft": repeats},
        resampled=Resampled(runs),
    )


def first_table(found):
    return text_of(comparison_table(found))


def test_a_policy_with_chance_is_shown_by_mean_and_interval():
    compared = seeded(220.0, 240.0)
    (row,) = compared.rows
    assert compared.output_tokens_per_s(row) == 220.0
    assert compared.speed_up(row) == pytest.approx(2.2)
    (policy,) = json.loads(json.dumps(compared.to_json(), allow_nan=False))["policies"]
    assert policy["output_tokens_per_s"] == 220.0
    assert policy["seeds"] == 3
    low, high = policy["output_tokens_per_s_ci"]
    assert low < 205 < 235 < high
    assert policy["speed_up_ci"] == pytest.approx([low / 100, high / 100])
    assert policy["of_best_ci"] == [1.0, 1.0]
    text = first_table(compared)
    assert f"2.20x ± {(high - low) / 200:.2f}" in text
    assert "±: 95% interval over requests, and over seeds 3 to 5 where chance has a part" in text
    assert "0.5000" in text


def test_where_nothing_differs_between_requests_nothing_is_in_doubt():
    compared = seeded()
    (policy,) = compared.to_json()["policies"]
    assert (policy["seeds"], policy["speed_up"]) == (1, 2.0)
    assert policy["speed_up_ci"] == pytest.approx([2.0, 2.0])
    unknown = replace(compared, resampled=None)
    (policy,) = unknown.to_json()["policies"]
    assert policy["speed_up_ci"] is policy["output_tokens_per_s_ci"] is policy["of_best_ci"] is None
    assert "±" not in first_table(unknown)


def test_without_a_baseline_no_speed_up_is_known():
    compared = seeded(220.0, baseline=None)
    (policy,) = compared.to_json()["policies"]
    assert policy["speed_up"] is policy["speed_up_ci"] is None
    assert policy["output_tokens_per_s_ci"][1] < inf
    assert "unknown" in first_table(compared)


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
    unknown = ByTag(baseline=None, policies=rows)
    assert unknown.speed_ups("x") is None
    assert text_of(tag_table(unknown)).count("unknown") == 4
    untagged = {"plain": {"": share(4, 2.0)}}
    assert "no tag" in text_of(tag_table(ByTag(baseline=untagged["plain"], policies=untagged)))


# -- regret
def runs_of(trace, names):
    pool = recorded_pool(trace)
    logs = {name: replay(trace, make_policy(name, pool))[0] for name in names}
    rows = tuple(summarise_run(log) for log in logs.values())
    rows = tuple(replace(row, policy=name) for name, row in zip(names, rows, strict=True))
    shares = {name: tag_shares(log) for name, log in logs.items()}
    return SideBySide(meta={}, baseline=rows[0], rows=rows), ByTag(baseline=shares[names[0]], policies=shares)


def test_regret_is_seconds_per_token_over_those_of_the_reference():
    names = ["plain", "draft:1/target", "draft:4/target", "adaptive"]
    comparison, by_tag = runs_of(several_tags(), names)
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
    comparison, by_tag = runs_of(several_tags(3), ["plain", "adaptive"])
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


def quality_in_columns(*values):
    names = (field.name for field in fields(TextQuality))
    return TextQuality(**dict(zip(names, values, strict=True)))


# r0 emitted 6 tokens, r1 one.
FIRST = quality_in_columns(2, 5, 4, -6.0, 8, -4.0, 3, 2, 4, 0, 1)
SECOND = quality_in_columns(0, 1, 1, -1.0, 1, -1.0, 1, 1, 1, 1, 1)


def log_of(first=FIRST, second=SECOND):
    return with_quality(by_hand(), {"r0": first, "r1": second})


def test_every_figure_by_hand():
    assert asdict(quality_of(log_of())) == {
        "lossy": True,
        "requests": 2,
        "tokens": 7,
        "known_share": 5 / 7,
        "num_divergences": 2,
        "divergences_per_1000": 2000 / 6,
        "text_agreement": 4 / 9,
        "prefix_agreement": 3 / 9,
        "log_prob_per_token": -7 / 5,
        "own_log_prob_per_token": -5 / 9,
        "answers_right": 1,
        "answers_own": 2,
        "answers_total": 2,
    }
    assert log_of().requests["divergent_tokens"].tolist() == [5, 0]


def test_of_one_tag():
    log = log_of()
    tags = sorted(set(log.requests["tag"].tolist()))
    parts = [quality_of(log, tag=tag) for tag in tags]
    whole = quality_of(log)
    for name in ("requests", "tokens", "num_divergences", "answers_right"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert quality_of(log, tag="no such tag") is None


def test_what_is_unknown_of_one_request_is_unknown_of_all():
    drawn = replace(FIRST, divergences=-1, same_tokens=-1, same_start=-1)
    quality = quality_of(log_of(drawn))
    assert quality.num_divergences is quality.divergences_per_1000 is quality.text_agreement is None
    assert quality.log_prob_per_token == -7 / 5


def test_a_request_of_which_nothing_is_known_does_not_count():
    quality = quality_of(with_quality(by_hand(), {"r1": SECOND}))
    assert (quality.requests, quality.tokens, quality.answers_total) == (1, 1, 1)
    assert quality_of(by_hand()) is None
    assert {name: by_hand().requests[name].tolist() for name in QUALITY_FIELDS}["trunk_tokens"] == [-1, -1]


@pytest.mark.parametrize(
    ("meta", "lossy"),
    [({}, False), ({"lossless": False}, True), ({"lossless": True}, False), ({"lossy_steps": True}, True)],
    ids=str,
)
def test_who_is_lossy(meta, lossy):
    same = replace(SECOND, trunk_tokens=6, same_tokens=6, same_start=6, seen_tokens=6, scored_tokens=6)
    log = log_of(same)
    assert quality_of(replace(log, meta={**log.meta, **meta})).lossy is lossy


# -- tables
def side_by_side(*logs):
    rows = tuple(replace(summarise_run(log), policy=f"policy {number}") for number, log in enumerate(logs))
    return SideBySide(meta=META, baseline=rows[0], rows=rows)


def test_columns_stay_away_where_none_is():
    log = log_of(replace(SECOND, trunk_tokens=6, same_tokens=6))
    log.requests["divergent_tokens"][:] = np.zeros(2, dtype=int)
    assert quality_table(side_by_side(by_hand(), log).ranked()) is None
    for table in (comparison_table(side_by_side(by_hand(), log)), run_table(summarise_run(log))):
        text = text_of(table)
        assert "diverg" not in text
        assert "rejec" not in text
        assert "log-lik" not in text


def test_a_run_says_it_in_a_sentence():
    summary = summarise_run(log_of())
    line = quality_line(summary.quality)
    assert line == (
        "2 texts beside the target's own: 2 divergences, 333.3 per 1,000 tokens; 44.4% of positions the same, 33.3% "
        "before the first difference; log-likelihood per token -1.400 (-0.556); answers right 1 (2) of 2"
    )
    assert f"rejection rate 20.0% {line}" in text_of(run_table(summary))
    drawn = [replace(row, divergences=-1, same_tokens=-1, same_start=-1) for row in (FIRST, SECOND)]
    text = text_of(run_table(summarise_run(log_of(*drawn))))
    assert "where two of them part means nothing" in text
    assert "divergences," not in text


MEMBERS = ("ngram", "draft", "slim", "target")
QUALITY = Quality(**dict.fromkeys((field.name for field in fields(Quality)), None) | {"lossy": True, "requests": 2})
QUALITY = replace(QUALITY, tokens=7, known_share=1.0, num_divergences=1, divergences_per_1000=12.5)


def comparison_cells(compared):
    grid = comparison_table(compared)
    heads = [column.heading for column in grid.columns]
    return [dict(zip(heads, row, strict=True)) for row in grid.rows]


def row_of(policy, seconds, *, tokens=1000, calls=400, judged=800, accepted=500, lossy=False):
    """A run by the seconds of each member; whoever took any below the target drafted."""
    total = sum(seconds)
    levels = tuple(
        LevelSummary(
            name=name,
            forwards=1,
            duration_s=taken,
            share_of_seconds=taken / total,
            drafted=10 if taken and name != "target" else 0,
            judged=judged if name == "target" else 0,
            accepted=accepted if name == "target" else 0,
            refused=0,
            trees=0,
            own=0,
        )
        for name, taken in zip(MEMBERS, seconds, strict=True)
    )
    return replace(
        summarise_run(by_hand()),
        policy=policy,
        output_tokens=tokens,
        duration_s=total,
        output_tokens_per_s=tokens / total,
        target_calls_per_token=calls / tokens,
        draft_acceptance_rate=accepted / judged if judged else 0.0,
        levels=levels,
        quality=QUALITY if lossy else None,
    )


PLAIN = row_of("plain", (0.0, 0.0, 0.0, 10.0), calls=1000, judged=0, accepted=0)
SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 10.0))


@st.composite
def comparisons(draw):
    names = draw(st.permutations(["draft:4/target", "slim:4/target", "draft:3/slim:6/target", "adaptive", "via-sd"]))
    rows, repeats = [], {}
    for name in names[: draw(st.integers(1, 5))]:
        judged = draw(st.integers(1, 3000))
        row = row_of(
            name,
            (0.0, draw(SECONDS), draw(SECONDS), draw(st.floats(0.1, 12.0))),
            calls=draw(st.integers(1, 1000)),
            judged=judged,
            accepted=draw(st.integers(0, judged)),
            lossy=name == "via-sd",
        )
        rows.append(row)
        if draw(st.booleans()):
            factors = draw(st.lists(st.floats(0.8, 1.2), min_size=1, max_size=4))
            repeats[name] = tuple(
                replace(row, output_tokens_per_s=row.output_tokens_per_s * factor) for factor in factors
            )
    return SideBySide(meta={}, baseline=draw(st.sampled_from([PLAIN, None])), rows=tuple(rows), repeats=repeats)


def seconds_of(row, member):
    return row.levels[MEMBERS.index(member)].duration_s


def share_of(row, member):
    return row.levels[MEMBERS.index(member)].share_of_seconds


POLICY = r"([a-z:\d/-]+)"


@given(comparison=comparisons())
def test_what_it_says_is_true(comparison):
    line = conclusion(comparison)
    rows = {row.policy: row for row in comparison.ranked()}
    best = max(rows.values(), key=comparison.output_tokens_per_s)
    speed = comparison.output_tokens_per_s
    tied = {name for name, row in rows.items() if row is not best and speed(row) >= speed(best)}
    slower = [name for name in rows if name != best.policy and name not in tied]

    (named,) = re.match(rf"best: {POLICY}, ", line).groups()
    assert comparison.output_tokens_per_s(rows[named]) == comparison.output_tokens_per_s(best)
    said = re.search(r"; ([^;]*) cannot be told apart", line)
    assert set(re.findall(POLICY + r" \(", said[1]) if said else ()) == tied
    assert ("(lossy, 12.5" in line) == (best.policy == "via-sd")
    if best.policy == "via-sd" and len(rows) > 1:
        assert re.search(rf"best of the lossless: {POLICY},", line)[1] == list(rows)[1]

    check_reason(line, comparison, rows, best, tied, slower)


def test_divergences_that_are_unknown_are_not_given():
    unknown = replace(row_of("via-sd", (0, 1, 0, 1), lossy=True), quality=replace(QUALITY, divergences_per_1000=None))
    assert conclusion(SideBySide(meta={}, baseline=None, rows=(unknown,))).endswith(" (lossy)")


def check_reason(line, comparison, rows, best, tied, slower):
    loser = None
    if found := re.search(rf"(chains|policies) with (\w+) lose here because in the fastest of them, {POLICY} \(", line):
        kind, member, loser = found.groups()
        users = [name for name, row in rows.items() if seconds_of(row, member)]
        assert len(users) > 1
        assert set(users) <= set(slower)
        assert loser == users[0]
        assert kind == "policies" or all("/" in name for name in users)
    elif found := re.search(rf"{POLICY} \([^)]*\) loses here because (\w+) (?:takes|and the others)", line):
        loser, member = found.groups()
        assert [name for name, row in rows.items() if seconds_of(row, member)] == [loser]
    elif found := re.search(rf"more of (\w+) does not pay: in {POLICY} \(", line):
        member, loser = found.groups()
        assert share_of(rows[loser], member) > share_of(best, member)
    elif found := re.search(rf"drafting does not pay here: in {POLICY} \(", line):
        loser = found[1]
        assert not any(level.drafted for level in best.levels)
        assert any(level.drafted for level in rows[slower[0]].levels)
        assert not tied
        assert loser == slower[0]
    elif found := re.search(rf"next is {POLICY} \(", line):
        loser = found[1]
        assert loser == slower[0]
    if loser is None:
        assert " take" not in line
        assert "is called" not in line
        return
    assert loser in slower
    check_figures(line, comparison, rows[loser], best)


def check_figures(line, comparison, loser, best):
    figures = [
        (r"(\w+) takes (\d+)% of the seconds", lambda who, share: f"{share_of(loser, who):.0%}" == f"{share}%"),
        (r"is called ([\d.]+) times a token", lambda calls: f"{loser.target_calls_per_token:.3f}" == calls),
        (r", in \S+ ([\d.]+) times", lambda calls: f"{best.target_calls_per_token:.3f}" == calls),
        (r"the target keeps (\d+)%", lambda kept: f"{loser.draft_acceptance_rate:.0%}" == f"{kept}%"),
    ]
    for pattern, holds in figures:
        for found in re.finditer(pattern, line):
            assert holds(*found.groups()), (pattern, line)
    more = {
        name: seconds_of(loser, name) / loser.output_tokens - seconds_of(best, name) / best.output_tokens
        for name in MEMBERS
    }
    saved = 1 - loser.target_calls_per_token / best.target_calls_per_token
    if found := re.search(
        r"(\w+)( and the others below the target)? takes? ([\d.]+) ms a token of the answer more than in (\S+) "
        r"and (.*)",
        line,
    ):
        member, others, taken, named, bought = found.groups()
        assert more[member] == max(seconds for name, seconds in more.items() if name != "target")
        assert sum(more.values()) - more["target"] > more["target"]
        assert named == best.policy
        assert saved >= share_of(loser, member) - 0.1
        below = {name: seconds for name, seconds in more.items() if name != "target" and seconds > 0}
        assert bool(others) == (len(below) > 1)
        together = sum(more.values()) - more["target"] if others else more[member]
        assert taken in (f"{1e3 * together + slip:.2f}" for slip in (0.0, 1e-9, -1e-9))
        if round(1e3 * more["target"], 2) < 0:
            assert re.match(r"saves? the target ([\d.]+) ms", bought)[1] == f"{-1e3 * more['target']:.2f}"
        else:
            kept = re.match(r"the target (no less|([\d.]+) ms more)(?:, though called ([\d.]+) times a token)?", bought)
            assert kept[2] in (None, f"{1e3 * more['target']:.2f}")
            fewer = loser.target_calls_per_token < best.target_calls_per_token
            assert kept[3] == (f"{loser.target_calls_per_token:.3f}" if fewer else None)
    elif found := re.search(r"(\w+) takes (\d+)% of the seconds and (.*)", line):
        member, _, bought = found.groups()
        assert more[member] == max(seconds for name, seconds in more.items() if name != "target")
        assert sum(more.values()) - more["target"] > more["target"]
        if shown := re.match(rf"saves only (\d+)% of {POLICY}'s target calls", bought):
            assert shown[2] == best.policy
            assert abs(saved - int(shown[1]) / 100) <= 0.005 + 1e-9
            assert saved < share_of(loser, member)
        elif "no less often" in bought:
            assert saved <= 0
        else:
            assert bought.startswith("saves less than 1%")
            assert 0 < saved < 0.005
    else:
        assert more["target"] >= sum(more.values()) - more["target"]
    if "is called" in line and "times a token" in line:
        assert loser.target_calls_per_token > best.target_calls_per_token


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [
                row_of("draft:3/mid:6/target", (0.0, 1.0, 0.0, 4.0), calls=200),
                row_of("slim:4/target", (0.0, 0.0, 6.0, 3.8), calls=190),
                row_of("draft:3/slim:6/target", (0.0, 0.5, 4.0, 3.5), calls=176),
            ],
            "best: draft:3/mid:6/target, 2.00x; chains with slim lose here because in the fastest of them, "
            "draft:3/slim:6/target (1.25x), slim takes 50% of the seconds and saves only 12% of draft:3/mid:6/target's "
            "target calls",
        ),
        (
            [row_of("draft:4/target", (0.0, 8.0, 0.0, 5.0), calls=500, accepted=100)],
            "best: plain, 1.00x; drafting does not pay here: in draft:4/target (0.77x), the fastest of the others, "
            "draft takes 62% of the seconds and saves only 50% of plain's target calls; the target keeps 12% of what "
            "it is given",
        ),
        (
            [row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0))],
            "best: draft:4/target, 2.00x; next is plain (1.00x): the target is called 1.000 times a token, in "
            "draft:4/target 0.400 times",
        ),
        (  # what the third member takes less is theirs, too
            [
                row_of("draft:2/slim:4/target", (0.0, 1.0, 2.0, 5.0)),
                row_of("ngram:9/draft:4/target", (3.0, 2.0, 0.0, 4.5), calls=150),
            ],
            "best: draft:2/slim:4/target, 1.25x; ngram:9/draft:4/target (1.05x) loses here because ngram and the "
            "others below the target take 2.00 ms a token of the answer more than in draft:2/slim:4/target and save "
            "the target 0.50 ms",
        ),
        (  # what rounds to nothing is not said to be saved
            [row_of("draft:4/target", (0.0, 0.01, 0.0, 9.996), calls=990)],
            "best: plain, 1.00x; drafting does not pay here: in draft:4/target (1.00x), the fastest of the others, "
            "draft takes 0.01 ms a token of the answer more than in plain and the target no less, though called 0.990 "
            "times a token, not 1.000",
        ),
        (  # nor to be taken
            [row_of("draft:4/target", (0.0, 0.004, 0.0, 9.999), calls=990)],
            "best: plain, 1.00x",
        ),
        (
            [row_of("draft:4/target", (0.0, 0.004, 0.0, 9.999), calls=990, accepted=100)],
            "best: plain, 1.00x",
        ),
        ([PLAIN], "best: plain, 1.00x"),
    ],
)
def test_in_words(rows, told):
    assert conclusion(SideBySide(meta={}, baseline=PLAIN, rows=tuple(rows))) == told


def test_one_block_is_no_blocks():
    size = {"num_blocks": 1, "block_tokens": 16}
    assert prefix_words({"prefix_cache": size}) == ", prefix caches of 1 block of 16 tokens"
    assert prefix_words({"prefix_cache": None}) == ""


def test_two_that_the_requests_do_not_tell_apart():
    first, second = row_of("adaptive", (0.0, 1.0, 0.0, 4.0)), row_of("draft:4/target", (0.0, 1.0, 0.0, 4.1))
    tokens = np.full(8, 125)
    runs = {
        "adaptive": [shares(tokens, [0.625] * 8)],
        "draft:4/target": [shares(tokens, [0.5, 0.8] * 4)],
        "plain": [shares(tokens, [1.25] * 8)],
    }
    compared = SideBySide(meta={}, baseline=PLAIN, rows=(second, first), resampled=Resampled(runs))
    number = compared.resampled.enough_units("adaptive", "draft:4/target")
    assert 8 < number < 10_000
    assert conclusion(compared).startswith(
        "best: adaptive, 2.00x; draft:4/target (1.96x) cannot be told apart from it on these 8 requests; "
        f"about {number:,} would do; next is plain"
    )
    line = conclusion(SideBySide(meta={}, baseline=None, rows=(first, replace(first, policy="other"))))
    assert line == "best: adaptive, 200.0 tokens/s; other (200.0 tokens/s) cannot be told apart from it: equally fast"


def test_two_that_the_cost_does_not_tell_apart():
    """The one that is slower as the cost stands is faster where rounds are dear, and the target alone is not."""
    long, short = row_of("draft:6/target", (0.0, 2.0, 0.0, 3.0)), row_of("draft:2/target", (0.0, 1.0, 0.0, 4.5))
    cheap = SideBySide(meta={}, baseline=PLAIN, rows=(row_of("draft:6/target", (0.0, 1.0, 0.0, 3.0)), short))
    dear = SideBySide(meta={}, baseline=PLAIN, rows=(row_of("draft:6/target", (0.0, 5.0, 0.0, 3.0)), short))
    compared = SideBySide(meta=META, baseline=PLAIN, rows=(long, short), ends=(cheap, dear))
    assert compared.speed_up_range(long) == (10 / 8, 10 / 4)
    assert compared.speed_up_range(short) == (10 / 5.5, 10 / 5.5)
    line = conclusion(compared)
    assert line.startswith(
        "best: draft:6/target, 2.00x; draft:2/target (1.82x) cannot be told apart from it by this cost; "
    )
    assert "plain" not in line.partition("by this cost")[0]
    ranges = [row["range of cost"] for row in comparison_cells(compared)]
    assert ranges == ["1.25 to 2.50", "1.82 to 1.82", ""]
    assert compared.to_json()["policies"][0]["speed_up_range"] == [1.25, 2.5]
    assert SideBySide(meta={}, baseline=PLAIN, rows=(long,)).speed_up_range(long) is None
    left_out = replace(compared, ends=(replace(cheap, rows=(short,)), dear))
    assert not told_apart(left_out, long, short), "who has no seconds at an end may be the slower one there"


def test_what_cannot_be_chosen_is_not_the_best():
    rows = (row_of("oracle-chain", (0.0, 1.0, 0.0, 1.0)), row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0)))
    line = conclusion(SideBySide(meta={}, baseline=PLAIN, rows=rows), ruled_out=["oracle-chain"])
    assert line.startswith("best: draft:4/target, 2.00x")
    assert "oracle" not in line


def test_no_member_is_blamed_whose_seconds_may_have_cost_nothing():
    best, loser = row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0)), row_of("pipespec", (0.0, 1.0, 6.0, 4.0))
    beside = replace(loser, duration_s=7.0, output_tokens_per_s=1000 / 7.0)
    assert "slim" in conclusion(SideBySide(meta={}, rows=(best, loser), baseline=PLAIN))
    assert "slim" not in conclusion(SideBySide(meta={}, rows=(best, beside), baseline=PLAIN))


def test_a_mean_near_nothing_asks_for_many_values_at_once():
    """Student's t of millions of degrees would be summed term by term."""
    assert enough_values([1.0, -1.0, 1e-6]) > 10**11
    assert enough_values([1.0, 1.1, 0.9]) == 4


@pytest.mark.parametrize(
    ("enough", "units", "num_tied", "said"),
    [
        (690, "requests", 1, "about 690 would do"),
        (1_000_000, "requests", 3, "about 1,000,000 would tell one of them apart"),
        (40, "sessions", 1, "about 40 sessions would do"),
        (1_100_000, "requests", 1, "no number of requests that anyone has would tell them apart (more than 1,000,000)"),
        (110_000_000, "seeds", 2, "no number of seeds that anyone has would tell them apart (more than 1,000,000)"),
    ],
)
def test_more_than_anyone_has_is_no_number_to_ask_for(enough, units, num_tied, said):
    assert enough_in_words(enough, units, num_tied) == said
