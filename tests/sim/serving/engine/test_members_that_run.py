"""Members that a policy never runs have no memory, and are not run."""

from dataclasses import replace

import pytest
from paceline.decoding.legal_steps import Policy
from paceline.decoding.steps import Draft, PolicyError, Verify
from paceline.policies.about import About, members_run_by
from paceline.policies.by_name import make_policy
from paceline.traces.workloads.arrival import Arrival

from .both_ways import ASKED, BY_PENDING, check
from .served_runs import Run, limits_of, pico

ARRIVALS = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(20)]


def of_members(names, **options):
    found = limits_of(pico(), **options)
    return replace(found, kv={name: kv for name, kv in found.kv.items() if name in names})


@pytest.mark.parametrize("policy", [*BY_PENDING, *ASKED, "guarded,policy=two-level", "consensus", "banditspec"])
@pytest.mark.one_in(2)
def test_without_the_others_memory_a_run_is_the_same(policy):
    runs = members_run_by(make_policy(policy, pico().pool))
    if runs is None:
        return
    assert pico().pool.target in runs
    alone = check(ARRIVALS, pico(), policy, limits=of_members(runs))
    assert alone.times() == Run(ARRIVALS, pico(), policy, cost=alone._given[2][0].cost).go().times()


@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        ("target", {"target"}),
        ("draft:4/target", {"draft", "target"}),
        ("draft:3/mid:6/target", {"draft", "mid", "target"}),
        ("ngram:3/target", {"ngram", "target"}),
        ("adaptive", {"draft", "target"}),
        ("via-sd-lossless,slim=slim", {"draft", "slim", "target"}),
        ("off-under-load,policy=draft:4/target,at=4", {"draft", "target"}),
        ("per-tag,default=plain,math=adaptive,code=mid:2/target", {"draft", "mid", "target"}),
        ("banditspec,arms=target@mid:4/target", {"mid", "target"}),
        ("specrouter", None),
    ],
)
def test_what_policies_say_they_run(policy, runs):
    assert members_run_by(make_policy(policy, pico().pool)) == (None if runs is None else frozenset(runs))


@pytest.mark.parametrize("by_pending", [False, True])
def test_a_policy_that_runs_another_member_than_it_says_ends_the_run_by_name(by_pending):
    class Sly(Policy):
        about = About(lossless=True, by_pending=by_pending, runs=frozenset({"draft", "target"}))

        def decide(self, seen):
            return Verify("target") if seen.num_pending else Draft("mid", 4)

    with pytest.raises(PolicyError, match=r"mid is not among the members that `About\.runs` names: draft, target"):
        Run(ARRIVALS, pico(), Sly, of_members(("draft", "target"))).go()
