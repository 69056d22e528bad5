"""Requests that enter where their whole text fits, or by an estimate of what others will write."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.limits import Admission, Preemption
from paceline.sim.serving.requests import AdmissionEstimate, Written
from paceline.traces.workloads.arrival import Arrival

from .served_runs import POLICIES, Run, limits, limits_of, pico, target_only, workloads


def estimating(found, preemption=Preemption.fewest_tokens):
    return replace(found, admission=Admission.estimate, preemption=preemption)


def test_the_ratio_falls_step_by_step_and_follows_what_is_written():
    estimate, running = AdmissionEstimate(), [Written(10, 100), Written(30, 50)]
    estimate.stepped(running, decoded=True, was_short=False)
    assert estimate.ratio == pytest.approx(0.7 - 0.602 / 600)
    for _ in range(700):
        estimate.stepped(running, decoded=True, was_short=False)
    assert estimate.ratio == pytest.approx(0.098)
    estimate.stepped(running, decoded=False, was_short=False)
    assert estimate.ratio == pytest.approx(0.098)
    estimate.stepped(running, decoded=True, was_short=True)
    assert estimate.ratio == pytest.approx((40 + 2 * 20) / 151)
    estimate.stepped([Written(100, 100)], decoded=True, was_short=True)
    assert estimate.ratio == 1
    estimate.stepped([], decoded=False, was_short=False)
    assert estimate.ratio == 0.7


def test_what_must_be_free_by_hand():
    """Of 60 and of more than 4,096 tokens 0.7 are kept; the whole answers of who enters, and of who ends a prefill."""
    tokens = AdmissionEstimate().tokens_for(Written(0, 30), [Written(40, 100), Written(1, 9000)], [Written(0, 8)])
    assert tokens == 30 + int(0.7 * (60 + 4096)) + 8 + 1


@pytest.mark.parametrize(("num_blocks", "enters_at_once"), [(50, True), (49, False)])
def test_the_second_request_enters_where_its_answer_and_most_of_the_firsts_fit(num_blocks, enters_at_once):
    """The first has its first token when the second looks: 8 + 2 tokens held, 19 to come, of which 13 are kept.

    The second needs more than 8 + 18 + 13 free.
    """
    arrivals = [Arrival("a", 0, 8, 20), Arrival("b", 1, 8, 18)]
    found = estimating(limits_of(target_only(), num_blocks=num_blocks, block_tokens=1, prefix_cache=False))
    times = Run(arrivals, target_only(), "target", found).go().times()
    assert (times["b"][0] == times["a"][1]) == enters_at_once


def two_requests(admission):
    """A reads 800 tokens and writes 200, B reads 1000 and writes 20; 512 tokens a step."""
    arrivals = [Arrival("a", 0, 800, 200), Arrival("b", 1, 1000, 20)]
    found = limits_of(target_only(), token_budget=512, num_blocks=100, block_tokens=16, prefix_cache=False)
    run = Run(arrivals, target_only(), "target", replace(found, admission=admission)).go()
    return len(run.log.preemptions["at_ps"]), run.times()


def test_a_prompt_that_does_not_fit_beside_another_waits_and_is_never_put_back():
    """A holds 51 blocks of 100 after its prompt, and more with each token; B's prompt takes 63.

    By its first chunk B enters, runs out of blocks, is put back, and enters again two steps later.
    """
    num_put_back, times = two_requests(Admission.whole_prompt)
    assert num_put_back == 0
    assert times["b"][0] >= times["a"][2]
    assert two_requests(Admission.first_chunk)[0] == 99


@pytest.mark.parametrize(("num_blocks", "enters_at_once"), [(50, True), (49, False)])
def test_the_second_request_enters_where_its_whole_prompt_fits(num_blocks, enters_at_once):
    """The first holds 8 + 2 tokens when the second looks, which reads 40, 15 of them in that step."""
    arrivals = [Arrival("a", 0, 8, 30), Arrival("b", 1, 40, 5)]
    found = limits_of(target_only(), token_budget=16, num_blocks=num_blocks, block_tokens=1, prefix_cache=False)
    times = Run(arrivals, target_only(), "target", replace(found, admission=Admission.whole_prompt)).go().times()
    assert (times["b"][0] == times["a"][1]) == enters_at_once


def test_fewer_are_put_back_than_where_a_first_chunk_suffices():
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    tight = limits_of(target_only(), max_num_seqs=8, token_budget=16, num_blocks=30, prefix_cache=False)
    for preemption in Preemption:
        runs = [
            Run(arrivals, target_only(), "target", replace(tight, admission=admission, preemption=preemption)).go()
            for admission in Admission
        ]
        put_back = [len(run.log.preemptions["at_ps"]) for run in runs]
        by_first_chunk, by_whole_prompt, by_estimate = put_back
        assert by_first_chunk > 20 > by_estimate
        assert by_first_chunk > by_whole_prompt


@given(st.data())
def test_all_that_come_end_with_the_same_text(data):
    tables, unit_tokens = pico(), data.draw(st.sampled_from([0, 8]))
    policy, arrivals = data.draw(st.sampled_from(POLICIES)), data.draw(workloads(unit_tokens=unit_tokens))
    found = estimating(data.draw(limits(tables)), data.draw(st.sampled_from(Preemption)))
    run = Run(arrivals, tables, policy, found, unit_tokens=unit_tokens, num_replicas=2).go()
    assert (run.log.finished ^ (run.log.requests["rejected"] != "")).all()
    assert all(not any(state) for state in run.recorder.latest.values())
    whole = Run(arrivals, tables, policy, unit_tokens=unit_tokens).go().outputs
    assert run.outputs == {name: whole[name] for name in run.outputs}


@given(workloads(), st.sampled_from(POLICIES))
def test_ample_memory_makes_no_difference(arrivals, policy):
    found = limits_of(pico(), max_num_seqs=4)
    assert (
        Run(arrivals, pico(), policy, estimating(found)).go().times()
        == Run(arrivals, pico(), policy, found).go().times()
    )
