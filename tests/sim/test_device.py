"""The device among other SimPy processes: whoever looks at the clock sees what has happened by then, and no more."""

import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.session import Session
from paceline.policies import make_policy
from paceline.runs.log import RunLedger
from paceline.sim.contexts import ReplayWorld, TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import device_process
from paceline.traces import SyntheticSpec, make_trace

from .tries.small_traces import easy_cost, replay, table

TRACE = make_trace(SyntheticSpec(requests=4, tokens=12, prompt_tokens=2))
OP = ("kind", "level", "num_rows", "num_forwards", "new_tokens", "start_s", "duration_s")


class Site:
    """A device and its loop, with the ledger in reach."""

    def __init__(self, policy, *, decide_s=0.0):
        self.env = simpy.Environment()
        self.pool = recorded_pool(TRACE)
        self.ledger = RunLedger()
        self.world = ReplayWorld(tables=TrieTables(TRACE), pool=self.pool, cost=easy_cost(TRACE), fallback=None)
        decider = make_policy(policy, self.pool)
        self.loop = Loop(
            pool=self.pool, policy=decider, name=policy, world=self.world, ledger=self.ledger, decide_s=decide_s
        )
        self.finished = []
        self.device = device_process(self.env, self.loop, self.world, on_finished=self.note)

    def note(self, now_s):
        self.finished += [(now_s, session.request_id) for session in self.loop.finished]
        self.loop.finished.clear()

    def admit(self, index):
        record, now_s = TRACE.requests[index], self.env.now
        self.ledger.note_admitted(
            record.request_id, tag=record.tag, num_prompt=len(record.prompt), arrived_at_s=now_s, now_s=now_s
        )
        session = Session(
            pool=self.pool,
            request_id=record.request_id,
            tag=record.tag,
            prompt=record.prompt,
            budget=record.max_new_tokens,
            eos=frozenset(),
        )
        self.loop.admit(session)

    def log(self):
        return self.ledger.finish({"members": list(self.pool.names)}, reanchored={}, divergent={})


@given(
    gaps=st.lists(st.floats(0.001, 9.0), min_size=1, max_size=30),
    policy=st.sampled_from(["plain", "draft:4/target", "adaptive"]),
    decide_s=st.sampled_from([0.0, 0.125]),
)
def test_who_looks_in_between_sees_time_in_order(gaps, policy, decide_s):
    site = Site(policy, decide_s=decide_s)
    for index in range(4):
        site.admit(index)
    looks = []

    def ticker():
        for gap in gaps:
            yield site.env.timeout(gap)
            looks.append((site.env.now, len(table(site.log(), "ops", "level")), site.loop.load.num_running))

    site.env.process(ticker())
    site.env.process(site.device)
    site.env.run()
    log = site.log()
    ends = (log.ops["start_s"] + log.ops["duration_s"]).tolist()
    finished = log.requests["finished_at_s"].tolist()
    assert [now for now, _, _ in looks] == sorted(now for now, _, _ in looks)
    for now, num_ops, num_running in looks:
        # An operation that ends at this very instant may stand on either side of the look.
        assert sum(end < now for end in ends) <= num_ops <= sum(end <= now for end in ends)
        assert sum(end > now for end in finished) <= num_running <= sum(end >= now for end in finished)
    assert site.env.now == max(ends[-1], looks[-1][0])
    assert sorted(site.finished) == sorted(zip(finished, log.requests["request_id"].tolist(), strict=True))


@settings(max_examples=20)
@given(gaps=st.lists(st.floats(0.001, 9.0), min_size=1, max_size=30))
def test_looking_changes_nothing(gaps):
    def ticker(env):
        for gap in gaps:
            yield env.timeout(gap)

    logs = []
    for watched in (False, True):
        site = Site("draft:3/target")
        site.admit(0)
        site.admit(1)
        if watched:
            site.env.process(ticker(site.env))
        site.env.process(site.device)
        site.env.run()
        logs.append(table(site.log(), "ops", *OP))
    assert logs[0] == logs[1]


def test_a_request_that_arrives_in_between_joins_at_its_time():
    site = Site("plain")
    site.admit(0)

    def arrival():
        yield site.env.timeout(7.3)
        site.admit(1)

    site.env.process(arrival())
    site.env.process(site.device)
    site.env.run()
    log = site.log()
    first_op = next(op for op, request in table(log, "steps", "op", "request") if request == 1)
    start_s = log.ops["start_s"].tolist()
    assert start_s[first_op - 1] < 7.3 <= start_s[first_op]
    assert log.ops["num_rows"][first_op] == 2
    assert log.requests["emitted_tokens"].tolist()[:2] == [12, 12]


def test_the_clock_ends_with_the_last_operation():
    site = Site("draft:2/target")
    site.admit(0)
    site.env.process(site.device)
    site.env.run()
    log = site.log()
    assert site.env.now == log.ops["start_s"][-1] + log.ops["duration_s"][-1] == site.finished[0][0]


def test_a_simulation_is_a_device_that_admits_at_every_finish():
    site = Site("draft:4/target")
    waiting = iter(range(2, 4))

    def on_finished(now_s):
        for _ in range(len(site.loop.finished)):
            site.loop.finished.pop()
            index = next(waiting, None)
            if index is not None:
                site.admit(index)

    site.device = device_process(site.env, site.loop, site.world, on_finished=on_finished)
    site.admit(0)
    site.admit(1)
    site.env.process(site.device)
    site.env.run()
    log, _ = replay(TRACE, make_policy("draft:4/target", site.pool), batch=2, strict=True)
    assert table(site.log(), "ops", *OP) == table(log, "ops", *OP)
