"""Prompt lookup with an engine's values copies what that engine's lookup copies."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

CONTEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=30)


@given(CONTEXTS, st.integers(1, 6), st.integers(1, 4))
def test_transformers(context, num_tokens, max_match):
    """Its `max_matching_ngram_size` is max_match; it takes the first occurrence."""
    options = {"num_output_tokens": num_tokens, "max_matching_ngram_size": max_match, "max_length": 10_000}
    generator = PromptLookupCandidateGenerator(**options)
    theirs = generator.get_candidates(torch.tensor([context]))[0][0, len(context) :].tolist()
    rule = LookupRule(max_match=max_match, occurrence="first")
    assert prompt_lookup(context, num_tokens=num_tokens, rule=rule) == theirs


def vllm_lookup(context, num_tokens, min_match, max_match):
    """As vLLM describes its n-gram proposer: of all lengths within bounds the longest, of its matches the earliest."""
    for length in range(max_match, min_match - 1, -1):
        for end in range(length, len(context)):
            if context[end - length : end] == context[len(context) - length :]:
                return context[end : end + num_tokens]
    return []


@given(CONTEXTS | st.just(list(range(20))), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_vllm(context, num_tokens, min_match, more):
    rule = LookupRule(min_match=min_match, max_match=min_match + more, occurrence="first")
    expected = vllm_lookup(context, num_tokens, min_match, min_match + more)
    assert prompt_lookup(context, num_tokens=num_tokens, rule=rule) == expected
