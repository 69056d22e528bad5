"""The first token: the loop lets the target write it, and no policy decides it or learns of it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import VERIFY, Deferred, Failed
from paceline.decoding.seen import Start, prefill_before
from paceline.policies import Draft, Verify
from paceline.policies.check import ToyWorld, check_pool

from .script import Script, drive, session_of
from .strategies import legal_steps, pools, sessions

POOL = check_pool()
WAITS = tuple(name == "draft" for name in POOL.names)  # a mixed start: drafts by "draft" come after the prefill


class Anything:
    """Any legal step; remembers what it was shown and told."""

    def __init__(self, requests, rng):
        self.seen, self.learnt = {}, []
        self._requests = {session.request_id: session for session in requests}
        self._rng = rng

    def decide(self, seen):
        self.seen.setdefault(seen.request_id, (seen.num_emitted, seen.last))
        if seen.last is not None and not (seen.last.num_drafted or seen.last.num_own or seen.last.num_emitted):
            return Verify(seen.pool.target)
        return self._rng.choice(legal_steps(self._requests[seen.request_id], commits=False))

    def learn(self, outcome):
        self.learnt.append(outcome)


def steps_of(log, index=0):
    """(kind, level, emitted, is a prefill) of a request's steps."""
    rows = log.steps["request"] == index
    return list(zip(*(log.steps[name][rows].tolist() for name in ("kind", "level", "emitted", "prefill")), strict=True))


@given(data=st.data(), start=st.sampled_from([Start.prefill, Start.draft]), batch=st.integers(1, 4))
def test_whatever_is_done_the_trunk_is_committed_and_a_prefill_is_one_more_call(data, start, batch):
    pool = data.draw(pools())
    requests = [data.draw(sessions(pool, f"r{index}")) for index in range(data.draw(st.integers(1, 5)))]
    for session in requests:
        session.prefill_before = prefill_before(start, pool)
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 99)), ends=0.1)
    policy = Anything(requests, data.draw(st.randoms(use_true_random=False)))
    _, log = drive(policy, requests, batch=batch, world=world)
    by_target = (log.steps["kind"] == VERIFY) & (log.steps["level"] == pool.target_level)
    decided = Counter(outcome.request_id for outcome in policy.learnt if outcome.step == Verify(pool.target))
    for session in requests:
        assert session.emitted == world.trunk(session)
        index = log.requests["request_id"].tolist().index(session.request_id)
        calls = int((by_target & (log.steps["request"] == index)).sum())
        prefills = [emitted for _, _, emitted, prefill in steps_of(log, index) if prefill]
        if start is Start.draft:
            assert (calls, prefills) == (decided[session.request_id], [])
            continue
        assert calls == 1 + decided[session.request_id]
        assert prefills == [1]
        assert steps_of(log, index)[0][3] == 1
        first_s = log.steps["end_s"][log.steps["request"] == index][0]
        assert log.requests["first_token_at_s"][index] == first_s, "the first token is there when the prefill ends"
        if session.request_id in policy.seen:
            assert policy.seen[session.request_id] == (1, None)
        else:
            assert len(session.emitted) == 1, "who ends with the first token never meets the policy"


@pytest.mark.parametrize("name", ["the budget", "an end token", "an ending"])
def test_who_ends_with_the_first_token_never_meets_the_policy(name):
    ending = (lambda emitted, before: 1) if name == "an ending" else None
    world = ToyWorld(POOL, ends=1.0 if name == "an end token" else 0.0)
    session = session_of(budget=1 if name == "the budget" else 6, ending=ending)
    _, log = drive(Script(), [session], world=world)  # asked, it would have no step to take
    assert len(session.emitted) == 1
    assert session.done
    assert steps_of(log) == [(VERIFY, POOL.target_level, 1, 1)]
    assert len(log.rounds()["round"]) == 0


