"""Instants beyond 2^53 picoseconds, which floats cannot tell apart: both ways agree there, and all is as early on."""

from random import Random

import pytest
from paceline.sim.serving.asked import AskedPolicy
from paceline.traces.profile import DecideSeconds
from paceline.traces.workloads.arrival import MOST_PS, Arrival

from .both_ways import Turns, check
from .lined_costs import COSTS, LinedLineCost
from .served_runs import LineCost, Run, limits_of, pico, target_only

LATE = (2**53 - 10**6, 2**53 + 1, 10**16 + 1, 2**60 + 3, MOST_PS - 10**12)  # from 9,007 s to 53 days
POLICIES = ("target", "draft:4/target", "draft:3/mid:6/target", "ngram:3/target")


@pytest.fixture
def ends_of(monkeypatch):
    """A function that gives the instants at which steps of the target end, of a run step by step."""

    def found(arrivals, tables, policy, **options):
        ends, wrote = [], AskedPolicy.wrote

        def spied(self, rows, results, duration_s, num_rows, books, at_ps):
            ends.append(at_ps)
            return wrote(self, rows, results, duration_s, num_rows, books, at_ps)

        with monkeypatch.context() as patched:
            patched.setattr(AskedPolicy, "wrote", spied)
            Run(arrivals, tables, policy, stepwise=True, **options).go()
        return ends

    return found


@pytest.mark.parametrize("late_ps", LATE)
@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_come_as_a_cycle_ends(ends_of, policy, late_ps):
    """Just then, and some picoseconds before or after, one after the other, so that later cycles have more rows."""
    for number in range(6):
        draw = Random(f"{policy} {late_ps} {number}")
        tables = target_only() if policy == "target" and number % 2 else pico()
        options = {
            "cost": draw.choice([*COSTS, LineCost])(tables),
            "limits": limits_of(tables, num_blocks=draw.choice([60, 10**6]), prefix_cache=draw.random() < 0.3),
        }
        arrivals = [Arrival("q0", late_ps, draw.randint(1, 30), draw.randint(40, 90))]
        for name in ("q1", "q2", "q3"):
            came_ps = arrivals[-1].arrives_ps
            ends = [end for end in ends_of(arrivals, tables, policy, **options) if end > came_ps + 2]
            if not ends:
                break
            at_ps = draw.choice(ends[:30]) + draw.choice([-2, -1, 0, 0, 1, 2])
            turns = Turns(name, 1, draw.choice([0, 1])) if draw.random() < 0.2 else None
            arrivals.append(Arrival(name, at_ps, draw.randint(1, 30), draw.randint(1, 60), turns=turns))
        horizon_ps = draw.choice([None, draw.choice(ends) + draw.choice([-1, 0, 1])]) if ends else None
        check(arrivals, tables, policy, horizon_ps=horizon_ps, **options)


class Decides(LinedLineCost):
    """Every decision takes a nanosecond: at 53 days it is less than a step of floats of seconds."""

    def decide_s(self, policy):
        return DecideSeconds.of_step(1e-9)


@pytest.mark.parametrize("late_ps", LATE)
@pytest.mark.parametrize("policy", [*POLICIES, "early-commit"])
@pytest.mark.parametrize("cost", [LinedLineCost, Decides])
def test_a_late_run_is_an_early_one_later(policy, late_ps, cost):
    tables = pico()
    early = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 20 + index % 30) for index in range(20)]
    late = [one._replace(arrives_ps=one.arrives_ps + late_ps) for one in early]
    first, then = (Run(arrivals, tables, policy, cost=cost(tables)).go() for arrivals in (early, late))
    assert {name: tuple(at_ps + late_ps for at_ps in times) for name, times in first.times().items()} == then.times()
    assert first.outputs == then.outputs
