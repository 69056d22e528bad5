"""Cycles that are added up equal single steps, picosecond for picosecond, whatever comes and under whatever limits."""

from itertools import cycle
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.decoding.legal_steps import Policy
from paceline.decoding.steps import Draft, PolicyError, Verify
from paceline.policies.about import About
from paceline.policies.by_name import make_policy
from paceline.runs.serving import CYCLES, STEP_BY_STEP
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.what_if import scaled
from paceline.sim.serving.requests import DrawnRequests
from paceline.traces.meta import DraftBlock
from paceline.traces.workloads.arrival import Arrival

from .both_ways import ASKED, BY_PENDING, ROUTERS, Turns, cases, check, sessions, settings_of, tight, told
from .lined_costs import COSTS, LinedLineCost
from .served_runs import MICROSECOND, LineCost, Run, limits_of, pico, target_only, workloads


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_both_ways_are_equal(data):
    (tables, policy, cost), unit_tokens = data.draw(cases()), data.draw(st.sampled_from([0, 8]))
    coming = data.draw(data.draw(st.sampled_from([workloads, sessions]))(unit_tokens=unit_tokens))
    check(coming, tables, policy, cost=cost, **data.draw(settings_of(tables, unit_tokens)))


@pytest.mark.parametrize("policy", BY_PENDING)
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.one_in(2)
def test_requests_side_by_side_are_added_up(policy, prefix_cache):
    """Many cycles between two states that are told, with memory and budget for all; equal all the same."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 3 * 10**10, 9 + 7 * index % 50, 40 + index % 90) for index in range(40)]
    ample = limits_of(tables, max_num_seqs=64, prefix_cache=prefix_cache, block_tokens=16)
    replica = check(arrivals, tables, policy, limits=ample).log.meta.replicas[0]
    assert replica.path == (CYCLES if policy.count("/") < 3 else STEP_BY_STEP)
    assert replica.states < sum(member.forwards for member in replica.members)


@pytest.mark.parametrize("policy", ASKED)
@pytest.mark.one_in(3)
def test_batches_that_decode_for_long(policy):
    """A few requests come seldom, so that most steps are of all of them; memory is short, ample, or keeps prefixes."""
    tables = pico()
    tags = sorted({request.tag for request in tables.trace.requests})
    arrivals = [
        Arrival(f"q{index}", index // 3 * 3 * 10**11, 20 + index % 7, 90 + index % 50, tag=tags[index % len(tags)])
        for index in range(12)
    ]
    for memory in ({}, {"num_blocks": 80}, {"num_blocks": 80, "prefix_cache": True, "block_tokens": 5}):
        check(arrivals, tables, policy, limits=limits_of(tables, **memory), num_replicas=2, cost=LineCost(tables))


@pytest.mark.parametrize("policy", ["target", *BY_PENDING[1:4]])
def test_memory_that_is_short(policy):
    """Many requests are put back, with and without a prefix cache to find their blocks in again."""
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    for prefix_cache in (False, True):
        short = limits_of(tables, max_num_seqs=8, token_budget=32, num_blocks=30, prefix_cache=prefix_cache)
        log = check(arrivals, tables, policy, limits=short).log
        assert len(log.preemptions["request"]) > 20


@pytest.mark.parametrize("policy", ["target", "draft:4/target"])
@pytest.mark.parametrize("alone", [False, True])
def test_replicas_in_lockstep_take_turns(policy, alone):
    """Steps of all replicas end at the same instants, and so do requests that others follow at once.

    With `alone` only the first replica has such requests; the others may lag until a last request comes, late.
    """
    tables = pico()
    turns = [None if alone and index % 3 else Turns(f"q{index}", 5, 0) for index in range(9)]
    arrivals = [Arrival(f"q{index}", 0, 8, 10 + 10 * (index % 3), turns=turns[index]) for index in range(9)]
    arrivals.append(Arrival("late", 10**13, 8, 10))
    for router in ROUTERS:
        check(arrivals, tables, policy, num_replicas=3, router=router, cost=LinedLineCost(tables, context=0))


class BlockCost(LinedLineCost):
    """Every drafter writes a whole draft in one forward."""

    fed = "text"

    def draft_terms(self, model):
        return None if model in ("slim", "target") else DraftTerms(0.0, None, DraftBlock(tokens=7, fed=self.fed))


class StatesCost(BlockCost):
    """They read the target's states."""

    fed = "block"


