"""Suffixes: counts are those found by hand, what is copied most often followed, earlier answers are shared and go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Draft, Verify
from paceline.policies.check import check_pool
from paceline.policies.suffix import ROOT, EarlierAnswers, Match, SpeculationRule, Suffix, SuffixAutomaton

from .making import TextSeen, built_by_check, done

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=4)


def indexed(texts):
    index = SuffixAutomaton()
    for text in texts:
        index.begin()
        index.extend(text)
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
    index = indexed(first)
    state, length = index.walk(ROOT, 0, query[:6])
    for text in second:
        index.begin()
        index.extend(text)
    before = length
    state, length = index.walk(state, length, query[6:])
    state, length = index.at(state, length)
    found = pieces([*first, *second])
    # What was found before is not looked for again: a longer suffix of it may have come in since.
    reach = min(before, len(query[:6])) + len(query[6:])
    longest = max(
        (size for size in range(reach + 1) if not size or tuple(query[len(query) - size :]) in found), default=0
    )
    assert length == longest
    assert state == state_of(index, query[len(query) - length :])


@given(TEXTS, st.lists(st.integers(0, 2), max_size=60), st.integers(1, 20))
def test_the_end_of_a_text_is_found_as_if_all_of_it_were_walked_and_a_copy_goes_on_alone(texts, query, repeats):
    index = indexed([*texts, query * repeats])
    before = index.follows, index.links, index.counts
    told = [[*follows.items()] for follows in index.follows], index.links.copy(), index.counts.copy()
    assert index.end_of(query) == index.walk(ROOT, 0, query)
    other = index.copy()
    other.extend(query)
    twice = indexed([*texts, [*query * repeats, *query]])
    assert (other.follows, other.links, other.counts) == (twice.follows, twice.links, twice.counts)
    assert ([[*follows.items()] for follows in before[0]], before[1], before[2]) == told, "the first one is as it was"


@given(TEXTS, TEXTS)
def test_what_followed_most_often_is_known_anew_as_texts_go_on(first, second):
    index = SuffixAutomaton()
    for texts in (first, second):
        for text in texts:
            index.begin()
            index.extend(text)
        for state, follows in enumerate(index.follows):
            times = {token: index.counts[after] for token, after in follows.items()}
            found = index.likeliest(state)
            assert (found is None) == (not times)
            if found is not None:
                token, after, share = found
                assert (after, times[token]) == (follows[token], max(times.values()))
                assert share == times[token] / sum(times.values())


POOL = check_pool()
RULE = SpeculationRule(factor=1.0, least_prob=0.0, most=16)


def copied(policy, seen):
    step = policy.decide(seen)
    return step.copy if isinstance(step, Draft) else ()


def speculated(store, match):
    return max((RULE.best_of(*place) for place in store.places(match)), key=lambda each: each.score).tokens


@given(st.lists(st.integers(0, 2), min_size=2, max_size=24), st.integers(1, 3), st.floats(0.0, 1.0))
def test_every_copied_token_is_a_most_frequent_one_and_the_score_their_expected_number(text, factor, least_prob):
    index = SuffixAutomaton()
    index.extend(text)
    rule = SpeculationRule(factor=factor, least_prob=least_prob, most=5)
    state = max(index.links[index.last], 0)
    score, tokens = rule.best_of(index, state, index.lengths[state])
    if not tokens:
        return
    assert len(tokens) <= 5

    def count(piece):
        return sum(text[at : at + len(piece)] == piece for at in range(len(text)))

    scores = []
    for size in range(1, index.lengths[state] + 1):
        pattern, prob, total = text[-size:], 1.0, 0.0
        if len(tokens) > factor * size:
            continue
        for place, token in enumerate(tokens):
            before = pattern + list(tokens[:place])
            follows = {other: count([*before, other]) for other in range(3)}
            if not sum(follows.values()) or follows[token] < max(follows.values()):
                break
            prob *= follows[token] / sum(follows.values())
            total += prob
        else:
            if prob >= least_prob:
                scores.append(total)
    assert any(score == pytest.approx(found) for found in scores)


def test_a_request_copies_from_its_own_text():
    policy = Suffix(POOL, store=0)
    assert copied(policy, TextSeen("r", [1, 2, 3, 4, 9, 1, 2, 3])) == (4, 9, 1)
    assert copied(policy, TextSeen("other", [1, 2, 3])) == (), "nothing repeats, and nobody else is asked"


def test_answers_are_there_for_others_once_they_are_done():
    policy = Suffix(POOL)
    policy.decide(TextSeen("a", [7], [1, 2, 3, 4, 5]))
    assert copied(policy, TextSeen("b", [1, 2])) == ()
    policy.learn(done("a"))
    assert copied(policy, TextSeen("c", [1, 2])) == (3, 4), "as many as match"
    assert copied(policy, TextSeen("b", [1, 2], [3])) == (4,), "who was there before sees what came since"


def test_the_order_in_which_requests_end_decides_between_equals():
    for first, second in ((3, 4), (4, 3)):
        policy = Suffix(POOL)
        for name, after in (("a", first), ("b", second)):
            policy.decide(TextSeen(name, [9], [1, 2, after]))
            policy.learn(done(name))
        assert copied(policy, TextSeen("c", [1, 2]))[0] == first


def test_a_model_drafts_where_the_score_is_low():
    policy = Suffix(POOL, draft="mid", window=3, score=1.5)
    assert policy.decide(TextSeen("r", [1, 2, 3])) == Draft("mid", 3)
    assert policy.decide(TextSeen("s", [5, 6, 1, 5])) == Draft("mid", 3), "one token is expected at most"
    assert policy.decide(TextSeen("t", [5, 6, 1, 2, 5, 6])).copy == (1, 2)
    assert Suffix(POOL).decide(TextSeen("u", [1, 2, 3])) == Verify("target")


@given(st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=20), st.integers(2, 60))
def test_no_more_is_kept_than_was_said_and_the_newest_stay(answers, most):
    store = EarlierAnswers(most)
    for answer in answers:
        store.add(answer)
        assert store.num_tokens <= most
    if answers and answers[-1]:
        match = Match()
        store.follow(match, answers[-1][:1])
        followed = answers[-1][:1] != answers[-1][: most // 2]
        assert speculated(store, match) or not followed


def test_a_request_that_outlives_a_generation_goes_on_matching():
    store, match = EarlierAnswers(8), Match()
    store.add([1, 2, 3, 4])
    store.follow(match, [1])
    store.add([5, 6, 7, 8])  # the first answer is of the older generation now
    store.follow(match, [2])
    assert speculated(store, match) == (3, 4)
    store.add([1, 1, 1])  # and now it is forgotten
    store.follow(match, [3])
    assert speculated(store, match) == ()


def test_nothing_is_kept_of_requests_that_are_done():
    assert all(not policy._texts._open for policy in built_by_check(Suffix))
