"""Who is best where: by means, with what chance leaves open, in words."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from paceline.reports.serving_tables import GOODPUT, IN_SYSTEM, Best, MeasuredRun, SeedRow, best_at, in_words
from paceline.runs.serving import ServingAbout


def row(policy, *values, figure="in_system_s"):
    def run(seed, value):
        meta = SimpleNamespace(about=ServingAbout(policy=policy, workload="w", cluster="c", seed=seed))
        return MeasuredRun(folder="", meta=meta, metrics=None, flat={figure: value})

    return SeedRow(runs=tuple(run(seed, value) for seed, value in enumerate(values)))


def test_the_least_time_and_the_most_goodput_are_best():
    assert best_at(1.0, [row("a", 3.0), row("b", 2.0)], IN_SYSTEM) == Best(rate=1.0, policy="b", tied=())
    good = [row("a", 3.0, figure="slo_share"), row("b", 2.0, figure="slo_share")]
    assert best_at(1.0, good, GOODPUT).policy == "a"


def test_differences_of_the_same_seeds_tell_apart_what_intervals_do_not():
    spread = [row("a", 1.0, 5.0, 9.0), row("b", 1.1, 5.1, 9.1)]
    assert best_at(None, spread, IN_SYSTEM).tied == ()
    crossed = [row("a", 1.0, 5.0, 9.0), row("b", 1.1, 4.9, 9.2)]
    assert best_at(None, crossed, IN_SYSTEM).tied == ("b",)


def test_a_run_without_chance_stands_for_every_seed():
    assert best_at(1.0, [row("a", 2.0), row("b", 3.0, 3.5, 4.0)], IN_SYSTEM).tied == ()
    assert best_at(1.0, [row("a", 2.0), row("b", 1.5, 3.0, 4.0)], IN_SYSTEM).tied == ("b",)
    equal = Best(rate=1.0, policy="a", tied=("b",), same=("b",))
    assert best_at(1.0, [row("a", 2.0), row("b", 2.0)], IN_SYSTEM) == equal
    assert best_at(1.0, [row("a", 2.0), row("b", 2.0, 2.0)], IN_SYSTEM) == equal


def test_nobody_is_best_where_a_figure_is_not_known():
    assert best_at(1.0, [row("a", None), row("b", 2.0)], IN_SYSTEM) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], []),
        ([(None, "a")], ["least time in the system: a at the workload's own rate"]),
        ([(1.0, "a"), (2.0, "a")], ["least time in the system: a from 1 to 2 arrivals/s"]),
        (
            [(1.0, "a"), (2.5, "a"), (4.0, "b"), (8.0, "a")],
            [
                "least time in the system: a from 1 to 2.5 arrivals/s; b at 4 arrivals/s; a at 8 arrivals/s",
                "between 2.5 arrivals/s and 4 arrivals/s the best policy changes from a to b",
                "between 4 arrivals/s and 8 arrivals/s the best policy changes from b to a",
            ],
        ),
    ],
)
def test_words(found, said):
    assert in_words([Best(rate=rate, policy=policy, tied=()) for rate, policy in found], IN_SYSTEM) == said


def test_what_chance_leaves_open_is_said():
    (_, said) = in_words([Best(rate=4.0, policy="a", tied=("b", "c"))], IN_SYSTEM)
    assert said == "at 4 arrivals/s chance leaves open whether a is better than b or c"


def test_what_is_equal_is_no_matter_of_chance():
    (_, said) = in_words([Best(rate=4.0, policy="a", tied=("b", "c"), same=("b", "c"))], IN_SYSTEM)
    assert said == "at 4 arrivals/s b and c did exactly as well as a"
    _, equal, left = in_words([Best(rate=None, policy="a", tied=("b", "c"), same=("b",))], IN_SYSTEM)
    assert equal == "at the workload's own rate b did exactly as well as a"
    assert left == "at the workload's own rate chance leaves open whether a is better than c"


def test_where_all_promises_are_met_by_all_the_time_in_the_system_tells_them_apart():
    def both(policy, share, seconds):
        (run,) = row(policy, share, figure="slo_share").runs
        return SeedRow(runs=(replace(run, flat={**run.flat, "in_system_s": seconds}),))

    equal = best_at(1.0, [both("a", 1.0, 3.0), both("b", 1.0, 2.0)], GOODPUT)
    assert (equal.policy, equal.tied, equal.aim) == ("b", (), IN_SYSTEM)
    apart = best_at(2.0, [both("a", 0.9, 3.0), both("b", 0.8, 2.0)], GOODPUT)
    assert (apart.policy, apart.aim) == ("a", GOODPUT)
    assert in_words([equal, apart], GOODPUT) == [
        "most goodput: a tie, all met as many promises; least time in the system: b at 1 arrivals/s",
        "most goodput: a at 2 arrivals/s",
    ]
