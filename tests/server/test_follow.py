"""A policy is tried where simulated traffic says so, and kept where it was truly faster; nothing else changes it."""

import json
import random
from functools import partial
from math import exp
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.runtime.pools.members import loaded_pool
from paceline.server import follow
from paceline.server.engine import End, LiveEngine
from paceline.server.follow import Follower, LastTraffic, Prediction, drafting_of, measured_gain
from paceline.server.options import FollowOptions, RecordingOptions
from paceline.server.record import responses_folder
from paceline.server.start import ServedPool, make_service

from .conftest import serving

POLICIES = ["plain", "draft:2/target", "draft:4/target"]
TRIED = POLICIES[1]
PAIRS, EVERY_S = 40, 60.0
OPTIONS = FollowOptions(follow="cluster.toml", follow_every_s=EVERY_S, follow_pairs=PAIRS)


class World:
    """A follower, with seconds of the test's own."""

    def __init__(self, prediction=None, seed=0):
        self.found, self.lines = prediction or Prediction(fastest=TRIED, gain=1.3, tied=()), []
        self.follower = Follower(POLICIES, POLICIES[2], OPTIONS, self.simulate, self.lines.append)
        self.random, self.now_s, self.count = random.Random(seed), 0.0, 0
        self.follower.look(self.now_s)

    def simulate(self, current):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def look_after(self, seconds):
        self.now_s += seconds
        self.follower.look(self.now_s)

    def answer(self, seconds_of, end=None, choice=""):
        """One request, at once: seconds a token by policy, which drift and have a wide tail."""
        name, self.count = f"cmpl-{self.random.getrandbits(64):x}", self.count + 1
        policy = self.follower.policy_of(name)
        tokens = self.random.randint(1, 50)
        drift = 1 + 0.5 * (self.count // 30 % 2)
        took_s = tokens * seconds_of[policy] * drift * exp(self.random.gauss(0, 0.4))
        job = SimpleNamespace(request_id=name + choice, e2e_s=took_s, tokens=[0] * tokens)
        self.follower.ended(job, end(policy) if end else End("length"))
        return policy

    @property
    def events(self):
        return [line["event"] for line in self.lines]

    def trial(self, seconds_of, **how):
        self.look_after(EVERY_S)
        assert self.lines[-1]["then"] == f"{TRIED} is tried", self.lines
        policies = [self.answer(seconds_of, **how) for _ in range(2 * PAIRS)]
        self.look_after(1.0)
        return policies


def seconds(gain):
    return {policy: 0.01 / (gain if policy == TRIED else 1.0) for policy in POLICIES}


def test_a_true_gain_is_kept_and_told_with_its_interval():
    world = World()
    policies = world.trial(seconds(1.5))
    assert world.events == ["simulated", "kept"]
    assert world.follower.current == TRIED
    line = world.lines[-1]
    assert line["low"] < 1.5 < line["high"]
    assert (line["policy"], line["over"], line["pairs"]) == (TRIED, "plain", PAIRS)
    assert json.loads(json.dumps(line)) == line
    firsts = [first == TRIED for first in policies[::2]]
    assert [first == TRIED for first in policies[1::2]] == [not first for first in firsts]  # each pair has one
    assert 10 < sum(firsts) < 30
    others = [world.answer(seconds(1.5)) for _ in range(400)]
    assert {TRIED} < set(others) == {TRIED, POLICIES[2]}  # a few probe what longer drafts would keep
    assert 5 < others.count(POLICIES[2]) < 45


def test_no_gain_is_rolled_back_but_for_the_chance_that_the_interval_leaves():
    """One in forty of trials without a gain; 4 standard deviations of 300 are 11."""
    kept = 0
    for seed in range(300):
        world = World(seed=seed)
        world.trial(seconds(1.0))
        kept += world.events[-1] == "kept"
        assert world.follower.current == (TRIED if kept and world.events[-1] == "kept" else "plain")
    assert kept <= 7.5 + 11


def test_what_is_slower_is_rolled_back_and_rests():
    world = World()
    world.trial(seconds(0.7))
    assert world.events == ["simulated", "rolled back"]
    assert world.lines[-1]["high"] < 1
    assert world.follower.current == "plain"
    for _ in range(follow.REST - 1):
        world.look_after(EVERY_S)
        assert "a while ago" in world.lines[-1]["then"]
    world.look_after(EVERY_S)
    world.look_after(EVERY_S)
    assert any("is tried" in line.get("then", "") for line in world.lines[-2:])


@pytest.mark.parametrize(
    "found",
    [
        ValueError("a candidate failed"),
        KeyError("best"),
        Prediction(fastest="plain", gain=1.0, tied=()),
        Prediction(fastest=TRIED, gain=1.2, tied=("plain",)),
    ],
)
def test_a_simulation_that_fails_or_tells_nothing_apart_changes_nothing(found):
    world = World(found)
    for _ in range(3):
        world.look_after(EVERY_S)
    assert set(world.events) <= {"not simulated", "simulated"}
    assert len(world.lines) == 3
    policies = {world.answer(seconds(1.0)) for _ in range(200)}
    assert policies == {"plain", POLICIES[2]}
    assert world.follower.current == "plain"


def test_a_candidate_that_fails_a_request_is_rolled_back_at_once():
    world = World()
    world.look_after(EVERY_S)
    while (
        world.answer(seconds(2.0), end=lambda policy: End("", "broke") if policy == TRIED else End("length")) != TRIED
    ):
        pass
    world.look_after(0.1)
    assert world.events[-1] == "rolled back"
    assert world.lines[-1]["why"] == "broke"
    assert world.follower.current == "plain"


def test_clients_that_leave_take_their_pair_with_them_and_too_few_pairs_decide_nothing():
    world, chance = World(), random.Random(1)
    world.trial(seconds(1.5), end=lambda _: End("", left=True) if chance.random() < 0.1 else End("length"))
    assert world.events[-1] == "kept"
    assert PAIRS / 2 < world.lines[-1]["pairs"] < PAIRS
    world = World()
    world.trial(seconds(1.5), end=lambda _: End("", left=True) if chance.random() < 0.6 else End("length"))
    assert world.events[-1] == "rolled back"
    assert "too few of 40 pairs" in world.lines[-1]["why"]


def test_a_trial_without_traffic_ends():
    world = World()
    world.look_after(EVERY_S)
    for _ in range(10):
        world.answer(seconds(1.5))
    for _ in range(follow.MOST_PERIODS + 1):
        world.look_after(EVERY_S)
    assert "rolled back" in world.events
    assert world.follower.current == "plain"


def test_of_several_answers_to_a_request_the_first_is_measured():
    world = World()
    world.trial(seconds(1.5), choice="/0")
    assert world.events[-1] == "kept"
    world = World()
    world.look_after(EVERY_S)
    for _ in range(2 * PAIRS):
        world.answer(seconds(1.5), choice="/1")
    world.look_after(1.0)
    assert world.events == ["simulated"]


@given(st.lists(st.floats(-3, 3), min_size=40, max_size=90), st.floats(-2, 2))
def test_a_measured_gain_moves_with_its_pairs(gains, more):
    one, other = measured_gain(gains), measured_gain([gain + more for gain in gains])
    assert one.low <= one.mean <= one.high
    for end, moved in zip((one.low, one.mean, one.high), (other.low, other.mean, other.high), strict=True):
        assert moved == pytest.approx(end * exp(more), rel=1e-6)


@pytest.mark.parametrize(
    ("policies", "rule"),
    [
        (["plain"], "two `policies` or more"),
        (["plain", "adaptive"], "got adaptive"),
        (["plain", "draft:2/mid:4/target"], "got draft:2/mid:4/target"),
        (["draft:2/target", "mid:2/target"], "of one drafter; got draft, mid"),
    ],
)
def test_only_chains_of_one_drafter_are_followed(models, policies, rule):
    pool = loaded_pool(models)
    with pytest.raises(ArgumentError, match=rule):
        drafting_of(policies, pool)
    assert drafting_of(POLICIES, pool) == ("draft", POLICIES[2])


def test_what_is_followed_is_recorded_and_has_seconds(models, tmp_path):
    with pytest.raises(ArgumentError, match="`follow` goes with `record`"):
        make_service(ServedPool(pool=models, policies=POLICIES), None, None, OPTIONS)
    with pytest.raises(ArgumentError, match="go with `follow`"):
        FollowOptions(follow_pairs=50)
    file = tmp_path / "cluster.toml"
    with pytest.raises(ValueError, match="must exist"):
        LastTraffic(tmp_path, POLICIES, "draft", TRIED, FollowOptions(follow=file))
    file.write_text('[[replicas]]\ndevice = "h100"\n')
    with pytest.raises(ArgumentError, match="must name a `cost`"):
        LastTraffic(tmp_path, POLICIES, "draft", TRIED, FollowOptions(follow=file))


class Steady:
    """A replica whose operations take so long, by the clock that is a list of nanoseconds."""

    def __init__(self, operation_ns, now_ns):
        self.jobs, self._operation_ns, self._now_ns = {}, operation_ns, now_ns

    def arrive(self, job, _):
        self.jobs[job.request_id] = job

    def step(self, _):
        if self.jobs:
            self._now_ns[0] += self._operation_ns
        return bool(self.jobs)


def test_replicas_that_have_work_share_the_machines_time_not_its_operations(monkeypatch):
    now_ns = [0]
    monkeypatch.setattr("paceline.server.engine.perf_counter_ns", lambda: now_ns[0])
    takes_ns = {"quick": 500_000, "slow": 4_000_000, "late": 1_000_000}
    made = {name: partial(Steady, operation_ns, now_ns) for name, operation_ns in takes_ns.items()}
    engine = LiveEngine(made, threads=1)

    def submit(name):
        engine._inbox.append(("submit", SimpleNamespace(request_id=name, policy=name)))
        engine._take_in()

    submit("quick")
    submit("slow")
    for turn in range(80):
        assert engine._turn()
        if turn == 40:
            submit("late")
            assert engine._ran_ns["late"] == min(engine._ran_ns["quick"], engine._ran_ns["slow"])
    ran = engine._ran_ns
    assert max(ran.values()) - min(ran.values()) <= takes_ns["slow"]
    engine._replicas["quick"].jobs = engine._replicas["slow"].jobs = engine._replicas["late"].jobs = {}
    assert not engine._turn()


CLUSTER = """
[[replicas]]
device = "h100"
cost = "cost.json"
max_num_seqs = 8
token_budget = 2048
kv_blocks = 256
prefix_cache = false
admission = "whole-prompt"
"""


@pytest.mark.slow
def test_a_server_follows_what_it_recorded(models, prompts, tmp_path):
    """Drafts that cost nothing are tried by the simulation's word; the server's own seconds then decide."""
    (tmp_path / "cost.json").write_text(
        json.dumps({"draft": {"intercept_s": 1e-6}, "target": {"intercept_s": 0.05, "per_row_s": 0.001}})
    )
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER)
    folder, policies = tmp_path / "traffic", ["plain", "draft:3/target"]
    recording = RecordingOptions(record=folder, record_every_s=1e6)
    options = FollowOptions(follow=cluster, follow_every_s=1e5, follow_pairs=40)
    with serving(models, policies=policies, recording=recording, follow=options) as client:
        follower = client.service._following.follower
        follower.look(0.0)
        for text in prompts * 4:
            client.complete(text, policy=policies[1])
        client.service._recorder.files._write()
        follower.look(2e5)
        lines = [json.loads(line) for line in (folder / "follow.jsonl").read_text().splitlines()]
        assert lines[0]["then"] == "draft:3/target is tried", lines
        assert lines[0]["predicted_gain"] > 1.2
        assert lines[0]["answers"] == 24
        for text in (prompts * 14)[:80]:
            assert client.complete(text, max_tokens=4).status == 200
        follower.look(2e5 + 1)
    lines = [json.loads(line) for line in (folder / "follow.jsonl").read_text().splitlines()]
    assert lines[1]["event"] in ("kept", "rolled back")
    assert lines[1]["pairs"] == 40
    assert all((folder / responses_folder(name)).is_dir() for name in policies)
