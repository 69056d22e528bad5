"""Counters of speculative decoding: differences, and unknown where a server does not tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.observing.load_generator import Counters, acceptance_between
from paceline.runs.observed import ObservedMeta, ObservedRequest

counts = st.integers(0, 10**6)
POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def page(drafts, drafted, accepted, places=(), model="m", prefix="vllm:"):
    """As vLLM gives it, for two engines that share the counts."""
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of drafts.", "# TYPE vllm:spec_decode_num_drafts counter"]
    for name, value in (("drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
        lines.append(f'{prefix}spec_decode_num_{name}_total{{engine="0",model_name="{model}"}} {float(value)}')
        lines.append(f'{prefix}spec_decode_num_{name}_total{{engine="1",model_name="{model}"}} 1.0')
    for place, value in enumerate(places):
        lines.append(
            f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="{model}",'
            f'position="{place}"}} {float(value)}'
        )
    return "\n".join(lines)


def between(before, after, answers=(), model="m"):
    found, why = acceptance_between(Counters(text=before), Counters(text=after), answers, model)
    assert (found is None) == bool(why)
    # Whatever it is, the folder of a run can hold it.
    about = {"url": "u", "model": "m", "endpoint": "/", "workload": "w", "prompts": "p", "loop": "open"}
    ObservedMeta(**about, ended_at_ps=0, acceptance=found, acceptance_unknown=why)
    return found, why


@given(counts, counts, counts, counts, counts, counts, st.sampled_from(["vllm:", "llamacpp:"]))
def test_acceptance_is_what_was_counted_in_between(
    drafts, drafted, accepted, more_drafts, more_drafted, more_accepted, prefix
):
    more_accepted = min(more_accepted, more_drafted)
    before = page(drafts, drafted, accepted, [5, 3], prefix=prefix)
    after = page(drafts + more_drafts, drafted + more_drafted, accepted + more_accepted, [9, 3], prefix=prefix)
    found, _ = between(before, after)
    assert (found.drafts, found.drafted, found.accepted) == (more_drafts, more_drafted, more_accepted)
    assert found.accepted_by_place == (4, 0)
    assert found.accept_length == (1 + more_accepted / more_drafts if more_drafts else None)
    assert found.rate == (more_accepted / more_drafted if more_drafted else None)
    assert found.source == f"counters of /metrics ({'vLLM' if prefix == 'vllm:' else 'llama.cpp'})"


def test_counters_of_another_model_are_named():
    assert between("", page(9, 9, 9, model="/models/m"))[1].startswith(
        "/metrics has counters of model /models/m, asked was m"
    )
    found, _ = between(page(0, 0, 0) + "\n" + page(9, 9, 9, model="n"), page(4, 8, 6) + "\n" + page(9, 9, 9, model="n"))
    assert (found.drafts, found.drafted, found.accepted) == (4, 8, 6)


def test_a_page_without_counters_is_told_with_what_is_near():
    told = "has no counters of speculative decoding, and no answer has timings of drafts"
    assert between("", "vllm:num_requests_running 0")[1] == f"/metrics {told}"
    near = between("", "vllm:spec_decode_efficiency 0.4")[1]
    assert "no counters of speculative decoding (but vllm:spec_decode_efficiency)" in near


def test_counters_that_went_down_say_nothing():
    found, why = between(page(9, 9, 9), page(1, 1, 1))
    assert found is None
    assert "the server was started anew in between" in why


def request(**told):
    return ObservedRequest(request_id="r", prompt_id="p", asked_tokens=1, due_at_ps=0, sent_at_ps=0, **told)


def test_answers_of_llama_cpp_add_up():
    answers = [request(drafted=8, accepted=3), request(), request(drafted=4, accepted=4)]
    for after in ("", page(1, 1, 1)):  # a page that cannot be used is no reason to drop what answers say
        found, _ = between(page(9, 9, 9) if after else "", after, answers)
        assert (found.drafts, found.drafted, found.accepted, found.accept_length) == (None, 12, 7, None)
        assert found.source == "timings of 2 answers (llama.cpp)"


def test_a_gauge_of_sglang_is_named_as_one():
    gauge = 'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.75'
    found, _ = between(gauge, gauge)
    assert (found.accept_length, found.drafted, found.accepted) == (2.75, None, None)
    assert "gauge" in found.source


def test_counters_of_sglang_are_of_the_run():
    def told(requests, tokens, steps):
        labels = 'model_name="m",is_streaming="true"'
        return (
            f"sglang:num_requests_total{{{labels}}} {requests}\nsglang:generation_tokens_total{{{labels}}} {tokens}\n"
            f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}\nsglang:spec_accept_length{{model_name="m"}} 3.5'
        )

    found, _ = between(told(5, 100, 40), told(15, 310, 120))
    assert (found.accept_length, found.source) == (2.5, "counters of /metrics (SGLang)")


def test_counters_of_tensorrt_llm():
    name = "trtllm_spec_decode_num"
    before, after = (
        f'{name}_draft_tokens_total{{model_name="m"}} {drafted}\n{name}_accepted_tokens_total{{model_name="m"}} {kept}'
        for drafted, kept in ((10, 5), (50, 35))
    )
    found, _ = between(before, after)
    assert (found.drafts, found.drafted, found.accepted) == (None, 40, 30)


@pytest.mark.parametrize(
    ("gauges", "told"),
    [
        ([2.5, 2.7], "two gauges, 2.5 and 2.7"),
        ([2.7, 2.5, 2.6], "three gauges, 2.5, 2.6 and 2.7"),
        ([1.5, 2.5, 2.6, 2, 3], "5 gauges, 1.5 to 3"),
    ],
)
def test_gauges_of_several_ranks_are_named(gauges, told):
    lines = "\n".join(
        f'sglang:spec_accept_length{{dp_rank="{rank}",model_name="m"}} {value}' for rank, value in enumerate(gauges)
    )
    assert told in between(lines, lines)[1]


@pytest.mark.parametrize(
    "bad",
    [
        f'{POSITIONS}{{model_name="m",position="x"}} 5',
        f'{POSITIONS}{{model_name="m",position="-1"}} 5',
        f'{POSITIONS}{{model_name="m",position="99999999999"}} 5',
        f'{POSITIONS}{{model_name="m",position="1\x1b[31m"}} 5',
        f'{POSITIONS}{{model_name="m"}} 5',
    ],
)
def test_a_position_that_cannot_be_read_leaves_the_totals(bad):
    found, _ = between(page(1, 2, 1), f"{page(9, 18, 9)}\n{bad}")
    assert (found.drafts, found.drafted, found.accepted, found.accepted_by_place) == (8, 16, 8, None)
    assert "by position it is unknown: /metrics after the run, line 9: " in found.source


@pytest.mark.parametrize(
    "bad",
    [
        f"{POSITIONS}{{",
        'vllm:spec_decode_num_drafts_total{model_name="m"} -1',
        'vllm:spec_decode_num_drafts_total{model_name="m"} NaN',
        'vllm:spec_decode_num_drafts_total{model_name="m"} +Inf',
        'vllm:spec_decode_num_drafts_total{model_name="m"} ' + "9" * 5000,
        'vllm:spec_decode_num_drafts_total{model_name="m",pod="2"} 4',
        'vllm:spec_decode_num_drafts_total{model_name="m" ' + "," * 9999,
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m",engine="7"} 100',
    ],
)
def test_a_page_that_cannot_be_read_is_a_reason_and_no_end(bad):
    assert between(page(1, 2, 1), f"{page(9, 18, 9)}\n{bad}")[0] is None


@pytest.mark.parametrize("value", ["-2.5", "NaN", "0", "0.4"])
def test_a_gauge_that_cannot_be_is_a_reason_and_no_end(value):
    gauge = f'sglang:spec_accept_length{{model_name="m"}} {value}'
    assert between(gauge, gauge)[0] is None


def test_names_of_models_may_hold_anything():
    why = between("", page(9, 9, 9, model="\x1b[31mred\u2028" + "x" * 900))[1]
    assert why.isprintable()
    assert len(why) <= 400
