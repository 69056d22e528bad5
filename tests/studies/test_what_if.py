"""Changes of a served workload, alone and together, seed by seed."""

import re
from math import exp, log
from statistics import fmean

import paceline
import pytest
from paceline.reports.intervals import mean_interval

LOAD = "poisson:requests=40"
SHARED = "shared-workers:sessions=6,workers=3,rounds=2,prompt=300,output=20"
ASKED = {"cluster": "h100", "rate": 60.0, "seeds": 3}


@pytest.fixture(scope="module")
def found():
    return paceline.what_if(LOAD, "draft:4/target", ["rate=2x", "device=h200", "draft.seconds=0.5x"], **ASKED)


def served(*, seed, **changed):
    asked = {"cluster": "h100", "rate": 60.0} | changed
    return paceline.simulate(LOAD, "draft:4/target", seed=seed, **asked).rows[0].mean("in_system_s")


@pytest.mark.slow
def test_ratios_are_those_of_the_runs_of_the_same_seed(found):
    base = [served(seed=seed) for seed in range(3)]
    cases = [{"rate": 120.0}, {"cluster": "h200"}, {"scale": {"draft": 0.5}}]
    together = {"rate": 120.0, "cluster": "h200", "scale": {"draft": 0.5}}
    logs = []
    for one, case in zip(found.runs, [*cases, together], strict=True):
        logs.append([log(served(seed=seed, **case) / alone) for seed, alone in enumerate(base)])
        low, high = mean_interval(logs[-1]).bounds
        ratio = found.ratio(one, "in_system_s")
        assert (ratio.mean, *ratio.bounds) == pytest.approx((exp(fmean(logs[-1])), exp(low), exp(high)))
    *parts, whole = logs
    terms = [every - sum(each) for every, *each in zip(whole, *parts, strict=True)]
    assert found.term("in_system_s").mean == pytest.approx(exp(fmean(terms)))


def test_a_change_alone_has_no_term():
    found = paceline.what_if(LOAD, "plain", ["rate=90"], **ASKED)
    assert [one.name for one in found.runs] == ["rate=90"]
    assert (found.together, found.term("in_system_s")) == (None, None)
    assert found.lines()[0].startswith("mean time in the system: rate=90 ")


def test_json_has_every_ratio(found):
    said = found.to_json()
    assert [one["change"] for one in said["changes"]] == [one.name for one in found.runs]
    ratio = found.ratio(found.runs[0], "e2e_s_p99")
    assert said["changes"][0]["ratio"]["e2e_s_p99"] == {"mean": ratio.mean, "ci": list(ratio.bounds)}
    assert said["over_product"]["in_system_s"]["mean"] == found.term("in_system_s").mean
    assert "goodput_per_s" not in said["over_product"]  # nothing is promised
    assert len(found.to_dicts()) == 4


def test_ratios_have_a_range_at_the_ends_of_the_costs(found):
    """At an end both runs are at that end, and the ratio is as far from that at the costs as the first seed's is."""
    for one in found.runs:
        for figure in ("in_system_s", "ttft_s_p99"):
            base, changed = ([run.flat[figure] for run in (row.runs[0], *row.ends)] for row in (found.base, one.row))
            here, *ends = (own / other for own, other in zip(changed, base, strict=True))
            assert len(ends) == 4
            mean = found.ratio(one, figure).mean
            wanted = mean * min(here, *ends) / here, mean * max(here, *ends) / here
            assert found.range_of_cost(one, figure) == pytest.approx(wanted)
            assert found.to_json()["changes"][found.runs.index(one)]["range"][figure] == pytest.approx(wanted)
    assert [grid.title for grid in found.tables()][-1] == "range of cost, times what it is without changes"


def test_a_change_that_the_cost_leaves_open_is_told_from_none_by_no_seeds():
    asked = {**ASKED, "models": ["target=llama-3.1-8b", "draft=llama-3.2-1b"]}
    found, bare = (
        paceline.what_if(LOAD, "plain", ["policy=draft:3/target"], **asked, engine=engine)
        for engine in ("trtllm", "bare")
    )
    (drafting,) = found.runs
    low, high = found.range_of_cost(drafting, "in_system_s")
    assert low < 1 < high
    assert "policy=draft:3/target cannot be told apart from no change by this cost" in found.lines()
    assert bare.range_of_cost(bare.runs[0], "in_system_s") is None  # published peaks have none


def test_a_change_that_does_nothing_is_not_left_open_by_the_cost():
    models = ["target=llama-3.1-8b", "draft=llama-3.2-1b"]
    found = paceline.what_if(LOAD, "plain", ["draft.seconds=0.5x"], **ASKED, models=models)
    assert found.range_of_cost(found.runs[0], "in_system_s") == (1.0, 1.0)
    assert not any("by this cost" in line for line in found.lines())


def test_without_prefix_caches_every_prompt_is_read():
    found = paceline.what_if(SHARED, "plain", ["prefix_cache=off", "policy=draft:2/target"], **ASKED)
    name = "members_target_cached_prompt_share"
    assert found.base.mean(name) > 0.3
    assert not found.alone[0].row.mean(name)
    assert found.ratio(found.alone[0], "ttft_s_mean").low > 1
    assert found.alone[1].row.about.policy == "draft:2/target"


