"""What if drafters agreed more often, or less: shares move as asked, draws are keyed, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces import SyntheticSpec, make_trace, read_trace, write_trace
from paceline.traces.contexts.trie import arrays_of
from paceline.traces.rounds.on_disk import read_rounds
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

from .making import assert_equal, ints, write
from .rounds.rounds_strategies import assert_same_rounds, bernoulli_trace, rounds_traces

SPEC = SyntheticSpec(
    requests=6, tokens=400, models=("a", "b", "c"), acceptance=(0.6, 0.8), vocab_size=64, reach=2, run=1, seed=3
)
TRIES = make_trace(SPEC)


def agreement(trace, name):
    return trace.summary().total.agreement[name]


def bits_of(rounds, length):
    """Agreement by position as rounds say it: 1, 0, or -1 where none does."""
    bits = np.full(length, -1)
    for start, kept, whole in zip(rounds.start, rounds.accepted, rounds.censored(None), strict=True):
        bits[start : start + kept] = 1
        if not whole and start + kept < length:
            bits[start + kept] = 0
    return bits


def all_bits(trace):
    return np.concatenate([bits_of(request.rounds["d"], request.length("d")) for request in trace.requests])


# Recordings of contexts.


@pytest.mark.parametrize("shift", [0.15, -0.5])
def test_agreement_on_the_trunk_moves_by_the_shift(shift):
    shifted = TRIES.shifted({"a": shift}, seed=1)
    count = TRIES.summary().total.num_trunk_tokens
    moved = agreement(shifted, "a") - agreement(TRIES, "a")
    # What turns over is a binomial count of at most `count` trials.
    assert moved == pytest.approx(shift, abs=4 * np.sqrt(abs(shift) / count))
    assert agreement(shifted, "b") == agreement(TRIES, "b")
    assert shifted.meta.name == f"{TRIES.meta.name} (a acceptance {shift:+g})"
    for share in (0.0, 1.0):  # to the ends
        assert agreement(TRIES.shifted({"b": share - agreement(TRIES, "b")}, seed=0), "b") == share


def test_only_tokens_on_the_trunk_change_and_a_new_refusal_is_a_token_that_nobody_writes(tmp_path):
    meta = TRIES.meta.model_copy(update={"eos_token_ids": (0,)})
    shifted = replace(TRIES, meta=meta).shifted({"a": -0.4, "b": 0.1}, seed=4)
    refused = 0
    for before, after in zip(TRIES.requests, shifted.requests, strict=True):
        assert replace(before, trie=None) == replace(after, trie=None)
        old, new = before.trie, after.trie
        for name, array in arrays_of(old).items():
            if name != "next_token":
                np.testing.assert_array_equal(array, getattr(new, name))
        changed, children = old.next_token != new.next_token, new.children()
        assert changed[:2].any()
        assert not changed[-1].any()
        assert not changed[:, ~old.on_trunk | (np.arange(old.num_nodes) == old.trunk[-1])].any()
        for model, node in np.argwhere(changed[:1]):
            token = new.next_token[model, node]
            assert token not in (0, *old.next_token[:, node])  # nor the end of a text
            assert np.count_nonzero(new.next_token[:, node] == token) == 1
            assert children[model, node] == -1
            refused += 1
    assert refused > 100
    plain = TRIES.shifted({"a": -0.2, "b": 0.1}, seed=4)
    write_trace(plain, tmp_path / "t.trace")
    assert_equal(read_trace(tmp_path / "t.trace"), plain)


def test_a_vocabulary_without_another_token():
    meta = TRIES.meta.model_copy(update={"vocab_size": 1, "eos_token_ids": (0,)})
    with pytest.raises(ValueError, match="vocab_size must leave a token that no model writes, got 1"):
        replace(TRIES, meta=meta).shifted({"a": -0.5}, seed=0)


@pytest.mark.parametrize("shift", [0.2, -0.2])
def test_a_larger_shift_turns_over_more(shift):
    small, large = (TRIES.shifted({"a": size * shift}, seed=7) for size in (0.5, 1))
    for before, one, other in zip(TRIES.requests, small.requests, large.requests, strict=True):
        by_small, by_large = (trie.next_token != before.trie.next_token for trie in (one.trie, other.trie))
        assert by_small.sum() < by_large.sum()
        assert not (by_small & ~by_large).any()


# Imported recordings.


@pytest.mark.parametrize("shift", [0.2, -0.4])
def test_tokens_of_a_drafter_move_by_the_shift(shift):
    trace = bernoulli_trace(by_start=False, share=0.6)
    old, new = all_bits(trace), all_bits(trace.shifted({"d": shift}, seed=2))
    known = (old >= 0) & (new >= 0)
    # A new refusal hides nothing that is known of the tokens after it.
    assert known.sum() >= (old >= 0).sum() - len(trace.requests)
    moved = new[known].mean() - old[known].mean()
    assert moved == pytest.approx(shift, abs=4 * np.sqrt(abs(shift) / known.sum()) + 0.005)
    assert shift < 0 or (new >= old).all()
    # By the start, of tokens that a round came to, in a process whose agreement does not depend on depth.
    agreed = known = 0
    for request in bernoulli_trace(by_start=True, share=0.6, requests=80).shifted({"d": shift}, seed=2).requests:
        rounds = request.rounds["d"]
        refused = ~rounds.censored(6) & (rounds.start + rounds.accepted < request.length("d"))
        agreed, known = agreed + rounds.accepted.sum(), known + (rounds.accepted + refused).sum()
    assert agreed / known == pytest.approx(0.6 + shift, abs=0.02)


@pytest.mark.parametrize(("share", "shift"), [(0.6, 0.3), (0.8, -0.3)])
def test_rounds_end_at_a_new_refusal_and_are_kept_whole_up_to_one_that_turned_over(share, shift):
    trace = bernoulli_trace(by_start=True, share=share)
    turned = 0
    for before, after in zip(trace.requests, trace.shifted({"d": shift}, seed=2).requests, strict=True):
        old, new = before.rounds["d"], after.rounds["d"]
        np.testing.assert_array_equal(old.start, new.start)
        changed = old.accepted != new.accepted
        np.testing.assert_array_equal(old.drafted[~changed], new.drafted[~changed])
        assert (new.censored(6)[changed] == (shift > 0)).all()
        if shift > 0:
            assert (new.accepted == old.accepted + changed).all()
            assert not old.censored(6)[changed].any()
        else:
            assert (new.accepted <= old.accepted).all()
            np.testing.assert_array_equal(old.drafted, new.drafted)
        turned += changed.sum()
    assert turned > 100


def one_drafter(rounds, window, length):
    info = DrafterInfo(name="d", by_start=False, window=window)
    request = RoundsRequest(request_id="a", tag="", num_tokens={"": length}, rounds={"d": rounds})
    return RoundsRecording(meta=RoundsMeta(name="one", source="test", drafters=(info,)), requests=(request,))


def test_overlapping_rounds_of_a_token_drafter_turn_over_alike():
    rng = np.random.default_rng(1)
    length, window = 60, 5
    bits = rng.random(length) < 0.7
    kept = [int(np.argmin([*bits[p : p + window], False])) for p in range(length)]
    kept = np.minimum(kept, length - np.arange(length))
    drafted = np.minimum(window, length - np.arange(length))
    every = Rounds(start=np.arange(length, dtype=np.int32), accepted=ints(*kept), drafted=ints(*drafted))
    shifted = one_drafter(every, window, length).shifted({"d": -0.3}, seed=0).requests[0].rounds["d"]
    np.testing.assert_array_equal(shifted.start, every.start)
    merged = bits_of(shifted, length)
    assert (merged != bits_of(every, length)).sum() > 5
    for start, found, most in zip(shifted.start, shifted.accepted, drafted, strict=True):
        seen = merged[start : start + most]
        # A round after the last refusal may know less than all rounds together.
        assert found == int(np.argmin([*seen, 0])) or start + found == length


def test_tokens_after_a_new_refusal_stay_known():
    rounds = Rounds(start=ints(0, 8), accepted=ints(7, 2), drafted=ints(8, 8), draft_s=np.array([0.1, 0.2]))
    after = one_drafter(rounds, 8, 20).shifted({"d": -9 / 11}, seed=0).requests[0].rounds["d"]
    assert bits_of(after, 20)[:11].tolist() == [0] * 11
    assert after.start.tolist() == [*range(1 + 7), 8, 9, 10]
    assert after.accepted.tolist() == [0] * 11
    # A draft from after the refusal would have had a window of its own: how long it would have been is not known.
    assert after.drafted.tolist() == [8, -1, -1, -1, -1, -1, -1, -1, 8, -1, -1]
    np.testing.assert_array_equal(after.draft_s, [0.1, *[np.nan] * 7, 0.2, np.nan, np.nan])


@given(trace=rounds_traces(), share=st.floats(-1, 1), seed=st.integers(0, 3))
def test_a_shifted_import_is_sound(trace, share, seed, tmp_path_factory):
    shifts = {}
    for drafter in trace.meta.drafters:
        for shift in (share, share / 8, share / 64, 0.0):
            try:
                trace.shifted({drafter.name: shift}, seed=seed)
            except ValueError:
                continue
            shifts[drafter.name] = shift
            break
    shifted = trace.shifted(shifts, seed=seed)
    path = tmp_path_factory.mktemp("shifted") / "t.trace"
    write(shifted, path)
    assert_same_rounds(read_rounds(path), shifted)
    if not any(shifts.values()):
        assert_same_rounds(shifted, trace)


# Both kinds.


@pytest.mark.parametrize("by_start", [False, True])
def test_other_requests_do_not_matter(by_start):
    trace = bernoulli_trace(by_start=by_start)
    # The same request twice as often leaves its share of agreement as it was.
    double = tuple(replace(request, request_id=f"{request.request_id}'") for request in trace.requests)
    more = replace(trace, requests=(*double, *trace.requests))
    for shift in (0.1, -0.1):
        beside = more.shifted({"d": shift}, seed=5)
        alone = replace(beside, requests=beside.requests[len(double) :])
        assert_same_rounds(alone, trace.shifted({"d": shift}, seed=5))
    assert_same_rounds(trace.shifted({"d": 0.0}, seed=1), trace)


def test_seeds_differ_and_repeat_and_no_shift_changes_nothing():
    contexts = [TRIES.shifted({"a": -0.1}, seed=seed).requests for seed in (1, 1, 2)]
    rounds = [COINS.shifted({"d": -0.1}, seed=seed).requests for seed in (1, 1, 2)]
    for one, same, other in (
        [[request.trie.next_token.tolist() for request in requests] for requests in contexts],
        [[request.rounds["d"].accepted.tolist() for request in requests] for requests in rounds],
    ):
        assert one == same != other
    assert_equal(TRIES.shifted({"a": 0.0, "b": -0.0}, seed=1), TRIES)


COINS = bernoulli_trace(by_start=True, share=0.6)
NO_DRAFTER = r"^`shift_acceptance` must name a drafter of the recording \(.*\), got"
NO_SHARE = r"^`shift_acceptance` must keep the acceptance of {}, 0\.\d+, within \[0, 1\], got"
NOTHING = (
    "^`shift_acceptance` must leave out d: the recording holds no decision of it; state another acceptance by "
    "paceline trace make --acceptance$"
)
REFUSED = [
    *[(trace, name, 0.1, NO_DRAFTER) for trace in (TRIES, COINS) for name in ("nobody", "c", "target", "")],
    *[
        (trace, name, shift, NO_SHARE.format(name))
        for trace, name in ((TRIES, "a"), (COINS, "d"))
        for shift in (0.5, -0.7, float("nan"), float("inf"))
    ],
    (bernoulli_trace(by_start=True, requests=1, length=1), "d", 0.1, NOTHING),
]


@pytest.mark.parametrize(("trace", "name", "shift", "told"), REFUSED)
def test_what_cannot_be_shifted(trace, name, shift, told):
    with pytest.raises(ValueError, match=told):
        trace.shifted({name: shift}, seed=0)
