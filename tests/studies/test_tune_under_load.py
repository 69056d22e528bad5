"""Tuning under load: the best trial is the best policy of a comparison, reported on other requests."""

import json
from pathlib import Path
from statistics import fmean, geometric_mean

import pyarrow.parquet as pq
import pytest
from paceline.studies.load import compare_under_load
from paceline.studies.rates import find_rates
from paceline.studies.setting import open_recording
from paceline.studies.tune import split_recording
from paceline.studies.tune_under_load import tune_under_load

from ..cli.command_line import done, refused

# Forwards that take long, so that little load is much, and runs are short.
SECONDS = {"draft": 0.002, "mid": 0.01, "slim": 0.01, "target": 0.02}
COST = {name: {"intercept_s": s, "per_new_token_s": s / 20} for name, s in SECONDS.items()}
POLICIES = ("draft:1/target", "draft:3/target")
LOAD = {"workload": "poisson:requests=12", "cluster": "h100", "seeds": 2}
SLO = {"tpot": 0.03}
LIMITS = "mean_e2e < 1.5"


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    (tmp_path / "cost.json").write_text(json.dumps(COST))
    monkeypatch.chdir(tmp_path)


def goodput_of(half):
    found = compare_under_load(half, [*POLICIES, "plain"], cost="cost.json", rates=[8.0], slo=SLO, **LOAD)
    return {row.runs[0].meta.about.policy: row.by_seed("goodput_per_s") for row in found.rates[0].rows}


def highest_of(half):
    found = find_rates(half, [*POLICIES, "plain"], cost="cost.json", limits=LIMITS, **LOAD)
    return {row.policy: {seed: one.rate for seed, one in row.found.items()} for row in found.rows}


@pytest.mark.parametrize(
    ("asked", "figures_of"),
    [({"rate": 8.0, "slo": SLO}, goodput_of), pytest.param({"limits": LIMITS}, highest_of, marks=pytest.mark.slow)],
)
def test_the_best_is_that_of_a_comparison_and_is_reported_on_the_other_half(asked, figures_of):
    found = tune_under_load("draft:1|3/target", "pico", cost="cost.json", out="t", jobs=1, **LOAD, **asked)
    tuned, others = (figures_of(half) for half in split_recording(open_recording("pico"), 0.5, 0))
    mean = fmean if "slo" in asked else geometric_mean
    means = [mean(tuned[policy].values()) for policy in POLICIES]
    assert found.trail == pytest.approx(means)
    assert found.best == POLICIES[means.index(max(means))]
    for half, known in zip(found.halves, (others, tuned), strict=True):
        assert half.tuned == known[found.best]
        assert half.alone == known["plain"]
    assert found.halves[0].name == "not tuned on"
    assert pq.read_table("t/trail.parquet")[found.figure].to_pylist() == list(found.trail)


def test_the_command_and_its_refusals():
    words = ("tune", "draft:1..2/target", "--trace", "pico", "--out", "t")
    served = (*words, "--workload", "poisson:requests=6", "--cluster", "h100", "--cost", "cost.json", "--jobs", "1")
    told = done(*served, "--rate", "8", "--slo", "tpot=0.03", "--seeds", "1", "--json", "t.json")
    assert told == ""
    written = json.loads(Path("t.json").read_text())
    assert (written["figure"], written["slo"]) == ("goodput_per_s", {"tpot": 0.03})
    assert refused(*served).startswith("--workload goes with --slo, for the most goodput, or with --find-rate")
    assert refused(*served, "--find-rate", LIMITS, "--rate", "2").startswith(
        "--rate must be left out beside --find-rate"
    )
    assert refused(*served, "--slo", "tpot=1", "--batch", "2") == "--batch does not apply to --workload"
    assert refused(*served, "--slo", "tpot=1", "--over-tags", "worst") == "--over-tags does not apply to --workload"
    assert refused(*words, "--rate", "2") == "--rate goes with --workload"
    assert "--cluster FILE or --cluster DEVICE" in refused(*words, "--workload", "poisson:requests=6")
    assert refused(*served, "--find-rate", "p99_e2e < 1e-9").startswith(
        "POLICY draft:1..2/target: no value can be played"
    )


def test_what_readers_need_to_know_is_said():
    asked = {"rate": 40.0, "slo": SLO, "scale": {"draft": 1.5}}
    found = tune_under_load("draft:1|3/target", "pico", cost="cost.json", out="t", jobs=1, **LOAD, **asked)
    assert "cost cost.json, draft x1.5" in found.headline()
    assert any("the load was never steady" in remark for remark in found.to_json()["remarks"])
    assert "the load was never steady" in str(found)


def test_a_policy_that_rejects_requests_has_no_gain_in_rate():
    Path("tight.toml").write_text('[[replicas]]\ndevice = "h100"\nmembers.draft = { kv_blocks = 40 }\n')
    rows = [{"arrives_s": at / 4, "prompt_tokens": 900 if at % 2 else 100, "output_tokens": 9} for at in range(40)]
    Path("load.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"workload": "load.jsonl", "cluster": "tight.toml", "limits": "p99_ttft < 1", "seeds": 1}
    found = tune_under_load("draft:1|2/target", "pico", cost="cost.json", out="t", jobs=1, **asked)
    assert found.halves[0].gain is None
    told = f"20 requests a run are rejected under {found.best}, 0 under plain: their rates are not compared"
    assert told in found.remarks


def test_the_search_does_not_choose_who_rejects_what_others_serve():
    Path("tight.toml").write_text('[[replicas]]\ndevice = "h100"\nmembers.draft = { kv_blocks = 40 }\n')
    rows = [{"arrives_s": at / 4, "prompt_tokens": 900 if at % 2 else 100, "output_tokens": 9} for at in range(40)]
    Path("load.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"workload": "load.jsonl", "cluster": "tight.toml", "limits": "p99_ttft < 2", "seeds": 1}
    found = tune_under_load("confident,draft=mid|draft", "pico", cost="cost.json", out="t", jobs=1, **asked)
    assert found.best == "confident,draft=mid"
    kept, left_out = pq.read_table("t/trail.parquet").to_pylist()
    assert (kept["rejected"], left_out["rejected"]) == (0, 20)
    assert left_out[found.figure] > kept[found.figure]
    assert found.trail == (kept[found.figure], None)
    assert found.failed == ("confident,draft=draft is left out: it rejects 20 requests a run, others 0",)
