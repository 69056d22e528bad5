"""Whatever a world does to single requests, or is told to put back, none is lost; and how first tokens are written."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import DEFERRED_OPS
from paceline.decoding.results import VERIFY, Deferred, DraftResults, Failed, OpRecord, StepRecord, VerifyResults
from paceline.decoding.seen import Start, prefill_before
from paceline.decoding.world import DRAFTS, OVERLAPS, TREES, VERIFIES, Op, WaitingOps
from paceline.policies import Commit, Draft, Policy, Verify
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.runs.log import OP_FIELDS, STEP_FIELDS, RunLedger

from .script import Script, drive, loop_of, session_of
from .strategies import legal_steps, pools, sessions
from .test_session import assert_caches_fit, take

POOL = check_pool()


class AnyStep:
    """Any legal step, Commits left out, and what it was shown and told; who found nothing is not asked for ever."""

    def __init__(self, sessions, seed):
        self.asked, self.first, self.learnt = Counter(), {}, []
        self._sessions = {session.request_id: session for session in sessions}
        self._rng = Random(seed)

    def decide(self, seen):
        self.asked[seen.request_id] += 1
        self.first.setdefault(seen.request_id, (seen.num_emitted, seen.last))
        if seen.last is not None and not (seen.last.num_drafted or seen.last.num_own):
            return Verify(seen.pool.target)
        return self._rng.choice(legal_steps(self._sessions[seen.request_id], commits=False))

    def learn(self, outcome):
        self.learnt.append(outcome)


class Trouble:
    """Rows fail and are deferred by chance; never so many deferred in a row that the loop gives a request up."""

    def __init__(self, sessions, *, seed, fails, defers):
        self.failed, self.deferred = {}, Counter()
        self._sessions, self._rng = sessions, Random(seed)
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


def some_requests(data, most):
    pool = data.draw(pools())
    return pool, [data.draw(sessions(pool, f"r{index}")) for index in range(data.draw(st.integers(1, most)))]


@given(st.data())
def test_every_request_ends_and_the_others_commit_the_trunk(data):
    pool, requests = some_requests(data, 7)
    seed, chances = data.draw(st.integers(0, 999)), st.sampled_from([0.0, 0.05, 0.4])
    trouble = Trouble(requests, seed=seed, fails=data.draw(chances), defers=data.draw(chances))
    world, policy = Doors(pool, seed=seed, ends=0.05, refuse=trouble.refuse), AnyStep(requests, seed)
    by_id = {session.request_id: session for session in requests}
    in_prefill = {name for name, session in by_id.items() if session.prefills_first}
    loop, log = drive(policy, requests, world=world, batch=data.draw(st.integers(1, 5)))

    ended = [session.request_id for session in loop.finished] + [session.request_id for session, _ in loop.failed]
    assert sorted(ended) == sorted(world.opened) == sorted(world.closed) == sorted(by_id)
    assert loop.load.num_running == 0
    assert {session.request_id: error for session, error in loop.failed} == trouble.failed
    for session in loop.finished:
        assert session.emitted == world.trunk(session)
        assert session.finish_reason == ("eos" if session.emitted[-1] == EOS else "length")
    for session, _ in loop.failed:
        assert session.emitted == world.trunk(session)[: len(session.emitted)]
        assert session.finish_reason is None

    decided = log.steps["prefill"] == 0
    names = log.requests["request_id"]
    taken = Counter(names[log.steps["request"][decided]].tolist())
    # Who failed in the prefill was not asked; whom the prefill ended had been, where its first step waited.
    failed = Counter(name for name, session in by_id.items() if name in trouble.failed and not session.prefills_first)
    by_prefill = [by_id[name] for name in set(names[log.steps["request"][~decided]].tolist())]
    over = [one for one in by_prefill if one.done and len(one.emitted) == 1 and one.request_id not in in_prefill]
    assert policy.asked == taken + failed + Counter(one.request_id for one in over), "a step put off is decided once"
    assert Counter(dict(zip(names.tolist(), log.requests["preempted"].tolist(), strict=True))) == trouble.deferred
    assert all(log.ops["num_rows"] > 0), "an operation that did not run is not written down"
    assert log.ops["num_rows"].sum() == len(log.steps["op"]) + len(trouble.failed)
    assert [outcome.num_rows for outcome in policy.learnt] == log.ops["num_rows"][log.steps["op"][decided]].tolist()


@given(st.data())
def test_requests_that_are_put_back_commit_the_trunk_all_the_same(data):
    pool, requests = some_requests(data, 6)
    seed = data.draw(st.integers(0, 999))
    rng, world = Random(seed), Doors(pool, seed=seed, ends=0.05)
    loop, _ = loop_of(AnyStep(requests, seed), requests, world)
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
            op = op._replace(items=[item for item in op.items if item[0] is not session])
        if op.items:
            loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
        running = [session for session in running if session not in loop.finished]
    assert loop.load.context_tokens == loop.load.num_running == 0
    assert sorted(world.opened) == sorted(world.closed) == [session.request_id for session in requests]
    for session in requests:
        assert session.emitted == world.trunk(session)


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


def plain(refuse, *, count):
    """(loop, log) of the target alone on so many requests of three tokens, all at a time."""
    requests = [session_of(f"r{index}", prompt=(1, index), budget=3) for index in range(count)]
    return drive(Script(*[Verify("target")] * 99), requests, world=Doors(POOL, ends=0.0, refuse=refuse), batch=count)


def test_a_held_row_waits_until_another_request_is_done():
    ran = []

    def refuse(session):
        if session.request_id == "r1" and len(ran) < 3:
            return Deferred("no memory")
        return ran.append(session.request_id)

    loop, log = plain(refuse, count=2)
    assert ran == ["r0"] * 3 + ["r1"] * 3
    assert [session.request_id for session in loop.finished] == ["r0", "r1"]
    assert log.requests["preempted"].tolist() == [0, 1]
    assert log.ops["num_rows"].tolist() == [1] * 6


def test_held_rows_come_back_together_when_nothing_else_is_left():
    calls = Counter()

    def refuse(session):
        calls[session.request_id] += 1
        return Deferred("no memory") if calls[session.request_id] == 1 else None

    _, log = plain(refuse, count=3)
    assert log.ops["num_rows"].tolist() == [3, 3, 3]
    assert log.ops["start_s"].tolist() == [1.0, 2.0, 3.0]
    assert log.requests["preempted"].tolist() == [1, 1, 1]


def test_a_failure_lets_held_rows_back():
    calls = Counter()

    def refuse(session):
        calls[session.request_id] += 1
        if session.request_id == "r0" and calls["r0"] == 2:
            return Failed(ValueError())
        return Deferred("no memory") if session.request_id == "r1" and calls["r1"] == 1 else None

    loop, log = plain(refuse, count=3)
    assert [session.request_id for session, _ in loop.failed] == ["r0"]
    assert log.ops["num_rows"].tolist() == [2, 2, 2, 1, 1], "r0 and r2; both, r0 failing; r1 and r2; r1; r1"
    assert log.requests["failed"].tolist() == ["ValueError()", "", ""]
    assert log.requests["finished_at_s"].tolist() == [2.0, 5.0, 3.0]


def test_a_world_that_always_defers_fails_its_requests_one_by_one():
    loop, log = plain(lambda session: Deferred("0 of 9 blocks free"), count=3)
    assert not loop.finished
    assert len(loop.failed) == 3
    for _, error in loop.failed:
        assert isinstance(error, MemoryError)
        assert str(error).endswith("times while nothing ran: 0 of 9 blocks free")
    assert len(log.ops["kind"]) == 0


def test_policies_see_the_free_memory_of_the_latest_operation_and_a_forgotten_cache_is_read_again():
    session, world = session_of(prompt=(1, 0)), ToyWorld(POOL, ends=0.0)
    loop, _ = loop_of(Script(), [session], world)
    loop.admit(session)
    op = loop.next_op(0.0)
    loop.finish(op, op.run(world)._replace(free_kv_share=0.25), start_s=0.0, now_s=1.0)
    assert loop.load.free_kv_share == 0.25
    assert session.feed(POOL.target_level, verify=True) == (1, 2)
    session.forget_caches()
    assert session.cached == [0] * len(POOL.members)
    assert session.feed(POOL.target_level, verify=True) == (3, 0)


class Asked(Policy):
    """Drafts once, then verifies; knows what it was asked."""

    def __init__(self):
        self.seen = []

    def decide(self, seen):
        self.seen.append((seen.num_emitted, seen.num_pending, seen.last is None))
        return Verify("target") if seen.num_pending else Draft("draft", 2)


def test_a_prefill_that_others_run_is_waited_for():
    session, world, policy = session_of(prompt=(1, 2), budget=9), ToyWorld(POOL, ends=0.0), Asked()
    loop, _ = loop_of(policy, [session], world)
    op = Op(VERIFIES, POOL.target_level, [loop.admit_apart(session)])
    assert loop.next_op(0.0) is None
    loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    assert loop.next_op(1.0).kind == DRAFTS
    assert policy.seen == [(1, 0, True)]
    for admit in (loop.admit_apart, loop.admit):
        with pytest.raises(ValueError, match="request r0 is already running"):
            admit(session)


def test_a_policy_meets_a_request_that_comes_back_as_one_that_begins():
    session, world, policy = session_of(prompt=(1, 2), budget=9), ToyWorld(POOL, ends=0.0), Asked()
    loop, _ = loop_of(policy, [session], world)
    loop.admit(session)
    for _ in range(2):  # the prefill, then a draft
        op = loop.next_op(0.0)
        loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    loop.withdraw(session)
    assert loop.next_op(1.0) is None
    op = Op(VERIFIES, POOL.target_level, [loop.admit_apart(session)])
    loop.finish(op, op.run(world), start_s=1.0, now_s=2.0)
    assert loop.next_op(2.0).kind == DRAFTS
    assert policy.seen == [(1, 0, True), (2, 0, True)]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12))
def test_small_members_go_first_and_draft_before_they_judge(steps):
    waiting, request = WaitingOps(), session_of()
    for level, verifies, held in steps:
        step = Verify("mid") if verifies else Draft("draft", 1 + level)
        if held:
            waiting.held.append((level, request, step))
        else:
            waiting.join(level, request, step)
    for were_held in (False, True):  # who was put off comes when nothing else is left
        expected = Counter((level, verifies) for level, verifies, held in steps if held is were_held)
        popped = [waiting.pop() for _ in expected]
        assert [(op.level, op.kind == VERIFIES) for op in popped] == sorted(expected)
        assert [len(op.items) for op in popped] == [expected[key] for key in sorted(expected)]
    assert waiting.pop() is None


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(DRAFTS, VerifyResults), (VERIFIES, DraftResults), (TREES, VerifyResults), (OVERLAPS, DraftResults)],
)
def test_a_draft_is_not_answered_with_verdicts(kind, wrong):
    loop, _ = loop_of(Script(), [session_of()], ToyWorld(POOL))
    with pytest.raises(TypeError, match=f"must be answered with .*, not {wrong.__name__}"):
        loop.finish(Op(kind, 0, []), wrong([], [], 1.0), start_s=0.0, now_s=1.0)


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


WAITS = tuple(name == "draft" for name in POOL.names)  # a mixed start: drafts by "draft" come after the prefill


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
    policy = AnyStep(requests, data.draw(st.integers(0, 999)))
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
        if session.request_id in policy.first:
            assert policy.first[session.request_id] == (1, None)
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
    policy = AnyStep([], 0)
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


@pytest.mark.parametrize("first", [[Draft("mid", 2)], [Verify("target")], [Draft("mid", 1), Draft("draft", 1)]])
def test_a_first_step_that_waits_for_nothing_runs_at_once(first):
    """And once a member that does not wait has drafted, no later step waits."""
    session = session_of(prefill_before=WAITS)
    _, log = drive(Script(*first, *[Verify("target")] * 12), [session])
    assert log.steps["prefill"].sum() == 0
    assert session.emitted == ToyWorld(POOL, ends=0.0).trunk(session)


def test_a_kept_draft_is_dropped_where_the_prefill_ends_the_answer():
    policy = Script(Draft("draft", 2))
    session = session_of(budget=1, prefill_before=WAITS)
    _, log = drive(policy, [session])
    assert session.done
    assert steps_of(log) == [(VERIFY, POOL.target_level, 1, 1)]
    assert policy.learnt == []


class Ends(Policy):
    """Request r0 ends by a Commit, all others decode plainly."""

    def decide(self, seen):
        if seen.request_id != "r0":
            return Verify("target")
        return Commit(1) if seen.num_pending else Draft("draft", 1)


def test_a_place_that_a_commit_frees_is_filled_before_the_next_operation():
    one, other, third = (session_of(f"r{index}", budget=2 + index) for index in range(3))
    world = ToyWorld(POOL, ends=0.0)
    loop, _ = loop_of(Ends(), [one, other, third], world)
    loop.admit(one)
    loop.admit(other)
    for kind in (VERIFIES, DRAFTS):
        op = loop.next_op(0.0)
        assert op.kind == kind
        loop.finish(op, op.run(world), start_s=0.0, now_s=1.0)
    assert loop.next_op(1.0) is None
    assert loop.finished == [one]
    loop.admit(third)
    assert [session for session, _ in loop.next_op(1.0).items] == [other, third]
