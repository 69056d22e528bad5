"""Rows of unequal length are measured within a context of any size."""

import pytest
from paceline.runtime.profiling.forwards import cases_within, measure_uneven
from paceline.traces.profile import ProfiledForwards, Shape

from ...tiny_models import tiny_pool_of_four

POOL = tiny_pool_of_four()


@pytest.mark.parametrize("longest", [51, 60, 100, 200, 300])
def test_every_case_fits_every_context_that_has_room_for_its_new_tokens(longest):
    cases = cases_within(longest)
    assert len(cases) == 14
    for case in cases:
        totals = [held + count for held, count in zip(case.held, case.counts, strict=True)]
        assert max(totals) <= longest
        assert min(case.counts) >= 1
    assert any(len(set(case.held)) > 1 for case in cases)


def test_a_context_that_holds_next_to_nothing_has_few():
    assert 0 < len(cases_within(10)) < 14
    assert cases_within(1) == []


def test_uneven_rows_of_a_short_context_are_measured():
    """Whatever these took beyond even ones, it is in terms of which none is negative."""
    even = ProfiledForwards(
        [Shape("draft", rows, new, held, 1e-9, 0.0) for rows in (1, 12) for new in (1, 60) for held in (0, 60)], None
    )
    found = measure_uneven({"draft": POOL.forward(1, "auto", share_weights=False)}, {"draft": even}, longest=56)
    assert max(found["draft"].model_dump().values()) > 0
