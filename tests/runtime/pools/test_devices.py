"""Members on devices of their own: memory that belongs to a device, rows that change it, and what is refused.

A machine without GPUs has one device that holds values. `meta` holds none, and counts bytes all the same.
"""

from dataclasses import replace

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.session import Session
from paceline.runtime.caches import SLOT_STEP, KVShape, SlotCache
from paceline.runtime.distances import stacked_on
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.state import RequestState, StateManager
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..offline import GREEDY, Offline, in_double

CPU, META = torch.device("cpu"), torch.device("meta")
DEVICES = (CPU, META)
SHAPE = KVShape(num_layers=2, num_heads=1, head_width=2, dtype=torch.float32, device=CPU)
ONE_REQUEST = SLOT_STEP * SHAPE.bytes_per_slot


@pytest.fixture
def managed(tiny_pool):
    """Makes a manager of two levels, one on each device, and three requests in it, the oldest first."""

    def make(limits):
        manager = StateManager(
            ["draft", "target"], lambda level: SlotCache(replace(SHAPE, device=DEVICES[level])), limits=limits
        )
        members, states = loaded_pool(tiny_pool), []
        for number, name in enumerate("abc"):
            session = Session(pool=members, request_id=name, tag="", prompt=(1,), budget=8, eos=frozenset())
            states.append(RequestState(session, number, noise=None, chance=None))
            manager.open(states[-1])
        return manager, states

    return make


def placed(manager, level, state):
    """What `reserve` says of one request, which then takes what it got."""
    refused = manager.reserve(level, [state], [5])
    if not refused:
        manager.cache(level).place([state.request_id], [5])
    return refused


def test_each_device_has_a_limit_of_its_own(managed):
    manager, (first, second, _) = managed({META: ONE_REQUEST})
    assert placed(manager, 0, first) == placed(manager, 0, second) == placed(manager, 1, first) == {}
    assert manager.free_share == pytest.approx(1 - 5 / SLOT_STEP), "of the device that has a limit"
    assert placed(manager, 1, second) == {"b": None}, "the youngest waits"
    assert [set(manager.cache(level).rows) for level in (0, 1)] == [{"a"}, {"a"}], "and gives up what it has elsewhere"
    assert manager.num_preempted == 1


def test_only_who_holds_memory_of_the_device_gives_it_up(managed):
    manager, (first, second, third) = managed({CPU: 4 * ONE_REQUEST, META: ONE_REQUEST})
    assert placed(manager, 0, third) == placed(manager, 1, second) == {}
    assert placed(manager, 1, first) == {}
    assert manager.evicted == ["b"], "the youngest holds nothing there"
    assert list(manager.cache(0).rows) == ["c"]


def test_a_request_that_does_not_fit_alone_is_told_its_own_device(managed):
    manager, (first, *_) = managed({CPU: 9 * ONE_REQUEST, META: ONE_REQUEST - 1})
    assert placed(manager, 0, first) == {}
    error = placed(manager, 1, first)["a"]
    assert f"other caches 0; the KV limit is {ONE_REQUEST - 1:,} bytes" in str(error)


def test_limits_by_name(tiny_pool):
    for limit, told in [
        ({"cuda:9": 5}, r"`limit_bytes` must name devices of the pool \(cpu\), got 'cuda:9'"),
        ({"cpu": 0}, "`limit_bytes` must be >= 1, got 0"),
    ]:
        with pytest.raises(ArgumentError, match=told):
            TorchWorld(pool=tiny_pool, sampling=GREEDY, memory=Memory(limit_bytes=limit))
    one, other = (
        Offline(tiny_pool, "draft:2/target", memory=Memory(limit_bytes=given)).run(batch=5)
        for given in (70_000, {"cpu": 70_000})
    )
    assert one.texts == other.texts
    assert one.world.manager.num_preempted == other.world.manager.num_preempted > 0


class Moves(TorchDispatchMode):
    """Counts copies between devices."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("devices", "moves"), [("000", 0), ("111", 1), ("0101", 1), ("1212", 2), ("0120121", 2)], ids=str
)
def test_rows_move_once_from_each_device(devices, moves):
    with FakeTensorMode():
        rows = [torch.empty(7, device=f"cuda:{device}") for device in devices]
        with Moves() as seen:
            stacked = stacked_on(torch.device("cuda:0"), rows)
    assert (stacked.shape, str(stacked.device)) == ((len(devices), 7), "cuda:0")
    assert seen.count == moves
    rows = [torch.full((3,), float(index)) for index in range(4)]
    assert torch.equal(stacked_on(CPU, rows), torch.stack(rows))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("policy", ["draft:2/mid:4/target", "draft:3/slim:4/target", "specrouter"])
@pytest.mark.parametrize("places", [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:1", "cuda:0")], ids=str)
def test_members_on_devices_of_their_own_write_the_same(tiny_pool, policy, places):
    """Drafts on one, the target and its slim on the other."""
    if "cuda:1" in places and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    together = in_double(tiny_pool)
    apart = in_double(tiny_pool)
    target = apart.target.model.to(places[1])
    models = {"draft": apart.member("draft").model.to(places[0]), "mid": apart.member("mid").model.to(places[0])}
    models |= {"slim": make_submodel(target, (2,)), "target": target}
    members = tuple(replace(member, model=models.get(member.name)) for member in apart.members)
    done = Offline(replace(apart, members=members), policy).run(batch=3)
    assert done.failed == {}
    assert done.texts == Offline(together, policy).run(batch=3).texts
