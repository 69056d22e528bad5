"""What leaves a member's memory, when, and in which order; what a hit may cover."""

import pytest
from paceline.runs.serving import Lookups
from paceline.sim.serving.limits import KvLimits
from paceline.sim.serving.memory import MemberKv


def kv_of(num_blocks, **options):
    return MemberKv(KvLimits(num_blocks=num_blocks, block_tokens=4, **options))


def run(kv, owner, keys):
    """A request whose text has these blocks in whole."""
    got = kv.open(owner, keys, 4 * len(keys))
    assert kv.reserve(owner, 4 * len(keys))
    kv.commit(owner, 4 * len(keys), keys)
    return got


def test_the_end_of_a_text_goes_first():
    kv = kv_of(4)
    run(kv, 1, "abcd")
    kv.close(1)
    kv.open(2, "xy", 8)
    assert kv.reserve(2, 8)
    assert kv.lookup("abcd") == 2


def test_blocks_are_evicted_where_memory_dips_and_no_more_of_them():
    kv = kv_of(4)
    run(kv, 1, "abc")
    kv.close(1)
    kv.open(2, "wxyz", 16)
    assert kv.reserve(2, 4)
    assert kv.lookup("abc") == 3
    assert kv.reserve(2, 8)
    assert kv.lookup("abc") == 2
    kv.close(2)  # nothing was committed: its blocks are free at once, and what was evicted stays so
    assert (kv.free_blocks, kv.lookup("abc")) == (2, 2)


@pytest.mark.parametrize(("first", "other"), [("ab", "xy"), ("xy", "ab")])
def test_of_requests_that_end_together_the_first_released_goes_first(first, other):
    kv = kv_of(4)
    run(kv, 1, first)
    run(kv, 2, other)
    kv.close(1)
    kv.close(2)
    kv.open(3, "z", 8)
    assert kv.reserve(3, 8)
    assert (kv.lookup(first), kv.lookup(other)) == (0, 2)


def test_a_shared_block_is_released_by_its_last_owner():
    kv = kv_of(6)
    run(kv, 1, "sab")
    assert run(kv, 2, "sxy") == 4
    kv.close(1)
    assert (kv.used_blocks, kv.available_blocks - kv.free_blocks) == (3, 2)
    kv.close(2)
    assert (kv.used_blocks, kv.available_blocks - kv.free_blocks) == (0, 5)
    kv.open(3, "qrstu", 20)
    assert kv.reserve(3, 20)
    assert kv.lookup("s") == 1  # released after everything else, by owner 2


@pytest.mark.parametrize("taken", [False, True])
def test_looking_does_not_keep_a_block_and_taking_does(taken):
    kv = kv_of(2)
    for owner, keys in enumerate("ab"):
        run(kv, owner, keys)
        kv.close(owner)
    assert (kv.lookup("a"), kv.hit_tokens("az", 8), kv.fits("az", 8, 8)) == (1, 4, True)
    if taken:
        assert kv.open(3, "az", 8) == 4
        kv.close(3)
    kv.open(4, "c", 4)
    assert kv.reserve(4, 4)
    assert kv.lookup("a") == taken


def test_equal_blocks_computed_at_once_are_held_once():
    kv = kv_of(4)
    for owner in (1, 2):
        kv.open(owner, "ab", 9)
        assert kv.reserve(owner, 8)
    for owner in (1, 2):
        kv.commit(owner, 8, "ab")
    assert (kv.used_blocks, kv.free_blocks) == (2, 2)


def test_a_preempted_request_finds_its_own_blocks_and_is_not_counted_twice():
    kv = kv_of(4)
    assert run(kv, 1, "abc") == 0
    kv.close(1)
    assert kv.open(1, "abc", 13, resumes=True) == 12
    assert kv.hits == Lookups(asked_blocks=3, found_blocks=0, asked_tokens=12, found_tokens=0)


HIT_CASES = [(8, 0, 4), (9, 0, 8), (9, 1, 4), (8, 1, 0), (8, 9, 0), (1, 0, 0)]


@pytest.mark.parametrize(("text_tokens", "drop_units", "found"), HIT_CASES)
def test_a_hit_leaves_the_last_token_and_what_is_dropped(text_tokens, drop_units, found):
    kv = kv_of(9, drop_units=drop_units)
    run(kv, 1, "ab")
    assert kv.open(2, "ab", text_tokens) == found


def test_shares_by_block_and_by_token():
    kv = kv_of(9)
    assert kv.hits == Lookups()
    run(kv, 1, "ab")
    kv.open(2, "abc", 10)
    assert kv.hits == Lookups(asked_blocks=4, found_blocks=2, asked_tokens=18, found_tokens=8)


def test_without_prefix_cache_nothing_is_found_and_all_is_free_again():
    kv = kv_of(3, prefix_cache=False)
    for owner in (1, 2):
        assert run(kv, owner, "abc") == 0
        kv.close(owner)
    assert (kv.free_blocks, kv.available_blocks - kv.free_blocks, kv.hits.asked_blocks) == (3, 0, 0)


def test_misuse_is_refused():
    kv = kv_of(3)
    kv.open(1, "ab", 8)
    with pytest.raises(ValueError, match=r"^owner 1 is open already$"):
        kv.open(1, "ab", 8)
    kv.reserve(1, 8)
    with pytest.raises(ValueError, match=r"^num_tokens of owner 1 must be <= 8, which it holds, got 9$"):
        kv.commit(1, 9, "abc")
    with pytest.raises(ValueError, match=r"^keys of owner 1 must be >= 2, got 1$"):
        kv.commit(1, 8, "a")
