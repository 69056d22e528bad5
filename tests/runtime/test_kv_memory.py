"""KV memory that is too small: truncation, preemption and recomputation, and no request lost."""

import pytest
import torch
from paceline.decoding.seen import Start
from paceline.runtime.caches import NO_MEMORY, SLOT_STEP, MemberKV
from paceline.runtime.state import KVMemoryError
from paceline.runtime.threads import Memory

from ..pairs import pairs
from .offline import COUPLED, GREEDY, PROMPTS, Offline, in_double, watched

POLICY = "draft:2/mid:4/target"


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(scope="module")
def unlimited(pool):
    return {each.mode: Offline(pool, POLICY, sampling=each).run(batch=5).texts for each in (GREEDY, COUPLED)}


def bytes_alone(pool):
    """What one request of at most a step of slots takes in all three members of the policy."""
    return SLOT_STEP * sum(pool.member(name).kv_bytes_per_token * 2 for name in ("draft", "mid", "target"))


@pytest.mark.parametrize(("sampling", "cache", "share"), pairs((GREEDY, COUPLED), ("slots", "mask"), (1.0, 2.4, 5.0)))
def test_a_limit_changes_no_text_and_loses_no_request(pool, unlimited, sampling, cache, share):
    limit, seen = int(share * bytes_alone(pool)), []
    world = watched(lambda world, _, __, results: seen.append((world.manager.held_bytes, results.free_kv_share)))
    memory = Memory(cache=cache, limit_bytes=limit)
    done = Offline(pool, POLICY, sampling=sampling, memory=memory, world=world).run(batch=5)
    assert done.failed == {}
    assert done.texts == unlimited[sampling.mode]
    held, free = zip(*seen, strict=True)
    assert max(held) <= limit
    assert 0 <= min(free) < 0.6
    assert max(free) < 1.0
    preempted = done.log.requests["preempted"]
    assert preempted.sum() == done.world.manager.num_preempted
    assert (preempted.sum() > 0) == (share < 5.0)
    assert preempted[0] == 0  # the oldest is never the youngest while another one holds memory


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_a_request_that_does_not_fit_alone_fails_alone(pool, unlimited, cache):
    """Only "long" needs a second step of slots."""
    long = PROMPTS[1].__class__(request_id="long", text="hello there, how do you do, " * 2)
    limit = bytes_alone(pool)
    memory = Memory(cache=cache, limit_bytes=limit)
    done = Offline(pool, POLICY, (PROMPTS[0], long, *PROMPTS[2:]), memory=memory).run(batch=5)
    assert list(done.failed) == ["long"]
    with pytest.raises(KVMemoryError, match=rf"^request long: (6[5-9]|7\d) tokens in the cache of .*{limit:,} bytes"):
        raise done.failed["long"]
    assert [done.texts[0], *done.texts[2:]] == [unlimited["greedy"][0], *unlimited["greedy"][2:]]
    assert [bool(reason) for reason in done.log.requests["failed"].tolist()] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("error", "cache", "share", "truncates"), pairs(NO_MEMORY, ("slots", "mask"), (1.0, 2.2), (True, False))
)
def test_a_device_without_memory_is_like_a_limit(pool, unlimited, monkeypatch, error, cache, share, truncates):
    """Allocations of more than some bytes fail, and also the smaller copies that truncation makes."""
    limit = int(share * SLOT_STEP * pool.target.kv_bytes_per_token * 2)
    made, untruncated = MemberKV._zeros, []

    def scarce(self, rows, slots):
        if not truncates and 0 < rows * slots < self.held_slots:
            untruncated.append((rows, slots))
            raise error("no memory")
        if rows * slots * self.shape.bytes_per_slot > limit:
            raise error("no memory")
        return made(self, rows, slots)

    offline = Offline(pool, POLICY, memory=Memory(cache=cache), start=Start.prefill if truncates else Start.draft)
    monkeypatch.setattr(MemberKV, "_zeros", scarce)
    done = offline.run(batch=5)
    assert bool(untruncated) is not truncates
    assert done.failed == {}
    assert done.texts == unlimited["greedy"]
    assert done.log.requests["preempted"].sum() == done.world.manager.num_preempted > 0


def test_no_memory_at_all_fails_every_request_by_name(pool, monkeypatch):
    made = MemberKV._zeros

    def none(self, rows, slots):
        if rows * slots:
            raise torch.OutOfMemoryError("no memory")
        return made(self, rows, slots)

    offline = Offline(pool, POLICY)
    monkeypatch.setattr(MemberKV, "_zeros", none)
    failed = offline.run(batch=3).failed
    assert {name: type(error) for name, error in failed.items()} == {one.request_id: KVMemoryError for one in PROMPTS}


def test_masked_slots_are_truncated_at_the_stated_share(pool, unlimited):
    """The more may be dead, the fewer are moved."""
    shares, counts = [], []

    def note(world, level, items, results):
        kept = world.manager.cache(level)
        if kept.rows:
            longest = max(kept.length(name) for name in kept.rows)
            shares.append((kept._end - longest) / kept._end)

    for dead_share in (0.05, 0.3, 1.0):
        shares.clear()
        memory = Memory(cache="mask", dead_share=dead_share)
        done = Offline(pool, POLICY, memory=memory, world=watched(note)).run(batch=5)
        assert done.texts == unlimited["greedy"]
        # An operation may leave dead what it fed; the next one starts with a truncation.
        assert max(shares) < dead_share + 0.25
        counts.append(sum(kept.num_truncations for kept in done.world.manager.caches.values()))
    assert counts[0] > counts[1] > counts[2] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cache": "pages"}, "`cache` must be one of slots, mask, got 'pages'"),
        ({"limit_bytes": 0}, "`limit_bytes` must be >= 1, got 0"),
        ({"dead_share": 0.0}, r"`dead_share` must be in \(0, 1\], got 0.0"),
        ({"dead_share": 1.5}, r"`dead_share` must be in \(0, 1\], got 1.5"),
    ],
)
def test_memory_of_no_known_kind_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Memory(**wrong)
