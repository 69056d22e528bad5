"""Where an answer ends: at the budget, an end of sequence, or an ending inside what was just committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import Drafted, Judged
from paceline.decoding.session import Session
from paceline.policies import Commit, Draft, Verify
from paceline.policies.check import EOS, VOCABULARY, ToyWorld, check_pool

from .strategies import legal_steps, pools
from .test_session_properties import assert_sane, take

PROMPT = (1, 2, 3)


def stop_at(text):
    """An ending after the first occurrence of `text` that has a new token in it."""

    def ending(emitted, num_before):
        for kept in range(num_before + 1, len(emitted) + 1):
            if emitted[max(0, kept - len(text)) : kept] == text:
                return kept
        return None

    return ending


def cut(trunk, text):
    """`trunk` up to and including the first `text` in it, and whether it is there."""
    for kept in range(len(text), len(trunk) + 1):
        if trunk[kept - len(text) : kept] == text:
            return trunk[:kept], True
    return trunk, False


@given(st.data())
def test_an_ending_cuts_the_trunk(data):
    pool = data.draw(pools())
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 999)), ends=data.draw(st.sampled_from([0.0, 0.1])))
    budget = data.draw(st.integers(1, 20))
    trunk = world.trunk(Session(pool=pool, request_id="r0", tag="", prompt=PROMPT, budget=budget, eos=frozenset({EOS})))
    start = data.draw(st.integers(0, len(trunk) - 1))
    text = data.draw(
        st.one_of(
            st.just(trunk[start : start + data.draw(st.integers(1, 3))]),
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=2),
        )
    )
    session = Session(
        pool=pool, request_id="r0", tag="", prompt=PROMPT, budget=budget, eos=frozenset({EOS}), ending=stop_at(text)
    )
    emitted = own = 0
    while not session.done:
        step = data.draw(st.sampled_from(legal_steps(session, commits=False)))
        if session.last is not None and session.last.num_drafted + session.last.num_own == 0:
            step = Verify(pool.target)
        outcome = take(session, world, step)
        assert_sane(session)
        assert outcome.done == session.done
        emitted += outcome.num_emitted
        own += outcome.num_own if step == Verify(pool.target) else 0
        assert emitted == len(session.emitted)
    expected, found = cut(trunk, text)
    assert session.emitted == expected
    assert own <= emitted
    if found:
        assert session.finish_reason == "stop"
    else:
        assert session.finish_reason == ("eos" if EOS in expected[-1:] else "length")
    assert not session.tokens
    assert all(held <= session.context_tokens for held in session.cached)


def drafted(ending, *, budget=9):
    """A request with four tokens 11 to 14 pending at the places 111 to 114."""
    session = Session(
        pool=check_pool(), request_id="r7", tag="", prompt=PROMPT, budget=budget, eos=frozenset({EOS}), ending=ending
    )
    session.drafted(Draft("draft", 4), 1, Drafted([11, 12, 13, 14], [111, 112, 113, 114]), duration_s=0.0, num_rows=1)
    return session


def judge(session, judged):
    step = Verify("target")
    return session.judged(step, session.pool.target_level, judged, duration_s=0.0, num_rows=1)


def test_a_cut_drops_all_after_it():
    seen = []

    def ending(emitted, num_before):
        seen.append((list(emitted), num_before))
        return 2

    session = drafted(ending)
    outcome = judge(session, Judged(3, 15, 115, (0.1, 0.1, 0.1, 0.9)))
    assert seen == [([11, 12, 13, 15], 0)]
    assert session.emitted == [11, 12]
    assert session.place == 112
    assert (outcome.num_judged, outcome.num_accepted, outcome.num_own, outcome.num_emitted) == (4, 3, 0, 2)
    assert outcome.done
    assert session.finish_reason == "stop"
    assert_sane(session)


def test_an_ending_at_the_last_token_keeps_the_verifiers_own():
    session = drafted(lambda emitted, num_before: len(emitted))
    outcome = judge(session, Judged(1, 15, 115, (0.1, 0.9)))
    assert session.emitted == [11, 15]
    assert session.place == 115
    assert (outcome.num_own, outcome.num_emitted) == (1, 2)
    assert session.finish_reason == "stop"


def test_a_commit_can_end_the_answer():
    session = drafted(lambda emitted, num_before: 1)
    outcome = session.committed(Commit(2))
    assert session.emitted == [11]
    assert session.place == 111
    assert session.tokens == session.places == session.drafters == session.judges == []
    assert (outcome.num_emitted, outcome.done) == (1, True)


def test_an_ending_is_asked_after_every_commit_with_what_is_new():
    seen = []
    session = drafted(lambda emitted, num_before: seen.append((len(emitted), num_before)))
    session.committed(Commit(1))
    session.committed(Commit(2))
    judge(session, Judged(1, 15, 115, (0.1,)))
    assert seen == [(1, 0), (3, 1), (5, 3)]
    assert session.finish_reason is None
    assert not session.done


@pytest.mark.parametrize("kept", [-1, 0, 5])
def test_an_ending_lies_inside_the_new_tokens(kept):
    with pytest.raises(ValueError, match=rf"request r7: ending must keep 1 to 4 tokens, got {kept}"):
        judge(drafted(lambda emitted, num_before: kept), Judged(3, 15, 115))


@given(st.data())
def test_the_tail_is_the_end_of_the_context(data):
    session = drafted(None, budget=data.draw(st.integers(5, 9)))
    if data.draw(st.booleans()):
        session.committed(Commit(data.draw(st.integers(1, 3))))
    context = [*PROMPT, *session.emitted, *session.tokens]
    for start in range(len(context) + 2):
        assert session.tail(start) == context[start:]
    with pytest.raises(ValueError, match="start must be >= 0, got -1"):
        session.tail(-1)
