"""What waits for what in an operation, and what is counted of it."""

import hypothesis.strategies as st
from hypothesis import given
from paceline.decoding.pool import Member, Pool
from paceline.decoding.pool_prefixes import PoolPrefixes
from paceline.decoding.prefixes import NO_COUNTS, PrefixCacheSize
from paceline.decoding.session import Session

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
