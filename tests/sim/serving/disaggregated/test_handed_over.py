"""Prefill here, decode there: nothing is lost on the way, and the link is worked as it says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.legal_steps import Policy
from paceline.decoding.steps import Verify
from paceline.reports.serving import transfer_metrics
from paceline.runs.serving import total_ps
from paceline.sim.serving.apart import Link
from paceline.sim.serving.limits import Admission, Preemption
from paceline.sim.serving.replica import Role, Transfer
from paceline.traces.workloads.arrival import PS_PER_S, Arrival

from ..engine.served_runs import (
    MICROSECOND,
    POLICIES,
    Run,
    check_little,
    limits,
    limits_of,
    pico,
    target_only,
    workloads,
)

PREFILL, DECODE, BOTH = Role.prefill, Role.decode, Role.both
SLOW = Transfer(bytes_per_s=1e6, latency_s=5e-6, token_bytes=2)  # a token takes 2 us
FREE = Transfer(bytes_per_s=1e18, latency_s=0, token_bytes=0)


def apart(arrivals, tables, policy="target", given_limits=None, *, roles=(PREFILL, DECODE), transfer=SLOW, **options):
    return Run(arrivals, tables, policy, given_limits, roles=roles, transfer=transfer, **options)


def latencies(run, name="ended_at_ps"):
    requests = run.log.requests
    return (requests[name] - requests["arrived_at_ps"]).tolist()


def test_by_hand():
    """Two prompts of 20 tokens at once, answers of 3.

    A forward of the target takes 40 us, 1 for each row, 3 for each new token and 1 for each held one. Both prompts are
    read in 40 + 2 + 120 = 162 us. Keys and values of 20 tokens take 40 us: those of the first are there at 207, of the
    second 40 us later. The first request decodes alone for 40 + 1 + 3 + 20 = 64 us; the other joins after that, at 271.
    """
    run = apart([Arrival("a", 0, 20, 3), Arrival("b", 0, 20, 3)], target_only()).go()
    first = 162 * MICROSECOND
    assert [times[:2] for times in run.times().values()] == [(0, first), (0, first)]
    both = 40 + 2 + 6 + 21 + 20
    a_ends = 162 + 45 + 64 + both
    assert run.times()["a"][2] == a_ends * MICROSECOND
    assert run.times()["b"][2] == (a_ends + 40 + 1 + 3 + 21) * MICROSECOND
    transfers = run.log.meta.transfers
    assert (transfers.handed_over, transfers.sent, transfers.bytes, transfers.held_ps) == (2, 2, 80, 0)
    assert (transfers.busy_ps, transfers.queued_ps) == (80 * MICROSECOND, 40 * MICROSECOND)


@given(workloads(), st.sampled_from(POLICIES))
def test_lone_requests_take_as_long_as_on_one_replica_where_sending_takes_no_time(arrivals, policy):
    lone = [arrival._replace(arrives_ps=index * 10**12) for index, arrival in enumerate(arrivals)]
    run, together = apart(lone, pico(), policy, transfer=FREE).go(), Run(lone, pico(), policy).go()
    assert run.times() == together.times()
    assert run.outputs == together.outputs


@st.composite
def runs(draw, **options):
    tables = pico()
    unit_tokens = draw(st.sampled_from([0, 8]))
    # Blocks that some prompts share are drawn again and again, so prefix caches are hit on both sides.
    found = draw(limits(tables))
    preemption = draw(st.sampled_from(Preemption))
    transfer = Transfer(bytes_per_s=draw(st.sampled_from([1e5, 1e6, 1e9])), latency_s=1e-5, token_bytes=2)
    return apart(
        draw(workloads(unit_tokens=unit_tokens)),
        tables,
        draw(st.sampled_from(POLICIES)),
        replace(found, preemption=preemption),
        roles=draw(st.permutations([PREFILL] * draw(st.integers(1, 2)) + [DECODE] * draw(st.integers(1, 2)) + [BOTH])),
        transfer=transfer,
        router=draw(st.sampled_from(["round-robin", "least-loaded", "prefix-affinity"])),
        stale_ps=draw(st.sampled_from([0, 0, 10**9])),
        unit_tokens=unit_tokens,
        **options,
    )


@given(runs())
def test_all_that_come_end(run):
    run.go()
    log = run.log
    requests, finished = log.requests, log.finished
    rejected = requests["rejected"] != ""
    assert (finished ^ rejected).all()
    assert run.served.stopped == ""
    assert (requests["emitted_tokens"][finished] == requests["output_tokens"][finished]).all()
    assert requests["emitted_tokens"].sum() == run.served.num_emitted == sum(map(len, run.outputs.values()))
    assert all(not any(state) for state in run.recorder.latest.values())  # no request, no block
    assert total_ps(log.gaps) == (requests["ended_at_ps"] - requests["first_token_at_ps"])[finished].sum()
    assert set(requests["replica"]) <= {index for index, spec in enumerate(run._given[2]) if spec.role != DECODE}
    check_little(log)


@given(runs(), st.integers(1, 40_000))
def test_what_a_horizon_cuts_is_counted(run, horizon):
    run._options["horizon_ps"] = horizon * MICROSECOND // 10
    run.go()
    log = run.log
    unfinished = log.requests["ended_at_ps"] < 0
    assert bool(run.served.stopped) == bool(log.meta.stopped)
    assert not unfinished.any() or run.served.stopped == "horizon"
    assert log.requests["emitted_tokens"].sum() == run.served.num_emitted
    check_little(log)
    end, sums = log.meta.ended_at_ps, log.meta.transfers
    assert sums.busy_ps <= end
    assert sums.most_queued_ps <= end
    assert sums.unfinished <= sums.sent <= sums.handed_over
    assert bool(sums.unfinished) <= bool(log.meta.stopped)
    assert all(sum(member.busy_ps for member in replica.members) <= end for replica in log.meta.replicas)


@given(workloads(), st.sampled_from(POLICIES), st.sampled_from([None, 25]))
def test_where_it_is_decoded_changes_no_text(arrivals, policy, num_blocks):
    given_limits = None if num_blocks is None else limits_of(pico(), num_blocks=num_blocks, token_budget=32)
    run = apart(arrivals, pico(), policy, given_limits, roles=(DECODE, PREFILL, DECODE)).go()
    assert run.outputs == Run(arrivals, pico(), policy).go().outputs


@given(workloads())
def test_every_token_of_a_prompt_is_sent_once_where_nothing_is_cached(arrivals):
    run = apart(arrivals, target_only(), given_limits=limits_of(target_only(), prefix_cache=False)).go()
    sent = [arrival.prompt_tokens for arrival in arrivals if arrival.output_tokens > 1]
    transfers = run.log.meta.transfers
    assert (transfers.handed_over, transfers.sent, transfers.bytes) == (len(sent), len(sent), 2 * sum(sent))
    assert transfers.busy_ps == 2 * sum(sent) * MICROSECOND


def test_what_the_decoder_has_cached_is_not_sent():
    arrivals = [Arrival(f"q{index}", index * 10**12, 25, 4, blocks=(1, 2)) for index in range(3)]
    run = apart(arrivals, target_only(), given_limits=limits_of(target_only(), block_tokens=5), unit_tokens=10).go()
    assert run.log.meta.transfers.bytes == 2 * (25 + 5 + 5)
    assert [level.lookups.found_tokens for level in run.log.meta.replicas[1].members] == [40]


def test_members_that_never_run_where_prompts_are_read_are_not_looked_up_there():
    """So the draft's share of hits is that of the replica where it runs: at first none, then two blocks each time."""
    arrivals = [Arrival(f"q{index}", index * 10**12, 20, 8, blocks=(1, 2)) for index in range(3)]
    given = limits_of(pico(), block_tokens=10)
    run = apart(arrivals, pico(), "draft:2/target", given, unit_tokens=10, transfer=FREE).go()
    members = run.log.meta.members
    reading, writing = (
        dict(zip(members, [one.lookups for one in replica.members], strict=True)) for replica in run.log.meta.replicas
    )
    assert [name for name, lookups in reading.items() if lookups.asked_tokens] == ["target"]
    assert writing["draft"].found_blocks == 4


