"""Panels are made of names and values; the figure of a validation holds every cell once, and its errors by policy."""

import re

import pytest
from paceline.reports.figure import write_figure
from paceline.reports.panels import Panel, Series, by_category, series_of, validation_panels
from paceline.reports.seconds import Cell


def cell_of(policy, batch, tag, error, measured_s=2.0):
    return Cell(
        policy=policy,
        batch=batch,
        tag=tag,
        simulated_s=measured_s * (1 + error),
        runs_s=(measured_s,),
        tpot_error=None,
        forwards_error=error,
        beside_error=0.0,
        equal=True,
        runs_equal=True,
    )


CELLS = [
    cell_of(policy, batch, tag, error)
    for policy, batch, tag, error in (
        ("plain", 1, "a", 0.1),
        ("plain", 1, "b", 0.3),
        ("plain", 1, "c", -0.1),
        ("draft:4/target", 1, "a", 0.2),
        ("plain", 4, "a", -0.5),
    )
]


def test_every_cell_is_a_point_of_its_batch():
    seconds, _ = validation_panels(CELLS)
    assert [(series.name, len(series.x)) for series in seconds.series] == [("batch 1", 4), ("batch 4", 1)]
    assert seconds.series[1].y == pytest.approx((1.0,))
    assert seconds.diagonal


def test_errors_are_medians_over_tags_of_the_policies_that_ran():
    _, errors = validation_panels(CELLS)
    assert errors.categories == ("plain", "draft:4/target")
    one, four = errors.series
    assert one.y == pytest.approx((10.0, 20.0))
    assert one.error == pytest.approx((20.0, 0.0))
    assert (four.x, four.y) == ((0.0,), pytest.approx((-50.0,)))


def test_it_is_drawn(tmp_path):
    many = [*CELLS, *(cell_of("plain", 1, f"t{place}", 0.0, measured_s=1.0 + place) for place in range(60))]
    write_figure(validation_panels(many), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_series_lie_over_the_same_places():
    one, two = series_of([1, 2, 4], {"one": [3.0, 2.0, 1.0], "two": iter([0.5, 0.25, 0.0])})
    assert one.x == two.x == (1.0, 2.0, 4.0)
    assert two.y == (0.5, 0.25, 0.0)


def test_each_series_has_a_value_for_every_category():
    panel = by_category("title", "s", [2, "b"], {"one": [1.0, 2.0]}, kind="scatter")
    assert panel.categories == ("2", "b")
    assert panel.series[0].x == (0.0, 1.0)
    with pytest.raises(ValueError, match="x, y and error must be as long"):
        by_category("title", "s", ["a", "b"], {"one": [1.0]})


def panels():
    points = Series(name="one", x=(0.0, 1.0), y=(1.0, 3.0), error=(0.5, 0.5))
    bars = Series(name="two", x=(0.0, 1.0), y=(2.0, 4.0))
    both = {"x_label": "x", "y_label": "y"}
    return (
        Panel(title="lines", series=(points, bars), log_y=True, **both),
        Panel(title="bars", series=(points, bars), kind="bar", categories=("left", "right"), **both),
        Panel(title="points", series=(points,), kind="scatter", **both),
    )


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_figure_is_the_same_again(tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for file in files:
        write_figure(panels(), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files


def panel(**changes):
    return Panel(**{"title": "p", "x_label": "", "y_label": "", "series": panels()[0].series, **changes})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Series(name="s", x=(1.0,), y=()), "series 's': x, y and error must be as long, got [1, 0]"),
        (lambda: Series(name="s", x=(1.0,), y=(float("nan"),)), "series 's': numbers must be finite, got nan"),
        (lambda: panel(series=()), "panel 'p': series must hold at least one point, got none"),
        (lambda: panel(kind="bar"), "panel 'p': bars must have categories, got none"),
        (
            lambda: panel(categories=("a",)),
            "panel 'p', series 'one': x must be an index of 1 categories, got 1.0",
        ),
        (lambda: panel(log_x=True), "panel 'p', series 'one': x must be > 0 on a logarithmic axis, got 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(made, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        made()
