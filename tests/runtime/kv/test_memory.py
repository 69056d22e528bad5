"""KV memory that is too small: truncation, preemption and recomputation, and no request lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.runtime import caches as mask_cache
from paceline.runtime.caches import NO_MEMORY, SLOT_STEP, KVShape, MaskCache, MemberKV, SlotCache, side_by_side, zeros
from paceline.runtime.state import KVMemoryError
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld

from ...pairs import pairs
from ..offline import COUPLED, GREEDY, PROMPTS, Offline, in_double

POLICY = "draft:2/mid:4/target"
SHAPE = KVShape(num_layers=2, num_heads=1, head_width=2, dtype=torch.float32, device=torch.device("cpu"))
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(scope="module")
def unlimited(pool):
    return {
        sampling.mode: Offline(pool, POLICY, sampling=sampling).run(batch=5).texts for sampling in (GREEDY, COUPLED)
    }


def bytes_alone(pool, num_slots=SLOT_STEP):
    """What one request of at most `num_slots` tokens takes in all three members of the policy."""
    return num_slots * sum(pool.member(name).kv_bytes_per_token * 2 for name in ("draft", "mid", "target"))


@pytest.mark.parametrize(("sampling", "cache", "share"), pairs((GREEDY, COUPLED), ("slots", "mask"), (1.0, 2.4, 5.0)))
def test_a_limit_changes_no_text_and_loses_no_request(pool, unlimited, sampling, cache, share):
    limit = int(share * bytes_alone(pool))
    memory = Memory(cache=cache, limit_bytes=limit)
    done = Offline(pool, POLICY, sampling=sampling, memory=memory, world=Watched).run(batch=5)
    assert done.failed == {}
    assert done.texts == unlimited[sampling.mode]
    assert max(done.world.held) <= limit
    preempted = done.log.requests["preempted"]
    assert preempted.sum() == done.world.manager.num_preempted
    assert (preempted.sum() > 0) == (share < 5.0)
    # The oldest is never the youngest while another one holds memory.
    assert preempted[0] == 0


class Watched(TorchWorld):
    """Notes the memory held after each operation and the share that is free."""

    def __init__(self, **options):
        super().__init__(**options)
        self.held, self.free = [], []

    def draft(self, level, items):
        return self.note(super().draft(level, items))

    def verify(self, level, items):
        return self.note(super().verify(level, items))

    def note(self, results):
        self.held.append(self.manager.held_bytes)
        self.free.append(results.free_kv_share)
        return results


def test_policies_see_how_much_memory_is_free(pool):
    limit = 2 * bytes_alone(pool)
    done = Offline(pool, POLICY, memory=Memory(limit_bytes=limit), world=Watched).run(batch=2)
    assert all(0.0 <= share < 1.0 for share in done.world.free)
    assert min(done.world.free) < 0.5
    unlimited = Offline(pool, POLICY, world=Watched).run(batch=2)
    assert set(unlimited.world.free) == {1.0}


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_a_request_that_does_not_fit_alone_fails_alone(pool, unlimited, cache):
    """Only "long" needs a second step of slots."""
    long = PROMPTS[1].__class__(request_id="long", text="hello there, how do you do, " * 2)
    prompts = (PROMPTS[0], long, *PROMPTS[2:])
    limit = bytes_alone(pool)
    done = Offline(pool, POLICY, prompts, memory=Memory(cache=cache, limit_bytes=limit)).run(batch=5)
    assert list(done.failed) == ["long"]
    with pytest.raises(KVMemoryError, match=r"^request long: (6[5-9]|7\d) tokens in the cache of ") as raised:
        raise done.failed["long"]
    assert f"{limit:,} bytes" in str(raised.value)
    assert [text for session, text in zip(done.sessions, done.texts, strict=True) if session.request_id != "long"] == [
        text for index, text in enumerate(unlimited["greedy"]) if index != 1
    ]
    reasons = done.log.requests["failed"].tolist()
    assert [bool(reason) for reason in reasons] == [False, True, False, False, False]


@pytest.mark.parametrize(("error", "cache", "share"), pairs(NO_MEMORY, ("slots", "mask"), (1.0, 2.2)))
def test_a_device_without_memory_is_like_a_limit(pool, unlimited, monkeypatch, error, cache, share):
    """Allocations of more than some bytes fail, copies for truncation among them."""
    limit = int(share * SLOT_STEP * pool.target.kv_bytes_per_token * 2)
    made = MemberKV._zeros

    def scarce(self, rows, slots):
        if rows * slots * self.shape.bytes_per_slot > limit:
            raise error("no memory")
        return made(self, rows, slots)

    offline = Offline(pool, POLICY, memory=Memory(cache=cache))
    monkeypatch.setattr(MemberKV, "_zeros", scarce)
    done = offline.run(batch=5)
    assert done.failed == {}
    assert done.texts == unlimited["greedy"]
    assert done.log.requests["preempted"].sum() == done.world.manager.num_preempted > 0


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_a_device_that_cannot_even_truncate_has_requests_preempted(pool, unlimited, monkeypatch, cache):
    """Beside large allocations the smaller copies fail that truncation makes."""
    limit = int(2.2 * SLOT_STEP * pool.target.kv_bytes_per_token * 2)
    made = MemberKV._zeros
    untruncated = []

    def failing(self, rows, slots):
        if 0 < rows * slots < self.held_slots:
            untruncated.append((rows, slots))
            raise torch.OutOfMemoryError("no memory")
        if rows * slots * self.shape.bytes_per_slot > limit:
            raise torch.OutOfMemoryError("no memory")
        return made(self, rows, slots)

    offline = Offline(pool, POLICY, memory=Memory(cache=cache), start=Start.draft)
    monkeypatch.setattr(MemberKV, "_zeros", failing)
    done = offline.run(batch=5)
    assert untruncated
    assert done.world.manager.num_preempted > 0
    assert done.failed == {}
    assert done.texts == unlimited["greedy"]


@pytest.mark.parametrize(("cache", "lost"), [("mask", "zeros"), ("mask", "kv"), ("slots", "arange"), ("slots", "kv")])
def test_a_cache_that_cannot_grow_stays_as_it_was(monkeypatch, cache, lost):
    """Whichever piece of its memory cannot be had."""

    def none(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    held = {"mask": MaskCache, "slots": SlotCache}[cache](SHAPE)
    held.place(["a"], [10])
    with monkeypatch.context() as patch:
        places = {"zeros": mask_cache, "arange": torch, "kv": held}
        patch.setattr(places[lost], {"kv": "_zeros"}.get(lost, lost), none)
        with pytest.raises(torch.OutOfMemoryError):
            held.reserve(["a", "b"], [100, 5])
    assert (held.num_rows, held.capacity, held.live_slots_of("a")) == (1, SLOT_STEP, list(range(10)))
    held.place(["a", "b"], [100, 5])
    assert [held.length(name) for name in "ab"] == [110, 5]


def test_no_memory_at_all_fails_every_request_by_name(pool, monkeypatch):
    made = MemberKV._zeros

    def none(self, rows, slots):
        if rows * slots:
            raise torch.OutOfMemoryError("no memory")
        return made(self, rows, slots)

    offline = Offline(pool, POLICY)
    monkeypatch.setattr(MemberKV, "_zeros", none)
    done = offline.run(batch=3)
    assert {name: type(error) for name, error in done.failed.items()} == {
        prompt.request_id: KVMemoryError for prompt in PROMPTS
    }


@pytest.mark.parametrize("dead_share", [0.1, 0.9])
def test_masked_slots_are_truncated_at_the_stated_share(pool, unlimited, dead_share):
    shares = []

    class Watching(TorchWorld):
        def draft(self, level, items):
            return self.note(level, super().draft(level, items))

        def verify(self, level, items):
            return self.note(level, super().verify(level, items))

        def note(self, level, results):
            cache = self.manager.cache(level)
            if cache.rows:
                longest = max(cache.length(name) for name in cache.rows)
                shares.append((cache._end - longest) / cache._end)
            return results

    memory = Memory(cache="mask", dead_share=dead_share)
    done = Offline(pool, POLICY, memory=memory, world=Watching).run(batch=5)
    assert done.texts == unlimited["greedy"]
    truncations = sum(cache.num_truncations for cache in done.world.manager.caches.values())
    assert (truncations > 0) == (dead_share < 0.9)
    # An operation may leave dead what it fed; the next one starts with a truncation.
    assert max(shares) < dead_share + 0.25


def test_the_more_may_be_dead_the_fewer_are_moved(pool):
    def moves(dead_share):
        done = Offline(pool, POLICY, memory=Memory(cache="mask", dead_share=dead_share)).run(batch=5)
        return sum(cache.num_truncations for cache in done.world.manager.caches.values())

    counts = [moves(share) for share in (0.05, 0.3, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > counts[-1] == 0


@pytest.mark.parametrize("kind", [SlotCache, MaskCache])
class TestCaches:
    def test_rolling_back_moves_no_byte(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [5, 9])
        cache._kv.normal_()
        before = cache._kv.clone()
        where = cache._kv.data_ptr()
        cache.roll_back("a", 2)
        cache.roll_back("b", 0)
        assert (cache.length("a"), cache.length("b"), cache.live_slots) == (2, 0, 2)
        assert cache._kv.data_ptr() == where
        assert torch.equal(cache._kv, before)

    def test_a_row_is_clean_when_it_is_taken_again(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [5, 9])
        row = cache.rows["a"]
        cache._kv[:, row, cache.live_slots_of("a")] = torch.nan
        cache.roll_back("a", 2)
        cache.free("a")
        cache.place(["c"], [3])
        assert cache.rows["c"] == row
        assert cache._kv.isfinite().all()

    def test_a_row_is_clean_where_truncating_moved_what_stood_there(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [9, 5])
        cache.place(["a", "b"], [1, 7])
        cache._kv[:, cache.rows["b"], cache.live_slots_of("b")] = torch.nan
        cache.roll_back("b", 6)
        cache.free("a")
        cache.truncate()
        cache.place(["c"], [60])
        cache.free("b")
        cache.place(["d"], [3])
        assert cache._kv[:, cache.rows["d"]].isfinite().all()

    def test_one_token_at_a_time_needs_no_more_than_was_reserved(self, kind):
        """Long feeds and long drafts may belong to different requests."""
        cache = kind(SHAPE)
        counts, further = [60, 2, 1], [0, 30, 61]
        cache.reserve(["a", "b", "c"], counts, further)
        held = cache.held_bytes
        assert cache.extra_bytes(["a", "b", "c"], counts, further) == 0
        cache.place(["a", "b", "c"], counts)
        for step in range(61):
            going = [name for name, more in zip("abc", further, strict=True) if more > step]
            cache.place(going, [1] * len(going))
        assert cache.held_bytes == held

    @given(data=st.data())
    def test_nothing_grows_that_was_not_reserved(self, kind, data):
        cache = kind(SHAPE)
        for turn in range(data.draw(st.integers(1, 6))):
            for name in data.draw(st.sets(st.sampled_from(sorted(cache.rows) or ["x"]))):
                cache.free(name) if data.draw(st.booleans()) else cache.roll_back(name, cache.length(name) // 2)
            names = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
            counts = [data.draw(st.integers(1, 70)) for _ in names]
            further = [data.draw(st.integers(0, 20)) for _ in names]
            cache.reserve(names, counts, further)
            held = cache.held_bytes
            order = cache.in_order(names)
            cache.place([names[index] for index in order], [counts[index] for index in order])
            for step in range(max(further)):
                going = [names[index] for index in order if further[index] > step]
                cache.place(going, [1] * len(going))
            assert cache.held_bytes == held, turn

    def test_nobody_left_means_nothing_in_use(self, kind):
        """Else every new batch would begin after the columns of the one before it."""
        cache = kind(SHAPE)
        for turn in range(20):
            cache.place(["a", "b"], [40, 7])
            cache.free("a")
            cache.free("b")
            assert cache.capacity == SLOT_STEP, turn


def test_texts_of_very_different_lengths_are_not_moved_at_every_forward():
    """What a short text leaves unused beside a long one cannot be won by truncating."""
    cache = MaskCache(SHAPE, dead_share=0.5)
    cache.place(["a", "b", "c"], [4, 4, 100])
    for _ in range(50):
        cache.place(["a", "b", "c"], [1, 1, 1])
    assert cache.num_truncations == 0


def test_rows_are_read_as_a_slice_only_in_their_order():
    assert side_by_side([2, 3, 4]) == slice(2, 5)
    assert side_by_side([7]) == slice(7, 8)
    assert side_by_side([1, 0, 3]) is None  # a new request in a free row in front, another one at the back
    assert side_by_side([0, 2]) is None


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_newcomers_in_rows_around_an_old_one_read_their_own(pool, cache):
    """Rows 0 and 3 become free at once, and the member's next forward leaves the request in row 2 out."""
    offline = Offline(pool, "plain", PROMPTS, memory=Memory(cache=cache))
    world, target = offline.world, offline.members.target_level
    for session in offline.sessions:
        world.open(session)
    states = [world.manager.states[session.request_id] for session in offline.sessions]

    def logits(chosen):
        order = world.manager.cache(target).in_order([state.request_id for state in chosen])
        chosen = [chosen[index] for index in order]
        feeds = [list(state.session.prompt) for state in chosen]
        ends = torch.tensor([len(feed) for feed in feeds]).cumsum(0) - 1
        out = world._executor.feed(target, chosen, feeds, ends)
        return {state.request_id: row for state, row in zip(chosen, out, strict=True)}

    alone = {}
    for state in states:
        alone |= logits([state])
        world.manager.roll_back(state, target, 0)
    kv = world.manager.cache(target)
    assert [kv.rows[state.request_id] for state in states] == [0, 1, 2, 3, 4]
    for index in (0, 3):
        kv.free(states[index].request_id)
        states[index].fed.clear()
    found = logits([states[1], states[0], states[3]])
    for request_id, row in found.items():
        torch.testing.assert_close(row, alone[request_id], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_memory_of_zeros_begins_at_a_line_of_the_cache_and_is_its_own(dtype):
    one, other = (zeros((3, 5, 2), dtype, torch.device("cpu")) for _ in range(2))
    one.fill_(1)
    assert (one.dtype, one.shape, one.data_ptr() % 64) == (dtype, (3, 5, 2), 0)
    assert one.is_contiguous()
    assert not other.any()
