"""Text that a member reads in chunks, beside what it judges, counts as if it had read it at once."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.world import VERIFIES, Op
from paceline.policies import make_policy
from paceline.runs.log import RunLedger
from paceline.runtime.decode import sessions_of
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld

from ..offline import GREEDY, PROMPTS, in_double, trunk

NUM_TOKENS = 10


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(scope="module")
def trunks(pool):
    return [trunk(pool, prompt, num_tokens=NUM_TOKENS) for prompt in PROMPTS]


class Served:
    """Requests whose prompts the target reads in chunks of any size, each before or beside an operation of its own."""

    def __init__(self, pool, draw, **options):
        self.draw = draw
        self.world = TorchWorld(pool=pool, sampling=GREEDY, debug=True, **options)
        self.members = loaded_pool(pool)
        self.target = self.members.target_level
        policy = make_policy("draft:2/mid:3/target", self.members)
        self.loop = Loop(pool=self.members, policy=policy, name="p", world=self.world, ledger=RunLedger())
        self.sessions = sessions_of(pool, PROMPTS, NUM_TOKENS)
        for session in self.sessions:
            self.loop._ledger.note_admitted(
                session.request_id, tag="", num_prompt=session.num_prompt, arrived_at_s=0.0, now_s=0.0
            )
        self.reading = [self.loop.admit_apart(session) for session in self.sessions]

    def chunks(self):
        """Some of what is to be read, never the last token of a text."""
        found = []
        for session, _ in self.reading:
            left = session.num_prompt + len(session.emitted) - session.cached[self.target] - 1
            count = self.draw(st.integers(0, left))
            if count:
                found.append((session, count))
        return found

    def run(self):
        now_s = 0.0
        while len(self.loop.finished) < len(self.sessions):
            op = self.loop.next_op(now_s)
            chunks = self.chunks()
            if op is not None and op.level == self.target:
                results = self.world.verify(op.level, op.items, chunks)
            else:
                if chunks:
                    self.world.verify(self.target, [], chunks)
                results = None if op is None else op.run(self.world)
            for session, count in chunks:
                session.cached[self.target] += count
            if op is not None:
                self.loop.finish(op, results, start_s=now_s, now_s=now_s)
            elif self.reading:
                self.begin()
            assert not self.loop.failed
        return [session.emitted for session in self.sessions]

    def begin(self):
        """One request's text is read to its end."""
        item = self.reading.pop(self.draw(st.integers(0, len(self.reading) - 1)))
        op = Op(VERIFIES, self.target, [item])
        self.loop.finish(op, self.world.verify(op.level, op.items), start_s=0.0, now_s=0.0)


@pytest.mark.parametrize("options", [{}, {"memory": Memory(cache="mask")}, {"forward": "modules"}], ids=str)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_chunks_change_no_text(pool, trunks, options, data):
    assert Served(pool, data.draw, **options).run() == trunks


def test_a_request_that_is_put_back_is_read_anew(pool, trunks):
    world = TorchWorld(pool=pool, sampling=GREEDY, debug=True)
    members = loaded_pool(pool)
    loop = Loop(pool=members, policy=make_policy("draft:2/target", members), name="p", world=world, ledger=RunLedger())
    (session,) = sessions_of(pool, PROMPTS[1:2], NUM_TOKENS)
    loop._ledger.note_admitted(session.request_id, tag="", num_prompt=session.num_prompt, arrived_at_s=0.0, now_s=0.0)
    loop.admit(session)
    for number in range(40):
        op = loop.next_op(0.0)
        if op is None:
            break
        loop.finish(op, op.run(world), start_s=0.0, now_s=0.0)
        if number % 5 == 4 and not loop.finished:
            loop.withdraw(session)
            world.put_back(session)
            assert session.cached == [0] * len(members.members)
            assert world.manager.free_share == 1.0
            item = loop.admit_apart(session)
            world.verify(members.target_level, [], [(session, 3)])
            session.cached[members.target_level] = 3
            op = Op(VERIFIES, members.target_level, [item])
            loop.finish(op, op.run(world), start_s=0.0, now_s=0.0)
    assert session.emitted == trunks[1]
