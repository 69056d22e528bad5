"""The figure of a validation holds every cell once, and its errors by policy."""

import pytest
from paceline.reports.figure import write_figure
from paceline.reports.panels import validation_panels
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


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_it_is_drawn(tmp_path, suffix):
    many = [*CELLS, *(cell_of("plain", 1, f"t{place}", 0.0, measured_s=1.0 + place) for place in range(60))]
    write_figure(validation_panels(many), tmp_path / f"a{suffix}")
    assert (tmp_path / f"a{suffix}").stat().st_size > 1000
