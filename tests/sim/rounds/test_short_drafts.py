"""Drafts that ended by the drafter's own rule, steps in which nothing was drafted, and rounds that were placed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Draft, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim.recorded import UnrecordedContextError
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate

from ...unit_cost import UnitCost
from ..tries.small_traces import Script
from .small_rounds import one_request, recording_of, recordings, rounds_of


def run(recording, policy, **scenario):
    outputs = {}
    scenario = Scenario(tables=RoundsTables(recording), cost=UnitCost(), **scenario)
    return simulate(scenario, policy, "policy", outputs=outputs), outputs


def follow(recording, steps, **scenario):
    """`run`, of a policy that takes these steps, and verifies from then on."""
    return run(recording, Script(RoundsTables(recording).pool, steps), **scenario)


def stopping_recording(*, by_start, placed=None):
    """Window 5: a whole draft, an empty one, a short one that was kept, a short one that was refused, a whole one."""
    rounds = replace(rounds_of((0, 5, 5), (6, 0, 0), (7, 2, 2), (10, 1, 3), (12, 2, 5)), placed=placed)
    return recording_of(one_request({"": 15}, {"d": rounds}), drafters=(("d", by_start, 5),))


@pytest.mark.parametrize("by_start", [True, False])
def test_a_draft_is_as_short_as_it_was(by_start):
    recording = stopping_recording(by_start=by_start)
    for window in (5, 9):
        log, outputs = run(
            recording, make_policy(f"d:{window}/target", RoundsTables(recording).pool), strict=window == 5
        )
        assert outputs == {"r0": list(range(1, 16))}
        rounds = log.rounds()
        assert rounds["emitted"].tolist() == [6, 1, 3, 2, 3] if window == 5 else rounds["emitted"].tolist()[1:4]
        if window == 5:
            assert rounds["drafted"].tolist() == [5, 0, 2, 3, 3]
            assert summarise_run(log).exact_share == 1


@pytest.mark.parametrize("by_start", [True, False])
def test_a_short_draft_is_not_continued(by_start):
    recording = stopping_recording(by_start=by_start)
    steps = [Verify("target")] * 7 + [Draft("d", 1), Draft("d", 4), Draft("d", 4), Verify("target")]
    log, _ = follow(recording, steps, strict=True)
    assert log.steps["drafted"].tolist()[7:11] == [1, 1, 0, 0]
    assert log.steps["emitted"].tolist()[10] == 3


def test_less_than_was_drafted_is_answered_from_the_record():
    recording = stopping_recording(by_start=True)
    steps = [Verify("target")] * 10 + [Draft("d", 2), Verify("target")]
    log, _ = follow(recording, steps, strict=True)
    assert (log.steps["drafted"].tolist()[10], log.steps["accepted"].tolist()[11]) == (2, 1)


@pytest.mark.parametrize("by_start", [True, False])
def test_where_no_round_started_a_draft_ends_as_recorded_ones_did(by_start):
    """Two drafts of five in every recorded step but one in four, which drafted nothing."""
    rows = [(start, 1 if start % 8 else 0, 2 if start % 8 else 0) for start in range(0, 400, 2)]
    recording = recording_of(one_request({"": 401}, {"d": rounds_of(*rows)}), drafters=(("d", by_start, 5),))
    drafted = []
    for seed in range(20):
        log, _ = follow(recording, [Verify("target"), Draft("d", 5), Verify("target")], seed=seed)
        drafted.append(int(log.steps["drafted"][1]))
        assert log.steps["modelled"][1] >= 1
    assert set(drafted) == {0, 2}
    with pytest.raises(UnrecordedContextError, match="r0: draft at output position 1 needs a round that was not"):
        follow(recording, [Verify("target"), Draft("d", 5)], strict=True)


def test_what_was_placed_is_replayed_and_counts_as_modelled():
    marks = np.array([False, True, False, True, False])
    recording = stopping_recording(by_start=True, placed=marks)
    policy = make_policy("d:5/target", RoundsTables(recording).pool)
    log, _ = run(recording, policy)
    assert log.rounds()["emitted"].tolist() == [6, 1, 3, 2, 3]
    # The empty draft, and of the round at 10 the token that stayed and the one that was refused.
    assert log.steps["modelled"].sum() == 1 + 2
    assert summarise_run(log).exact_share < 1
    with pytest.raises(UnrecordedContextError, match="r0: draft at output position 6 needs a round that was not"):
        run(recording, policy, strict=True)


def test_placed_rounds_of_a_token_drafter_count_where_they_speak():
    marks = np.array([False, False, False, True, False])
    recording = stopping_recording(by_start=False, placed=marks)
    log, _ = run(recording, make_policy("d:5/target", RoundsTables(recording).pool))
    assert log.steps["modelled"].sum() == 2


def test_an_empty_draft_runs_no_forward():
    recording = stopping_recording(by_start=True)
    log, _ = run(recording, make_policy("d:5/target", RoundsTables(recording).pool))
    assert summarise_run(log).levels[0].forwards == 5 + 0 + 2 + 3 + 3


@given(recording=recordings(stopping=True), batch=st.integers(1, 3))
def test_drafters_that_stop_by_themselves_take_the_recorded_steps(recording, batch):
    for info in recording.meta.drafters:
        window = info.window or 5
        log, _ = run(recording, make_policy(f"{info.name}:{window}/target", RoundsTables(recording).pool), batch=batch)
        rounds, ids = log.rounds(), log.requests["request_id"].tolist()
        for request in recording.requests:
            if info.name in request.rounds:
                mine = rounds["request"] == ids.index(request.request_id)
                assert rounds["accepted"][mine].tolist() == request.rounds[info.name].accepted.tolist()


def test_as_much_as_every_draft_had_is_asked_without_a_draw():
    """Drafts of three, four and five tokens: whether a fourth comes at position 1 is drawn, the first three do."""
    rows = [(start, 1, 3 + start % 3) for start in range(0, 400, 2)]
    recording = recording_of(one_request({"": 401}, {"d": rounds_of(*rows)}), drafters=(("d", False, 5),))
    log, _ = follow(recording, [Verify("target"), Draft("d", 3)], strict=True)
    assert (log.steps["drafted"][1], log.steps["modelled"][1]) == (3, 0)
    with pytest.raises(UnrecordedContextError, match="draft at output position 1 needs a round"):
        follow(recording, [Verify("target"), Draft("d", 4)], strict=True)
