"""Every figure of a serving run: by hand, and against all tokens written out one by one."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.reports.serving import Promises, ServiceLevels, metrics_of
from paceline.reports.summary import Spread
from paceline.runs.recorder import ServingRecorder

from ...runs.making import ABOUT, played
from .worked_example import worked_log

NOTHING = Promises()


def to_all(**seconds):
    return Promises(others=ServiceLevels(**seconds))


class near:  # noqa: N801 - reads as pytest.approx
    """Equal to a spread but for rounding."""

    def __init__(self, spread):
        self.spread = spread

    def __eq__(self, found):
        if found is None or self.spread is None:
            return found is self.spread
        return asdict(found) == pytest.approx(asdict(self.spread), rel=1e-9)

    def __repr__(self):
        return f"near {self.spread}"


def test_latencies_by_hand():
    found = metrics_of(worked_log(), NOTHING)
    assert found.ttft_s == near(Spread(mean=1.75, p50=1.75, p90=1.95, p95=1.975, p99=1.995))
    assert found.e2e_s == near(Spread(mean=3.75, p50=3.75, p90=4.35, p95=4.425, p99=4.485))
    assert found.queue_s == near(Spread(mean=0.25, p50=0.25, p90=0.45, p95=0.475, p99=0.495))
    assert found.in_system_s == pytest.approx((4.5 + 3 + 3) / 3)
    tpots = [2.5 / 3, 1.5]
    assert found.tpot_s.mean == pytest.approx(sum(tpots) / 2)
    assert found.tpot_s.p90 == pytest.approx(tpots[0] + 0.9 * (tpots[1] - tpots[0]))
    assert found.itl_s == near(Spread(mean=1.25, p50=1.25, p90=1.5, p95=1.5, p99=1.5))


def test_counts_by_hand():
    found = metrics_of(worked_log(), to_all(ttft=1.8, tpot=2.0))
    assert (found.requests, found.finished, found.rejected, found.unfinished) == (4, 2, 1, 1)
    assert found.rejected_for == {"longer than the memory": 1}
    assert (found.prompt_tokens, found.output_tokens, found.unfinished_tokens) == (30, 6, 2)
    assert (found.duration_s, found.requests_per_s, found.output_tokens_per_s) == (6.0, 2 / 6, 1.0)
    assert found.emitted_tokens_per_s == 8 / 6
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (1, 0.25, 1 / 6)
    assert (found.preemptions, found.preempted_requests) == (0, 0)


def test_load_and_members_by_hand():
    found = metrics_of(worked_log(), NOTHING)
    (replica,) = found.replicas
    assert (replica.requests, replica.running_max, replica.waiting_max) == (4, 2, 1)
    assert found.running_mean == pytest.approx(8.5 / 6)
    assert found.waiting_mean == pytest.approx(2 / 6)
    assert found.busy_share == pytest.approx(5.9 / 6)
    draft, target = found.members
    assert (draft.verifications, draft.acceptance_length, draft.kv_use_mean, draft.hit_share_blocks) == (0, *[None] * 3)
    assert target.kv_use_mean == pytest.approx((2 + 12) / (8 * 6))
    assert target.kv_use_max == 3 / 8
    assert (target.hit_share_blocks, target.hit_share_tokens) == (1 / 3, 16 / 70)
    assert target.cached_prompt_share == 16 / 70
    assert (target.verifications, target.acceptance_length, target.accepted_per_verification) == (4, 1.25, 0.5)
    assert target.acceptance_rate == 0.4


def naive_spread(values):
    if not values:
        return None
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Spread(mean=sum(values) / len(values), p50=p50, p90=p90, p95=p95, p99=p99)


@given(run=played(), bounds=st.tuples(st.integers(1, 3 * 10**6), st.integers(1, 10**6)))
def test_figures_are_those_of_every_token(run, bounds):
    """Exact fractions of seconds: a picosecond of the toy is one of the clock."""
    ttft_ps, tpot_ps = bounds
    found = metrics_of(run.log, to_all(ttft=ttft_ps / 1e12, tpot=tpot_ps / 1e12))
    done = [told for told in run.told if told.ended >= 0 and not told.rejected]
    first = {id(told): told.outputs[0][0] for told in done}
    ttft = [(first[id(told)] - told.arrival.arrives_ps) / 1e12 for told in done]
    e2e = [(told.ended - told.arrival.arrives_ps) / 1e12 for told in done]
    queue = [(told.scheduled - told.arrival.arrives_ps) / 1e12 for told in done]
    several = [told for told in done if told.arrival.output_tokens > 1]
    tpot = [(told.ended - first[id(told)]) / 1e12 / (told.arrival.output_tokens - 1) for told in several]
    gaps = [gap / 1e12 for told in run.told for gap in told.gaps]
    for name, values in {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queue": queue, "itl": gaps}.items():
        assert getattr(found, f"{name}_s") == near(naive_spread(values)), name
    met = [
        told
        for told in done
        if first[id(told)] - told.arrival.arrives_ps <= ttft_ps
        and told.ended - first[id(told)] <= tpot_ps * (told.arrival.output_tokens - 1)
    ]
    assert found.slo_met == len(met)
    ends = [
        (told.ended if told.ended >= 0 else run.log.meta.ended_at_ps, told) for told in run.told if not told.rejected
    ]
    in_system = [(end - told.arrival.arrives_ps) / 1e12 for end, told in ends]
    assert found.in_system_s == (pytest.approx(sum(in_system) / len(in_system)) if ends else None)
    assert found.finished + found.rejected + found.unfinished == found.requests == len(run.told)
    assert found.output_tokens + found.unfinished_tokens == sum(told.emitted for told in run.told)
    assert found.preemptions == sum(len(told.preempted) for told in run.told)
    assert found.preempted_requests == sum(bool(told.preempted) for told in run.told)


def test_a_run_of_nothing():
    found = metrics_of(ServingRecorder(["target"], {"r0": [4]}).log(ABOUT), to_all(ttft=1.0))
    assert (found.requests, found.duration_s, found.requests_per_s, found.ttft_s, found.itl_s) == (
        0,
        0,
        None,
        None,
        None,
    )
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (0, None, None)
    assert found.busy_share is None


def test_promises_in_years_are_met():
    assert metrics_of(worked_log(), to_all(tpot=1e18, e2e=1e300)).slo_met == 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_promise_is_a_time(seconds):
    with pytest.raises(ArgumentError, match=r"`slo` ttft must be > 0 and finite, got "):
        ServiceLevels(ttft=seconds)
