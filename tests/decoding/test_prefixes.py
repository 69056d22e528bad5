"""Prefix caches against one that goes by the definition, and what waits for what in an operation."""

from itertools import takewhile

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.base.errors import ArgumentError
from paceline.decoding.pool import Member, Pool
from paceline.decoding.pool_prefixes import PoolPrefixes
from paceline.decoding.prefixes import NO_COUNTS, MemberPrefixes, PrefixCacheSize, prefix_cache_size
from paceline.decoding.session import Session


class NaivePrefixes:
    """Blocks are whole texts, up to and with their own tokens."""

    def __init__(self, num_blocks, block_tokens):
        self.num_blocks = num_blocks
        self.size = block_tokens
        self.cached = []  # texts, oldest first
        self.queue = []  # those that nobody refers to, in the order of eviction
        self.held = {}  # by request, the texts of its blocks
        self.num_evicted = 0

    def leading(self, text):
        ends = range(self.size, len(text) + 1, self.size)
        return list(takewhile(self.cached.__contains__, (text[:end] for end in ends)))

    def look_up(self, request, text):
        usable = text[:-1]
        blocks = self.leading(usable)
        start = self.size * len(blocks)
        others = [block for block in self.cached if len(block) == start + self.size and block[:start] == text[:start]]
        self.held[request] = blocks
        self.queue = [block for block in self.queue if block not in blocks]
        return start + max([equal(block[start:], usable[start:]) for block in others], default=0)

    def enter(self, request, text):
        blocks = self.held[request]
        ends = range(self.size * (len(blocks) + 1), len(text) + 1, self.size)
        new = [text[:end] for end in ends]
        shared = list(takewhile(self.cached.__contains__, new))
        self.queue = [block for block in self.queue if block not in shared]
        new = new[len(shared) :][: self.num_blocks - len(self.cached) + len(self.queue)]
        for _ in range(len(self.cached) + len(new) - self.num_blocks):
            self.cached.remove(self.queue.pop(0))
            self.num_evicted += 1
        self.cached += new
        self.held[request] = blocks + shared + new
        return len(shared), len(new)

    def release(self, request):
        for block in reversed(self.held.pop(request, [])):
            if not any(block in blocks for blocks in self.held.values()):
                self.queue.append(block)


def equal(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class PrefixMachine(RuleBasedStateMachine):
    """Requests over an alphabet of two begin, grow and end in any order."""

    @initialize(num_blocks=st.integers(1, 7), block_tokens=st.integers(1, 3))
    def begin(self, num_blocks, block_tokens):
        self.ours = MemberPrefixes(PrefixCacheSize(num_blocks=num_blocks, block_tokens=block_tokens))
        self.theirs = NaivePrefixes(num_blocks, block_tokens)
        self.size = block_tokens
        self.blocks = {}  # by request, the numbers of its blocks
        self.texts = {}
        self.stands_for = {}
        self.count = 0

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple))
    def look_up(self, text):
        request = f"r{self.count}"
        self.count += 1
        hit = self.ours.look_up(request, text)
        assert hit.num_tokens == self.theirs.look_up(request, text)
        assert hit.num_tokens < len(text)
        self.texts[request], self.blocks[request] = text, list(hit.blocks)
        for index, block in enumerate(hit.blocks):
            assert self.stands_for[block] == text[: (index + 1) * self.size]
        if hit.branch is not None:
            behind = len(hit.blocks) * self.size
            assert self.stands_for[hit.branch.block][: hit.num_tokens] == text[: hit.num_tokens]
            assert hit.num_tokens == behind + hit.branch.num_equal

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=4).map(tuple))
    def enter(self, data, more):
        request = data.draw(st.sampled_from(sorted(self.texts)))
        text = self.texts[request] = self.texts[request] + more
        blocks = self.blocks[request]
        entered = self.ours.enter(request, lambda index: text[index * self.size : (index + 1) * self.size], len(text))
        num_new = len(entered.blocks) - entered.num_shared
        assert (entered.num_shared, num_new) == self.theirs.enter(request, text)
        blocks += entered.blocks
        for index in range(len(blocks) - num_new, len(blocks)):
            self.stands_for[blocks[index]] = text[: (index + 1) * self.size]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data):
        request = data.draw(st.sampled_from(sorted(self.texts)))
        del self.texts[request], self.blocks[request]
        self.ours.release(request)
        self.theirs.release(request)

    @invariant()
    def what_is_referred_to_stays(self):
        for request, blocks in getattr(self, "blocks", {}).items():
            for index, block in enumerate(blocks):
                assert self.stands_for[block] == self.texts[request][: (index + 1) * self.size]

    @invariant()
    def as_many_are_cached_and_went(self):
        if hasattr(self, "ours"):
            assert self.ours.num_blocks == len(self.theirs.cached) <= self.theirs.num_blocks
            assert self.ours.num_evicted == self.theirs.num_evicted


TestPrefixes = PrefixMachine.TestCase
TestPrefixes.settings = settings(stateful_step_count=30)


