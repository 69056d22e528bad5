"""What each router picks, from signals that a test writes by hand; and what is refused of a router by name."""

import re
from collections import Counter
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base import by_name as named_classes
from paceline.sim.serving.routers import ROUTERS, ReplicaSignals, RouterSetting, RouterSpecError, own_routers
from paceline.traces.workloads.arrival import Arrival

IDLE = ReplicaSignals(running=0, waiting=0, queued_tokens=0, free_kv_share=1.0)
loads = st.builds(
    ReplicaSignals,
    running=st.integers(0, 300),
    waiting=st.integers(0, 300),
    queued_tokens=st.integers(0, 10_000),
    free_kv_share=st.floats(0, 1),
)


class Looked:
    """What a router sees, written down."""

    def __init__(self, signals, cached=None, snapshot=1):
        self.signals = signals
        self.tokens = cached or [0] * len(signals)
        self.snapshot = snapshot

    @property
    def cached(self):
        return {replica: tokens for replica, tokens in enumerate(self.tokens) if tokens}

    def cached_tokens(self, replica):
        return self.tokens[replica]


def arrival(name="r", prompt_tokens=100):
    return Arrival(name, 0, prompt_tokens, 10)


parsed = cache(ROUTERS.parse)  # which looks for those of other packages every time


def built(text, num_replicas, seed=0):
    return parsed(text).build(RouterSetting(num_replicas=num_replicas, seed=seed))


def test_round_robin_takes_turns():
    router = built("round-robin", 3)
    assert [router.pick(arrival(), Looked([IDLE] * 3)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("by", "picked"), [("requests", 1), ("tokens", 0), ("kv", 2)], ids=["requests", "tokens", "kv"]
)
def test_least_loaded_by_each_measure(by, picked):
    signals = [
        ReplicaSignals(running=9, waiting=0, queued_tokens=10, free_kv_share=0.2),
        ReplicaSignals(running=0, waiting=2, queued_tokens=500, free_kv_share=0.1),
        ReplicaSignals(running=1, waiting=2, queued_tokens=400, free_kv_share=0.9),
    ]
    assert built(f"least-loaded,by={by}", 3).pick(arrival(), Looked(signals)) == picked


def test_a_waiting_request_weighs_as_four_running_ones():
    waiting, running = IDLE._replace(waiting=1), IDLE._replace(running=4)
    first = built("least-loaded", 2)
    assert first.pick(arrival(), Looked([waiting, running._replace(running=3)])) == 1
    second = built("least-loaded", 2)
    assert second.pick(arrival(), Looked([waiting, running._replace(running=5)])) == 0


def test_what_was_sent_since_the_snapshot_counts_once():
    router = built("least-loaded", 3)
    assert Counter(router.pick(arrival(), Looked([IDLE] * 3)) for _ in range(9)) == {0: 3, 1: 3, 2: 3}
    busy = IDLE._replace(running=1)
    assert router.pick(arrival(), Looked([busy, busy, IDLE], snapshot=2)) == 2


def test_without_counting_all_between_two_snapshots_go_the_same_way():
    router = built("least-loaded,count_sent=false", 3)
    busy = IDLE._replace(running=1)
    assert {router.pick(arrival(), Looked([busy, IDLE, busy])) for _ in range(9)} == {1}


def test_equally_loaded_replicas_take_turns():
    router = built("least-loaded", 3)
    assert [router.pick(arrival(), Looked([IDLE] * 3, snapshot=number)) for number in range(5)] == [0, 1, 2, 0, 1]


def test_prefixes_decide_where_they_are_long_enough():
    busy = IDLE._replace(running=50)
    looked = Looked([IDLE, busy, busy], cached=[0, 49, 48])
    assert built("prefix-affinity", 3).pick(arrival(), looked) == 0
    assert built("prefix-affinity,least_share=0.49", 3).pick(arrival(), looked) == 1


def test_of_equal_prefixes_the_less_loaded_replica():
    looked = Looked([IDLE._replace(running=2), IDLE._replace(running=1), IDLE], cached=[60, 60, 0])
    assert built("prefix-affinity", 3).pick(arrival(), looked) == 1


@given(seed=st.integers(0, 2**32), names=st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True))
def test_two_choices_draws_by_seed_and_request_alone(seed, names):
    signals = [IDLE] * 8
    for name in names:
        alone = built("two-choices", 8, seed)
        drawn = alone._drawn(name)
        assert len(set(drawn)) == 2
        assert set(drawn) <= set(range(8))
        assert alone.pick(arrival(name), Looked(signals)) in drawn
        assert built("two-choices", 8, seed)._drawn(name) == drawn


