"""`paceline metrics`: the figures of serving runs, alone, side by side and over seeds."""

import json

import pyarrow as pa
import pytest
from paceline.reports.summary import mean_interval
from paceline.runs.serving import write_serving
from paceline.studies.serving import metrics

from ....reports.serving.worked_example import ABOUT, worked_log
from ...command_line import done, paceline


@pytest.fixture
def run(tmp_path):
    write_serving(worked_log(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path):
    write_serving(worked_log(ABOUT.model_copy(update={"policy": "plain", "notes": ("a note",)})), tmp_path / "other")
    return tmp_path / "other"


def at_seed(path, seed):
    write_serving(worked_log(ABOUT.model_copy(update={"seed": seed})), path)
    return path


def test_one_run(run):
    shown = done("metrics", run, "--slo", "ttft=1.8,tpot=2")
    assert "workload four requests; cluster one replica; 6.000 s; SLO ttft 1.8 s, tpot 2 s" in shown
    assert f"{run}: of 4 requests 1 unfinished, 1 rejected (longer than the memory): in no latency but ITL" in shown
    assert f"{run}: partial, stopped at 6.000 s (horizon)" in shown
    assert "25.0%" in shown
    assert "1,750.00" in shown
    assert "goodput" not in done("metrics", run)


def test_json_is_what_the_function_says(run, tmp_path):
    done("metrics", run, "--slo", "e2e=4", "--json", tmp_path / "m.json")
    written = json.loads((tmp_path / "m.json").read_text())
    assert written == json.loads(json.dumps(metrics(run, slo={"e2e": 4.0}).to_json()))
    (row,) = written["rows"]
    assert (row["policy"], row["mean"], row["ci"]) == ("draft:2/target", {}, {})
    assert row["runs"][0]["members"]["target"]["acceptance_length"] == 1.25
    assert row["runs"][0]["slo_met"] == 1
    assert written["slo"] == {"e2e": 4.0}


def test_runs_side_by_side(run, other):
    shown = done("metrics", run, other)
    assert shown.count("plain") == shown.count("draft:2/target") == 4
    assert "a note" in shown
    rows = metrics([run, other]).to_dicts()
    assert [row["policy"] for row in rows] == ["draft:2/target", "plain"]
    assert metrics([run, other]).to_arrow().column("ttft_s_mean").to_pylist() == [1.75, 1.75]
    assert isinstance(metrics(run).to_arrow(), pa.Table)


def test_seeds_are_one_row(run, tmp_path):
    found = metrics([run, at_seed(tmp_path / "again", 1)])
    assert len(found.rows) == 1
    row = found.to_json()["rows"][0]
    assert [one["seed"] for one in row["runs"]] == [0, 1]
    assert row["mean"]["ttft_s_mean"] == 1.75
    assert row["ci"]["ttft_s_mean"] == list(mean_interval([1.75, 1.75]).bounds)
    assert "members_draft_kv_use_mean" not in row["mean"]  # which nobody counts
    assert "±: 95% interval of the mean over seeds" in repr(found)


def test_runs_alike_but_for_their_setting_are_told_apart_by_folder(run, tmp_path):
    write_serving(worked_log(ABOUT.model_copy(update={"setting": {"rate": 2}})), tmp_path / "faster")
    shown = repr(metrics([run, tmp_path / "faster"]))
    assert str(run) in shown
    assert "faster" in shown


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("--slo", "itl=1"), "--slo must name one of ttft, tpot, e2e, queue, got 'itl'"),
        (("--slo", "ttft"), "--slo must be NAME=SECONDS, got 'ttft'"),
        (("--slo", "ttft=0"), "--slo ttft must be > 0 and finite, got 0.0"),
        (("--slo", "ttft=1,ttft=2"), "--slo ttft is given twice"),
        (("--slo", "ttft=1", "--slo", "ttft=2"), "--slo ttft is given twice"),
        (("--slo", "chat:ttft=1", "--slo", "chat:ttft=2"), "--slo chat: ttft is given twice"),
        (("--slo", "chat:ttft"), "--slo chat: must be NAME=SECONDS, got 'ttft'"),
        (("--slo", ":ttft=1"), "--slo must be [CLASS:]NAME=SECONDS,..., got ':ttft=1'"),
        (
            ("--slo", "ttft=1", "--slo", "ttft:e2e=1"),
            "--slo cannot promise ttft to all where a class has that name, got ttft as both",
        ),
        (("--slo", "chat:ttft=1"), "--slo must name a class of the requests (none), got 'chat'"),
    ],
)
def test_what_is_no_promise(run, given, line):
    ran = paceline("metrics", run, *given)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"paceline: error: {line}\n"


def test_the_same_run_twice(run):
    ran = paceline("metrics", run, run)
    assert ran.code == 2
    assert "runs of one setting must differ in their seed, got seeds [0, 0]" in ran.err


def test_what_is_no_run(tmp_path):
    ran = paceline("metrics", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"paceline: error: {tmp_path}/meta.json: file: must be a readable file")


def test_logs_and_no_run():
    assert metrics(worked_log()).to_json()["rows"][0]["runs"][0]["folder"] == "run 1"
    with pytest.raises(ValueError, match="`runs` must hold one, got none"):
        metrics([])