@pytest.mark.parametrize("policy", [*BY_PENDING[1:5], "draft:2/mid:4/slim:6/target"])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.one_in(2)
def test_drafts_in_one_forward(policy, prefix_cache):
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(30)]
    bounds = limits_of(tables, max_num_seqs=8, token_budget=32, num_blocks=40, prefix_cache=prefix_cache)
    blocks, _, tokens = (
        check(arrivals, tables, policy, limits=bounds, cost=cost(tables)).log
        for cost in (BlockCost, StatesCost, LinedLineCost)
    )
    drafter = tables.pool.names.index(policy.partition(":")[0])
    forwards = [log.meta.replicas[0].members[drafter].forwards for log in (blocks, tokens)]
    assert 0 < forwards[0] < forwards[1] or ":1/" in policy


class Interrupts:
    """Stops a run when it is asked the n-th time."""

    def __init__(self, place):
        self.left = place

    def ended(self):
        pass

    def interrupted(self):
        self.left -= 1
        return self.left <= 0


@st.composite
def spread(draw):
    """Requests of which no two come at once."""
    waits = draw(st.lists(st.sampled_from([1, 150, 2_000, 10_000]), min_size=1, max_size=12))
    times = [sum(waits[: index + 1]) * MICROSECOND for index in range(len(waits))]
    lengths = st.tuples(st.integers(1, 40), st.integers(1, 60))
    return [Arrival(f"q{index}", at_ps, *draw(lengths)) for index, at_ps in enumerate(times)]


@given(st.data())
def test_an_interrupt_when_a_request_comes_is_a_horizon_at_that_instant(data):
    tables, arrivals = target_only(), data.draw(spread())
    place = data.draw(st.integers(1, len(arrivals)))
    at_ps = arrivals[place - 1].arrives_ps
    options = {
        "limits": data.draw(tight(tables)),
        "num_replicas": data.draw(st.integers(1, 3)),
        "cost": data.draw(st.sampled_from(COSTS))(tables),
    }
    *added, (*sums, stopped) = told(Run(arrivals, tables, watcher=Interrupts(place), **options))
    *steps, (*sums_of_steps, horizon) = told(Run(arrivals, tables, horizon_ps=at_ps, stepwise=True, **options))
    assert added[0].pop("stopped") == stopped == "interrupted"
    assert steps[0].pop("stopped") == horizon == "horizon"
    assert (added, sums) == (steps, sums_of_steps)


@given(st.data())
def test_what_an_interrupt_leaves_goes_together(data):
    """Wherever it comes: the log is checked as it is made, and requests have ended, wait or run."""
    tables, arrivals = target_only(), data.draw(spread())
    watcher = Interrupts(data.draw(st.integers(1, 2 * len(arrivals))))
    cost = data.draw(st.sampled_from(COSTS))(tables)
    log = Run(arrivals, tables, watcher=watcher, cost=cost, num_replicas=2).go().log
    assert log.meta.stopped or log.finished.all()
    assert (
        log.requests["emitted_tokens"].sum() == log.meta.levels[-1].own + (log.requests["first_token_at_ps"] >= 0).sum()
    )


# -- faults that a review found
@pytest.mark.parametrize("number", [17, 27, 57])
def test_rows_with_fewer_operations_come_to_the_target_first(number):
    """With a small budget the order says whose verification is cut; these three draws told the orders apart."""
    draw, tables = Random(number), pico()
    gap_ps = draw.choice([0, 10**8, 10**9])
    arrivals = [
        Arrival(f"q{index}", gap_ps * index, draw.randint(1, 30), draw.randint(20, 120))
        for index in range(draw.randint(3, 10))
    ]
    seqs, budget = draw.randint(3, 8), draw.randint(6, 40)
    tight = limits_of(tables, max_num_seqs=seqs, token_budget=budget, prefix_cache=draw.random() < 0.3)
    check(arrivals, tables, "ngram:4/slim:5/target", limits=tight, cost=LineCost(tables))


class EitherVerifier(Policy):
    """Who verifies below the target follows from how much is pending."""

    about = About(lossless=True, by_pending=True)

    def decide(self, seen):
        pending = seen.num_pending
        if not pending and seen.has_room and not seen.found_nothing:
            return Draft("draft", 4)
        if pending >= 4 and seen.waiting("mid"):
            return Verify("mid")
        if 0 < pending < 4 and seen.waiting("slim") and seen.waiting("mid"):
            return Verify("slim")
        return Verify("target")


def test_rows_of_a_cycle_may_be_verified_by_different_members():
    arrivals = [Arrival(f"q{index}", 10**8 * index, 10 + index, 60) for index in range(8)]
    log = check(arrivals, pico(), EitherVerifier, cost=LineCost(pico())).log
    _, _, mid, slim, _ = log.meta.replicas[0].members
    assert mid.forwards > 0
    assert slim.forwards > 0


