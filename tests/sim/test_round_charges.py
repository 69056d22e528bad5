"""Seconds of imported recordings that were timed, worked out in the head."""

import pytest
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.cost import CostRangeError, TimedCost
from paceline.sim.rounds_tables import RoundsTables
from paceline.sim.simulate import Scenario, simulate

from .small_rounds import one_request, recording_of, rounds_of
from .small_traces import Script, table

SECONDS = ((0.25, 1.0), (0.5, 2.0), (0.75, 4.0))


def timed(**rest):
    """Three rounds of 3 drafted tokens, the first and second with a refusal."""
    rounds = rounds_of((0, 2, 3), (3, 1, 3), (5, 3, 3), seconds=SECONDS)
    request = one_request({"": 9, "feature": 9}, {"feature": rounds}, **rest)
    return recording_of(request, drafters=(("feature", True, 3),))


def durations(recording, policy, **scenario):
    scenario = Scenario(tables=RoundsTables(recording), cost=TimedCost(recording), **scenario)
    return table(simulate(scenario, policy, "p"), "ops", "kind", "new_tokens", "duration_s")


def test_recorded_rounds_cost_their_own_seconds():
    recording = timed(prefill_s={"feature": 8.0})
    ops = durations(recording, make_policy("feature:3/target", RoundsTables(recording).pool))
    assert [seconds for *_, seconds in ops] == [8.25, 1.0, 0.5, 2.0, 0.75, 4.0]
    assert [new_tokens for kind, new_tokens, _ in ops if kind] == [4, 4, 4]


def test_other_rounds_cost_the_means():
    recording = timed()
    steps = [Draft("feature", 3), Draft("feature", 1), Verify("target"), Draft("feature", 3), Verify("target")]
    pool = RoundsTables(recording).pool
    scenario = Scenario(tables=RoundsTables(recording), cost=TimedCost(recording, extrapolate=True))
    ops = table(simulate(scenario, Script(pool, steps), "p"), "ops", "duration_s")
    # A second draft of one token: the mean of nine; then the verification is not the round's own.
    assert [seconds for (seconds,) in ops[:2]] == pytest.approx([0.25, 1.5 / 9])
    assert ops[2][0] == pytest.approx(7 / 3)
    assert [seconds for (seconds,) in ops[3:5]] == [0.5, 2.0]


def test_steps_of_the_target_alone():
    recording = timed(wall_s={"": 13.5, "feature": 9.0}, prefill_s={"": 4.5})
    ops = durations(recording, make_policy("plain", RoundsTables(recording).pool))
    assert [seconds for *_, seconds in ops] == [5.5] + [1.0] * 8


def test_what_was_measured_one_at_a_time_is_not_batched():
    recording = timed()
    two = recording_of(
        recording.requests[0],
        one_request({"": 4}, {}, request_id="r1"),
        drafters=(("feature", True, 3),),
    )
    with pytest.raises(CostRangeError, match="one request at a time, asked for 2"):
        durations(two, make_policy("feature:3/target", RoundsTables(two).pool), batch=2)