def test_two_choices_draws_evenly():
    router = built("two-choices", 4)
    drawn = Counter(replica for number in range(4000) for replica in router._drawn(f"request {number}"))
    # 8,000 draws, each replica's share of them binomial: 5 standard deviations of sqrt(4000 x 1/2 x 1/2).
    assert all(abs(count - 2000) < 5 * 4000**0.5 / 2 for count in drawn.values())


@given(data=st.data(), name=st.sampled_from(sorted(own_routers())), num_replicas=st.integers(1, 5))
def test_every_router_picks_a_replica_and_does_so_again(data, name, num_replicas):
    looks = data.draw(
        st.lists(
            st.tuples(
                st.lists(loads, min_size=num_replicas, max_size=num_replicas),
                st.lists(st.integers(0, 100), min_size=num_replicas, max_size=num_replicas),
                st.integers(0, 3),
            ),
            max_size=12,
        )
    )

    def picks():
        router = built(name, num_replicas, seed=7)
        return [router.pick(arrival(f"r{number}"), Looked(*look)) for number, look in enumerate(looks)]

    assert all(0 <= picked < num_replicas for picked in picks())
    assert picks() == picks()


MINE = """
class Last:
    def __init__(self, setting, *, back: int = 1):
        if back < 1:
            raise ValueError(f"back must be >= 1, got {back}")
        self.picked = setting.num_replicas - back

    def pick(self, arrival, seen):
        return self.picked


class Alone:
    def __init__(self):
        pass

    def pick(self, arrival, seen):
        return 0
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my_router.py"
    file.write_text(MINE, encoding="utf-8")
    return file


def test_a_class_in_a_file(mine):
    assert built(f"{mine}:Last,back=2", 5).pick(arrival(), Looked([IDLE] * 5)) == 3


def test_the_class_of_the_page(tmp_path):
    page = (Path(__file__).parents[4] / "docs" / "cluster.md").read_text(encoding="utf-8")
    file = tmp_path / "my_router.py"
    file.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], encoding="utf-8")
    router = ROUTERS.parse(f"{file}:MostRoom,short_tokens=10").build(RouterSetting(num_replicas=3))
    signals = [IDLE._replace(free_kv_share=share) for share in (0.1, 0.9, 0.5)]
    assert [router.pick(arrival(prompt_tokens=tokens), Looked(signals)) for tokens in (10, 11)] == [0, 1]


def test_one_that_another_package_registers(monkeypatch):
    theirs = EntryPoint(name="theirs", value="paceline.sim.serving.routers:RoundRobin", group="paceline.routers")
    monkeypatch.setattr(named_classes, "entry_points", lambda group: [theirs] if group == "paceline.routers" else [])
    assert built("theirs", 2).pick(arrival(), Looked([IDLE] * 2)) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "fastest",
            "known are round-robin, least-loaded, prefix-affinity, two-choices, file.py:Class",
        ),
        ("round-robin,by=kv", "unknown option 'by'; it takes no options"),
        ("least-loaded,by", "option 'by' must read key=value"),
        ("least-loaded,by=luck", "router 'least-loaded,by=luck': by must be requests, tokens or kv, got 'luck'"),
        ("least-loaded,count_sent=1", "option 'count_sent' must be true or false, got '1'"),
        ("prefix-affinity,least_share=0", "least_share must be in (0, 1], got 0.0"),
        ("prefix-affinity,least_share=2", "least_share must be in (0, 1], got 2.0"),
        ("nowhere.py:Class", "no file nowhere.py"),
        ("paceline.sim.simulate:Scenario", "'Scenario' is not a class with pick"),
        ("two-choices(by=kv", "is never closed"),
    ],
)
def test_refused_routers(text, said):
    with pytest.raises(RouterSpecError) as refused:
        built(text, 2)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_refused_classes_of_files(mine):
    with pytest.raises(RouterSpecError, match=r"must take a RouterSetting first, then options"):
        built(f"{mine}:Alone", 2)
    with pytest.raises(RouterSpecError, match=r"back must be >= 1, got 0 \(.*my_router.py:5\)"):
        built(f"{mine}:Last,back=0", 2)
