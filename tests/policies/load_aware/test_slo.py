"""Who is late gets its whole window; who has time to spare gets less of it, in a loaded batch."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.seen import Observation
from paceline.decoding.session import Session
from paceline.policies import Draft
from paceline.policies.check import ToyWorld, check_pool
from paceline.policies.under_load import Slo
from paceline.runs.log import RunLedger

from .loads import Rounds

NOW_S = 100.0
ROUND_S = 0.5  # the draft's and the verification's


def window(policy, *, slack_s, num_running=16):
    """Of a request that begins its first round, whose next token is due after so many seconds; None: never."""
    seconds = [0.0, 0.1, 9.0, 9.0, 0.4]
    load = SimpleNamespace(num_running=num_running, duration_s=seconds, now_s=NOW_S)
    due_s = None if slack_s is None else NOW_S + slack_s
    step = policy.decide(SimpleNamespace(request_id="r", num_pending=0, last=None, load=load, deadline_s=due_s))
    return step.tokens if isinstance(step, Draft) else 0


@given(st.lists(st.floats(-9.0, 90.0), min_size=2, max_size=2), st.integers(8, 99), st.integers(1, 8))
def test_the_more_urgent_never_gets_the_shorter_window(slacks, num_running, start):
    policy = Slo(check_pool(), start=start)
    urgent, calm = (window(policy, slack_s=slack_s, num_running=num_running) for slack_s in sorted(slacks))
    assert urgent >= calm


def test_slack_takes_from_the_window_in_proportion():
    policy = Slo(check_pool(), start=8, margin=2.0)
    windows = [window(policy, slack_s=rounds * ROUND_S) for rounds in (-3.0, 0.0, 2.0, 4.0, 8.0, 16.0, 17.0)]
    assert windows == [8, 8, 8, 4, 2, 1, 0]


def test_nobody_gives_way_in_a_small_batch_or_without_a_deadline():
    policy = Slo(check_pool(), start=8, loaded=5)
    assert window(policy, slack_s=1e9, num_running=4) == 8
    assert window(policy, slack_s=1e9, num_running=5) == 0
    assert window(policy, slack_s=None, num_running=5) == 8


class Classed(Observation):
    """Requests of an even number are late, the others have all the time in the world."""

    __slots__ = ()

    @property
    def deadline_s(self):
        return 0.0 if int(self.request_id[1:]) % 2 == 0 else 1e6


def test_in_one_batch_the_late_draft_and_the_others_decode_alone():
    pool = check_pool()
    world = ToyWorld(pool)
    late, calm = Rounds(None), Rounds(None)
    policy = Slo(pool, loaded=8)
    late.policy = calm.policy = policy

    class Both:
        def decide(self, seen):
            return (late if seen.deadline_s == 0.0 else calm).decide(seen)

        def learn(self, outcome):
            policy.learn(outcome)

    ledger = RunLedger()
    loop = Loop(pool=pool, policy=Both(), name="slo", world=world, ledger=ledger, view=Classed)
    for number in range(12):
        ledger.note_admitted(f"r{number}", tag="a", num_prompt=3, arrived_at_s=0.0, now_s=0.0)
        session = Session(
            pool=pool,
            request_id=f"r{number}",
            tag="a",
            prompt=(1, 2, number),
            budget=30,
            eos=frozenset(),
            prefill_before=(True,) * 5,
        )
        loop.admit(session)
    now_s = 0.0
    while (op := loop.next_op(now_s)) is not None:
        results = op.run(world)
        loop.finish(op, results, start_s=now_s, now_s=now_s + results.duration_s)
        now_s += results.duration_s
    assert all(tokens > 0 for _, tokens in late.begun)
    assert all((tokens == 0) == (num_running >= 8) for num_running, tokens in calm.begun)
    assert {tokens > 0 for _, tokens in calm.begun} == {True, False}, "the late ones end first"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"loaded": 0}, "loaded must be >= 1, got 0"),
        ({"margin": 0.0}, "margin must be > 0 and finite, got 0.0"),
        ({"start": 9}, r"start must be in \[1, most=8\], got 9"),
        ({"up": -1}, "up and down must be >= 0, got up=-1, down=1"),
        ({"draft": "target"}, "draft must be a member below the target, got 'target'"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        Slo(check_pool(), **options)
