"""Recordings that others published, where they lie beside the checkout (PACELINE_DATA)."""

from collections import defaultdict

import pytest
from paceline.traces.importers import ImportOptions, read_recording

from ...data_folder import data_files

SPEC_BENCH = data_files("specbench_yukiki", "*.jsonl.gz")
EAGLE = data_files("hsd_eagle3_h100", "h100_*.jsonl.gz")
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
# Tokens per step of SpS and EAGLE: all tokens of a subtask over all its steps.
PUBLISHED = {
    "MT-Bench": (2.62, 3.84),
    "translation": (1.51, 2.84),
    "summarization": (2.73, 3.31),
    "qa": (2.32, 3.11),
    "math_reasoning": (2.25, 3.92),
    "rag": (2.77, 3.21),
}

with_spec_bench = pytest.mark.skipif(len(SPEC_BENCH) != 3, reason="no specbench_yukiki in PACELINE_DATA")
with_eagle = pytest.mark.skipif(len(EAGLE) != 4, reason="no hsd_eagle3_h100 in PACELINE_DATA")


@pytest.fixture(scope="module")
def spec_bench():
    return read_recording("spec-bench", SPEC_BENCH)


@pytest.fixture(scope="module")
def eagle():
    return read_recording("auto", EAGLE)


@with_spec_bench
def test_tokens_per_step_by_subtask(spec_bench):
    tokens, steps = defaultdict(int), defaultdict(int)
    for request in spec_bench.requests:
        subtask = "MT-Bench" if request.tag in MT_BENCH else request.tag
        for drafter, rounds in request.rounds.items():
            tokens[subtask, drafter] += int(rounds.accepted.sum()) + len(rounds.start)
            steps[subtask, drafter] += len(rounds.start)
    found = {key: tokens[key] / steps[key] for key in tokens}
    for subtask, (sps, eagle) in PUBLISHED.items():
        assert found.pop((subtask, "sps")) == pytest.approx(sps, abs=0.01)
        assert found.pop((subtask, "eagle")) == pytest.approx(eagle, abs=0.01)
    assert not found


@with_spec_bench
def test_the_windows_of_the_methods(spec_bench):
    drafters = {drafter.name: (drafter.window, drafter.by_start) for drafter in spec_bench.meta.drafters}
    assert drafters == {"eagle": (5, True), "sps": (20, False)}
    assert len(spec_bench.requests) == 560
    assert all(set(request.num_tokens) == {"", "sps", "eagle"} for request in spec_bench.requests)


@with_eagle
def test_parts_of_the_seconds_add_up(eagle):
    assert eagle.meta.source == "eagle-timed"
    assert {drafter.name: drafter.window for drafter in eagle.meta.drafters} == {"eagle": 6, "hsd": 6}
    assert len(eagle.requests) == 80
    for request in eagle.requests:
        for method, rounds in request.rounds.items():
            timed = request.prefill_s[method] + rounds.draft_s.sum() + rounds.verify_s.sum()
            assert 0.98 < timed / request.wall_s[method] <= 1
            # The token that the last step sampled is counted only where it is all that the step gave.
            uncounted = int(rounds.accepted[-1] == 0)
            assert request.num_tokens[method] == rounds.accepted.sum() + len(rounds.start) + uncounted
            assert rounds.start[0] == 1


@with_eagle
def test_no_round_keeps_more_than_the_tree_below_its_root(eagle):
    most = max(int(rounds.drafted.max()) for request in eagle.requests for rounds in request.rounds.values())
    kept = sum(int(rounds.censored(6).sum()) for request in eagle.requests for rounds in request.rounds.values())
    assert most == 6
    assert kept > 2000


@with_eagle
@pytest.mark.parametrize("path", [path for path in EAGLE if "_info" not in path.name], ids=lambda path: path.name[:12])
def test_answers_without_their_times_keep_their_steps(path, eagle):
    """`idxs` and `new_tokens` alone: rounds are drawn, as many as there were, with as many tokens in all."""
    trace = read_recording("auto", [path], ImportOptions(names={path.name: "drafter"}, windows={"drafter": 6}))
    assert (trace.meta.source, trace.meta.form) == ("spec-bench", "request means")
    timed = {request.request_id: request for request in eagle.requests}
    method = "hsd" if "HSD" in path.name else "eagle"
    for request in trace.requests:
        known, drawn = timed[request.request_id].rounds[method], request.rounds["drafter"]
        assert len(drawn.start) == len(known.start)
        assert drawn.accepted.sum() == known.accepted.sum()
        assert drawn.placed.all()
