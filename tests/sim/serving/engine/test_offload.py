"""Blocks that go to host memory come back before a step, and nothing else changes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.limits import Offload, OffloadedMember
from paceline.traces.workloads.arrival import PS_PER_S, Arrival

from .served_runs import MICROSECOND, POLICIES, Run, limits, limits_of, pico, target_only, workloads


def offloading(found, *, host_blocks=10**6, block_us=1, device="one"):
    """The same limits with host memory for so many blocks of all members together."""
    member = OffloadedMember(block_bytes=1, block_ps=block_us * MICROSECOND, device=device)
    return replace(found, offload=Offload(host_bytes=host_blocks, members=dict.fromkeys(found.kv, member)))


def hosts(run):
    return run.log.meta.replicas[0].host


# The text of `a` is evicted by `b`, and wanted again by `c`: 6 blocks of 4 tokens in memory for 8.
AGAIN = [
    Arrival("a", 0, 25, 2, blocks=(1, 2, 3)),
    Arrival("b", PS_PER_S, 25, 2, blocks=(4, 5, 6)),
    Arrival("c", 2 * PS_PER_S, 25, 2, blocks=(1, 2, 3)),
]


def test_by_hand():
    """A prefill of 25 tokens takes 40 + 1 + 3 x 25 = 116 us; with 24 of them cached 40 + 1 + 3 + 24 = 68.

    Of the 6 blocks of `a` that enter the cache, `b` leaves one: 5 come back, at 2 us each, before that step.
    """
    tight = limits_of(target_only(), num_blocks=8)
    plain = Run(AGAIN, target_only(), "target", tight, unit_tokens=8).go()
    run = Run(AGAIN, target_only(), "target", offloading(tight, block_us=2), unit_tokens=8).go()
    spans = [first - scheduled for scheduled, first, _ in run.times().values()]
    assert spans[:2] == [116 * MICROSECOND] * 2
    evicted = hosts(run).stored["target"]
    assert spans[2] == (68 + 2 * hosts(run).loaded["target"]) * MICROSECOND
    assert hosts(run).loaded["target"] == 5
    assert hosts(run).load_ps == 10 * MICROSECOND
    assert evicted == 5 + 5
    assert run.log.requests["cached_tokens"][:, -1].tolist() == [0, 0, 24]
    without = [first - scheduled for scheduled, first, _ in plain.times().values()]
    assert without[2] == (40 + 1 + 3 * 21 + 4) * MICROSECOND
    assert hosts(plain) is None


@pytest.mark.parametrize(("until_us", "load_us"), [(0, 0), (3, 3), (10, 10), (40, 10)])
def test_what_comes_back_counts_until_the_end_of_the_run(until_us, load_us):
    """The run of `test_by_hand`, cut so long after `c` came, for which 10 us are loaded."""
    horizon_ps = 2 * PS_PER_S + until_us * MICROSECOND
    tight = offloading(limits_of(target_only(), num_blocks=8), block_us=2)
    run = Run(AGAIN, target_only(), "target", tight, unit_tokens=8, horizon_ps=horizon_ps).go()
    assert run.log.meta.ended_at_ps == horizon_ps
    assert hosts(run).load_ps == load_us * MICROSECOND
    before = Run(AGAIN[:2], target_only(), "target", tight, unit_tokens=8).go()
    (member,), (earlier,) = (one.log.meta.replicas[0].members for one in (run, before))
    assert member.busy_ps - earlier.busy_ps == until_us * MICROSECOND
    assert member.forwards == earlier.forwards


def test_links_of_devices_work_side_by_side():
    """Of two members that lie on one device the blocks come one after the other, else at once."""
    tables = pico()
    tight = limits_of(tables, num_blocks=8)
    ran = {}
    for devices in ("one", "two"):
        found = offloading(tight, block_us=2)
        members = {
            name: replace(member, device=devices if name == "target" else "one")
            for name, member in found.offload.members.items()
        }
        found = replace(found, offload=replace(found.offload, members=members))
        ran[devices] = hosts(Run(AGAIN, tables, "draft:4/target", found, unit_tokens=8).go())
    loaded = ran["one"].loaded
    assert loaded["draft"] > 0
    assert loaded["target"] > 0
    assert ran["one"].load_ps == 2 * (loaded["draft"] + loaded["target"]) * MICROSECOND
    assert ran["two"].load_ps == 2 * max(loaded["draft"], loaded["target"]) * MICROSECOND


@given(st.data())
def test_nothing_is_lost(data):
    tables = pico()
    policy = data.draw(st.sampled_from(POLICIES))
    arrivals = data.draw(workloads(unit_tokens=8))
    found = offloading(
        data.draw(limits(tables)),
        host_blocks=data.draw(st.sampled_from([3, 30, 10**6])),
        block_us=data.draw(st.integers(0, 3)),
    )
    run = Run(arrivals, tables, policy, found, unit_tokens=8).go()
    log = run.log
    assert (log.finished ^ (log.requests["rejected"] != "")).all()
    assert all(not any(state) for state in run.recorder.latest.values())
    for name, text in Run(arrivals, tables, policy, unit_tokens=8).go().outputs.items():
        assert run.outputs.get(name, text) == text
    totals = hosts(run)
    assert all(totals.stored[name] >= totals.dropped[name] for name in totals.stored)
    assert totals.load_ps == sum(totals.loaded.values()) * found.offload.members["target"].block_ps
    busy_ps = sum(member.busy_ps for member in log.meta.replicas[0].members)
    assert busy_ps >= totals.load_ps


@given(workloads(), st.sampled_from(POLICIES))
def test_where_nothing_is_wanted_again_it_changes_nothing(arrivals, policy):
    """Texts share nothing, and memory suffices for all who run."""
    found = limits_of(pico(), max_num_seqs=2, num_blocks=50)
    run = Run(arrivals, pico(), policy, offloading(found)).go()
    assert run.times() == Run(arrivals, pico(), policy, found).go().times()
    assert not any(hosts(run).loaded.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_was_put_back_reads_its_own_blocks_again(policy):
    arrivals = [Arrival(f"q{index}", index * 3 * 10**8, 20 + index % 9, 70) for index in range(14)]
    tight = limits_of(pico(), num_blocks=50, token_budget=32)
    run = Run(arrivals, pico(), policy, offloading(tight, block_us=0)).go()
    assert run.log.finished.all()
    assert hosts(run).loaded["target"] > 0
