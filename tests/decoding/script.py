"""A policy that follows a script, and a loop of toy models to run it in."""

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


def run(policy, *, name="mine", pool=None, prompt=(1, 2, 3), budget=12, ends=0.0, world=None, start=Start.prefill):
    """Run one request "r7" until it is done; returns its session."""
    pool = check_pool() if pool is None else pool
    world = ToyWorld(pool, ends=ends) if world is None else world
    ledger = RunLedger()
    loop = Loop(pool=pool, policy=policy, name=name, world=world, ledger=ledger)
    session = Session(
        pool=pool,
        request_id="r7",
        tag="a",
        prompt=prompt,
        budget=budget,
        eos=frozenset({EOS}),
        prefill_before=prefill_before(start, pool),
    )
    ledger.note_admitted("r7", tag="a", num_prompt=len(prompt), arrived_at_s=0.0, now_s=0.0)
    loop.admit(session)
    while (op := loop.next_op(0.0)) is not None:
        loop.finish(op, op.run(world), start_s=0.0, now_s=0.0)
    return session
