"""Replaying the recorded policy where a log knew totals only meets the totals, and says that nothing is exact."""

import numpy as np
import pytest
from paceline.policies import Draft, Verify
from paceline.reports import summarise_run
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.importers import ImportOptions, Load, read_recording

from ...traces.importers.foreign_files import (
    aiperf,
    counters,
    decode_batch,
    guidellm,
    iteration,
    llamacpp_counters,
    llamacpp_lines,
    metrics_line,
    sglang,
    sglang_counters,
    summary,
    timings,
    trtllm,
    trtllm_counters,
    vllm_bench,
    write_lines,
    write_text,
)
from ...unit_cost import UnitCost

WINDOW = 3
COUNTED = {  # what each line counts: (tokens, target steps after the prefill)
    "vllm-summary": lambda p: (
        write_lines(p, summary("a", [30, 12, 6, 20]), summary("b", [9, 1, 0, 4], tokens=14 + 13 + 1 + 11)),
        [(30 + 24 + 18 + 80 + 1, 68), (39, 14 + 11)],
    ),
    "sglang-meta": lambda p: (
        write_lines(p, sglang("a", 20, 53, histogram=[4, 4, 8, 4]), sglang("b", 20, 41)),
        [(53, 20), (41, 20)],
    ),
    "trtllm": lambda p: (write_lines(p, trtllm("a", histogram=[8, 0, 6, 6])), [(51, 20)]),
    "llamacpp-timings": lambda p: (
        write_lines(p, timings(90, 100, 40), timings(30, 50, 10)), [(90, 49), (30, 19)],
    ),
    "llamacpp-log": lambda p: (write_text(p, *llamacpp_lines(200, 240, 110)), [(200, 89)]),
    "aiperf": lambda p: (
        write_lines(p, aiperf("a", [0] * 4 + [1] * 4 + [2] * 8 + [3] * 4, [3] * 20, listed=False)), [(53, 20)],
    ),
    "guidellm": lambda p: (write_lines(p, guidellm(summary("a", [4, 4, 8, 4]))), [(53, 20)]),
}  # fmt: skip
STATED = {  # what each states: the shares of drafts that kept each token, and the tokens of a step
    "vllm-metrics": (lambda p: write_text(p, *counters(1000, [710, 530, 420])), (0.71, 0.53, 0.42), {}),
    "llamacpp-metrics": (lambda p: write_text(p, *llamacpp_counters(1000, [710, 530, 420])), (0.71, 0.53, 0.42), {}),
    "trtllm-metrics": (
        lambda p: write_text(
            p, *trtllm_counters([1000, 800, 500], [710, 424, 210], requests=0, tokens=0, by_place=True)
        ),
        (0.71, 0.53, 0.42),
        {},
    ),
    "sglang-metrics": (lambda p: write_text(p, *sglang_counters(2.66)), None, {"drafter": 3}),
    "vllm-log": (lambda p: write_text(p, metrics_line([0.71, 0.53, 0.42], 1660, 3000)), (0.71, 0.53, 0.42), {}),
    "vllm-bench": (
        lambda p: write_lines(p, vllm_bench([0.71, 0.53, 0.42], lens=[2000] * 6, drafts=6 * 751)),
        (0.71, 0.53, 0.42),
        None,
    ),
    "sglang-log": (lambda p: write_text(p, decode_batch(2.66, 1.66 / 3)), None, {"drafter": 3}),
    "trtllm-iterations": (lambda p: write_lines(p, iteration(1, 100, 300, 166)), None, {}),
    "acceptance-by-k": (lambda p: write_lines(p, {"1": 1.71, "2": 2.24, "3": 2.66}), (0.71, 0.53, 0.42), {}),
    "sglang-bench": (lambda p: write_lines(p, {"accept_length": 2.66, "total_output_tokens": 0}), None, {"drafter": 3}),
}
SEEDS = 8


class Recorded:
    """The prefill, then drafts of the window, each verified."""

    window = WINDOW

    def decide(self, seen):
        return (
            Draft("drafter", self.window)
            if seen.num_emitted and not seen.num_pending and seen.room
            else Verify("target")
        )

    def learn(self, outcome):
        pass


class Wanted(Recorded):
    """As recorded, but for a drafter that found nothing, which is asked once."""

    def __init__(self, window=WINDOW):
        self.window = window
        self._asked = {}

    def decide(self, seen):
        place = (seen.request_id, seen.num_emitted)
        if self._asked.get(seen.request_id) == place:
            return Verify("target")
        self._asked[seen.request_id] = place
        return super().decide(seen)


