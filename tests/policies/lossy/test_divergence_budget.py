"""The controller that holds a rate of divergences by letting the target check some blocks."""

from random import Random

import pytest
from paceline.policies.lossy import DivergenceBudget


@pytest.mark.parametrize(("per_thousand", "floor"), [(20.0, 0.05), (50.0, 0.02), (100.0, 0.3), (300.0, 0.4)])
def test_it_settles_where_the_rate_is_the_budget(per_thousand, floor):
    """Blocks of five tokens; thresholds at their strictest leave `floor` divergences a token, the laxest 0.5."""
    rng = Random(3)
    control = DivergenceBudget(per_thousand)
    divergences = tokens = 0
    for block in range(40_000):
        rate = floor + max(0.5 - floor, 0.0) * (1.0 - min(control.strictness, 1.0))
        found = [rng.random() < rate for _ in range(5)]
        if control.is_due():
            end = found.index(True) + 1 if True in found else 5
            control.note_check(5, end, int(True in found))
            found = [False] * end
        if block >= 5000:
            divergences += sum(found)
            tokens += len(found)
    assert 1000 * divergences / tokens == pytest.approx(per_thousand, rel=0.25)


def test_strictness_stays_in_its_range():
    control = DivergenceBudget(1000.0)
    control.note_check(100, 100, 0)
    assert control.strictness == 0.0
    tight = DivergenceBudget(0.001)
    for _ in range(100):
        tight.note_check(1, 1, 1)
    assert tight.share <= 1.0
    assert tight.strictness <= 2.0


@pytest.mark.parametrize("per_thousand", [0.0, -1.0, 1000.5, float("nan")])
def test_a_budget_out_of_range(per_thousand):
    with pytest.raises(ValueError, match=r"budget must be in \(0, 1000\] divergences per 1,000 tokens"):
        DivergenceBudget(per_thousand)
