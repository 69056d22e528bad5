"""A run that is interrupted says what had happened until then, in the midst of jumps as well."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import MICROSECOND, Run, target_only
from .both_paths import told, whole_budgets
from .lined_costs import COSTS


class Interrupts:
    """Stops a run when it is asked the n-th time."""

    def __init__(self, place):
        self.left = place

    def ended(self):
        pass

    def interrupted(self):
        self.left -= 1
        return self.left <= 0


@st.composite
def spread(draw):
    """Requests of which no two come at once."""
    gaps = draw(st.lists(st.sampled_from([1, 150, 2_000, 10_000]), min_size=1, max_size=12))
    times = [sum(gaps[: index + 1]) * MICROSECOND for index in range(len(gaps))]
    lengths = st.tuples(st.integers(1, 40), st.integers(1, 60))
    return [Arrival(f"q{index}", at_ps, *draw(lengths)) for index, at_ps in enumerate(times)]


@given(st.data())
def test_an_interrupt_when_a_request_comes_is_a_horizon_at_that_instant(data):
    tables, arrivals = target_only(), data.draw(spread())
    place = data.draw(st.integers(1, len(arrivals)))
    at_ps = arrivals[place - 1].arrives_ps
    options = {
        "limits": data.draw(whole_budgets(tables)),
        "num_replicas": data.draw(st.integers(1, 3)),
        "outputs": None,
        "cost": data.draw(st.sampled_from(COSTS))(tables),
    }
    *jumps, (*sums, stopped) = told(Run(arrivals, tables, watcher=Interrupts(place), **options))
    *steps, (*sums_of_steps, horizon) = told(Run(arrivals, tables, horizon_ps=at_ps, stepwise=True, **options))
    assert jumps[0].pop("stopped") == stopped == "interrupted"
    assert steps[0].pop("stopped") == horizon == "horizon"
    assert (jumps, sums) == (steps, sums_of_steps)


@given(st.data())
def test_what_an_interrupt_leaves_goes_together(data):
    """Wherever it comes: the log is checked as it is made, and requests have ended, wait or run."""
    tables, arrivals = target_only(), data.draw(spread())
    watcher = Interrupts(data.draw(st.integers(1, 2 * len(arrivals))))
    cost = data.draw(st.sampled_from(COSTS))(tables)
    log = Run(arrivals, tables, watcher=watcher, cost=cost, outputs=None, num_replicas=2).go().log
    assert log.meta.stopped or log.finished.all()
    assert (
        log.requests["emitted_tokens"].sum() == log.meta.levels[-1].own + (log.requests["first_token_at_ps"] >= 0).sum()
    )
