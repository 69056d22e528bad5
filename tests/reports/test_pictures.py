"""Figures of results: panels say what the tables say, files are whole and the same again, refusals are a line."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.reports import figure as figures
from paceline.reports import summarise_run
from paceline.reports.figure import MOST_PANELS, write_figure
from paceline.reports.figure_matplotlib import drawn
from paceline.reports.panels import (
    HeatMap,
    Panel,
    Ranking,
    acceptance_by_level,
    kept_by_position,
    ranking,
    seconds_by_member,
    series_of,
)

from ..cli.command_line import done, refused
from .making import by_hand

POLICIES = ["draft:4/target", "confident", "typical", "oracle-best-static"]
COSTS = {
    name: {"intercept_s": at, "per_new_token_s": at / 300, "per_kv_token_s": 1e-8}
    for name, at in (("draft", 0.0007), ("mid", 0.0018), ("slim", 0.0024), ("target", 0.0048))
}


@pytest.fixture(scope="module")
def recording():
    return paceline.open_recording()


@pytest.fixture(scope="module")
def compared(recording):
    return paceline.compare(recording, ["draft:4/target", "confident", "typical"], by_tag=True, seeds=2)


def test_a_comparison_ranks_its_speed_ups(compared):
    first, kept, by_level, tags, quality = compared.panels()
    rows = compared.runs.ranked()
    assert first.names == tuple(f"{row.policy} (lossy)" if row.policy == "typical" else row.policy for row in rows)
    assert first.values == tuple(compared.runs.speed_up(row) for row in rows)
    assert first.reference == 1.0
    assert 0 in first.filled
    assert first.bounds[-1] is None  # the target alone is what the others are measured against
    for row, bounds in zip(rows[:-1], first.bounds[:-1], strict=True):
        assert bounds == compared.runs.speed_up_interval(row).bounds
    assert {series.name for series in kept.series} == {"draft:4/target", "confident", "typical"}
    assert tags.columns == tuple(compared.by_tag.tags)
    target = dict(zip(by_level.rows, (row[-1] for row in by_level.values), strict=True))
    assert target == {row.policy: row.draft_acceptance_rate for row in rows if row.policy != "plain"}
    (typical,) = [series for series in quality.series if series.name == "typical"]
    row = next(row for row in rows if row.policy == "typical")
    assert (typical.x, typical.y) == ((row.quality.divergences_per_1000,), (compared.runs.speed_up(row),))
    speeds, *_ = replace(compared, runs=replace(compared.runs, baseline=None)).panels()
    assert (speeds.title, speeds.reference) == ("Output tokens/s", None)
    assert speeds.values == tuple(compared.runs.output_tokens_per_s(row) for row in rows if row.policy != "plain")
    place = tags.rows.index("draft:4/target")
    assert tags.values[place] == tuple(compared.by_tag.speed_ups("draft:4/target").values())
    for column in range(len(tags.columns)):
        (best,) = [row for row, at in tags.marked if at == column]
        assert tags.values[best][column] == max(row[column] for row in tags.values)


def test_what_cannot_be_told_apart_is_filled(recording):
    found = paceline.compare(recording, ["draft:4/target", "mid:4/target", "slim:4/target"])
    panel = found.panels()[0]
    filled = {panel.names[place] for place in panel.filled}
    assert filled == {"draft:4/target", "mid:4/target"}
    assert "mid:4/target (1.59x) cannot be told apart from it" in found.lines()[0]


def test_a_position_counts_the_rounds_that_kept_it():
    row = replace(summarise_run(by_hand()), accepted_histogram=(4, 3, 2, 1))
    (panel,) = kept_by_position([row])
    assert panel.series[0].x == (1.0, 2.0, 3.0)
    assert panel.series[0].y == (0.6, 0.3, 0.1)


def test_members_of_another_pool_stand_under_their_own_names():
    row = summarise_run(by_hand())
    fewer = replace(row, levels=row.levels[-1:])
    for rows in ([row, fewer], [fewer, row]):
        for panel in (seconds_by_member(rows), *acceptance_by_level(rows)):
            place = panel.columns.index(row.levels[-1].name)
            assert panel.values[0][place] == panel.values[1][place]
            assert [value for value in panel.values[rows.index(fewer)] if value is not None] == [panel.values[0][place]]


def test_a_state_is_drawn_until_the_next_one():
    """A ramp between two states would show values that never were."""
    panel = Panel(
        title="Running", x_label="s", y_label="requests", kind="steps", series=series_of([0, 9], {"a": [4, 0]})
    )
    assert drawn((panel,), "").axes[0].lines[0].get_drawstyle() == "steps-post"


def test_windows_by_batch_are_a_map(recording):
    swept = paceline.sweep(recording, ["draft:1..4/target", "draft:1..2/mid:2..6:2/target"], batches=[1, 4])
    by_batch, *by_windows = swept.panels()
    assert (by_batch.columns, by_batch.rows) == (("1", "2", "3", "4"), ("1", "4"))
    cells = {(cell["batch"], cell["policy"]): cell["speed_up"] for cell in swept.to_dicts()}
    assert by_batch.values == tuple(
        tuple(cells[batch, f"draft:{window}/target"] for window in range(1, 5)) for batch in (1, 4)
    )
    assert [panel.title for panel in by_windows] == [
        "draft:window/mid:window/target, batch 1",
        "draft:window/mid:window/target, batch 4",
    ]
    assert by_windows[1].values[2][1] == cells[4, "draft:2/mid:6/target"]
    framed = sum(len(panel.marked) for panel in swept.panels())
    assert framed == 2  # the best chain of each batch


def test_windows_at_one_batch_are_a_line_with_intervals(recording):
    (panel,) = paceline.sweep(recording, ["draft:1..3/target"]).panels()
    assert isinstance(panel, Panel)
    assert panel.series[0].x == (1.0, 2.0, 3.0)
    assert all(low < y < high for y, (low, high) in zip(panel.series[0].y, panel.series[0].ends, strict=True))


def test_chains_that_are_no_grid_are_ranked(recording):
    (panel,) = paceline.sweep(recording, ["draft:1..2/mid:4..5/slim:6..7/target"]).panels()
    assert isinstance(panel, Ranking)
    assert list(panel.values) == sorted(panel.values, reverse=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    (place / "costs.json").write_text(json.dumps(COSTS))
    return place


def test_rates_are_lines_with_intervals_over_seeds(folder):
    found = paceline.compare_under_load(
        None,
        ["plain", "draft:4/target"],
        workload="poisson:requests=20",
        cluster="h100",
        rates=(20, 400),
        cost=str(folder / "costs.json"),
        seeds=2,
    )
    speed, in_system, throughput = found.panels()
    assert [series.name for series in speed.series] == ["plain", "draft:4/target"]
    assert speed.series[0].y == (1.0, 1.0)
    assert speed.log_x
    rows = [one.rows[1] for one in found.rates]
    assert in_system.series[1].y == pytest.approx([1e3 * row.mean("in_system_s") for row in rows])
    assert in_system.series[1].ends == tuple(
        pytest.approx([1e3 * end for end in row.interval("in_system_s").bounds]) for row in rows
    )
    # A gain is a geometric mean, which is not midway between the ends of its interval, in the picture as in the table.
    assert speed.series[1].ends == tuple(one.gain(one.rows[1]).bounds for one in found.rates)
    assert throughput.y_label == "output tokens/s"
    assert "95% interval over seeds" in found.headline()
    # Where an interrupt left a policy out, none is the best.
    cut = replace(found.rates[1], rows=found.rates[1].rows[:1])
    assert [best.rate for best in replace(found, rates=(found.rates[0], cut)).best] == [20]


def test_one_rate_is_ranked(folder):
    found = paceline.compare_under_load(
        None,
        ["plain", "draft:4/target"],
        workload="poisson:rate=50,requests=20",
        cluster="h100",
        cost=str(folder / "costs.json"),
        seeds=1,
    )
    panels = found.panels()
    assert all(isinstance(panel, Ranking) for panel in panels)
    assert panels[0].names == ("plain", "draft:4/target")
    assert panels[0].bounds == (None, None)


def test_a_served_run_shows_latencies_and_requests(folder):
    cluster = folder / "two.toml"
    cluster.write_text('[[replicas]]\ndevice = "h100"\ncost = "costs.json"\ncount = 2\n')
    run = paceline.simulate("poisson:rate=60,requests=30", "draft:4/target", cluster=str(cluster))
    *latencies, requests = run.panels()
    assert [panel.title for panel in latencies] == ["Time to first token", "Time per output token", "Whole request"]
    assert latencies[0].categories == ("p50", "p90", "p99")
    running, waiting = requests.series
    assert min(running.y) >= 0
    assert running.y[-1] == waiting.y[-1] == 0
    assert max(running.y) <= sum(replica.most_running for replica in run.log.meta.replicas)
    other = paceline.simulate("poisson:rate=60,requests=30", "plain", cluster=str(cluster))
    both = paceline.metrics([run.log, other.log])
    assert both.panels()[0].names == ("draft:4/target", "plain")
    assert [panel.title for panel in both.panels()][-1] == "Output tokens/s"


def test_plot_gives_a_figure_and_writes_only_where_asked(compared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = compared.plot()
    assert len(found.axes) == 7  # five panels and two scales
    assert list(tmp_path.iterdir()) == []


def test_maps_of_a_figure_have_one_scale(recording):
    swept = paceline.sweep(recording, ["draft:1..3/target", "draft:1..2/mid:4..6:2/target"], batches=[1, 16])
    images = [axes.images[0].get_clim() for axes in swept.plot().axes if axes.images]
    assert len(images) == 3
    assert len(set(images)) == 1


CALLS = {
    "compare": ["compare", "--policy", "draft:4/target"],
    "sweep": ["compare", "--sweep", "draft:1..2/target"],
    "load": [
        *("compare", "--workload", "poisson:rate=50,requests=10", "--cluster", "h100", "--policy", "plain"),
        *("--seeds", "1"),
    ],
    "simulate": ["simulate", "--workload", "poisson:rate=50,requests=10", "--cluster", "h100", "--policy", "plain"],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_commands_draw_beside_what_they_print(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert done(*call, "--figure", "f.svg") == done(*call)
    assert Path("f.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
def test_metrics_and_runs_draw(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    done(*CALLS["simulate"], "--out", "run")
    done("metrics", "run", "--figure", "m.pdf")
    prompts = Path(paceline.__file__).parent / "pools" / "pico" / "prompts.jsonl"
    asked = ["run", "--prompts", prompts, "--limit", "2", "--max-new-tokens", "8"]
    done(*asked, "--policy", "draft:3/target", "--figure", "one.png")
    done(*asked, "--policy", "plain", "--policy", "draft:3/target", "--repeats", "2", "--figure", "two.png")
    assert all(Path(name).stat().st_size > 1000 for name in ("m.pdf", "one.png", "two.png"))


REFUSED = [
    ([*CALLS["compare"], "--figure", "f.jpg"], "--figure must end in .svg, .png or .pdf, got 'f.jpg'"),
    ([*CALLS["compare"], "--figure", "no/f.svg"], "no/f.svg: no folder no"),
    ([*CALLS["compare"], "--figure", "f.svg", "--json", "f.svg"], "--json must be a file of its own, got 'f.svg'"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_drawn_is_refused_before_anything_runs(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(*call) == message
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_a_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    line = refused(*CALLS["compare"], "--figure", "f.svg")
    assert line.startswith("figures need matplotlib: ")
    assert "[figures]" in line


def test_too_many_panels_are_refused(tmp_path):
    one = ranking("r", {"a": (1.0, None)})
    with pytest.raises(ArgumentError, match=f"^`figure` has room for {MOST_PANELS} panels, got 13: ask for less"):
        write_figure([one] * 13, tmp_path / "f.svg")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ranking("r", {}), "ranking 'r': names must hold at least one, got none"),
        (lambda: ranking("r", {"a": (float("nan"), None)}), "ranking 'r': numbers must be finite, got nan"),
        (
            lambda: Ranking(title="r", x_label="", names=("a",), values=(), bounds=()),
            "ranking 'r': names, values and bounds must be as long, got [1, 0, 0]",
        ),
        (lambda: heat(values=((None,),)), "heat map 'h': values must hold at least one, got none"),
        (lambda: heat(values=((1.0, 2.0),)), "heat map 'h': values must be 1 x 1, got rows of [2]"),
        (lambda: heat(values=((float("inf"),),)), "heat map 'h': numbers must be finite, got inf"),
    ],
)
def test_wrong_panels_are_refused(made, said):
    with pytest.raises(ValueError, match=r"^(ranking|heat map)") as refusal:
        made()
    assert str(refusal.value) == said


def heat(**changes):
    given = {"title": "h", "x_label": "", "y_label": "", "columns": ("1",), "rows": ("1",), "value_label": "v"}
    return HeatMap(**given, **changes)


def test_nothing_of_matplotlib_is_imported_without_a_figure():
    assert "matplotlib.pyplot" not in sys.modules
