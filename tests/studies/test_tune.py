"""Tuning: the optimum is found where it is known, figures are of requests that had no part, and a search goes on."""

from collections import Counter
from dataclasses import replace
from math import isclose
from statistics import fmean

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.policies.ranges import policy_ranges
from paceline.reports.intervals import OverTags
from paceline.reports.resampled import RequestShares, Resampled
from paceline.studies.compare import compare
from paceline.studies.setting import open_recording
from paceline.studies.tune import sampled, split_recording, tune
from paceline.traces import SyntheticSpec, make_trace, write_trace

from ..cli.command_line import done, refused

ACCEPTANCE, RATIO = 0.85, 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A drafter that agrees independently of everything else, at a tenth of the target's seconds."""
    folder = tmp_path_factory.mktemp("tune")
    spec = SyntheticSpec(
        requests=40,
        tokens=256,
        acceptance=(ACCEPTANCE,),
        depth_decay=0.0,
        cost_ratios=(RATIO,),
        tags=("a", "b"),
        reach=24,
        run=24,
    )
    write_trace(make_trace(spec), folder / "known.trace")
    return folder


@pytest.fixture(autouse=True)
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def best_window():
    """(1 - a^(w+1)) / ((1 - a)(1 + w c)) is largest (Leviathan et al. 2023, Thm 3.8)."""
    return max(range(1, 20), key=lambda w: (1 - ACCEPTANCE ** (w + 1)) / ((1 - ACCEPTANCE) * (1 + w * RATIO)))


def speed(policy):
    (row,) = (row for row in compare("known.trace", [policy]).to_dicts() if row["policy"] == policy)
    return row["output_tokens_per_s"]


@pytest.mark.parametrize("search", [{}, {"trials": 16}])
def test_the_known_optimum_is_found_within_a_percent(search, tmp_path):
    found = tune("draft:1..20/target", "known.trace", out=tmp_path, jobs=1, **search)
    known = f"draft:{best_window()}/target"
    assert speed(found.best) >= 0.99 * speed(known)
    own = found.halves[0]
    assert own.rate >= 0.99 * tune(f"{known[:-7]}|1/target", "known.trace", out=tmp_path, jobs=1).halves[0].rate


def test_the_figure_is_of_requests_that_had_no_part_with_its_interval(tmp_path):
    found = tune("draft:2..6/target", "known.trace", out=tmp_path, jobs=1, split=0.3, split_seed=2)
    tuned, others = split_recording(open_recording("known.trace"), 0.3, 2)
    assert [half.requests for half in found.halves] == [len(others.requests), len(tuned.requests)] == [28, 12]
    rows = {row["policy"]: row for row in compare(others, [found.best], by_tag=True).to_dicts()}
    of_tags = compare(others, [found.best], by_tag=True).by_tag.policies[found.best]
    assert isclose(found.halves[0].rate, fmean(share.output_tokens_per_s for share in of_tags.values()), rel_tol=1e-12)
    assert found.halves[0].interval.low < rows[found.best]["output_tokens_per_s"]
    shown = found.to_json()
    assert shown["not_tuned_on"]["requests"] == 28
    (curve,) = found.panels()
    best, trials = curve.series
    assert len(trials.y) == found.trials == 5
    assert best.y == tuple(max(trials.y[:place]) for place in range(1, 6))
    low, high = shown["not_tuned_on"]["output_tokens_per_s_ci"]
    assert low < shown["not_tuned_on"]["output_tokens_per_s"] < high


def test_tags_of_few_requests_have_an_interval_too(tmp_path):
    """Six tags, five requests of each in a half: requests are drawn within their tags, so none is left without any."""
    found = tune("draft:3..4/target", out=tmp_path, jobs=1)
    for half in found.halves:
        assert half.interval.half_width > 0
        assert half.speed_up.low > 1


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("seed", [0, 1])
def test_halves_have_requests_of_every_tag_in_the_recorded_order(share, seed):
    recording = open_recording()
    both = split_recording(recording, share, seed)
    ids = [[one.request_id for one in half.requests] for half in both]
    order = {one.request_id: place for place, one in enumerate(recording.requests)}
    assert sorted(ids[0] + ids[1], key=order.get) == list(order)
    for own, half in zip(ids, both, strict=True):
        assert own == sorted(own, key=order.get)
        assert {one.tag for one in half.requests} == {one.tag for one in recording.requests}


