"""Controllers of engines: lengths move when and where theirs do, and a gate that is shut stays shut."""

import pytest
from paceline.policies import make_policy
from paceline.policies.check import check_pool
from paceline.policies.production import EVERY, WARM_UP, Rung, SglangAdaptive, TrtllmGate

from .making import Rounds, compute_bound, recording, replayed


def after(rung, accepted, rounds):
    """The lengths at which `rung` stood after each of so many rounds that all had `accepted` tokens stay."""
    found = []
    for _ in range(rounds):
        rung.note(accepted)
        found.append(rung.length)
    return found


def rung(*lengths, start, down=-0.25, up=0.0):
    return Rung(lengths=lengths, down=down, up=up, length=start)


def test_nothing_moves_before_the_fifteenth_round_and_then_every_fifth():
    lengths = after(rung(1, 3, 7, start=3), 3, 20)
    assert lengths[: WARM_UP + EVERY - 1] == [3] * 14
    assert lengths[14:] == [7] * 6


def test_it_climbs_above_its_length_less_a_half_and_falls_at_the_shorter_one_less_three_quarters():
    """The average of 2 that length 3 begins with moves a fifth of the way at each round."""
    assert after(rung(1, 3, 7, start=3), 2.5, 60)[-1] == 3
    assert after(rung(1, 3, 7, start=3), 2.51, 20)[-1] == 7
    low = rung(1, 3, 7, start=7)
    assert after(low, 2.3, 40)[-1] == 7, "2.25 is where it falls"
    assert after(low, 2.2, 40)[-1] == 3
    assert after(rung(1, 3, 7, start=7), 0.0, 15)[-2:] == [7, 1], "two rungs at once: 0.2 is below 2.25 and 0.25"


def test_a_length_of_none_is_left_at_the_next_move():
    off = rung(0, 1, 3, start=1, down=0.0)
    lengths = after(off, 0.0, 15)
    assert lengths[-1] == 0
    kept = off.accepted
    lengths = after(off, 3.0, 5)
    assert (lengths[-1], off.accepted) == (1, kept), "nothing is learnt while nothing is drafted"
    first = rung(0, 1, start=0)
    assert first.accepted == -1.0
    assert after(first, 0.0, 15)[-1] == 1
    assert first.accepted == 0.0
    assert after(rung(0, start=0), 0.0, 30)[-1] == 0


def test_the_ladder_is_that_of_the_batch():
    tables = recording(0.95, requests=160, tokens=40)
    for batch, known in ((4, {1, 3, 7}), (16, {0, 1, 3}), (40, {0, 1}), (80, {0})):
        watched = Rounds(SglangAdaptive(tables.pool))
        replayed(tables, compute_bound(), watched, batch=batch)
        full = {window for num_running, window in watched.begun if num_running == batch}
        assert full <= known
        assert max(full) == max(known), "all that is drafted stays"


def test_lengths_fall_where_little_stays():
    tables = recording(0.1, requests=40, tokens=60)
    watched = Rounds(SglangAdaptive(tables.pool, start=7))
    replayed(tables, compute_bound(), watched, batch=4)
    assert watched.begun[0][1] == 7
    assert {window for _, window in watched.begun[-60:]} == {1}


@pytest.mark.parametrize("batch", [1, 8])
def test_a_gate_shuts_for_good(batch):
    tables = recording(0.3, requests=40, tokens=60)
    watched = Rounds(TrtllmGate(tables.pool, window=4, rounds=20, share=0.5))
    replayed(tables, compute_bound(), watched, batch=batch)
    windows = [window for _, window in watched.begun]
    shut = windows.index(0)
    assert 20 * batch <= shut <= 21 * batch + batch
    assert set(windows[:shut]) == {4}
    assert set(windows[shut:]) == {0}
    open_ = Rounds(TrtllmGate(tables.pool, window=4, rounds=20, share=0.0))
    replayed(tables, compute_bound(), open_, batch=batch)
    assert {window for _, window in open_.begun} == {4}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sglang-adaptive,ladder=2:1", "ladder must begin at 1 request and go up, got '2:1'"),
        ("sglang-adaptive,ladder=1:1/1:3", "ladder must begin at 1 request and go up, got '1:3'"),
        ("sglang-adaptive,ladder=1:1+x", "ladder must read REQUESTS:LENGTH"),
        ("sglang-adaptive,ladder=1", "ladder must read REQUESTS:LENGTH"),
        ("sglang-adaptive,ladder=1:999", "ladder must hold lengths of at most 256, got 999"),
        ("sglang-adaptive,start=-1", r"start must be"),
        ("trtllm-gate,window=0", "window must be"),
        ("trtllm-gate,rounds=0", "rounds must be"),
        ("trtllm-gate,share=2", "share must be"),
    ],
)
def test_what_will_not_do(text, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        make_policy(text, check_pool())
