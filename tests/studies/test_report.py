"""Runs of both worlds, comparisons and sweeps become pages, whose pictures say what was in the runs."""

import itertools
import json
from pathlib import Path

import numpy as np
import paceline
import pytest
from paceline.reports.panels import Panel, Spans
from paceline.reports.timeline import counter_panels, swim_lanes
from paceline.runs.observed import ObservedRun, write_observed
from paceline.runs.serving import read_serving
from paceline.studies.report import _told
from paceline.studies.timeline import events_of, read_run

from ..cli.command_line import done, refused
from ..reports.test_figures import META, RUN
from ..reports.test_page import checked

SERVED = ["simulate", "--workload", "poisson:rate=900,requests=30", "--cluster", "h100"]
GRID = 'policies = ["plain", "draft:2/target"]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two served runs, one of them with its operations, and the logs of two replays."""
    path = tmp_path_factory.mktemp("runs")
    done(*SERVED, "--policy", "draft:4/target", "--events", "--out", path / "chain")
    done(*SERVED, "--policy", "plain", "--out", path / "plain")
    done("compare", "--policy", "draft:4/target", "--policy", "plain", "--log", path / "logs")
    return path


def page(folder, tmp_path, *inputs):
    html = paceline.report([folder / one for one in inputs], tmp_path / "page.html").read_text(encoding="utf-8")
    return html, " ".join(checked(html).texts)


@pytest.mark.slow
def test_served_runs_stand_side_by_side(folder, tmp_path):
    _, text = page(folder, tmp_path, "chain", "plain")
    report = paceline.metrics([folder / "chain", folder / "plain"])
    for grid in report.tables():
        assert all(cell.strip() in text for row in grid.rows for cell in row)
    assert text.count("the slowest request and those that arrived around it") == 2
    assert "what members did while" in text
    for title in ("Time to first token", "Queue", "Running requests", "KV tokens, target"):
        assert title in text
    best = max(report.rows, key=lambda row: row.mean("output_tokens_per_s")).about.policy
    assert f"most output tokens/s: {best}" in text
    assert "regret (compare --regret)" in text


def test_replays_stand_side_by_side(folder, tmp_path):
    names = sorted(path.name for path in (folder / "logs").iterdir())
    _, text = page(folder, tmp_path, *(f"logs/{name}" for name in names))
    for name in names:
        found = paceline.reports.summarise_run(read_run(folder / "logs" / name))
        assert f"{found.policy} wrote {found.output_tokens_per_s:,.1f} tokens/s" in text
    assert "recording pico, replayed" in text


def test_a_replay_by_a_lossy_policy_is_named_so_and_a_partial_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done("compare", "--policy", "typical", "--policy", "plain", "--log", "logs")
    _, text = page(tmp_path, tmp_path, "logs/00-typical", "logs/01-plain")
    assert "typical (lossy) wrote " in text
    assert "plain (lossy)" not in text
    meta = Path("logs/01-plain/meta.json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"interrupted": True}))
    says = "01-plain: must be a whole run, got a partial one (interrupted)"
    assert refused("report", "logs/01-plain", "--out", "r.html") == says


def test_runs_of_one_policy_are_told_apart_by_their_names(folder, tmp_path):
    done("trace", "make", tmp_path / "two.trace", "--requests", "2", "--tokens", "20")
    done("compare", "--trace", tmp_path / "two.trace", "--policy", "draft:4/target", "--log", tmp_path / "logs")
    other = (tmp_path / "logs" / "00-draft_4_target").rename(tmp_path / "other")
    page = paceline.report([folder / "logs" / "00-draft_4_target", other], tmp_path / "page.html").read_text(
        encoding="utf-8"
    )
    for name in ("00-draft_4_target", "other"):
        assert f'aria-label="{name}: draft:4/target: ' in page  # points of its line
        assert f"<caption>{name}: draft:4/target: " in page


def test_latencies_of_a_server_begin_as_in_its_figures_when_a_request_is_sent(tmp_path):
    write_observed(ObservedRun(META, RUN), tmp_path / "run")
    html = paceline.report(tmp_path / "run", tmp_path / "page.html").read_text(encoding="utf-8")
    assert "run: 100 % of requests at most at 80 ms" in html  # not the 81 ms since it was due
    assert "run: 100 % of requests at most at 110 ms" in html


def test_swim_lanes_hold_the_slowest_request_in_its_stages(folder):
    log = read_serving(folder / "chain")
    lanes, members = swim_lanes("chain", events_of(log))
    assert isinstance(lanes, Spans)
    took = log.requests["ended_at_ps"] - log.requests["arrived_at_ps"]
    slowest = int(took.argmax())
    (row,) = [row for row, name in enumerate(lanes.rows) if name.endswith("(slowest)")]
    assert lanes.rows[row] == f"{log.requests['request_id'][slowest]} (slowest)"
    own = [span for span in lanes.spans if span.row == row]
    assert sum(span.end - span.start for span in own) == pytest.approx(took[slowest] / 1e12, rel=1e-6)
    assert [span.kind for span in own] in (["wait", "prefill", "decode"], ["prefill", "decode"])
    # Operations of a member do not lie above each other.
    for row in range(len(members.rows)):
        ends = sorted((span.start, span.end) for span in members.spans if span.row == row)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(ends))


