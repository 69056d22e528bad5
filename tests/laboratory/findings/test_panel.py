"""Panels that are made of names and values."""

import pytest
from paceline.reports.panels import by_category, series_of


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
