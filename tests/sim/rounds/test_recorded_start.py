"""How the methods of a log began: after a prefill that wrote a token, or with a draft on the bare prompt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.cost.measured import TimedCost
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, RoundsMeta

from ...unit_cost import UnitCost
from ..tries.small_traces import Anything, Script
from .small_rounds import one_request, rounds_of

AFTER, BARE = rounds_of((1, 2, 3), (4, 0, 3), (5, 3, 3)), rounds_of((0, 1, 3), (2, 3, 3), (6, 1, 3))


def recording(*requests, drafters=(("after", True), ("bare", False))):
    infos = tuple(DrafterInfo(name=name, by_start=True, window=3, prefilled=known) for name, known in drafters)
    return RoundsRecording(meta=RoundsMeta(name="starts", source="spec-bench", drafters=infos), requests=requests)


def both(**more):
    return recording(one_request({"": 8, "after": 8, "bare": 8}, {"after": AFTER, "bare": BARE}, **more))


def alone(name, **more):
    rounds = {"after": AFTER, "bare": BARE}[name]
    return recording(one_request({name: 8}, {name: rounds}, **more), drafters=((name, name == "after"),))


def run(trace, policy, *, cost=None, **scenario):
    tables = RoundsTables(trace)
    policy = make_policy(policy, tables.pool) if isinstance(policy, str) else policy
    outputs = {}
    scenario = Scenario(tables=tables, cost=cost or UnitCost(), **scenario)
    return simulate(scenario, policy, "policy", outputs=outputs), outputs


@pytest.mark.parametrize(
    ("trace", "before"),
    [
        (both(), (True, False, False)),
        (alone("after"), (True, True)),
        (alone("bare"), (False, False)),
        (recording(one_request({"": 8}, {}), drafters=()), (True,)),
    ],
    ids=["both", "after", "bare", "target alone"],
)
def test_who_waits_for_the_prefill(trace, before):
    assert RoundsTables(trace).prefill_before(Start.recorded) == before
    assert set(RoundsTables(trace).prefill_before(Start.prefill)) == {True}
    assert set(RoundsTables(trace).prefill_before(Start.draft)) == {False}


@pytest.mark.parametrize(("name", "prefills", "emitted"), [("after", 1, [3, 1, 3]), ("bare", 0, [2, 4, 2])])
def test_each_method_begins_as_it_did(name, prefills, emitted):
    for trace in (both(), alone(name)):
        log, outputs = run(trace, f"{name}:3/target", strict=True)
        assert outputs == {"r0": list(range(1, 9))}
        assert log.steps["prefill"].sum() == prefills
        assert log.rounds()["emitted"].tolist() == emitted


def test_what_was_recorded_otherwise_is_drawn_at_the_other_start():
    """From position 0 no round of a drafter speaks that began after a prefill."""
    log, _ = run(alone("after"), "after:3/target", start=Start.draft)
    assert log.steps["modelled"][0] > 0
    assert log.steps["prefill"].sum() == 0


def test_the_prefill_does_not_end_an_answer_that_a_method_wrote_longer():
    """The target alone wrote one token; nobody knows at the prefill whose text the answer is."""
    trace = recording(one_request({"": 1, "after": 8}, {"after": AFTER}), drafters=(("after", True),))
    _, outputs = run(trace, "after:3/target")
    assert outputs == {"r0": list(range(1, 9))}
    short = recording(one_request({"after": 1}, {"after": rounds_of()}), drafters=(("after", True),))
    log, outputs = run(short, "after:3/target")
    assert outputs == {"r0": [1]}
    assert len(log.rounds()["emitted"]) == 0


@settings(max_examples=15)
@given(seed=st.integers(0, 999), start=st.sampled_from(list(Start)))
def test_whatever_a_policy_does_the_text_is_the_target_s(seed, start):
    trace = both()
    log, outputs = run(trace, Anything(RoundsTables(trace).pool, seed), start=start)
    assert outputs["r0"] == list(range(1, 9))
    assert log.steps["prefill"].sum() <= 1


# -- seconds

SECONDS = {"after": [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)], "bare": [(0.7, 0.8), (0.9, 1.0), (1.1, 1.2)]}


def timed(**more):
    rounds = {
        name: rounds_of(
            *zip(*(getattr(one, key).tolist() for key in ("start", "accepted", "drafted")), strict=True),
            seconds=SECONDS[name],
        )
        for name, one in (("after", AFTER), ("bare", BARE))
    }
    lengths = {"": 8, "after": 8, "bare": 8}
    wall_s = {
        name: sum(map(sum, seconds)) + more.get("prefill_s", {}).get(name, 0.0) for name, seconds in SECONDS.items()
    }
    return recording(one_request(lengths, rounds, wall_s={"": 4.0, **wall_s}, **more))


def seconds_of(trace, policy, **scenario):
    log, _ = run(trace, policy, cost=TimedCost(trace), **scenario)
    return log


@pytest.mark.parametrize("prefill_s", [{"after": 2.0, "bare": 3.0}, {"after": 2.0, "bare": 0.1, "": 0.5}])
@pytest.mark.parametrize("name", ["after", "bare"])
def test_a_method_takes_its_own_seconds(name, prefill_s):
    trace = timed(prefill_s=prefill_s)
    log = seconds_of(trace, f"{name}:3/target")
    assert log.requests["finished_at_s"][0] == pytest.approx(trace.requests[0].wall_s[name])


def test_where_nobody_knows_whose_the_prefill_is_the_rest_comes_later():
    """The least of the two is charged for the prefill, and what the method took longer with its first draft."""
    drafters = (("after", True), ("other", True))
    rounds = {"after": timed().requests[0].rounds["after"], "other": timed().requests[0].rounds["after"]}
    lengths = {"after": 8, "other": 8}
    prefill_s = {"after": 2.0, "other": 3.0}
    wall_s = {name: 2.1 + seconds for name, seconds in prefill_s.items()}
    trace = recording(one_request(lengths, rounds, wall_s=wall_s, prefill_s=prefill_s), drafters=drafters)
    for name in lengths:
        log = seconds_of(trace, f"{name}:3/target")
        assert log.requests["first_token_at_s"][0] == pytest.approx(2.0)
        assert log.requests["finished_at_s"][0] == pytest.approx(wall_s[name])


def test_a_prefill_that_was_not_timed_takes_a_step_s_share():
    """Three rounds and the prefill share the seconds of the answer."""
    trace = recording(one_request({"after": 8}, {"after": AFTER}, wall_s={"after": 4.0}), drafters=(("after", True),))
    log = seconds_of(trace, "after:3/target")
    assert log.requests["first_token_at_s"][0] == pytest.approx(1.0)
    assert log.requests["finished_at_s"][0] == pytest.approx(4.0)


def test_the_target_alone_takes_its_own_seconds_after_the_loop_s_prefill():
    trace = timed(prefill_s={"": 0.8, "after": 2.0})
    for start in (Start.prefill, Start.draft):
        log = seconds_of(trace, "plain", start=start)
        assert log.requests["finished_at_s"][0] == pytest.approx(4.0)


def test_a_draft_waits_where_another_could_begin():
    trace = both()
    steps = [Draft("after", 3), Verify("target"), Draft("bare", 3), Verify("target")]
    log, _ = run(trace, Script(RoundsTables(trace).pool, steps))
    assert log.steps["prefill"].tolist()[:2] == [1, 0]
    log, _ = run(trace, Script(RoundsTables(trace).pool, steps[2:]))
    assert log.steps["prefill"].sum() == 0
