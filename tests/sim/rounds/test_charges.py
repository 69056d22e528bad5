"""Seconds of imported recordings that were timed, worked out in the head."""

from dataclasses import replace
from math import inf

import pytest
from paceline.decoding.results import Drafted
from paceline.decoding.seen import Start
from paceline.decoding.session import Session
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.charges import RoundCharges
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.measured import TimedCost
from paceline.sim.rounds import RoundsTables
from paceline.sim.rounds_answers import RequestRounds
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.importers import read_recording

from ...data_folder import data_files
from ..tries.small_traces import Script, table
from .small_rounds import one_request, recording_of, rounds_of

SPEC_BENCH = data_files("specbench_yukiki", "*.jsonl.gz")
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


def test_means_are_taken_as_a_request_compares_to_them():
    """One request takes three times as long as the other, round by round; so do its rounds that nobody recorded."""
    quick, slow = (
        one_request(
            {"": 9, "feature": 9},
            {"feature": rounds_of((0, 2, 3), (3, 1, 3), (5, 3, 3), seconds=tuple((f * d, f * v) for d, v in SECONDS))},
            request_id=name,
        )
        for name, f in (("quick", 1.0), ("slow", 3.0))
    )
    recording = recording_of(quick, slow, drafters=(("feature", True, 3),))
    cost = TimedCost(recording, extrapolate=True)
    assert cost.round_scale("quick", "feature") == pytest.approx((0.5, 0.5, inf))
    assert cost.round_scale("slow", "feature") == pytest.approx((1.5, 1.5, inf))
    scenario = Scenario(tables=RoundsTables(recording), cost=cost)
    ops = table(simulate(scenario, make_policy("feature:2/target", scenario.tables.pool), "p"), "ops", "duration_s")
    # Two drafted tokens at the mean of (1.5 + 4.5) / 18 seconds, in the request that takes half of it.
    assert ops[0][0] == pytest.approx(2 * (6.0 / 18) / 2)


@pytest.mark.skipif(not SPEC_BENCH, reason="PACELINE_DATA has no specbench_yukiki")
@pytest.mark.parametrize("window", [10, 19])
def test_windows_beside_that_of_a_drafter_that_ends_its_drafts_cost_about_as_much(window):
    """Of SpS the log says what a round took, not how much was drafted: a window of 19 is hardly one of 20."""
    recording = read_recording("spec-bench", SPEC_BENCH)
    recording = replace(recording, requests=recording.requests[::8])
    recorded, beside = (
        sum(seconds for (seconds,) in durations_of_all(recording, f"sps:{tokens}/target")) for tokens in (20, window)
    )
    assert beside == pytest.approx(recorded, rel=0.05)


def durations_of_all(recording, policy):
    scenario = Scenario(tables=RoundsTables(recording), cost=TimedCost(recording))
    return table(simulate(scenario, make_policy(policy, RoundsTables(recording).pool), "p"), "ops", "duration_s")


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


def test_a_round_that_is_cut_by_the_end_of_the_answer_costs_what_was_asked_for():
    """Engines do not know where an answer ends: their last rounds are as wide as all others."""
    recording = timed()
    cost = TimedCost(recording)
    pool = RoundsTables(recording).pool
    state = RequestRounds(recording.requests[0], recording.meta)
    charges = RoundCharges(cost, pool, recording.meta, {"r0": state})
    session = Session(pool=pool, request_id="r0", tag="a", prompt=state.prompt, budget=9, eos=None)
    session.emitted = [1] * 7  # where no round was recorded, two tokens before the end
    session.cached = [9] * len(pool.members)
    step, level = Draft("feature", 3), pool.level("feature")
    assert session.room == 2
    item, drafted = (session, step), Drafted([1, 1], [1, 1])
    assert charges.draft(level, [item], [drafted])[1] == pytest.approx(3 * 1.5 / 9)
    session.drafted(step, level, drafted, duration_s=0.0, num_rows=1)
    assert charges.verify(pool.level("target"), [(session, None)])[1] == pytest.approx(seconds_of_width(cost, 4))
    with pytest.raises(CostRangeError):
        seconds_of_width(cost, 3)


def seconds_of_width(cost, width):
    return cost.forward_s("target", num_rows=1, new_tokens=width, context_tokens=0)