def test_a_prefill_joins_the_verifications_that_are_due():
    """A request that comes in later: its prefill waits for the draft of the others, then shares their verification."""
    policy = Anything([], None)
    policy.decide = lambda seen: Verify("target") if seen.num_pending else Draft("draft", 2)
    requests = [session_of("r0", budget=2), session_of("r1", budget=9), session_of("r2", budget=9)]
    _, log = drive(policy, requests, batch=2)
    prefill_op = int(log.steps["op"][(log.steps["request"] == 2) & (log.steps["prefill"] == 1)][0])
    rows = log.steps["op"] == prefill_op
    assert log.steps["prefill"][rows].sum() == 1
    assert log.ops["num_rows"][prefill_op] == rows.sum() == 2
    told = [outcome.num_rows for outcome in policy.learnt if outcome.request_id == "r1"]
    assert max(told) == 2, "a policy sees how many rows an operation had, prefills among them"


def test_a_prefill_may_fail_or_be_put_off_like_any_row():
    answers = {"r0": [Failed(ArithmeticError("logits hold NaN"))], "r1": [Deferred("no memory"), None]}

    def refuse(session):
        left = answers.get(session.request_id, [])
        return left.pop(0) if left else None

    policy = Script(*[Verify("target")] * 20)
    requests = [session_of("r0"), session_of("r1", budget=3), session_of("r2", budget=3)]
    _, log = drive(policy, requests, batch=3, world=ToyWorld(POOL, ends=0.0, refuse=refuse))
    assert log.requests["failed"].tolist() == ["logits hold NaN", "", ""]
    assert log.requests["preempted"].tolist() == [0, 1, 0]
    assert steps_of(log, 0) == []
    assert [prefill for *_, prefill in steps_of(log, 1)] == [1, 0, 0]
    assert {outcome.request_id for outcome in policy.learnt} == {"r1", "r2"}


def test_a_request_that_lost_its_cache_does_not_prefill_again():
    def refuse(session):
        if len(session.emitted) == 2:
            session.forget_caches()
        return

    session = session_of(budget=5)
    _, log = drive(Script(*[Verify("target")] * 4), [session], world=ToyWorld(POOL, ends=0.0, refuse=refuse))
    assert [prefill for *_, prefill in steps_of(log)] == [1, 0, 0, 0, 0]


# -- logs of several methods: the member that drafts first says how the request begins


def test_a_draft_that_waits_for_the_prefill_is_kept():
    """Asked once, on the bare prompt; the same draft runs after the prefill, which nobody learns of."""
    shown = []
    policy = Script(
        lambda seen: shown.append(seen.num_emitted) or Draft("draft", 2),
        lambda seen: shown.append((seen.num_emitted, seen.num_pending)) or Verify("target"),
        *[Verify("target")] * 12,
    )
    session = session_of(prefill_before=WAITS)
    _, log = drive(policy, [session])
    assert shown == [0, (1, 2)]
    assert [step[3] for step in steps_of(log)][:3] == [1, 0, 0]
    assert policy.learnt[0].step == Draft("draft", 2)


@pytest.mark.parametrize("first", [Draft("mid", 2), Verify("target"), Verify("mid")])
def test_a_first_step_that_waits_for_nothing_runs_at_once(first):
    session = session_of(prefill_before=WAITS)
    _, log = drive(Script(first, *[Verify("target")] * 12), [session])
    assert log.steps["prefill"].sum() == 0
    assert session.emitted == ToyWorld(POOL, ends=0.0).trunk(session)


def test_only_the_first_step_of_a_request_can_wait():
    """Once a member that does not wait has drafted, the first verification reads the prompt."""
    session = session_of(prefill_before=WAITS)
    _, log = drive(Script(Draft("mid", 1), Draft("draft", 1), *[Verify("target")] * 12), [session])
    assert log.steps["prefill"].sum() == 0


def test_a_kept_draft_is_dropped_where_the_prefill_ends_the_answer():
    policy = Script(Draft("draft", 2))
    session = session_of(budget=1, prefill_before=WAITS)
    _, log = drive(policy, [session])
    assert session.done
    assert steps_of(log) == [(VERIFY, POOL.target_level, 1, 1)]
    assert policy.learnt == []


def test_a_start_is_one_value_for_each_member():
    with pytest.raises(ValueError, match="request r0: prefill_before must have 5 values, got"):
        session_of(prefill_before=(True,))
    with pytest.raises(ValueError, match="`start` must be prefill or draft for this run, which holds no start"):
        prefill_before(Start.recorded, POOL)
