"""Prompt lookup finds what its definition says, whatever the context, and what other engines' lookups find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.request_text import LookupRule, prompt_lookup

CONTEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)
RULES = st.tuples(st.integers(1, 5), st.integers(0, 4), st.sampled_from(["first", "last", "longest"])).map(
    lambda drawn: LookupRule(min_match=drawn[0], max_match=drawn[0] + drawn[1], occurrence=drawn[2])
)


def found_by_definition(context, num_tokens, rule):
    """All earlier places of every suffix: the longest suffix wins, then the place that the rule wants."""
    places = [
        (match, start + match)
        for match in range(rule.min_match, rule.max_match + 1)
        for start in range(len(context) - match)
        if context[start : start + match] == context[len(context) - match :]
    ]
    if not places:
        return []
    longest = max(match for match, _ in places)
    ends = [end for match, end in places if match == longest]
    wanted = {
        "first": min(ends),
        "last": max(ends),
        "longest": max(ends, key=lambda end: (min(len(context) - end, num_tokens), end)),
    }
    return context[wanted[rule.occurrence] :][:num_tokens]


@given(CONTEXTS, st.integers(1, 6), RULES)
def test_lookup_finds_what_its_definition_says(context, num_tokens, rule):
    assert prompt_lookup(context, num_tokens=num_tokens, rule=rule) == found_by_definition(context, num_tokens, rule)


@given(CONTEXTS, st.integers(1, 6), st.integers(1, 5), st.sampled_from(["first", "last", "longest"]))
def test_lookup_returns_a_stretch_of_the_context(context, num_tokens, max_match, occurrence):
    rule = LookupRule(max_match=max_match, occurrence=occurrence)
    found = prompt_lookup(tuple(context), num_tokens=num_tokens, rule=rule)
    assert len(found) <= num_tokens
    assert (found == []) == (context[-1] not in context[:-1])
    assert any(context[start : start + len(found)] == found for start in range(len(context)))


def test_a_repeated_text_is_found_up_to_its_end():
    """A copy that runs into the context's end is short; the last token may follow itself."""
    rule = LookupRule(max_match=3)
    assert prompt_lookup([1, 2, 3, 9, 1, 2], num_tokens=3, rule=rule) == [3, 9, 1]
    assert prompt_lookup([7, 7, 7], num_tokens=4, rule=LookupRule(max_match=2)) == [7]
    assert prompt_lookup([5, 1, 6, 1, 7, 1], num_tokens=1, rule=rule) == [7]
    assert prompt_lookup([1], num_tokens=4, rule=rule) == []


def test_which_occurrence():
    context = [1, 2, 3, 1, 4, 5, 1, 6, 1]
    copies = {
        occurrence: prompt_lookup(context, num_tokens=5, rule=LookupRule(max_match=3, occurrence=occurrence))
        for occurrence in ("first", "last", "longest")
    }
    assert copies == {"first": [2, 3, 1, 4, 5], "last": [6, 1], "longest": [4, 5, 1, 6, 1]}
    assert prompt_lookup(context, num_tokens=5, rule=LookupRule(min_match=2, max_match=3)) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_match": 0}, r"min_match must be in \[1, max_match 0\], got 1"),
        ({"max_match": 2, "min_match": 3}, r"min_match must be in \[1, max_match 2\], got 3"),
        ({"max_match": 2, "occurrence": "best"}, "occurrence must be one of first, last, longest, got 'best'"),
    ],
)
def test_rules_that_are_none(given, told):
    with pytest.raises(ValueError, match=told):
        LookupRule(**given)
