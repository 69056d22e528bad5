import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.measured import TimedCost

from .shapes import seconds
from .timed_recordings import recording_of, request_of, rounds_of

NAN = float("nan")


def own_seconds():
    """Two requests whose rounds have their own seconds; the second drafted two tokens at a time."""
    first = rounds_of([2, 4, 0, 2], draft_s=[1.0, 2.0, 3.0, NAN], verify_s=[10.0, 20.0, 30.0, 40.0])
    second = rounds_of([2, 1], drafted=2, draft_s=[1.0, 1.0], verify_s=[8.0, 10.0])
    return recording_of(request_of("a", {"eagle": first}), request_of("b", {"eagle": second}))


def test_a_recorded_round_costs_what_it_took():
    cost = TimedCost(own_seconds())
    assert cost.knows_rounds
    assert cost.name == "timed"
    assert [cost.round_s("a", start, "eagle") for start in (0, 3, 8)] == [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
    assert cost.round_s("a", 9, "eagle") is None  # its drafting was not timed
    assert cost.round_s("a", 1, "eagle") is None  # nothing was recorded there
    assert cost.round_s("a", 0, "other") is None
    assert cost.round_s("a", 0, "") is None
    assert cost.prefill_s("a", "eagle") == 0.0
    assert cost.notes() == ()


def test_anything_else_costs_what_such_forwards_took_in_the_mean():
    cost = TimedCost(own_seconds())
    assert seconds(cost, 5, model="target") == 20.0
    assert seconds(cost, 3, model="target") == 9.0
    assert seconds(cost, 4, model="target", held=10**6) == 14.5
    drafted = 3 * 4 + 2 * 2
    assert seconds(cost, 1, model="eagle") == seconds(cost, 99, model="eagle") == pytest.approx(8.0 / drafted)


def test_what_was_not_measured_is_refused():
    cost = TimedCost(own_seconds())
    with pytest.raises(CostRangeError, match=r"no step of target alone; import .*`extrapolate`.*\(3 new tokens\)"):
        seconds(cost, 1, model="target")
    for new in (2, 6):
        with pytest.raises(CostRangeError, match=f"cost timed: target was measured for 3 to 5 .*asked for {new}"):
            seconds(cost, new, model="target")
    with pytest.raises(CostRangeError, match="cost timed: measured with one request at a time, asked for 2"):
        seconds(cost, 5, model="target", rows=2)
    with pytest.raises(CostRangeError, match="cost timed: no seconds of drafting were recorded for 'other'"):
        seconds(cost, 1, model="other")


def test_or_extrapolated_when_told():
    cost = TimedCost(own_seconds(), extrapolate=True)
    assert seconds(cost, 4, model="target") == 14.5
    assert cost.notes() == ()
    assert seconds(cost, 1, model="target") == 9.0
    assert seconds(cost, 6, model="target") == 20.0 + (20.0 - 9.0) / 2
    assert cost.notes() == ("seconds beyond what was measured: target",)


def test_seconds_of_answers_are_shared_by_their_rounds():
    """Plain steps took 1 s in the first request and 3 s in the second; the mean over all 24 is 2 s."""
    rounds = {"eagle": rounds_of([2, 3, 4, 1], drafted=-1)}
    one = request_of("a", rounds, tokens=14, wall_s={"": 14.0, "eagle": 8.0})
    two = request_of("b", rounds, tokens=14, wall_s={"": 14.0 * 3, "eagle": 8.0})
    none = request_of("c", rounds, tokens=14, wall_s={"eagle": 16.0})
    cost = TimedCost(recording_of(one, two, none))
    assert cost.round_s("a", 0, "eagle") == (1.0, 1.0)
    assert cost.round_s("b", 3, "eagle") == (0.0, 2.0)  # a round that was faster than a step of the target
    assert cost.round_s("c", 0, "eagle") == (2.0, 2.0)  # the mean stands for a request without plain seconds
    assert cost.round_s("a", 13, "") == (0.0, 1.0)
    assert cost.round_s("b", 0, "") == (0.0, 3.0)
    assert cost.round_s("a", 14, "") is None
    assert cost.round_s("c", 0, "") is None
    assert {seconds(cost, new, model="target") for new in range(1, 6)} == {2.0}
    assert seconds(cost, 1, model="eagle") == pytest.approx((4 * 1.0 + 0.0 + 4 * 2.0) / (12 * 4))
    assert cost.notes() == (
        "rounds take equal shares of an answer's measured seconds: eagle",
        "drafted tokens unknown, seconds of one are estimated: eagle",
    )


def of_unknown_length(answers, *, window=8):
    """One answer for each (tokens that stayed in each of its rounds, seconds of drafting in each of them)."""
    rounds = [rounds_of([kept] * 3, drafted=-1, draft_s=[taken] * 3, verify_s=[1.0] * 3) for kept, taken in answers]
    requests = [request_of(f"{index}", {"eagle": each}, tokens=40) for index, each in enumerate(rounds)]
    return TimedCost(recording_of(*requests, window=window))


@given(
    kept=st.lists(st.integers(0, 6), min_size=2, max_size=9),
    token_s=st.floats(0.01, 1.0),
    refused=st.floats(1.0, 2.0),
)
def test_seconds_of_a_token_are_those_that_more_of_them_take(kept, token_s, refused):
    """A drafter that stops itself: it drafts what stays and some more, and takes seconds for each."""
    cost = of_unknown_length([(tokens, token_s * (tokens + refused)) for tokens in kept])
    mean = sum(kept) / len(kept)
    wanted = token_s if len(set(kept)) > 1 else token_s * (mean + refused) / 8  # with nothing to compare, the least
    assert seconds(cost, 1, model="eagle") == pytest.approx(wanted)


def test_a_drafter_that_always_drafts_its_window_is_found_out():
    assert seconds(of_unknown_length([(0, 4.0), (3, 4.0), (6, 4.0)]), 1, model="eagle") == pytest.approx(4.0 / 8)


def test_a_token_takes_no_more_than_if_none_but_one_had_been_refused():
    assert seconds(of_unknown_length([(0, 1.0), (1, 9.0)]), 1, model="eagle") == pytest.approx(10.0 / 3)


def test_prefill_is_no_share_of_a_round():
    rounds = {"eagle": rounds_of([2, 4])}
    request = request_of("a", rounds, tokens=8, wall_s={"": 10.0, "eagle": 9.0}, prefill_s={"": 2.0, "eagle": 3.0})
    cost = TimedCost(recording_of(request))
    assert (cost.prefill_s("a", ""), cost.prefill_s("a", "eagle"), cost.prefill_s("a", "other")) == (2.0, 3.0, 0.0)
    assert cost.round_s("a", 0, "") == (0.0, 1.0)
    assert cost.round_s("a", 3, "eagle") == (2.0, 1.0)


def test_tokens_outside_rounds_are_steps_of_their_own():
    request = request_of("a", {"eagle": rounds_of([2, 1])}, tokens=9, wall_s={"eagle": 12.0})
    assert TimedCost(recording_of(request)).round_s("a", 0, "eagle") == (0.0, 2.0)  # two rounds and four more tokens


def test_without_seconds_of_the_target_alone_a_round_is_one_piece():
    rounds = {"eagle": rounds_of([2, 4])}
    cost = TimedCost(recording_of(request_of("a", rounds, tokens=8, wall_s={"eagle": 6.0})), extrapolate=True)
    assert cost.round_s("a", 0, "eagle") == (0.0, 3.0)
    with pytest.raises(CostRangeError, match="the log has no seconds of target alone, so drafting and verification"):
        seconds(cost, 1, model="target")
    with pytest.raises(CostRangeError, match="no seconds of drafting were recorded for 'eagle'"):
        seconds(cost, 1, model="eagle")


def test_own_seconds_go_before_shares():
    rounds = {"eagle": rounds_of([2, 4], draft_s=[1.0, 1.0], verify_s=[6.0, 8.0])}
    cost = TimedCost(recording_of(request_of("a", rounds, tokens=8, wall_s={"": 40.0, "eagle": 100.0})))
    assert cost.round_s("a", 3, "eagle") == (1.0, 8.0)
    assert [seconds(cost, new, model="target") for new in (1, 3, 5)] == [5.0, 6.0, 7.0]
    assert cost.notes() == ()


def test_a_drafter_of_unknown_window_drafts_as_many_as_ever_stayed():
    rounds = {"eagle": rounds_of([1, 3], drafted=-1, draft_s=[3.0, 3.0], verify_s=[6.0, 8.0])}
    cost = TimedCost(recording_of(request_of("a", rounds), window=None))
    assert seconds(cost, 1, model="eagle") == 1.0
    assert seconds(cost, 4, model="target") == 7.0


@given(
    accepted=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    wall_s=st.floats(0.01, 100),
    plain_s=st.floats(0.01, 100) | st.none(),
    share=st.floats(0, 0.9),
)
def test_shares_add_up_to_what_was_measured(accepted, wall_s, plain_s, share):
    rounds = rounds_of(accepted)
    tokens = sum(accepted) + len(accepted)
    walls = {"eagle": wall_s} if plain_s is None else {"eagle": wall_s, "": plain_s}
    request = request_of("a", {"eagle": rounds}, tokens=tokens, wall_s=walls, prefill_s={"eagle": share * wall_s})
    cost = TimedCost(recording_of(request))
    parts = [cost.round_s("a", start, "eagle") for start in rounds.start.tolist()]
    assert np.min(parts) >= 0
    assert np.sum(parts) + cost.prefill_s("a", "eagle") == pytest.approx(wall_s)
    if plain_s is not None:
        assert sum(cost.round_s("a", start, "")[1] for start in range(tokens)) == pytest.approx(plain_s)


def test_a_recording_without_seconds():
    for rounds in ({}, {"eagle": rounds_of([2, 4])}):
        with pytest.raises(ValueError, match="cost timed: by hand holds no seconds, neither of rounds nor of answers"):
            TimedCost(recording_of(request_of("a", rounds)))
