"""`paceline metrics`: the figures of serving runs, alone, side by side and over seeds."""

import pytest
from paceline.runs.serving import write_serving
from paceline.studies.serving import metrics

from ...reports.serving.worked_example import ABOUT, worked_log
from ..command_line import paceline


@pytest.fixture
def run(tmp_path):
    write_serving(worked_log(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path):
    write_serving(worked_log(ABOUT.model_copy(update={"policy": "plain", "notes": ("a note",)})), tmp_path / "other")
    return tmp_path / "other"


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