def test_blocks_of_a_prompt_are_held_until_it_has_been_sent():
    """The second prompt finds room only when the first has left: 20 tokens and one more, in blocks of 4."""
    arrivals = [Arrival("a", 0, 20, 3), Arrival("b", 0, 20, 3)]
    tight = limits_of(target_only(), num_blocks=7, prefix_cache=False)
    run = apart(arrivals, target_only(), given_limits=tight).go()
    first = 40 + 1 + 60
    assert run.times()["a"][1] == first * MICROSECOND
    assert run.times()["b"][0] == (first + 45) * MICROSECOND


class SeesRoom(Policy):
    """The target alone; notes the free share of memory at each decision."""

    def __init__(self, shares):
        self.shares = shares

    def decide(self, seen):
        self.shares.append(seen.load.free_kv_share)
        return Verify("target")


def test_policies_see_the_blocks_of_requests_that_are_still_sent_as_taken():
    """Of the requests by hand, 6 blocks of 4 each: the first decodes alone while the second crosses the link."""
    shares = []
    arrivals, given = [Arrival("a", 0, 20, 3), Arrival("b", 0, 20, 3)], limits_of(target_only(), num_blocks=100)
    apart(arrivals, target_only(), lambda: SeesRoom(shares), given).go()
    assert shares == [0.88, 0.88, 0.88, 0.94]