def test_counters_keep_their_peaks(folder):
    log = read_serving(folder / "plain")
    panels = {panel.title: panel for panel in counter_panels({"plain": events_of(log)})}
    assert all(isinstance(panel, Panel) for panel in panels.values())
    assert max(panels["Running requests"].series[0].y) == log.series["running"].max()
    assert max(panels["Waiting requests"].series[0].y) == log.series["waiting"].max()
    assert np.isfinite(panels["KV tokens, target"].series[0].x).all()


def test_a_sweep_is_a_table_of_its_cells_once_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(GRID)
    done("sweep", "grid.toml", "--out", "cells", "--shard", "1/2", "--jobs", "1")
    assert refused("report", "cells", "--out", "r.html") == (
        "cells: must be a whole sweep, got 1 of 2 cells not played"
    )
    done("sweep", "grid.toml", "--out", "cells", "--jobs", "1")
    done("report", "cells", "--out", "r.html")
    text = " ".join(checked(Path("r.html").read_text()).texts)
    assert "2 cells, 0 failed" in text
    assert "best by speed_up: " in text
    assert "draft:2/target" in text
    assert "measured by new tokens only: a longer context costs no more" in text


def test_a_sweep_in_which_drafting_hardly_loses_does_not_call_it_even(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    costs = {
        name: {"intercept_s": at} for name, at in (("draft", 0.004), ("mid", 1.0), ("slim", 1.0), ("target", 0.005))
    }
    Path("costs.json").write_text(json.dumps(costs))
    Path("grid.toml").write_text('policies = ["draft:1/target"]\ncosts = ["costs.json"]\n')
    done("sweep", "grid.toml", "--out", "cells", "--jobs", "1")
    done("report", "cells", "--out", "r.html")
    speed_up = next(iter(paceline.best_cells("cells", objective=["speed_up"]).found)).mean("speed_up")
    assert speed_up < 1
    assert f"the target alone, as draft:1/target has {speed_up:.3f}x" in Path("r.html").read_text()
    assert _told("draft:1/target", 0.9996, 1.0) == "the target alone, as draft:1/target has 0.999x"


def test_policies_that_differ_in_their_options_are_counted_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text('policies = ["adaptive,start=1,most=1|6"]\n[options]\nbatch = [1, 32]\n')
    done("sweep", "grid.toml", "--out", "cells", "--jobs", "1")
    done("report", "cells", "--out", "r.html")
    text = " ".join(checked(Path("r.html").read_text()).texts)
    assert "in sample: chosen among 4 settings by the figures that are shown, which flatters them" in text
    assert "best by speed_up: adaptive,start=1,most=6 in 1, adaptive,start=1,most=1 in 1 of 2 settings" in text


def test_a_sweep_under_load_without_promises_is_ranked_by_its_throughput(tmp_path, monkeypatch):
    """Goodput is a column of its cells, and unknown in each."""
    monkeypatch.chdir(tmp_path)
    Path("grid.toml").write_text(
        f'{GRID}workloads = ["poisson:requests=4"]\nclusters = ["h100"]\nrates = [20]\n'
        '[options]\nmodels = [["target=llama-3.1-8b", "draft=eagle3"]]\n'
    )
    done("sweep", "grid.toml", "--out", "cells", "--jobs", "1")
    done("report", "cells", "--out", "r.html")
    text = " ".join(checked(Path("r.html").read_text()).texts)
    assert "best by output_tokens_per_s: " in text
    assert "--objective output_tokens_per_s" in text
    assert "goodput_per_s" not in text


def test_a_sweep_of_replicas_with_policies_of_their_own_is_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('[[replicas]]\nname = "a"\ndevice = "h100"\npolicy = "draft:4/target"\n')
    Path("grid.toml").write_text('workloads = ["poisson:requests=4"]\nclusters = ["own.toml"]\nrates = [20, 40]\n')
    done("sweep", "grid.toml", "--out", "cells", "--jobs", "1")
    done("report", "cells", "--out", "r.html")
    text = " ".join(checked(Path("r.html").read_text()).texts)
    assert "best by output_tokens_per_s: the replicas' own in 2 of 2 settings" in text


def test_a_run_that_was_stopped_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done(*SERVED, "--policy", "plain", "--horizon-seconds", "0.01", "--out", "cut", "--json", "cut.json")
    why = json.loads(Path("cut.json").read_text())["rows"][0]["runs"][0]["stopped"]
    assert refused("report", "cut", "--out", "r.html") == f"cut: must be a whole run, got a partial one ({why})"
    assert refused("report", "cut.json", "--out", "r.html").startswith(
        "cut.json: must be of a whole run, got a partial"
    )
    assert not Path("r.html").exists()