def replay(trace, *, seed=0, strict=False, window=WINDOW):
    return simulate(
        Scenario(tables=RoundsTables(trace), cost=UnitCost(), seed=seed, strict=strict), Wanted(window), "recorded"
    )


def target_steps(log, request_id):
    """Verifications after the prefill."""
    index = log.requests["request_id"].tolist().index(request_id)
    return int(((log.steps["kind"] == 1) & (log.steps["request"] == index)).sum()) - 1


@pytest.mark.parametrize("format_name", COUNTED)
def test_the_recorded_target_steps_are_met_for_every_request(tmp_path, format_name):
    path, wanted = COUNTED[format_name](tmp_path / "x")
    trace = read_recording("auto", [path], ImportOptions(windows={"drafter": WINDOW}))
    assert trace.meta.source == format_name
    log = replay(trace)
    for request, (tokens, steps) in zip(trace.requests, wanted, strict=True):
        assert request.num_tokens["drafter"] == tokens
        assert target_steps(log, request.request_id) == steps
    assert summarise_run(log).exact_share == 0
    with pytest.raises(ValueError, match="needs a round that was not recorded"):
        replay(trace, strict=True)


@pytest.mark.parametrize("format_name", STATED)
def test_the_stated_rates_are_met_and_no_seed_is_favoured(tmp_path, format_name):
    write, rates, windows = STATED[format_name]
    load = None if windows is None else Load(requests=6, output_tokens=2000)
    trace = read_recording(format_name, [write(tmp_path / "x")], ImportOptions(windows=windows or {}, load=load))
    kept, drafts = np.zeros(WINDOW), 0
    means = []
    for seed in range(SEEDS):
        log = replay(trace, seed=seed)
        judged = (log.steps["kind"] == 1) & (log.steps["judged"] == WINDOW)
        accepted = log.steps["accepted"][judged]
        kept += [(accepted > place).sum() for place in range(WINDOW)]
        drafts += len(accepted)
        means.append(1 + accepted.mean())
        assert summarise_run(log).exact_share == 0
    error = 4 * np.sqrt(0.25 / drafts)
    if rates is not None:
        np.testing.assert_allclose(kept / drafts, rates, atol=error)
    spread = np.std(means) / np.sqrt(SEEDS)
    assert abs(np.mean(means) - 2.66) < 4 * spread + 0.005
    assert len(set(means)) > 1


def test_steps_that_drafted_nothing_are_drawn_as_often(tmp_path):
    page = counters(1000, [800, 500, 200], requests=6, tokens=6 + 1000 + 1500 + 1500)
    trace = read_recording("vllm-metrics", [write_text(tmp_path / "x", *page)])
    shares = []
    for seed in range(SEEDS):
        log = replay(trace, seed=seed)
        verified = (log.steps["kind"] == 1) & (log.steps["emitted"] > 0)
        shares.append(float((log.steps["judged"][verified] > 0).mean()))
    assert np.mean(shares) == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize("plain", [0, 1500])
def test_a_window_beyond_a_stated_one_drafts_more(tmp_path, plain):
    """Rates tell what a deeper token would do, the last of them; that some steps draft nothing ends no other draft."""
    page = counters(1000, [900, 810, 729], requests=6, tokens=6 + 1000 + 2439 + plain)
    trace = read_recording("vllm-metrics", [write_text(tmp_path / "x", *page)])
    assert (trace.meta.drafters[0].stated.drafting < 1) == (plain > 0)
    judged = {}
    for window in (2, 3, 4, 8, 16):
        log = replay(trace, window=window)
        judged[window] = int(log.steps["judged"][log.steps["kind"] == 1].max())
    assert judged == {2: 2, 3: 3, 4: 4, 8: 8, 16: 16}


def test_seeds_of_the_import_are_not_favoured(tmp_path):
    """The first of placed rounds keeps what rounds keep on average, over seeds."""
    path = write_lines(tmp_path / "x", summary("a", [30, 12, 6, 20]))
    firsts = [
        int(read_recording("auto", [path], ImportOptions(seed=seed)).requests[0].rounds["drafter"].accepted[0])
        for seed in range(400)
    ]
    mean = (12 + 12 + 60) / 68
    assert np.mean(firsts) == pytest.approx(mean, abs=4 * np.std(firsts) / 20)
