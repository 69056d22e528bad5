"""Replays of logs against what was measured or stated: steps, seconds and rates."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from paceline.decoding.results import VERIFY
from paceline.decoding.seen import Start
from paceline.policies import Draft, Policy, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim.cost.measured import TimedCost
from paceline.sim.replay_tables import tables_of
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.errors import TraceFormatError
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.importers import Load as ImportLoad
from paceline.traces.importers.formats import choose_format

from ...data_folder import data_files, data_folder
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

TRTLLM = ([1000, 800, 500], [710, 424, 210])
SPEC_BENCH = data_files("specbench_yukiki", "*.jsonl.gz")
EAGLE_TIMED = data_files("hsd_eagle3_h100", "h100_*.jsonl.gz")
WARM_UP = 2  # requests in which the machine warmed up
needs_spec_bench = pytest.mark.skipif(not SPEC_BENCH, reason="PACELINE_DATA has no specbench_yukiki")
needs_eagle_timed = pytest.mark.skipif(not EAGLE_TIMED, reason="PACELINE_DATA has no hsd_eagle3_h100")


@pytest.fixture(scope="module")
def spec_bench():
    """Every fourth answer."""
    whole = read_recording("spec-bench", SPEC_BENCH)
    return replace(whole, requests=whole.requests[::4])


@pytest.fixture(scope="module")
def eagle_timed():
    return read_recording("eagle-timed", EAGLE_TIMED)


def own_windows(recording):
    """Every drafter as it was recorded."""
    return [(info.name, f"{info.name}:{info.window}/{recording.meta.target}") for info in recording.meta.drafters]


def run(recording, policy, cost=None, **scenario):
    tables = tables_of(recording)
    cost = UnitCost() if cost is None else cost
    return simulate(Scenario(tables=tables, cost=cost, **scenario), make_policy(policy, tables.pool), policy)


@needs_spec_bench
def test_spec_bench_answers_take_the_recorded_seconds(spec_bench):
    cost = TimedCost(spec_bench)
    for name, policy in [("", "plain"), *own_windows(spec_bench)]:
        log = run(spec_bench, policy, cost)
        measured = np.array([request.seconds(name) for request in spec_bench.requests])
        spent = log.requests["finished_at_s"] - log.requests["admitted_at_s"]
        np.testing.assert_allclose(spent, measured, rtol=1e-9)


@needs_eagle_timed
def test_eagle_on_an_h100_takes_the_measured_seconds(eagle_timed):
    cost = TimedCost(eagle_timed)
    for name, policy in own_windows(eagle_timed):
        log = run(eagle_timed, policy, cost)
        prefill = np.array([request.prefill_s[name] for request in eagle_timed.requests])
        measured = np.array([request.seconds(name) for request in eagle_timed.requests]) - prefill
        spent = log.requests["finished_at_s"] - log.requests["admitted_at_s"] - prefill
        measured, spent = measured[WARM_UP:], spent[WARM_UP:]
        assert np.median(np.abs(spent / measured - 1)) < 0.03
        assert abs(spent.sum() / measured.sum() - 1) < 0.02
        assert summarise_run(log).exact_share > 0.999


WINDOW = 5


def importable():
    """Files of the data folder that are logs, by their folder: the first file alone, and all of it."""
    folder = data_folder()
    for place in sorted(folder.iterdir()) if folder else []:
        files = [path for path in sorted(place.glob("*.json*")) if place.is_dir() and _seen(path)]
        yield from [files[:1], files] if len(files) > 1 else [files] if files else []


def _seen(path):
    try:
        choose_format("auto", [path])
    except TraceFormatError:
        return False
    return True


FILES = list(importable())
LOGS = [
    pytest.param(
        files,
        marks=[pytest.mark.slow] if len(files) > 1 else [],
        id=f"{files[0].parent.name} {files[0].name} and {len(files) - 1} more",
    )
    for files in FILES
]


def steps_of(recording, policy, **scenario):
    """(target steps, tokens) by request in the order of the recording, and the summary."""
    log = run(recording, policy, **scenario)
    place = {request_id: index for index, request_id in enumerate(log.requests["request_id"].tolist())}
    order = [place[request.request_id] for request in recording.requests]
    rounds = (log.steps["kind"] == VERIFY) & (log.steps["level"] == log.steps["level"].max())
    rounds &= log.steps["prefill"] == 0
    steps = np.bincount(log.steps["request"][rounds], minlength=len(order))[order]
    return steps.tolist(), log.requests["emitted_tokens"][order].tolist(), summarise_run(log)


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="no logs in PACELINE_DATA")
@pytest.mark.parametrize("files", LOGS)
def test_published_logs(files):
    try:
        recording = read_recording("auto", files)
    except TraceFormatError as error:
        pytest.skip(f"half of a log: {error}")
    for info in recording.meta.drafters:
        steps, tokens, summary = steps_of(recording, f"{info.name}:{info.window}/target", batch=4)
        ran = [index for index, request in enumerate(recording.requests) if info.name in request.rounds]
        requests = [recording.requests[index] for index in ran]
        assert [steps[index] for index in ran] == [len(request.rounds[info.name].start) for request in requests]
        assert [tokens[index] for index in ran] == [request.length(info.name) for request in requests]
        assert summary.exact_share == 1
    steps, tokens, _ = steps_of(recording, "plain", start=Start.draft)
    assert steps == tokens == [request.length("") for request in recording.requests]
    if all(info.prefilled for info in recording.meta.drafters):
        steps, tokens, _ = steps_of(recording, "plain")
        assert [step + 1 for step in steps] == tokens  # the prefill is no step


def served(rng, *, cut, find=0.4, requests=60):
    """(lines of a log, target steps by request) of answers of 1 to 200 tokens, drafts of 1 to 5 tokens."""
    lines, truth = [], []
    for index in range(requests):
        most, tokens, steps, listed = int(rng.integers(1, 200)), 1, 0, []
        easy = rng.uniform(0.4, 0.95)
        while tokens < most:
            steps += 1
            drafted = int(rng.integers(1, WINDOW + 1)) if rng.random() < find else 0
            accepted = int((rng.random(drafted) < easy).cumprod().sum())
            if drafted:
                listed.append((accepted, drafted))
            tokens += accepted + 1
        accepted, drafted = np.array(listed, int).reshape(-1, 2).T.tolist()
        found = {"num_spec_tokens": WINDOW, "per_step_accepted": accepted, "per_step_drafted": drafted}
        usage = {"prompt_tokens": 9, "completion_tokens": min(tokens, most) if cut else tokens}
        lines.append({"id": f"r{index}", "usage": usage, "metrics": {"speculative_decoding": found}})
        truth.append(steps)
    return lines, truth


def imported(tmp_path: Path, lines, **options):
    path = tmp_path / "served.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_recording("vllm-detailed", [path], ImportOptions(windows={"drafter": WINDOW}, **options))


@pytest.mark.parametrize("reads_tokens", [False, True])
def test_steps_that_the_log_leaves_out_are_taken(tmp_path, reads_tokens):
    lines, truth = served(np.random.default_rng(0), cut=False)
    options = {"token_drafters": frozenset({"drafter"})} if reads_tokens else {}
    recording = imported(tmp_path, lines, **options)
    for seed in range(3):
        steps, tokens, summary = steps_of(recording, f"drafter:{WINDOW}/target", seed=seed)
        assert steps == truth
        assert tokens == [line["usage"]["completion_tokens"] for line in lines]
        assert summary.acceptance_length == pytest.approx((sum(tokens) - len(tokens)) / sum(truth))
    placed = sum(int(request.rounds["drafter"].where_placed.sum()) for request in recording.requests)
    drafted = chain.from_iterable(line["metrics"]["speculative_decoding"]["per_step_drafted"] for line in lines)
    decisions = sum(drafted) + placed  # at least: judged tokens and the target's own come on top
    assert 0 < 1 - summary.exact_share < placed / decisions


def test_what_the_log_cannot_know_is_at_most_its_last_step(tmp_path):
    lines, truth = served(np.random.default_rng(1), cut=True)
    steps, _, _ = steps_of(imported(tmp_path, lines), f"drafter:{WINDOW}/target")
    last = [(line["metrics"]["speculative_decoding"]["per_step_accepted"] or [0])[-1] for line in lines]
    for step, count, kept in zip(steps, truth, last, strict=True):
        assert count - kept <= step <= count
    assert sum(steps) == pytest.approx(sum(truth), rel=0.02)


def test_another_window_drafts_as_often_as_the_log_says(tmp_path):
    lines, _ = served(np.random.default_rng(2), cut=False, requests=120)
    recording, found, steps = imported(tmp_path, lines), 0, 0
    for seed in range(2):
        rounds = run(recording, "drafter:3/target", seed=seed).rounds()
        found, steps = found + int((rounds["drafted"] > 0).sum()), steps + len(rounds["drafted"])
    assert found / steps == pytest.approx(0.4, abs=0.03)


STATED_WINDOW = 3
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
        write_lines(p, aiperf("a", [0] * 4 + [1] * 4 + [2] * 8 + [3] * 4, [3] * 20)), [(53, 20)],
    ),
    "guidellm": lambda p: (write_lines(p, guidellm(summary("a", [4, 4, 8, 4]))), [(53, 20)]),
}  # fmt: skip
FALLING, LEVEL = (0.71, 0.53 / 0.71, 0.42 / 0.53), (0.731988415,)  # both keep 1.66 of three tokens in the mean
STATED = {  # what each states: the shares of drafts that kept each token, or how many tokens a step has
    "vllm-metrics": (lambda p: write_text(p, *counters(1000, [710, 530, 420])), FALLING),
    "llamacpp-metrics": (lambda p: write_text(p, *llamacpp_counters(1000, [710, 530, 420])), FALLING),
    "trtllm-metrics": (
        lambda p: write_text(p, *trtllm_counters(*TRTLLM, requests=0, tokens=0)),
        FALLING,
    ),
    "sglang-metrics": (lambda p: write_text(p, *sglang_counters(2.66)), LEVEL),
    "vllm-log": (lambda p: write_text(p, metrics_line([0.71, 0.53, 0.42], 1660, 3000)), FALLING),
    "vllm-bench": (lambda p: write_lines(p, vllm_bench([0.71, 0.53, 0.42], lens=[2000] * 6, drafts=6 * 751)), FALLING),
    "sglang-log": (lambda p: write_text(p, decode_batch(2.66, 1.66 / 3)), LEVEL),
    "trtllm-iterations": (lambda p: write_lines(p, iteration(1, 100, 300, 166)), LEVEL),
    "acceptance-by-k": (lambda p: write_lines(p, {"1": 1.71, "2": 2.24, "3": 2.66}), FALLING),
    "sglang-bench": (lambda p: write_lines(p, {"accept_length": 2.66, "total_output_tokens": 0}), LEVEL),
}
SEEDS = 4


class Wanted(Policy):
    """The prefill, then drafts of the window, each verified; a drafter that found nothing is asked once."""

    def __init__(self, window=STATED_WINDOW):
        self.window, self._asked = window, {}

    def decide(self, seen):
        place = (seen.request_id, seen.num_emitted)
        if self._asked.get(seen.request_id) == place or not seen.num_emitted or seen.num_pending or not seen.room:
            self._asked[seen.request_id] = place
            return Verify("target")
        self._asked[seen.request_id] = place
        return Draft("drafter", self.window)


def replay(trace, *, seed=0, strict=False, window=STATED_WINDOW):
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
    trace = read_recording("auto", [path], ImportOptions(windows={"drafter": STATED_WINDOW}))
    assert trace.meta.source == format_name
    log = replay(trace)
    for request, (tokens, steps) in zip(trace.requests, wanted, strict=True):
        assert request.num_tokens["drafter"] == tokens
        assert target_steps(log, request.request_id) == steps
    assert summarise_run(log).exact_share == 0
    with pytest.raises(ValueError, match="needs a round that was not recorded"):
        replay(trace, strict=True)


@pytest.mark.parametrize("format_name", ["vllm-metrics", "sglang-metrics", "vllm-bench"])
@pytest.mark.one_in(3)
def test_the_stated_rates_are_met_and_no_seed_is_favoured(tmp_path, format_name):
    trace, hazards = imported_rates(tmp_path, format_name)
    kept, drafts, means = np.zeros(STATED_WINDOW), 0, []
    for seed in range(SEEDS):
        log = replay(trace, seed=seed)
        accepted = log.steps["accepted"][(log.steps["kind"] == 1) & (log.steps["judged"] == STATED_WINDOW)]
        kept += [(accepted > place).sum() for place in range(STATED_WINDOW)]
        drafts += len(accepted)
        means.append(1 + accepted.mean())
        assert summarise_run(log).exact_share == 0
    rates = np.cumprod(np.resize(hazards, STATED_WINDOW) if len(hazards) > 1 else np.repeat(hazards, STATED_WINDOW))
    np.testing.assert_allclose(kept / drafts, rates, atol=4 * np.sqrt(0.25 / drafts))
    assert abs(np.mean(means) - 2.66) < 4 * np.std(means) / np.sqrt(SEEDS) + 0.005
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


def test_a_window_beyond_a_stated_one_drafts_more(tmp_path):
    """Rates tell what a deeper token would do, the last of them; that some steps draft nothing ends no other draft."""
    for plain in (0, 1500):
        page = counters(1000, [900, 810, 729], requests=6, tokens=6 + 1000 + 2439 + plain)
        trace = read_recording("vllm-metrics", [write_text(tmp_path / f"{plain}", *page)])
        assert (trace.meta.drafters[0].stated.drafting < 1) == (plain > 0)
        for window in (2, 3, 16):
            log = replay(trace, window=window)
            assert log.steps["judged"][log.steps["kind"] == 1].max() == window


def test_seeds_of_the_import_are_not_favoured(tmp_path):
    path = write_lines(tmp_path / "x", summary("a", [30, 12, 6, 20]))
    firsts = [
        int(read_recording("auto", [path], ImportOptions(seed=seed)).requests[0].rounds["drafter"].accepted[0])
        for seed in range(200)
    ]
    mean = (12 + 12 + 60) / 68
    assert np.mean(firsts) == pytest.approx(mean, abs=4 * np.std(firsts) / 200**0.5)


def imported_rates(tmp_path, format_name):
    write, hazards = STATED[format_name]
    windows = {"drafter": 3} if format_name in {"sglang-metrics", "sglang-log", "sglang-bench"} else {}
    load = None if format_name == "vllm-bench" else ImportLoad(requests=6, output_tokens=2000)
    return read_recording(format_name, [write(tmp_path / "x")], ImportOptions(windows=windows, load=load)), hazards


@pytest.mark.parametrize("format_name", STATED)
def test_the_stated_rates_are_read(tmp_path, format_name):
    trace, hazards = imported_rates(tmp_path, format_name)
    (info,) = trace.meta.drafters
    assert (info.window, info.prefilled, len(trace.requests)) == (STATED_WINDOW, True, 6)
    assert info.stated.hazards == pytest.approx(hazards)
    assert (info.stated.drafting == 1.0) == (format_name != "vllm-bench")