def test_a_request_is_looked_up_once():
    member = MemberPrefixes(PrefixCacheSize(num_blocks=1))
    member.look_up("a", (1, 2))
    with pytest.raises(ValueError, match="request a was looked up already"):
        member.look_up("a", (1, 2))


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ((0, None), "`prefix_cache` must be >= 1, got 0"),
        ((4, 0), "`block_tokens` must be >= 1, got 0"),
        ((None, 8), "`block_tokens` goes with `prefix_cache` BLOCKS, got `block_tokens` 8 alone"),
    ],
)
def test_sizes_that_will_not_do(asked, rule):
    with pytest.raises(ArgumentError) as refused:
        prefix_cache_size(*asked)
    assert str(refused.value) == rule


def test_a_cache_takes_memory_by_what_it_holds():
    cache = MemberPrefixes(PrefixCacheSize(num_blocks=10**18))
    assert cache.num_blocks == 0


LEVEL = 1
POOL = Pool((Member(name="draft"), Member(name="target")))


def session_of(name, text):
    return Session(pool=POOL, request_id=name, tag="", prompt=tuple(text), budget=8, eos=frozenset())


def read(prefixes, level, sessions):
    """An operation; returns the tokens that it fed."""
    fed = 0
    for wave in prefixes.waves(level, sessions):
        for index in wave:
            prefixes.look_up(level, sessions[index])
        for index in wave:
            fed += sessions[index].feed(level, verify=True)[0]
            prefixes.enter(level, sessions[index])
            sessions[index].cached[level] = sessions[index].num_prompt
    return fed


def test_of_requests_with_one_prompt_the_first_reads_it():
    prefixes = PoolPrefixes(PrefixCacheSize(num_blocks=4, block_tokens=4))
    sessions = [session_of(str(number), range(16)) for number in range(5)]
    assert next(prefixes.waves(LEVEL, sessions)) == [0]
    assert read(prefixes, LEVEL, sessions) == 16 + 4  # of each other one the last token
    assert prefixes.take_counts(LEVEL) == (5 * 16, 4 * 15, 4, 0)
    assert prefixes.take_counts(LEVEL) == NO_COUNTS
    assert list(prefixes.waves(LEVEL, sessions)) == [[0, 1, 2, 3, 4]]
    assert next(prefixes.waves(0, sessions)) == [0]  # the other member has read nothing


def test_nobody_waits_for_less_than_a_block():
    prefixes = PoolPrefixes(PrefixCacheSize(num_blocks=4, block_tokens=4))
    for first, second, wave in (("abcd", "abcx", [0, 1]), ("abcd", "abcd", [0, 1]), ("abcd", "abcde", [0])):
        assert next(prefixes.waves(0, [session_of("a", first), session_of("b", second)])) == wave


def test_no_block_is_read_twice():
    """Prompts that part at several depths: whoever waited waits again for what others that waited read."""
    prefixes = PoolPrefixes(PrefixCacheSize(num_blocks=16, block_tokens=2))
    texts = ["aaaaaa.", "aabbbb.", "aabbcc.", "aabbccd", "x"]
    assert read(prefixes, LEVEL, [session_of(text, text) for text in texts]) == 7 + 5 + 3 + 1 + 1
    assert prefixes.take_counts(LEVEL).entered_blocks == 3 + 2 + 1


def test_who_waited_in_vain_waits_no_more():
    """Without room for a second block there is nothing to wait for."""
    prefixes = PoolPrefixes(PrefixCacheSize(num_blocks=1, block_tokens=2))
    sessions = [session_of(str(number), "abcdef.") for number in range(5)]
    waves = []
    for wave in prefixes.waves(LEVEL, sessions):
        waves.append(wave)
        for index in wave:
            prefixes.look_up(LEVEL, sessions[index])
            prefixes.enter(LEVEL, sessions[index])
            sessions[index].cached[LEVEL] = sessions[index].num_prompt
    assert waves == [[0], [1], [2, 3, 4]]


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_tokens_are_fed_or_found(texts, num_blocks, block_tokens):
    prefixes = PoolPrefixes(PrefixCacheSize(num_blocks=num_blocks, block_tokens=block_tokens))
    sessions = [session_of(str(number), text) for number, text in enumerate(texts)]
    fed = read(prefixes, LEVEL, sessions)
    counts = prefixes.take_counts(LEVEL)
    assert fed + counts.hit_tokens == counts.asked_tokens == sum(map(len, texts))
    assert prefixes.member(LEVEL).num_blocks == counts.entered_blocks - counts.evicted_blocks <= num_blocks
    for session in sessions:
        prefixes.release(session.request_id)
    again = [session_of(f"again{number}", text) for number, text in enumerate(texts)]
    if sum(map(len, texts)) <= num_blocks * block_tokens:  # all of it is kept
        read(prefixes, LEVEL, again)
        assert prefixes.take_counts(LEVEL).hit_tokens >= sum(
            (len(text) - 1) // block_tokens * block_tokens for text in texts
        )