def test_a_draft_in_which_nothing_was_found_costs_what_was_recorded():
    recording = timed()
    pool = RoundsTables(recording).pool
    state = RequestRounds(recording.requests[0], recording.meta)
    charges = RoundCharges(TimedCost(recording), pool, recording.meta, {"r0": state})
    session = Session(pool=pool, request_id="r0", tag="a", prompt=state.prompt, budget=9, eos=None)
    level = pool.level("feature")
    assert charges.draft(level, [(session, Draft("feature", 3))], [Drafted([], [])]) == ([(1, 0, 1, 0.25)], 0.25)
    assert charges.verify(pool.level("target"), [(session, None)])[1] == 1.0


@pytest.mark.parametrize("drafter", ["eagle", "hsd"])
def test_what_was_recorded_can_be_replayed_whatever_is_drawn(drafter):
    files = data_files("hsd_eagle3_h100", "h100*.gz")
    if not files:
        pytest.skip("no hsd_eagle3_h100: set PACELINE_DATA")
    recording = read_recording("eagle-timed", files)
    recording = replace(recording, requests=tuple(each for each in recording.requests if drafter in each.rounds))
    tables, cost = RoundsTables(recording), TimedCost(recording)
    measured = sum(
        sum(map(sum, (cost.round_s(each.request_id, start, drafter) for start in each.rounds[drafter].start.tolist())))
        + cost.prefill_s(each.request_id, drafter)
        for each in recording.requests
    )
    for seed in range(6):
        scenario = Scenario(tables=tables, cost=cost, seed=seed)
        log = simulate(scenario, make_policy(f"{drafter}:6/target", tables.pool), drafter)
        total = sum(seconds for (seconds,) in table(log, "ops", "duration_s"))
        assert total == pytest.approx(measured, rel=2e-3)


def prefilled(*, seconds=True, **rest):
    """The target's prefill writes the first token; three rounds follow."""
    rounds = rounds_of((1, 2, 3), (4, 1, 3), (6, 3, 3), seconds=SECONDS if seconds else ())
    recording = recording_of(
        one_request({"feature": 10}, {"feature": rounds}, **rest), drafters=(("feature", True, 3),)
    )
    (drafter,) = recording.meta.drafters
    meta = recording.meta.model_copy(update={"drafters": (drafter.model_copy(update={"prefilled": True}),)})
    return replace(recording, meta=meta)


@pytest.mark.parametrize(
    ("recording", "wanted"),
    [
        (prefilled(prefill_s={"feature": 8.0}), 8.0 + sum(map(sum, SECONDS))),
        (prefilled(seconds=False, wall_s={"feature": 20.0}, prefill_s={"feature": 8.0}), 20.0),
        (prefilled(seconds=False, wall_s={"feature": 20.0}), 20.0),
    ],
    ids=["steps", "answers with a prefill", "answers"],
)
def test_a_prefill_that_writes_a_token_takes_its_own_seconds(recording, wanted):
    policy = make_policy("feature:3/target", RoundsTables(recording).pool)
    ops = durations(recording, policy, start=Start.prefill)
    assert sum(seconds for *_, seconds in ops) == pytest.approx(wanted)
    if recording.requests[0].prefill_s:
        assert ops[0][2] == 8.0


def test_what_a_prefill_takes_longer_is_charged_with_the_first_draft():
    rounds = rounds_of((0, 2, 3), (3, 1, 3), (5, 3, 3), seconds=SECONDS)
    request = one_request(
        {"": 9, "feature": 9, "other": 9},
        {"feature": rounds, "other": rounds},
        prefill_s={"feature": 8.0, "other": 6.0},
    )
    recording = recording_of(request, drafters=(("feature", True, 3), ("other", True, 3)))
    pool = RoundsTables(recording).pool
    steps = [Verify("target"), Draft("feature", 3), Verify("target"), Draft("other", 3), Verify("target")]
    scenario = Scenario(tables=RoundsTables(recording), cost=TimedCost(recording, extrapolate=True), start=Start.draft)
    ops = [seconds for (seconds,) in table(simulate(scenario, Script(pool, steps), "p"), "ops", "duration_s")]
    assert ops[0] == 6.0, "the shortest prefill, which writes the token"
    drafting = 3 * TimedCost(recording).forward_s("feature", num_rows=1, new_tokens=1, context_tokens=0)
    assert ops[1] == pytest.approx(2.0 + drafting)
    assert sum(ops[3:4]) < 2.0