def test_a_prefill_without_blocks_waits_and_does_not_run():
    """The last chunk of one lacks the block that the other's prompt holds until it has been sent; nothing else runs."""
    tight = limits_of(target_only(), token_budget=10, num_blocks=7, prefix_cache=False)
    whole, slow = replace(tight, admission=Admission.whole_prompt), replace(SLOW, bytes_per_s=1e3)
    arrivals = [Arrival("a", 0, 3, 2), Arrival("b", 0, 24, 2)]
    log = apart(arrivals, target_only(), given_limits=whole, transfer=slow).go().log
    ((lost_ps,), series) = log.preemptions["at_ps"].tolist(), log.series
    held = (series["replica"] == 0) & (series["at_ps"] <= lost_ps)
    assert [series[name][held][-1] for name in ("running", "waiting")] == [0, 1]


def test_a_decoder_without_room_lets_requests_wait():
    """Blocks for one text: the second is sent when the first has ended, and its prompt is held meanwhile."""
    arrivals = [Arrival("a", 0, 20, 6), Arrival("b", 0, 20, 6)]
    tight = limits_of(target_only(), num_blocks=7, prefix_cache=False)
    run = apart(arrivals, target_only(), given_limits=[limits_of(target_only()), tight]).go()
    times = run.times()
    transfers = run.log.meta.transfers
    assert transfers.queued_ps == 0
    assert transfers.held_ps == times["a"][2] - times["b"][1]
    assert len(run.log.preemptions["at_ps"]) == 0


@pytest.mark.parametrize("more", [[], [10**6]])
def test_a_request_that_some_decoder_never_holds_is_rejected_when_it_comes(more):
    """Though another one does: the router that will pick one knows nothing of lengths."""
    # the first, of prefills: a prompt and a token more
    found = [limits_of(target_only(), num_blocks=num_blocks) for num_blocks in (6, 25, *more)]
    roles = (PREFILL, DECODE, *[DECODE for _ in more])
    arrivals = [Arrival("long", 0, 20, 90), Arrival("q", 0, 20, 9)]
    log = apart(arrivals, target_only(), given_limits=found, roles=roles).go().log
    assert log.requests["rejected"].tolist() == ["longer than the 100 tokens that KV memory of target holds", ""]
    assert log.finished.tolist() == [False, True]


def test_short_memory_of_decoders_puts_requests_back():
    arrivals = [Arrival(f"q{index}", index * 3 * 10**8, 20 + index % 9, 70) for index in range(14)]
    for policy in POLICIES:
        run = apart(arrivals, pico(), policy, limits_of(pico(), num_blocks=50, token_budget=32)).go()
        assert run.log.finished.all()
        assert len(run.log.preemptions["at_ps"]) > 0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=20))
