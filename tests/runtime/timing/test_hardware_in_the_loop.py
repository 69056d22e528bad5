"""The simulator's device process drives real models: virtual arrivals, measured seconds."""

import copy
from random import Random

import pytest
import simpy
import torch
from paceline.decoding.loop import Loop
from paceline.decoding.session import Session
from paceline.policies import make_policy
from paceline.runs.log import RunLedger
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.sim.simulate import device_process

from ..conftest import ALPHABET
from ..offline import GREEDY, PROMPTS, in_double, trunk, with_models

NUM_TOKENS = 16
MOST_RUNNING = 3


class Server:
    """Requests arrive at given times and wait for a place; a device works whenever somebody is there."""

    def __init__(self, pool, policy, arrivals, memory=None):
        self.env = simpy.Environment()
        self.pool, self.members = pool, loaded_pool(pool)
        self.ledger = RunLedger()
        self.world = TorchWorld(pool=pool, sampling=GREEDY, memory=memory, debug=True)
        decider = make_policy(policy, self.members)
        self.loop = Loop(pool=self.members, policy=decider, name=policy, world=self.world, ledger=self.ledger)
        self.arrivals = arrivals
        self.queue = []
        self.ended = {}
        self.failed = {}
        self.seen_waiting = []
        self.work = self.env.event()
        self.env.process(self.arrive())
        self.env.process(self.serve())

    def arrive(self):
        for prompt, at_s in zip(PROMPTS, self.arrivals, strict=True):
            yield self.env.timeout(at_s - self.env.now)
            self.queue.append((prompt, self.env.now))
            self.admit(self.env.now)
            if not self.work.triggered:
                self.work.succeed()

    def serve(self):
        while len(self.ended) + len(self.failed) < len(PROMPTS):
            yield self.work
            self.work = self.env.event()
            yield from device_process(self.env, self.loop, self.world, on_finished=self.on_finished)

    def on_finished(self, now_s):
        for session in self.loop.finished:
            self.ended[session.request_id] = (session.emitted, now_s)
        for session, error in self.loop.failed:
            self.failed[session.request_id] = (error, now_s)
        self.loop.finished.clear()
        self.loop.failed.clear()
        self.admit(now_s)

    def admit(self, now_s):
        while self.queue and self.loop.load.num_running < MOST_RUNNING:
            prompt, arrived_at_s = self.queue.pop(0)
            ids = tuple(self.pool.encode(prompt.text))
            self.ledger.note_admitted(
                prompt.request_id, tag="", num_prompt=len(ids), arrived_at_s=arrived_at_s, now_s=now_s
            )
            session = Session(
                pool=self.members, request_id=prompt.request_id, tag="", prompt=ids, budget=NUM_TOKENS,
                eos=frozenset(self.pool.eos_token_ids),
            )  # fmt: skip
            self.loop.admit(session)
        self.loop.load.num_waiting = len(self.queue)
        self.seen_waiting.append(len(self.queue))

    def run(self):
        self.env.run()
        return self.ledger.finish({"members": list(self.members.names)}, reanchored={}, divergent={})


def arrivals(gap_s, seed=0):
    rng, now_s, times = Random(seed), 0.0, []
    for _ in PROMPTS:
        times.append(now_s)
        now_s += rng.expovariate(1 / gap_s)
    return times


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(scope="module")
def trunks(pool):
    return {prompt.request_id: trunk(pool, prompt, num_tokens=NUM_TOKENS) for prompt in PROMPTS}


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("gap_s", [1e-6, 0.01, 1e6], ids=["at once", "overlapping", "one by one"])
def test_virtual_arrivals_over_real_models(pool, trunks, gap_s, cache):
    times = arrivals(gap_s)
    server = Server(pool, "draft:2/mid:4/target", times, Memory(cache=cache))
    log = server.run()
    assert {name: text for name, (text, _) in server.ended.items()} == trunks
    requests = log.requests
    arrived = dict(zip((prompt.request_id for prompt in PROMPTS), times, strict=True))
    assert dict(zip(requests["request_id"].tolist(), requests["arrived_at_s"].tolist(), strict=True)) == arrived
    assert (requests["admitted_at_s"] >= requests["arrived_at_s"]).all()
    assert (requests["first_token_at_s"] > requests["admitted_at_s"]).all()
    for index, admitted_at_s in enumerate(requests["admitted_at_s"]):
        first = log.steps["op"][log.steps["request"] == index][0]
        assert log.ops["start_s"][first] >= admitted_at_s
    ends = log.ops["start_s"] + log.ops["duration_s"]
    assert (log.ops["start_s"][1:] >= ends[:-1] - 1e-12).all()  # one operation at a time
    assert (log.ops["duration_s"] > 0).all()
    assert log.ops["num_rows"].max() <= (1 if gap_s == 1e6 else MOST_RUNNING)
    if gap_s < 1e-5:
        assert log.ops["num_rows"].max() == MOST_RUNNING
        assert max(server.seen_waiting) > 0
    if gap_s == 1e6:
        assert server.env.now > times[-1]
        assert (requests["admitted_at_s"] == requests["arrived_at_s"]).all()


def test_a_failed_request_makes_room_like_a_finished_one(pool, trunks):
    """Also where a draft holds the letter that breaks the target."""
    model = copy.deepcopy(pool.target.model)
    model.model.embed_tokens.weight[ALPHABET.index("?")] = torch.nan
    server = Server(with_models(pool, target=model), "draft:2/mid:4/target", arrivals(1e-6))
    log = server.run()
    assert "two" in server.failed
    assert server.ended.keys() | server.failed.keys() == trunks.keys()
    assert len(server.ended) >= 2
    for name, (text, _) in server.ended.items():
        assert text == trunks[name]
    failed_at_s = dict(zip(log.requests["request_id"].tolist(), log.requests["finished_at_s"].tolist(), strict=True))
    assert all(failed_at_s[name] == now_s for name, (_, now_s) in server.failed.items())
    assert server.loop.load.num_running == 0


def test_little_memory_is_no_matter_of_who_drives(pool, trunks):
    limit = 2 * 64 * sum(pool.member(name).kv_bytes_per_token * 2 for name in ("draft", "mid", "target"))
    server = Server(pool, "draft:2/mid:4/target", arrivals(1e-6), Memory(limit_bytes=limit))
    log = server.run()
    assert {name: text for name, (text, _) in server.ended.items()} == trunks
    assert log.requests["preempted"].sum() > 0
