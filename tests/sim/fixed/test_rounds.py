"""Rounds that were played once are those of any session that comes to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.steps import PolicyError, Verify
from paceline.policies import Commit, Draft, Ratio
from paceline.policies.about import About
from paceline.policies.fixed import Chain
from paceline.policies.spec import make_policy
from paceline.sim import rounds_once
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import UnrecordedContextError
from paceline.sim.rounds_once import FixedRounds

from ..tries.small_traces import request_of, trace_of
from .recorded import begun, contexts, logs, stepped, texts


def rounds_of(tables, policy, *, strict=False, seed=0):
    answers = tables.answers(seed=seed, strict=strict)
    return FixedRounds(policy=policy, name="it", pool=tables.pool, answers=answers)


def check_request(tables, fixed, policy, recorded_id, most):
    """Play one request both ways, operation by operation."""
    pool, answers = tables.pool, tables.answers(seed=3, strict=False)
    session = begun(pool, answers, "served", recorded_id, most)
    prefill = Verify(pool.target)
    judged = answers.judged(session, prefill, pool.target_level)
    session.prefilled(prefill, judged, duration_s=0.0, num_rows=1)
    if session.done:
        return
    steps = stepped(make_policy(policy, pool), pool, answers, session)
    budget, done = session.budget, False
    while not done:
        position = len(session.emitted)
        played = fixed.round("other", recorded_id, position, budget - position)
        for op in played.ops[:-1]:
            assert next(steps) == (tuple(op), None)
        assert next(steps) == (tuple(played.ops[-1]), (played.committed, played.ends))
        assert fixed.tokens(recorded_id, position, played.committed) == session.emitted[position:]
        done = played.ends
    assert session.done
    assert next(steps, None) is None


def check(data, tables, *, stops):
    policy = data.draw(texts(tables.pool, stops=stops))
    fixed = rounds_of(tables, make_policy(policy, tables.pool), seed=3)
    ids = [request.request_id for request in tables.trace.requests]
    # The same rounds serve requests of any length: those that came before must not matter.
    for _ in range(data.draw(st.integers(1, 4))):
        check_request(tables, fixed, policy, data.draw(st.sampled_from(ids)), data.draw(st.integers(1, 26)))


@given(st.data())
def test_strung_together_they_are_the_steps_of_a_session_in_contexts(data):
    check(data, data.draw(contexts()), stops=True)


@given(st.data())
def test_strung_together_they_are_the_steps_of_a_session_in_a_log(data):
    check(data, data.draw(logs()), stops=False)


@given(st.data())
def test_room_matters_only_below_what_a_round_needs(data):
    tables = data.draw(contexts())
    policy = make_policy(data.draw(texts(tables.pool)), tables.pool)
    recorded = data.draw(st.sampled_from(tables.trace.requests))
    ends = frozenset(tables.trace.meta.eos_token_ids)
    answer = tables.of(recorded.request_id).trunk_tokens
    length = next((index for index, token in enumerate(answer) if token in ends), len(answer))
    position = data.draw(st.integers(0, max(min(length, recorded.max_new_tokens - 1), 0)))
    played = [
        rounds_of(tables, policy).round("r", recorded.request_id, position, room)
        for room in range(1, recorded.max_new_tokens - position + 1)
    ]
    for room, each in enumerate(played, 1):
        if room >= each.needs:
            assert played[room - 1 :] == [each] * (len(played) - room + 1)
            break
        assert each.committed <= room
    shared = rounds_of(tables, policy)
    order = data.draw(st.permutations(range(1, len(played) + 1)))
    assert [shared.round("r", recorded.request_id, position, room) for room in order] == [
        played[room - 1] for room in order
    ]


def small():
    views = {(): (5, 5), (5,): (6, 6), (5, 6): (7, 8), (5, 6, 7): (9, 9), (5, 6, 8): (1, 1), (5, 6, 8, 1): (2, 2)}
    return TrieTables(trace_of(request_of(views, budget=4), request_of(views, request_id="r1", budget=4)))


def test_equal_rounds_are_one_object_and_asked_for_once():
    class Counts(Chain):
        about = About(lossless=True, by_pending=True)
        asked = 0

        def decide(self, seen):
            Counts.asked += 1
            return super().decide(seen)

    fixed = rounds_of(small(), Counts(small().pool, "draft:1/target"))
    first = fixed.round("a", "r0", 0, 4)
    assert (first.committed, first.needs, len(first.ops)) == (2, 3, 2)
    assert fixed.round("b", "r0", 0, 3) is first
    asked = Counts.asked
    assert fixed.round("a", "r1", 0, 4) is first
    assert Counts.asked == asked <= 6


def test_rounds_of_two_policies_stand_beside_each_other(monkeypatch):
    """Replicas of one run share what the recording answers: what one has closed, the other may have open."""
    monkeypatch.setattr(rounds_once, "MOST_OPEN", 1)
    pool, answers = small().pool, small().answers(seed=0, strict=False)
    one, other = (
        FixedRounds(policy=Chain(pool, text), name=text, pool=pool, answers=answers)
        for text in ("draft:1/target", "draft:2/target")
    )
    for recorded_id in ("r0", "r1", "r0"):
        for fixed in (one, other):
            assert fixed.tokens(recorded_id, 0, 2) == rounds_of(small(), Chain(pool, "draft:1/target")).tokens(
                recorded_id, 0, 2
            )


def test_tables_of_few_requests_are_held(monkeypatch):
    monkeypatch.setattr(rounds_once, "MOST_OPEN", 1)
    answers = small().answers(seed=0, strict=False)
    fixed = FixedRounds(policy=Chain(small().pool, "draft:1/target"), name="it", pool=small().pool, answers=answers)
    first = fixed.round("a", "r0", 0, 4)
    assert fixed.round("a", "r1", 0, 3) is first
    assert fixed.tokens("r0", 0, 2) == [5, 6]
    assert [name.rpartition(" ")[2] for name in answers._open] == ["r0"]
    # It was played to its end when it was first asked for.
    answers.replay = None
    assert fixed.round("b", "r1", 2, 2).committed == 1


class Says:
    """A policy that says that pending tokens decide, and does what a test wants."""

    about = About(lossless=True, by_pending=True)

    def __init__(self, decide):
        self._decide = decide

    def decide(self, seen):
        return self._decide(seen)

    def learn(self, outcome):
        pass


@pytest.mark.parametrize(
    "looked_at",
    ["load", "last", "room", "tag", "num_emitted", "pending", "request_id", "remaining", "cached", "slo", "_signal"],
)
def test_what_may_not_be_looked_at_is_named(looked_at):
    tables = small()
    fixed = rounds_of(tables, Says(lambda seen: getattr(seen, looked_at) and Verify("target")))
    with pytest.raises(PolicyError, match=f"policy it, request mine.*and not at {looked_at}"):
        fixed.round("mine", "r0", 1, 3)


def test_what_a_policy_breaks_of_its_word_is_said():
    tables = small()
    for decide, rule in (
        (lambda seen: Commit(1) if seen.num_pending else Draft("draft", 1), "lossless rules"),
        (lambda seen: Verify("target", Ratio(0.5)), "lossless rules"),
        (lambda seen: Draft("nobody", 1), "unknown model 'nobody'"),
        (lambda seen: Draft("draft", 1) if seen.has_room else None, "not a step"),
    ):
        with pytest.raises(PolicyError, match=f"policy it, request mine.*{rule}"):
            rounds_of(tables, Says(decide)).round("mine", "r0", 1, 3)
    views = {(): (5, 5, 5), (5,): (6, 6, 6), (5, 6): (6, 6, 6)}
    three = TrieTables(trace_of(request_of(views, budget=2), models=("draft", "mid", "target")))
    decide = [Draft("draft", 1), Draft("mid", 1)]
    with pytest.raises(PolicyError, match="all its drafts are by one member, draft so far"):
        rounds_of(three, Says(lambda seen: decide[seen.num_pending])).round("mine", "r0", 0, 2)


def test_who_does_not_say_so_is_refused():
    tables = small()
    with pytest.raises(ValueError, match="policy it does not say that pending tokens alone decide"):
        rounds_of(tables, make_policy("adaptive", tables.pool))


def test_a_position_outside_the_answer_is_refused():
    fixed = rounds_of(small(), Chain(small().pool, "draft:1/target"))
    for position, room in ((-1, 1), (0, 0), (2, 3)):
        with pytest.raises(ValueError, match=f"at most 4, got {position} and {room}"):
            fixed.round("a", "r0", position, room)
    ended = small()
    ended = TrieTables(trace_of(*ended.trace.requests, eos=6))
    with pytest.raises(ValueError, match="within the recorded answer of 2 tokens"):
        rounds_of(ended, Chain(ended.pool, "draft:1/target")).round("a", "r0", 3, 1)


def test_a_strict_recording_names_the_request_that_came_to_its_end():
    views = {(): (5, 5), (5,): (6, 7), (5, 7): (1, 1), (5, 7, 1): (1, 1)}
    tables = TrieTables(trace_of(request_of(views, budget=3)))
    fixed = rounds_of(tables, Chain(tables.pool, "draft:3/target"), strict=True)
    with pytest.raises(UnrecordedContextError, match=r"^request mine: draft at output position"):
        fixed.round("mine", "r0", 0, 3)