@pytest.mark.slow
def test_a_search_goes_on_and_processes_choose_what_one_does(tmp_path):
    asked = {"trials": 12, "jobs": 1}
    whole = tune("adaptive,start=1..4,most=4..16", "known.trace", out=tmp_path / "whole", **asked)
    tune("adaptive,start=1..4,most=4..16", "known.trace", out=tmp_path / "cut", **asked | {"trials": 8})
    again = tune("adaptive,start=1..4,most=4..16", "known.trace", out=tmp_path / "cut", **asked | {"jobs": 2})
    assert again.to_json() == whole.to_json()
    trails = [(tmp_path / name / "trail.parquet").read_bytes() for name in ("whole", "cut")]
    assert trails[0] == trails[1]


def test_the_journal_is_a_study_that_optuna_opens(tmp_path):
    """Of all trials, those that an earlier call made among them."""
    optuna = pytest.importorskip("optuna", reason="optuna is not installed (extra search)")
    text = "adaptive,start=1..4,most=4..16"
    for trials in (8, 10):
        found = tune(text, "known.trace", out=tmp_path, jobs=1, trials=trials)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    )
    study = optuna.load_study(study_name=text, storage=storage)
    assert len(study.trials) == found.trials == 10
    assert found.best == policy_ranges(text).at([str(study.best_params[name]) for name in ("start", "most")])
    best = max(row["mean"] for row in pq.read_table(tmp_path / "trail.parquet").to_pylist())
    assert study.best_value == best


def test_the_trail_has_every_trial_and_why_some_failed(tmp_path):
    found = tune("adaptive,start=1|9,most=4..6", "known.trace", out=tmp_path, jobs=1, over_tags="worst")
    rows = pq.read_table(tmp_path / "trail.parquet").to_pylist()
    assert [(row["trial"], row["policy"], row["start"], row["most"]) for row in rows[2:4]] == [
        (2, "adaptive,start=1,most=6", "1", "6"), (3, "adaptive,start=9,most=4", "9", "4"),
    ]  # fmt: skip
    assert [row["error"] == "" for row in rows] == [True] * 3 + [False] * 3
    assert rows[0]["worst"] == min(rows[0]["tag_a"], rows[0]["tag_b"]) <= rows[0]["mean"]
    assert found.best == max(rows[:3], key=lambda row: row["worst"])["policy"]
    assert len(found.failed) == 3
    assert any("of the worst tag too narrow where tags have few requests" in one for one in found.to_json()["remarks"])
    assert "of the worst tag" not in str(replace(found, over_tags=OverTags.mean).to_json()["remarks"])


