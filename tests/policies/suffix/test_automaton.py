"""Counts and continuations are those that counting by hand finds, as texts come, token by token."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.suffix import ROOT, SuffixAutomaton

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=4)


def indexed(texts):
    index = SuffixAutomaton()
    for text in texts:
        index.begin()
        for token in text:
            index.extend(token)
    return index


def pieces(texts):
    """How often every piece stands in the texts."""
    return Counter(
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, len(text) + 1)
    )


def state_of(index, piece):
    state = ROOT
    for token in piece:
        state = index.follows[state].get(token)
        if state is None:
            return None
    return state


@given(TEXTS)
def test_every_piece_is_there_as_often_as_it_stands_in_the_texts(texts):
    index, found = indexed(texts), pieces(texts)
    for piece, count in found.items():
        state = state_of(index, piece)
        assert index.counts[state] == count
        assert index.lengths[index.links[state]] < len(piece) <= index.lengths[state]
    assert index.num_tokens == sum(map(len, texts))
    assert len(index.counts) <= 2 * max(index.num_tokens, 1)


@given(TEXTS, st.lists(st.integers(0, 2), max_size=6))
def test_nothing_else_is_there(texts, piece):
    assert (state_of(indexed(texts), piece) is not None) == (not piece or tuple(piece) in pieces(texts))


@given(TEXTS, TEXTS, st.lists(st.integers(0, 2), max_size=12))
def test_steps_find_the_longest_suffix_also_while_texts_come_in(first, second, query):
    """Half of the query is followed before further texts come in, which tell pieces apart, and half after."""
    index = indexed(first)
    state, length = ROOT, 0
    for token in query[:6]:
        state, length = index.step(state, length, token)
    for text in second:
        index.begin()
        for token in text:
            index.extend(token)
    before = length
    for token in query[6:]:
        state, length = index.step(state, length, token)
    state, length = index.at(state, length)
    found = pieces([*first, *second])
    # What was found before is not looked for again: a longer suffix of it may have come in since.
    reach = min(before, len(query[:6])) + len(query[6:])
    longest = max(
        (size for size in range(reach + 1) if not size or tuple(query[len(query) - size :]) in found), default=0
    )
    assert length == longest
    assert state == state_of(index, query[len(query) - length :])
