"""Whatever a world does to single requests, none is lost, and none of the others notices."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import DEFERRED_OPS, Loop
from paceline.decoding.results import Deferred, DraftResults, Failed, OpRecord, StepRecord, VerifyResults
from paceline.decoding.seen import Start, prefill_before
from paceline.decoding.session import Session
from paceline.decoding.world import DRAFTS, VERIFIES, Op, WaitingOps
from paceline.policies import Draft, Verify
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.runs.log import OP_FIELDS, STEP_FIELDS, RunLedger

from .script import Script
from .strategies import legal_steps, pools, sessions
from .test_session import assert_caches_fit, take


class AnyStep:
    """Any legal step, Commits left out; a drafter that finds nothing is not asked for ever."""

    def __init__(self, sessions, seed):
        self.asked = Counter()
        self.learnt = []
        self._sessions = {session.request_id: session for session in sessions}
        self._rng = Random(seed)

    def decide(self, seen):
        self.asked[seen.request_id] += 1
        session = self._sessions[seen.request_id]
        if seen.last is not None and not (seen.last.num_drafted or seen.last.num_own):
            return Verify(seen.pool.target)
        return self._rng.choice(legal_steps(session, commits=False))

    def learn(self, outcome):
        self.learnt.append(outcome)


class Trouble:
    """Rows fail and are deferred by chance; never so many deferred in a row that the loop gives a request up."""

    def __init__(self, sessions, *, seed, fails, defers):
        self.failed = {}
        self.deferred = Counter()
        self._sessions = sessions
        self._rng = Random(seed)
        self._fails, self._defers = fails, defers
        self._in_a_row = 0

    def refuse(self, session):
        if self._rng.random() < self._fails:
            return Failed(self.failed.setdefault(session.request_id, ArithmeticError(f"{session.request_id} is NaN")))
        self._in_a_row += 1
        if self._in_a_row > DEFERRED_OPS or self._rng.random() >= self._defers:
            self._in_a_row = 0
            return None
        self.deferred[session.request_id] += 1
        self._rng.choice([session, *self._sessions]).forget_caches()
        return Deferred("no memory")


class Doors(ToyWorld):
    """Counts who comes and goes."""

    opened = closed = ()

    def open(self, session):
        self.opened = (*self.opened, session.request_id)

    def close(self, session):
        self.closed = (*self.closed, session.request_id)


def drive(loop, world, waiting, *, batch):
    """Run all requests, `batch` at a time; one second per operation."""
    now_s = 0.0
    waiting = list(waiting)
    while True:
        while waiting and loop.load.num_running < batch:
            loop.admit(waiting.pop(0))
        op = loop.next_op(now_s)
        if op is None:
            if not waiting:
                return now_s
            continue
        loop.finish(op, op.run(world), start_s=now_s, now_s=now_s + 1.0)
        now_s += 1.0


@given(st.data())
def test_every_request_ends_and_the_others_commit_the_trunk(data):
    pool = data.draw(pools())
    requests = [data.draw(sessions(pool, f"r{index}")) for index in range(data.draw(st.integers(1, 7)))]
    seed = data.draw(st.integers(0, 999))
    chances = st.sampled_from([0.0, 0.05, 0.4])
    trouble = Trouble(requests, seed=seed, fails=data.draw(chances), defers=data.draw(chances))
    world = Doors(pool, seed=seed, ends=0.05, refuse=trouble.refuse)
    policy, ledger = AnyStep(requests, seed), RunLedger()
    loop = Loop(pool=pool, policy=policy, name="any", world=world, ledger=ledger)
    for session in requests:
        ledger.note_admitted(session.request_id, tag="", num_prompt=1, arrived_at_s=0.0, now_s=0.0)
    drive(loop, world, requests, batch=data.draw(st.integers(1, 5)))

    ids = sorted(session.request_id for session in requests)
    ended = [session.request_id for session in loop.finished] + [session.request_id for session, _ in loop.failed]
    assert sorted(ended) == sorted(world.opened) == sorted(world.closed) == ids
    assert loop.load.num_running == 0
    assert {session.request_id: error for session, error in loop.failed} == trouble.failed
    for session in loop.finished:
        assert session.emitted == world.trunk(session)
        assert session.finish_reason == ("eos" if session.emitted[-1] == EOS else "length")
    for session, _ in loop.failed:
        assert session.emitted == world.trunk(session)[: len(session.emitted)]
        assert session.finish_reason is None

    log = ledger.finish({"members": list(pool.names)}, reanchored={}, divergent={})
    decided = log.steps["prefill"] == 0
    prefilled = set(log.requests["request_id"][log.steps["request"][~decided]].tolist())
    taken = Counter(log.requests["request_id"][log.steps["request"][decided]].tolist())
    failed = Counter(trouble.failed.keys() - {name for name in trouble.failed if fails_in_prefill(requests, name)})
    ended = Counter(name for name in prefilled if ends_with_prefill(loop.finished, name))
    assert policy.asked == taken + failed + ended, "a step that was put off is not decided again"
    preempted = dict(zip(log.requests["request_id"].tolist(), log.requests["preempted"].tolist(), strict=True))
    assert Counter(preempted) == trouble.deferred
    assert all(log.ops["num_rows"] > 0), "an operation that did not run is not written down"
    assert log.ops["num_rows"].sum() == len(log.steps["op"]) + len(trouble.failed)
    assert [outcome.num_rows for outcome in policy.learnt] == log.ops["num_rows"][log.steps["op"][decided]].tolist()


def fails_in_prefill(requests, request_id):
    """Whether a request that failed did so before its policy was asked."""
    session = next(session for session in requests if session.request_id == request_id)
    return session.prefills_first


def ends_with_prefill(finished, request_id):
    """Whether a prefill ended a request in which a step had been asked for."""
    session = next((session for session in finished if session.request_id == request_id), None)
    return session is not None and len(session.emitted) == 1 and not all(session.prefill_before)


def loop_of(refuse, *, count, budget=3):
    pool = check_pool()
    world = Doors(pool, ends=0.0, refuse=refuse)
    requests = [
        Session(pool=pool, request_id=f"r{index}", tag="", prompt=(1, index), budget=budget, eos=frozenset({EOS}))
        for index in range(count)
    ]
    ledger = RunLedger()
    for session in requests:
        ledger.note_admitted(session.request_id, tag="", num_prompt=2, arrived_at_s=0.0, now_s=0.0)
    loop = Loop(pool=pool, policy=Plain(), name="plain", world=world, ledger=ledger)
    return loop, world, requests, ledger


class Plain:
    """The target alone."""

    def decide(self, seen):
        return Verify("target")

    def learn(self, outcome):
        pass


def test_a_held_row_waits_until_another_request_is_done():
    ran = []

    def refuse(session):
        if session.request_id == "r1" and len(ran) < 3:
            return Deferred("no memory")
        ran.append(session.request_id)
        return None

    loop, world, requests, ledger = loop_of(refuse, count=2)
    drive(loop, world, requests, batch=2)
    assert ran == ["r0"] * 3 + ["r1"] * 3
    assert [session.request_id for session in loop.finished] == ["r0", "r1"]
    log = ledger.finish({"members": list(loop.pool.names)}, reanchored={}, divergent={})
    assert log.requests["preempted"].tolist() == [0, 1]
    assert log.ops["num_rows"].tolist() == [1] * 6


def test_held_rows_come_back_together_when_nothing_else_is_left():
    calls = Counter()

    def refuse(session):
        calls[session.request_id] += 1
        return Deferred("no memory") if calls[session.request_id] == 1 else None

    loop, world, requests, ledger = loop_of(refuse, count=3)
    drive(loop, world, requests, batch=3)
    log = ledger.finish({"members": list(loop.pool.names)}, reanchored={}, divergent={})
    assert log.ops["num_rows"].tolist() == [3, 3, 3]
    assert log.ops["start_s"].tolist() == [1.0, 2.0, 3.0]
    assert log.requests["preempted"].tolist() == [1, 1, 1]


def test_a_failure_lets_held_rows_back():
    def refuse(session):
        calls[session.request_id] += 1
        if session.request_id == "r0" and calls["r0"] == 2:
            return Failed(ValueError())
        return Deferred("no memory") if session.request_id == "r1" and calls["r1"] == 1 else None

    calls = Counter()
    loop, world, requests, ledger = loop_of(refuse, count=3)
    drive(loop, world, requests, batch=3)
    assert [session.request_id for session, _ in loop.failed] == ["r0"]
    log = ledger.finish({"members": list(loop.pool.names)}, reanchored={}, divergent={})
    assert log.ops["num_rows"].tolist() == [2, 2, 2, 1, 1], "r0 and r2; both, r0 failing; r1 and r2; r1; r1"
    assert log.requests["failed"].tolist() == ["ValueError()", "", ""]
    assert log.requests["finished_at_s"].tolist() == [2.0, 5.0, 3.0]


def test_a_world_that_always_defers_fails_its_requests_one_by_one():
    loop, world, requests, ledger = loop_of(lambda session: Deferred("0 of 9 blocks free"), count=3)
    drive(loop, world, requests, batch=3)
    assert not loop.finished
    assert sorted(world.closed) == ["r0", "r1", "r2"]
    for _, error in loop.failed:
        assert isinstance(error, MemoryError)
        assert str(error).endswith("times while nothing ran: 0 of 9 blocks free")
    log = ledger.finish({"members": list(loop.pool.names)}, reanchored={}, divergent={})
    assert len(log.ops["kind"]) == 0


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_policies_see_the_free_memory_of_the_latest_operation(share):
    loop, world, requests, _ = loop_of(None, count=1)
    loop.admit(requests[0])
    op = loop.next_op(0.0)
    loop.finish(op, op.run(world)._replace(free_kv_share=share), start_s=0.0, now_s=1.0)
    assert loop.load.free_kv_share == share


def test_a_forgotten_cache_is_read_again():
    loop, world, requests, _ = loop_of(None, count=1)
    (session,) = requests
    loop.admit(session)
    op = loop.next_op(0.0)
    loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    target = session.pool.target_level
    assert session.feed(target, verify=True) == (1, 2)
    session.forget_caches()
    assert session.cached == [0] * len(session.pool.members)
    assert session.feed(target, verify=True) == (3, 0)


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


POOL = check_pool()


def session(name="r0"):
    return Session(
        pool=POOL,
        request_id=name,
        tag="",
        prompt=(1, 2),
        budget=4,
        eos=frozenset({EOS}),
        prefill_before=prefill_before(Start.draft, POOL),
    )


STEPS = st.tuples(st.integers(0, 3), st.booleans(), st.booleans())


@given(st.lists(STEPS, max_size=12))
def test_small_members_go_first_and_draft_before_they_judge(steps):
    waiting = WaitingOps()
    request = session()
    for level, verifies, held in steps:
        step = Verify("mid") if verifies else Draft("draft", 1 + level)
        if held:
            waiting.held.append((level, request, step))
        else:
            waiting.join(level, request, step)
    fresh = {(level, verifies) for level, verifies, held in steps if not held}
    popped = []
    for _ in fresh:
        op = waiting.pop()
        popped.append((op.level, op.kind == VERIFIES))
        assert len(op.items) == steps.count((*popped[-1], False))
    assert popped == sorted(fresh)
    put_off = {(level, verifies) for level, verifies, held in steps if held}
    again = [waiting.pop() for _ in put_off]
    assert [(op.level, op.kind == VERIFIES) for op in again] == sorted(put_off)
    assert waiting.pop() is None


@pytest.mark.parametrize(
    ("step", "kind", "results"),
    [(Draft("draft", 2), DRAFTS, VerifyResults), (Verify("target"), VERIFIES, DraftResults)],
)
def test_a_draft_is_not_answered_with_verdicts(step, kind, results):
    loop = Loop(pool=POOL, policy=Script(step), name="p", world=ToyWorld(POOL), ledger=RunLedger())
    loop.admit(session())
    op = loop.next_op(0.0)
    assert op.kind == kind
    with pytest.raises(TypeError, match=f"must be answered with .*, not {results.__name__}"):
        loop.finish(op, results([], [], 1.0), start_s=0.0, now_s=1.0)


def test_a_run_log_holds_the_records():
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="", num_prompt=2, arrived_at_s=0.0, now_s=0.0)
    op = OpRecord(1, 2, 1, 1, 5, 0.25, 0.5)
    step = StepRecord("r0", 1, 2, 0, 0, 3, 2, 1, 3, 0, 0.75, escalated=1)
    ledger.note_op(op)
    ledger.note_step(step)
    log = ledger.finish({"members": list(POOL.names)}, reanchored={}, divergent={})
    assert tuple(log.ops[name][0] for name in OP_FIELDS) == op
    assert tuple(log.steps[name][0] for name in STEP_FIELDS) == (0, 0, *step[1:])
