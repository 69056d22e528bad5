"""The prefix cache of a member against one that goes by the definition."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.base.errors import ArgumentError
from paceline.decoding.prefixes import MemberPrefixes, PrefixCacheSize, prefix_cache_size

from .naive_prefixes import NaivePrefixes


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