def test_the_command_says_what_python_says(tmp_path):
    out = done("tune", "draft:3..5/target", "--trace", "known.trace", "--out", tmp_path, "--jobs", "1")
    found = tune("draft:3..5/target", "known.trace", out=tmp_path, jobs=1)
    assert f"{found.best}: {found.halves[0].rate:,.1f} ±" in out
    assert "not tuned on" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["adaptive"], "POLICY must have a range, as in draft:1..8/target"),
        (["adaptive,most=9..2"], "POLICY must go up in the range of most, got 9..2"),
        (["adaptive,most=1.."], "must have ranges such as 1..8"),
        (["adaptive,mots=1..3"], "unknown option 'mots'; known are"),
        (["adaptive,most=0.5..2.5"], "--trials must be given where a range has infinitely many values, as most in"),
        (["draft:1..999999/target"], "POLICY must have 100,000 values at most, got 999,999; --trials chooses some"),
        (["draft:2..4/target", "--split", "1"], "--split must be in (0, 1), got 1.0"),
        (["draft:2..4/target", "--over-tags", "best"], "'best' is not one of"),
        (["draft:0..4/target", "--devices", "each"], "--devices is for policies that work ahead, such as pearl"),
        (["draft:2..4/target", "--devices", "each"], "--devices is for policies that work ahead, such as pearl"),
        (["mid:2..4/target"], "no value can be played: policy 'mid:2/target'"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(tmp_path, args, says):
    assert says in refused("tune", *args, "--trace", "known.trace", "--out", tmp_path / "out", "--jobs", "1")


def test_an_opened_recording_has_no_path(tmp_path):
    with pytest.raises(ArgumentError, match="`recording` must be a path, which trials in other processes open, got"):
        tune("draft:1..3/target", make_trace(SyntheticSpec(requests=6, tokens=24)), out=tmp_path / "out")


def test_of_few_requests_nobody_knows_how_sure_the_figure_is(tmp_path):
    write_trace(make_trace(SyntheticSpec(requests=6, tokens=24)), tmp_path / "few.trace")
    found = tune("draft:1..3/target", tmp_path / "few.trace", out=tmp_path / "out", jobs=1)
    assert found.halves[0].interval is None
    assert found.to_json()["not_tuned_on"]["output_tokens_per_s_ci"] is None
    assert "±" not in found.lines()[0]
    own = found.halves[0]
    gain = own.rate / own.alone
    (grid,) = found.tables()
    assert grid.rows[0][-1] == f"{gain:.2f}x"
    assert (found.to_json()["not_tuned_on"]["speed_up"], found.to_json()["not_tuned_on"]["speed_up_ci"]) == (gain, None)


def test_one_request_cannot_be_parted():
    recording = open_recording()
    with pytest.raises(ArgumentError, match=r"got 1 request of 1 session$"):
        split_recording(recording[recording.requests[0].request_id], 0.5, 0)


@given(sessions=st.lists(st.sampled_from(["", *"abcdef"]), min_size=4, max_size=20), seed=st.integers(0, 9))
def test_sessions_stay_whole_where_halves_are_made(sessions, seed):
    pico = open_recording()
    requests = [replace(one, session=name) for one, name in zip(pico.requests, sessions, strict=False)]
    assume(len({one.session or one.request_id for one in requests}) > 1)
    halves = split_recording(replace(pico, requests=tuple(requests)), 0.5, seed)
    assert sum(len(half.requests) for half in halves) == len(requests)
    first, second = ({one.session for one in half.requests if one.session} for half in halves)
    assert not first & second


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_sessions_of_tags_of_their_own_are_parted_by_the_share(share):
    pico = open_recording()
    requests = [replace(one, session=str(row // 2), tag=f"{row}") for row, one in enumerate(pico.requests)]
    tuned_on, _ = split_recording(replace(pico, requests=tuple(requests)), share, 0)
    assert len(tuned_on.requests) == pytest.approx(share * len(requests), abs=2)


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("draft:1..3/target", ["draft:1/target", "draft:2/target", "draft:3/target"]),
        ("x,a=0.1..0.3:0.1", ["x,a=0.1", "x,a=0.2", "x,a=0.3"]),
        ("x(a=1|2,b=y)", ["x(a=1,b=y)", "x(a=2,b=y)"]),
        ("a.py:B,file=c/d.json|e.json", ["a.py:B,file=c/d.json", "a.py:B,file=e.json"]),
        ("off-under-load,table=1:3/24:2/96:0", ["off-under-load,table=1:3/24:2/96:0"]),
        ("../a.py:B", ["../a.py:B"]),
        ("x,a=10..30:10,b=-1..1", [f"x,a={a},b={b}" for a in (10, 20, 30) for b in (-1, 0, 1)]),
    ],
)
def test_ranges_stand_for_policies(text, policies):
    assert list(policy_ranges(text).policies()) == policies
    assert policy_ranges(text).count == len(policies)


@pytest.mark.parametrize("text", ["x,a=1..", "x,a=1..2:0", "x,a=a|a", "x,a=0..1:log", "x,a=1|", "x,a=1..2..3"])
def test_ranges_that_are_none_are_refused(text):
    with pytest.raises(ArgumentError, match="`policies` must"):
        policy_ranges(text)


def test_figures_over_tags_are_those_of_each_tags_own_requests():
    rng = np.random.default_rng(0)
    tags = np.array(["a", "b"] * 10, dtype=object)
    ids = np.array([f"r{n:02}" for n in range(20)], dtype=object)
    tokens, seconds = rng.integers(5, 50, 20).astype(float), rng.uniform(1, 2, 20) * np.where(tags == "a", 1.0, 3.0)
    shares = RequestShares(request_id=ids, tag=tags, tokens=tokens, seconds=seconds, speed=tokens / seconds)
    rates = [tokens[tags == tag].sum() / seconds[tags == tag].sum() for tag in "ab"]
    resampled = Resampled({"p": [shares], "q": [shares]})
    for over, value in ((OverTags.mean, fmean(rates)), (OverTags.worst, min(rates))):
        found = resampled.rate_of_tags("p", over)
        assert isclose(found.mean, value)
        assert found.low < value < found.high
        assert resampled.rate_of_tags("p", over, "q").bounds == (1.0, 1.0)


def test_as_many_requests_as_asked_are_drawn_whatever_the_shares_of_tags():
    trace = make_trace(SyntheticSpec(requests=15, tokens=2, tags=("a", "b", "c")))
    tags = Counter(one.tag for one in sampled(trace, 7, 0).requests)
    assert tags.total() == 7
    assert set(tags.values()) == {2, 3}
    assert Counter(one.tag for one in sampled(trace, 1, 0).requests) == {"a": 1, "b": 1, "c": 1}


def test_a_recording_of_some_requests():
    recording = open_recording()
    ids = [one.request_id for one in recording.requests]
    assert [one.request_id for one in recording[[ids[3], ids[1]]].requests] == [ids[3], ids[1]]
    math = recording.of_tags("math", "code")
    assert {one.tag for one in math.requests} == {"math", "code"}
    assert compare(math, ["plain"]).runs.rows[0].requests == len(math.requests) < len(ids)
    for bad, says in ((["nope"], "`ids` must be of requests of pico"), ([ids[0]] * 2, "twice"), ([], "got none")):
        with pytest.raises(ArgumentError, match=says):
            recording[bad]
    for tags, says in ((["maths"], "did you mean math"), ([], "got none")):
        with pytest.raises(ArgumentError, match=says):
            recording.of_tags(*tags)


@pytest.mark.parametrize("windows", ["0|4", "4|0"])
def test_values_that_cannot_be_built_are_failed_trials_with_devices_too(windows, tmp_path):
    found = tune(f"pearl,window={windows}", "known.trace", out=tmp_path, jobs=1, devices="each")
    assert found.best == "pearl,window=4"
    assert len(found.failed) == 1


def test_what_readers_need_to_know_is_said(folder, tmp_path):
    asked = {"cost": "a10", "shift_acceptance": {"draft": 0.05}, "seeds": 2}
    found = tune("draft:3..4/target", "known.trace", out=tmp_path, jobs=1, **asked)
    assert "; SYNTHETIC trace synthetic (greedy), 20 requests, " in found.headline()
    assert "; WHAT IF: acceptance of draft +0.05; cost a10, batch 1, seed 0" in found.headline()
    shown = found.to_json()
    assert any("published peaks of a10, on which no engine was measured" in one for one in shown["remarks"])
    assert any(one.startswith("±: 95% interval over requests of the same mix of tags, and") for one in shown["remarks"])
    assert shown["meta"]["what_if"]["acceptance"] == {"draft": 0.05}
