"""Prompt lookup finds what its definition says, whatever the context."""

from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies.lookup import prompt_lookup

CONTEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def found_by_definition(context, num_tokens, max_match):
    """All earlier places of every suffix: the longest suffix wins, then the latest place."""
    places = [
        (match, start)
        for match in range(1, max_match + 1)
        for start in range(len(context) - match)
        if context[start : start + match] == context[len(context) - match :]
    ]
    if not places:
        return []
    match, start = max(places)
    return context[start + match :][:num_tokens]


@settings(deadline=None)
@given(CONTEXTS, st.integers(1, 6), st.integers(1, 5))
def test_lookup_finds_what_its_definition_says(context, num_tokens, max_match):
    found = prompt_lookup(context, num_tokens=num_tokens, max_match=max_match)
    assert found == found_by_definition(context, num_tokens, max_match)


@settings(deadline=None)
@given(CONTEXTS, st.integers(1, 6), st.integers(1, 5))
def test_lookup_returns_a_stretch_of_the_context(context, num_tokens, max_match):
    found = prompt_lookup(tuple(context), num_tokens=num_tokens, max_match=max_match)
    assert len(found) <= num_tokens
    assert (found == []) == (context[-1] not in context[:-1])
    assert any(context[start : start + len(found)] == found for start in range(len(context)))


def test_a_repeated_text_is_found_up_to_its_end():
    """A copy that runs into the context's end is short; the last token may follow itself."""
    assert prompt_lookup([1, 2, 3, 9, 1, 2], num_tokens=3, max_match=3) == [3, 9, 1]
    assert prompt_lookup([7, 7, 7], num_tokens=4, max_match=2) == [7]
    assert prompt_lookup([5, 1, 6, 1, 7, 1], num_tokens=1, max_match=3) == [7]
    assert prompt_lookup([1], num_tokens=4, max_match=3) == []
