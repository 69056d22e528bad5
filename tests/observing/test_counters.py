"""Counters of speculative decoding: differences, and unknown where a server does not tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.observing.counters import Counters, acceptance_between
from paceline.observing.prometheus import samples_of
from paceline.runs.observed.request import ObservedRequest

counts = st.integers(0, 10**6)


def page(drafts, drafted, accepted, places=(), model="m"):
    """As vLLM gives it, for two engines that share the counts."""
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of drafts.", "# TYPE vllm:spec_decode_num_drafts counter"]
    for name, value in (("drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
        lines.append(f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="{model}"}} {float(value)}')
        lines.append(f'vllm:spec_decode_num_{name}_total{{engine="1",model_name="{model}"}} 1.0')
    for place, value in enumerate(places):
        lines.append(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="{model}",position="{place}"}} '
            f"{float(value)}"
        )
    return "\n".join(lines)


def counters(text):
    return Counters(samples_of(text), "m")


@given(counts, counts, counts, counts, counts, counts)
def test_acceptance_is_what_was_counted_in_between(drafts, drafted, accepted, more_drafts, more_drafted, more_accepted):
    before = counters(page(drafts, drafted, accepted, [5, 3]))
    after = counters(page(drafts + more_drafts, drafted + more_drafted, accepted + more_accepted, [9, 3]))
    found, why = acceptance_between(before, after, ())
    assert why == ""
    assert (found.drafts, found.drafted, found.accepted) == (more_drafts, more_drafted, more_accepted)
    assert found.accepted_by_place == (4, 0)
    assert found.accept_length == (1 + more_accepted / more_drafts if more_drafts else None)
    assert found.rate == (more_accepted / more_drafted if more_drafted else None)


def test_counters_of_another_model_are_not_ours():
    other = page(9, 9, 9, model="other")
    found, why = acceptance_between(counters(""), counters(other), ())
    assert found is None
    assert why == "/metrics has no counters of speculative decoding, and no answer has timings of drafts"


def test_counters_that_went_down_say_nothing():
    found, why = acceptance_between(counters(page(9, 9, 9)), counters(page(1, 1, 1)), ())
    assert found is None
    assert "went down" in why


def request(**told):
    return ObservedRequest(request_id="r", prompt_id="p", asked_tokens=1, due_at_ps=0, sent_at_ps=0, **told)


def test_answers_of_llama_cpp_add_up():
    answers = [request(drafted=8, accepted=3), request(), request(drafted=4, accepted=4)]
    found, _ = acceptance_between(counters(""), counters(""), answers)
    assert (found.drafts, found.drafted, found.accepted, found.accept_length) == (None, 12, 7, None)
    assert found.source == "timings of 2 answers (llama.cpp)"


def test_a_gauge_of_sglang_is_named_as_one():
    gauge = counters('sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.75')
    found, _ = acceptance_between(gauge, gauge, ())
    assert (found.accept_length, found.drafted, found.accepted) == (2.75, None, None)
    assert "gauge" in found.source


@pytest.mark.parametrize("line", ["", "# TYPE a counter", "a{", "a b c d", "a NaN", "a +Inf", "a x", "1a 2"])
def test_what_is_no_finite_sample_is_passed_over(line):
    assert samples_of(f"{line}\nb 2\n")[-1:] == [("b", {}, 2.0)]
    assert len(samples_of(line)) == 0


def test_labels_may_hold_anything_that_is_escaped():
    (found,) = samples_of(r'a{x="q\"},{\\\n",y=""} 1e3 1700000000000')
    assert found == ("a", {"x": 'q"},{\\\n', "y": ""}, 1000.0)
