"""Which operation runs next, and that a loop takes no answer to another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.results import DraftResults, OpRecord, StepRecord, VerifyResults
from paceline.decoding.seen import Start, prefill_before
from paceline.decoding.session import Session
from paceline.decoding.world import DRAFTS, VERIFIES, WaitingOps
from paceline.policies import Draft, Verify
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.runs.log import OP_FIELDS, STEP_FIELDS, RunLedger

from .script import Script

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