def test_a_link_carries_one_after_the_other(sends):
    link, now_us, free_us, queued, busy = Link(SLOW), 0, 0, 0, 0
    for wait_us, tokens in sends:
        now_us += wait_us
        arrives_ps = link.send(tokens, now_us * MICROSECOND)
        if not tokens:
            assert arrives_ps == now_us * MICROSECOND
            continue
        start_us = max(now_us, free_us)
        free_us = start_us + 2 * tokens
        queued, busy = queued + start_us - now_us, busy + 2 * tokens
        assert arrives_ps == (free_us + 5) * MICROSECOND
    totals = link.totals(0, 0, max(now_us, free_us) * MICROSECOND)
    assert (totals.queued_ps, totals.busy_ps) == (queued * MICROSECOND, busy * MICROSECOND)
    assert (totals.bytes, totals.unfinished) == (busy, 0)  # a byte takes 1 us


def test_a_link_counts_what_lies_before_the_end_of_the_run():
    """Three transfers of 20 us at 0: one is over at 35 us, one is cut, one waits; and one at 30 us waits, too."""
    link = Link(SLOW)
    for at_us in (0, 0, 0, 30):
        link.send(10, at_us * MICROSECOND)
    totals = link.totals(0, 0, 35 * MICROSECOND)
    assert (totals.sent, totals.unfinished, totals.bytes) == (4, 3, 35)
    assert totals.busy_ps == 35 * MICROSECOND
    assert (totals.queued_ps, totals.most_queued_ps) == ((20 + 35 + 5) * MICROSECOND, 35 * MICROSECOND)


def test_a_slow_link_is_not_busier_than_the_run_is_long():
    """Ten transfers of 20 s each, of which the run sees 3 s."""
    slow = Transfer(bytes_per_s=1, latency_s=0, token_bytes=1)
    arrivals = [Arrival(f"q{index}", 0, 20, 3) for index in range(10)]
    run = apart(arrivals, target_only(), transfer=slow, horizon_ps=3 * PS_PER_S).go()
    found = transfer_metrics(run.log, 3 * PS_PER_S)
    assert (found.handed_over, found.unfinished, found.bytes) == (10, found.sent, 2)
    assert 0.9 < found.busy_share <= 1
    assert found.queued_s_max <= 3


def test_a_lone_request_that_is_put_back_and_reads_again_at_once_is_not_judged_as_well():
    """Keys and values that are still on their way hold the blocks that it lacks; nobody else runs, so it may enter."""
    tight = limits_of(target_only(), num_blocks=10, block_tokens=4, max_num_seqs=4, token_budget=3)
    slow = Transfer(bytes_per_s=1000, latency_s=0, token_bytes=1)
    log = (
        apart([Arrival("a", 0, 11, 20), Arrival("b", 0, 19, 4)], target_only(), "target", tight, transfer=slow).go().log
    )
    assert log.finished.all()
    assert log.preemptions["request"].tolist().count(0) > 100
    # Of 24 tokens two came out where the prompts were read, and one each where a whole text was read again.
    assert log.meta.levels[-1].own == 24 - 2 - 2


@pytest.mark.parametrize("admission", [Admission.whole_prompt, Admission.estimate])
@given(data=st.data())
def test_a_lone_request_does_not_read_in_vain_while_a_transfer_holds_what_it_lacks(admission, data):
    """Decoders with memory for little more than one request, over a link that takes thousands of steps a text."""
    arrivals = data.draw(workloads(most=5))
    longest = max(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals)
    size, more = data.draw(st.sampled_from([1, 4])), data.draw(st.integers(0, 40))
    tight = limits_of(
        target_only(),
        num_blocks=-(-(longest + more) // size),
        block_tokens=size,
        max_num_seqs=4,
        token_budget=data.draw(st.integers(1, 16)),
        prefix_cache=data.draw(st.booleans()),
    )
    slow = Transfer(bytes_per_s=1000, latency_s=0, token_bytes=data.draw(st.sampled_from([1, 20])))
    run = apart(arrivals, target_only(), given_limits=replace(tight, admission=admission), transfer=slow).go()
    assert run.log.finished.all()
    assert len(run.log.preemptions["request"]) <= run.served.num_emitted