def test_what_is_open_is_said():
    found = paceline.what_if(LOAD, "draft:4/target", ["draft.acceptance=-0.01"], **ASKED)
    ratio = found.ratio(found.alone[0], "in_system_s")
    told = [line for line in found.lines() if "cannot be told apart from no change on these 3 seeds" in line]
    assert len(told) == (ratio.low <= 1 <= ratio.high)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], "`changes` must be a list of at least one text"),
        ("rate=2x", "`changes` must be several texts, got 'rate=2x'"),
        (["rate"], "`changes` must be NAME=VALUE, as in rate=2x or draft.seconds=0.5x, got 'rate'"),
        (["rate=x"], "`changes` rate must be a factor > 0, as in 0.5x, got 'x'"),
        (["rate=fast"], "`changes` rate must be a number or a factor, as in 2x, got 'fast'"),
        (["rate=1x"], "`changes` must change something, rate=1x does not"),
        (["rate=10e-1x"], "`changes` must change something, rate=10e-1x does not"),
        (["rate=1ex"], "`changes` rate must be a factor > 0, as in 0.5x, got '1ex'"),
        (["rate=60"], "`changes` must change something, rate=60 does not"),
        (["device=h100-sxm"], "`changes` must change something, device=h100-sxm does not"),
        (["draft.seconds=1.0x"], "`changes` must change something, draft.seconds=1.0x does not"),
        (["draft.acceptance=+0"], "`changes` must change something, draft.acceptance=+0 does not"),
        (["rate=2x", "rate=3x"], "`changes` must hold one of each kind, got rate twice"),
        (["draft.second=2x"], "`changes` knows no 'draft.second': did you mean draft.seconds?"),
        (["target.acceptance=+0.1"], "`changes` knows no 'target.acceptance'"),
        (["draft.acceptance=0.1"], "`changes` draft.acceptance must be a shift with its sign"),
        (["device=h2000"], "`changes` knows no device 'h2000': did you mean h200 or gh200?"),
        (["prefix_cache=on"], "`changes` prefix_cache must be off, got 'on'"),
        (["policy=draft:0/target"], "the window of draft must be a whole number >= 1"),
    ],
)
def test_what_will_not_do_is_one_line(changes, said):
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        paceline.what_if(LOAD, "draft:4/target", changes, **ASKED)
    assert "\n" not in str(error.value)


def test_what_goes_with_something_else_is_refused(tmp_path):
    cluster = tmp_path / "mine.toml"
    cluster.write_text('[[replica]]\ndevice = "h100"\n')
    with pytest.raises(ValueError, match="device=h200 goes with a device of the sheet as `cluster`, whose place it"):
        paceline.what_if(LOAD, "plain", ["device=h200"], **{**ASKED, "cluster": cluster})
    with pytest.raises(
        ValueError, match=r"multiple of `rate`, or of the rate of a log's own times .*, got poisson.* without"
    ):
        paceline.what_if("poisson:rate=4,requests=9", "plain", ["rate=2x"], cluster="h100")
    with pytest.raises(ValueError, match="rate=2x does not go with `time_scale`, got 2"):
        paceline.what_if(LOAD, "plain", ["rate=2x"], **{**ASKED, "rate": None, "time_scale": 2.0})
    with pytest.raises(ValueError, match="got closed:concurrency=2,requests=9 in a closed loop"):
        paceline.what_if("closed:concurrency=2,requests=9", "plain", ["rate=2x"], cluster="h100")


def test_twice_the_rate_of_a_log_is_twice_that_of_its_own_times(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("t,p,o\n" + "".join(f"{third / 3},90,{20 + third}\n" for third in (0, 1, 2, 5, 6, 9)))
    asked = {**ASKED, "columns": "arrives_s=t,prompt=p,output=o", "rate": None}
    twice, stated = (paceline.what_if(log, "plain", [change], **asked) for change in ("rate=2x", f"rate={2 * 5 / 3}"))
    assert twice.base.about == stated.base.about
    (one,), (other,) = twice.alone, stated.alone
    assert one.row == other.row != twice.base


def test_a_change_that_rejects_requests_has_no_ratio_of_times(tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text(
        "".join(
            f'{{"arrives_s": {turn / 5}, "prompt_tokens": {60000 if turn % 2 else 200}, "output_tokens": 20}}\n'
            for turn in range(6)
        )
    )
    asked = {"cluster": "h100", "seeds": 1, "models": ["target=llama-3.1-8b", "draft=eagle3"]}
    found = paceline.what_if(load, "plain", ["device=rtx4090", "policy=draft:1/target", "rate=2x"], **asked)
    small, _drafting, faster, together = found.runs
    assert (small.row.mean("rejected"), found.base.mean("rejected")) == (3, 0)
    assert found.ratio(small, "in_system_s") is found.ratio(together, "ttft_s_p99") is None
    assert found.ratio(small, "output_tokens_per_s") is not None
    assert found.ratio(faster, "in_system_s").mean > 1
    assert found.term("in_system_s") is None
    printed = str(found)
    assert "device=rtx4090: of 6 requests 3 rejected (longer than the" in printed
    assert "device=rtx4090: published peaks of rtx4090, on which no engine was measured" in printed
    assert found.lines()[0].startswith("mean time in the system: policy=draft:1/target ")
    assert (
        "times cannot be compared where more or fewer requests are rejected: device=rtx4090, all together"
        in found.lines()
    )
    assert any("one seed, 0: chance has a part" in remark for remark in found.remarks)  # in that of the draft alone
    assert any("the load was never steady" in remark for remark in found.remarks)


def test_requests_that_a_horizon_cuts_are_named():
    found = paceline.what_if(LOAD, "plain", ["rate=2x"], **ASKED, horizon_s=0.2)
    unfinished = sum(run.metrics.unfinished for run in found.alone[0].row.runs)
    requests = sum(run.metrics.requests for run in found.alone[0].row.runs)
    told = f"rate=2x: of {requests} requests {unfinished} unfinished: in no latency but ITL"
    assert unfinished
    assert told in found.to_json()["remarks"]