class JudgesAndDrafts(Policy):
    """One member judges the tokens of a smaller one, and writes the first token of each round."""

    about = About(lossless=True, by_pending=True)

    def decide(self, seen):
        if not seen.num_pending:
            return Draft("mid", 1)
        if seen.num_pending == 1 and seen.has_room:
            return Draft("draft", 3)
        return Verify("mid" if seen.waiting("mid") else "target")


class FedCost(LineCost):
    """Refuses a forward in which a row is fed nothing."""

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        assert new_tokens >= num_rows
        return super().forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)


def test_who_judged_a_whole_answer_is_fed_its_last_token_to_draft_the_next():
    arrivals = [Arrival(f"q{index}", 10**8 * index, 10 + index, 300) for index in range(4)]
    check(arrivals, pico(), JudgesAndDrafts, cost=FedCost(pico()))


class FreeCost(LineCost):
    """Of some members forwards take no time."""

    free = ()

    def forward_s(self, model, **asked):
        return 0.0 if model in self.free else super().forward_s(model, **asked)


@pytest.mark.parametrize(
    ("make", "policy", "free", "count"),
    [(target_only, "target", "target", 1), (target_only, "target", "target", 3), (pico, "draft:4/target", "draft", 1)],
)
def test_forwards_that_take_no_time_are_counted_once(make, policy, free, count):
    tables = make()
    cost = FreeCost(tables, context=0)
    cost.free = (free,)
    check([Arrival(f"q{index}", 0, 5, 10) for index in range(count)], tables, policy, cost=cost)


class Slotted:
    __slots__ = ("window",)


class SlottedWindow(Slotted):
    """Objects differ in a slot, and not in their `__dict__`."""

    about = About(lossless=True, by_pending=True)

    def __init__(self, window):
        self.window = window

    def decide(self, seen):
        drafts = not seen.num_pending and seen.has_room and not seen.found_nothing
        return Draft("draft", self.window) if drafts else Verify("target")

    def learn(self, outcome):
        pass


def test_replicas_share_rounds_of_equal_policies_alone():
    arrivals = [Arrival(f"q{index}", index * 10**8, 9, 60) for index in range(6)]
    windows = cycle((2, 6))
    check(arrivals, pico(), lambda: SlottedWindow(next(windows)), num_replicas=2, cost=LineCost(pico()))


@pytest.mark.parametrize("base", ["draft:4/target", "adaptive"])
def test_what_was_judged_before_a_policy_raises_is_told(base):
    tables = pico()

    class Fails:
        about = None

        def __init__(self):
            self.policy, self.asked = make_policy(base, tables.pool), 0

        def decide(self, seen):
            self.asked += 1
            if self.asked == 41:
                raise RuntimeError
            return self.policy.decide(seen)

        def learn(self, outcome):
            self.policy.learn(outcome)

    left = []
    for stepwise in (False, True):
        arrivals = [Arrival(f"q{index}", 0, 10 + index, 60) for index in range(4)]
        run = Run(arrivals, tables, Fails, cost=LineCost(tables), stepwise=stepwise)
        with pytest.raises(PolicyError, match="decide raised RuntimeError"):
            run.go()
        left.append((run.log.meta.levels, run.log.requests["emitted_tokens"].tolist()))
    assert left[0] == left[1]
    assert left[0][0][-1].verifications > 0


class SquareLookups(LinedLineCost):
    """Prompt lookups of n requests at once take n x n microseconds."""

    def lookups_s(self, num_rows):
        return num_rows**2 / 10**6


class TwiceLookups(LinedLineCost):
    """Each takes two."""

    lookup_s = 2 / 10**6


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("scale", [{}, {"target": 1.0}])
def test_lookups_of_several_requests_take_what_the_cost_says_of_them_all(stepwise, scale):
    """Two equal requests: n x n is 2n all the time."""
    drawn = DrawnRequests(pico().trace.requests, seed=0)
    alike = [name for number in range(1000) if drawn.of(name := f"q{number}", "") == "code-0001"]
    arrivals = [Arrival(name, 0, 9, 60) for name in alike[:2]]
    square, twice = (
        Run(
            arrivals, pico(), "ngram:3/target", cost=scaled(cost(pico()), scale, target="target"), stepwise=stepwise
        ).go()
        for cost in (SquareLookups, TwiceLookups)
    )
    assert square.times() == twice.times()
