"""Figures of an observed run, by hand, and errors beside simulated ones."""

import pytest
from paceline.reports.observed import ObservedCell, observed_figures, verdict
from paceline.runs.observed import ObservedMeta, ObservedRequest, ObservedRun

MS = 10**9
META = ObservedMeta(
    url="http://h", model="m", endpoint="/v1/completions", workload="w", prompts="p", loop="open", ended_at_ps=900 * MS
)


def request(name, sent, outputs, ended, **other):
    times = {"due_at_ps": sent * MS - MS, "sent_at_ps": sent * MS, "outputs_at_ps": tuple(at * MS for at in outputs)}
    ended_at_ps = None if ended is None else ended * MS
    return ObservedRequest(request_id=name, prompt_id="p", asked_tokens=9, ended_at_ps=ended_at_ps, **times, **other)


RUN = (
    request("a", 100, (150, 170, 200), 210, prompt_tokens=7, output_tokens=5, finish_reason="length"),
    request("b", 120, (200,), 200, prompt_tokens=3, output_tokens=1, finish_reason="stop"),
    request("c", 130, (160, 190), 300, failed="HTTP 500: no"),
    request("d", 140, (), None),
)


def test_figures_by_hand():
    found = observed_figures(ObservedRun(META, RUN))
    assert (found.requests, found.finished, found.failed, found.unfinished) == (4, 2, 1, 1)
    assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (10, 6, 0)
    assert found.ttft_s.mean == pytest.approx((0.05 + 0.08) / 2)
    assert found.tpot_s.mean == pytest.approx(0.06 / 4)  # of the one with several tokens, not chunks
    assert found.itl_s.mean == pytest.approx((0.02 + 0.03 + 0.03) / 3)
    assert found.e2e_s.mean == pytest.approx((0.11 + 0.08) / 2)
    assert found.duration_s == pytest.approx(0.11)
    assert found.output_tokens_per_s == pytest.approx(6 / 0.11)
    assert found.late_s == pytest.approx(0.001)
    assert found.finish_reasons == {"length": 1, "stop": 1}
    assert found.failures == {"HTTP 500: no": ["c"]}


def test_one_unknown_count_makes_a_sum_unknown_and_no_zero():
    run = ObservedRun(META, (*RUN, request("e", 150, (160, 170), 180, finish_reason="stop")))
    found = observed_figures(run)
    assert (found.finished, found.uncounted) == (3, 1)
    assert found.prompt_tokens is found.output_tokens is found.output_tokens_per_s is None
    assert found.tpot_s.mean == pytest.approx(0.06 / 4)
    assert found.ttft_s.mean == pytest.approx((0.05 + 0.08 + 0.01) / 3)


def test_a_run_without_requests_says_nothing():
    found = observed_figures(ObservedRun(META, ()))
    assert (found.requests, found.ttft_s, found.output_tokens, found.requests_per_s) == (0, None, None, None)


@pytest.mark.parametrize(
    ("simulated", "observed", "error", "within"),
    [(1.1, 1.0, 0.1, True), (0.8, 1.0, -0.2, False), (None, 1.0, None, None), (1.0, None, None, None)],
)
def test_a_cell_is_judged_by_its_bound(simulated, observed, error, within):
    cell = ObservedCell(name="ttft_s_mean", simulated=simulated, observed=observed, bound=0.1 + 1e-9)
    assert cell.error == (None if error is None else pytest.approx(error))
    assert cell.within is within
    assert ("beyond: TTFT mean, ms -20.0%" in verdict([cell])) == (within is False)
