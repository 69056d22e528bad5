"""A request that is put back loses what was pending, and nothing else."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.session import Session
from paceline.decoding.steps import Draft, Verify
from paceline.decoding.world import DRAFTS, VERIFIES, Op
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.runs.log import RunLedger

from .strategies import legal_steps, pools, sessions
from .test_loop_properties import AnyStep, Doors
from .test_session_properties import assert_caches_fit, take


def loop_over(pool, requests, policy, world):
    ledger = RunLedger()
    for session in requests:
        ledger.note_admitted(session.request_id, tag="", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    return Loop(pool=pool, policy=policy, name="any", world=world, ledger=ledger)


@given(st.data())
def test_requests_that_are_put_back_commit_the_trunk_all_the_same(data):
    pool = data.draw(pools())
    requests = [data.draw(sessions(pool, f"r{index}")) for index in range(data.draw(st.integers(1, 6)))]
    seed = data.draw(st.integers(0, 999))
    rng = Random(seed)
    world = Doors(pool, seed=seed, ends=0.05)
    loop = loop_over(pool, requests, AnyStep(requests, seed), world)
    waiting, running, left = list(requests), [], 30
    while waiting or running:
        while waiting and len(running) < 4:
            running.append(waiting.pop(0))
            loop.admit(running[-1])
        assert loop.load.num_running == len(running)
        assert loop.load.context_tokens == sum(one.num_prompt + len(one.emitted) for one in running)
        op = loop.next_op(0.0)
        if running and left and rng.random() < 0.3:
            left -= 1
            session = rng.choice(running)
            loop.withdraw(session)
            session.forget_caches()
            assert not session.tokens
            running.remove(session)
            waiting.append(session)
            items = [item for item in op.items if item[0] is not session]
            op = op._replace(items=items)
        if op.items:
            loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
        running = [session for session in running if session not in loop.finished]
    assert loop.load.context_tokens == loop.load.num_running == 0
    assert sorted(world.opened) == sorted(world.closed) == [session.request_id for session in requests]
    for session in requests:
        assert session.emitted == world.trunk(session)


class Asked:
    """Drafts once, then verifies; knows what it was asked."""

    def __init__(self):
        self.seen = []

    def decide(self, seen):
        self.seen.append((seen.num_emitted, seen.num_pending, seen.last is None))
        return Verify("target") if seen.num_pending else Draft("draft", 2)

    def learn(self, outcome):
        pass


def one_request():
    pool = check_pool()
    world = ToyWorld(pool, ends=0.0)
    policy = Asked()
    session = Session(pool=pool, request_id="r0", tag="", prompt=(1, 2), budget=9, eos=frozenset({EOS}))
    return loop_over(pool, [session], policy, world), world, session, policy


def test_a_prefill_that_others_run_is_waited_for():
    loop, world, session, policy = one_request()
    item = loop.admit_apart(session)
    assert loop.next_op(0.0) is None
    op = Op(VERIFIES, loop.pool.target_level, [item])
    loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    assert loop.next_op(1.0).kind == DRAFTS
    assert policy.seen == [(1, 0, True)]
    with pytest.raises(ValueError, match="request r0 is already running"):
        loop.admit_apart(session)


def test_a_policy_meets_a_request_that_comes_back_as_one_that_begins():
    loop, world, session, policy = one_request()
    loop.admit(session)
    for _ in range(2):  # the prefill, then a draft
        op = loop.next_op(0.0)
        loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    loop.withdraw(session)
    assert loop.next_op(1.0) is None
    op = Op(VERIFIES, loop.pool.target_level, [loop.admit_apart(session)])
    loop.finish(op, op.run(world), start_s=1.0, now_s=2.0)
    assert loop.next_op(2.0).kind == DRAFTS
    assert policy.seen == [(1, 0, True), (2, 0, True)]


@given(st.data())
def test_caches_that_stay_leave_every_member_a_token_to_read(data):
    pool = data.draw(pools())
    session = data.draw(sessions(pool))
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 99)), ends=0.0)
    for _ in range(data.draw(st.integers(1, 12))):
        if not session.done:
            take(session, world, data.draw(st.sampled_from(legal_steps(session, commits=False))))
    session.drop_pending()
    if not session.done:
        assert_caches_fit(session)
