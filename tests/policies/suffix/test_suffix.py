"""What is copied is what most often followed; earlier answers are shared, in order, and forgotten by halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.pool import Pool
from paceline.policies import Draft, PolicySpecError, Verify, check_policy, make_policy
from paceline.policies.check import check_pool
from paceline.policies.suffix import EarlierAnswers, Match, SpeculationRule, Suffix, SuffixAutomaton

POOL = check_pool()
RULE = SpeculationRule(factor=1.0, least_prob=0.0, most=16)


class Seen:
    """A request before its next block."""

    last = None

    def __init__(self, name, prompt, answer=()):
        self.request_id, self.prompt, self._answer = name, tuple(prompt), list(answer)

    def emitted_from(self, start):
        return self._answer[start:]


def done(name):
    return type("Outcome", (), {"request_id": name, "done": True})()


def copied(policy, seen):
    step = policy.decide(seen)
    return step.copy if isinstance(step, Draft) else ()


def speculated(store, match):
    return max((RULE.best_of(*place) for place in store.places(match)), key=lambda each: each.score).tokens


@given(st.lists(st.integers(0, 2), min_size=2, max_size=24), st.integers(1, 3), st.floats(0.0, 1.0))
def test_every_copied_token_is_a_most_frequent_one_and_the_score_their_expected_number(text, factor, least_prob):
    index = SuffixAutomaton()
    for token in text:
        index.extend(token)
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
    assert copied(policy, Seen("r", [1, 2, 3, 4, 9, 1, 2, 3])) == (4, 9, 1)
    assert copied(policy, Seen("other", [1, 2, 3])) == (), "nothing repeats, and nobody else is asked"


def test_answers_are_there_for_others_once_they_are_done():
    policy = Suffix(POOL)
    policy.decide(Seen("a", [7], [1, 2, 3, 4, 5]))
    assert copied(policy, Seen("b", [1, 2])) == ()
    policy.learn(done("a"))
    assert copied(policy, Seen("c", [1, 2])) == (3, 4), "as many as match"
    assert copied(policy, Seen("b", [1, 2], [3])) == (4,), "who was there before sees what came since"


def test_the_order_in_which_requests_end_decides_between_equals():
    for first, second in ((3, 4), (4, 3)):
        policy = Suffix(POOL)
        for name, after in (("a", first), ("b", second)):
            policy.decide(Seen(name, [9], [1, 2, after]))
            policy.learn(done(name))
        assert copied(policy, Seen("c", [1, 2]))[0] == first


def test_a_model_drafts_where_the_score_is_low():
    policy = Suffix(POOL, draft="mid", window=3, score=1.5)
    assert policy.decide(Seen("r", [1, 2, 3])) == Draft("mid", 3)
    assert policy.decide(Seen("s", [5, 6, 1, 5])) == Draft("mid", 3), "one token is expected at most"
    assert policy.decide(Seen("t", [5, 6, 1, 2, 5, 6])).copy == (1, 2)
    assert Suffix(POOL).decide(Seen("u", [1, 2, 3])) == Verify("target")


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
    made = []

    def build(pool):
        made.append(Suffix(pool))
        return made[-1]

    check_policy(build)
    assert all(not policy._texts._open for policy in made)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("factor=0", "factor must be > 0 and finite, got 0.0"),
        ("least=1.5", "least must be in [0, 1], got 1.5"),
        ("most=0", "most must be in [1, 1,000,000], got 0"),
        ("store=1", "store must be in [2, 1,000,000], got 1"),
        ("score=-1", "score must be >= 0 and finite, got -1.0"),
        ("draft=ngram", "draft must be a model, got 'ngram', which is model-free"),
        ("draft=target", "draft must be a member below the target, got 'target'"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(PolicySpecError) as caught:
        make_policy(f"suffix,{options}", POOL)
    assert rule in str(caught.value)


def test_a_pool_without_a_model_free_member_is_refused():
    with pytest.raises(PolicySpecError, match="suffix needs a model-free member in the pool; it has draft, mid"):
        make_policy("suffix", Pool(POOL.members[1:]))
