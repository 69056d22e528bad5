"""A policy that follows a script, requests by hand, and a loop of toy models to run them in."""

from paceline.decoding.loop import Loop
from paceline.decoding.seen import Start, prefill_before
from paceline.decoding.session import Session
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.runs.log import RunLedger


class Script:
    """Returns the given steps one after another; a callable among them is called with what is seen."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.learnt = []

    def decide(self, seen):
        step = self.steps.pop(0)
        return step(seen) if callable(step) else step

    def learn(self, outcome):
        self.learnt.append(outcome)


def session_of(name="r0", *, pool=None, prompt=(1, 2, 3), budget=12, tag="", **options):
    pool = pool or check_pool()
    return Session(pool=pool, request_id=name, tag=tag, prompt=prompt, budget=budget, eos=frozenset({EOS}), **options)


def loop_of(policy, requests, world, *, name="mine"):
    """(loop, ledger) that know these requests; none is admitted."""
    ledger = RunLedger()
    for session in requests:
        ledger.note_admitted(
            session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=0.0, now_s=0.0
        )
    return Loop(pool=requests[0].pool, policy=policy, name=name, world=world, ledger=ledger), ledger


def drive(policy, requests, *, world=None, batch=1, name="mine"):
    """Run all requests, `batch` at a time, a second per operation; returns the loop and the log."""
    world = world or ToyWorld(requests[0].pool, ends=0.0)
    loop, ledger = loop_of(policy, requests, world, name=name)
    waiting, now_s = list(requests), 0.0
    while True:
        while waiting and loop.load.num_running < batch:
            loop.admit(waiting.pop(0))
        op = loop.next_op(now_s)
        if op is not None:
            loop.finish(op, op.run(world), start_s=now_s, now_s=now_s + 1.0)
            now_s += 1.0
        elif not (waiting or loop.load.num_running):
            return loop, ledger.finish({"members": list(loop.pool.names)}, reanchored={}, divergent={})


def run(policy, *, name="mine", pool=None, prompt=(1, 2, 3), budget=12, ends=0.0, world=None, start=Start.prefill):
    """Run one request "r7" until it is done; returns its session."""
    pool = check_pool() if pool is None else pool
    session = session_of(
        "r7", pool=pool, prompt=prompt, budget=budget, tag="a", prefill_before=prefill_before(start, pool)
    )
    drive(policy, [session], world=ToyWorld(pool, ends=ends) if world is None else world, name=name)
    return session
