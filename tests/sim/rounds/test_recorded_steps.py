"""Every log replayed under the policy that it was recorded with takes the recorded steps, request by request."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from paceline.decoding.results import VERIFY
from paceline.decoding.seen import Start
from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.errors import TraceFormatError
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.importers.formats import choose_format

from ...data_folder import data_folder
from ...unit_cost import UnitCost

WINDOW = 5


def importable():
    """Files of the data folder that are a log: alone, or with the others of their folder."""
    folder = data_folder()
    for place in sorted(folder.iterdir()) if folder else []:
        files = [path for path in sorted(place.glob("*.json*")) if place.is_dir() and _seen(path)]
        yield from ([path] for path in files)
        if len(files) > 1:
            yield files


def _seen(path):
    try:
        choose_format("auto", [path])
    except TraceFormatError:
        return False
    return True


FILES = list(importable())
NAMES = [f"{files[0].parent.name} {files[0].name} and {len(files) - 1} more" for files in FILES]


def steps_of(recording, policy, **scenario):
    """(target steps, tokens) by request in the order of the recording, and the summary."""
    tables = tables_of(recording)
    log = simulate(Scenario(tables=tables, cost=UnitCost(), **scenario), make_policy(policy, tables.pool), policy)
    place = {request_id: index for index, request_id in enumerate(log.requests["request_id"].tolist())}
    order = [place[request.request_id] for request in recording.requests]
    by_target = (log.steps["kind"] == VERIFY) & (log.steps["level"] == tables.pool.target_level)
    rounds = by_target & (log.steps["prefill"] == 0)
    steps = np.bincount(log.steps["request"][rounds], minlength=len(order))[order]
    return steps.tolist(), log.requests["emitted_tokens"][order].tolist(), summarise_run(log)


@pytest.mark.skipif(not FILES, reason="no logs in PACELINE_DATA")
@pytest.mark.parametrize("files", FILES, ids=NAMES)
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


# -- an n-gram drafter that often finds nothing, logged as vLLM does


def served(rng, *, cut, find=0.4, requests=60):
    """(lines of a log, target steps by request) of answers of 1 to 200 tokens, drafts of 1 to 5 tokens.

    vLLM emits the target's first token in the prefill, and lists steps that drafted something only. With `cut` an
    answer may end within a step.
    """
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
    """Asked for three tokens at a time, the drafter finds something as often, and steps come out as they would have."""
    lines, _ = served(np.random.default_rng(2), cut=False, requests=150)
    recording = imported(tmp_path, lines)
    found, steps = 0, 0
    for seed in range(3):
        tables = tables_of(recording)
        policy = make_policy("drafter:3/target", tables.pool)
        log = simulate(Scenario(tables=tables, cost=UnitCost(), seed=seed), policy, "p")
        rounds = log.rounds()
        found, steps = found + int((rounds["drafted"] > 0).sum()), steps + len(rounds["drafted"])
    assert found / steps == pytest.approx(0.4, abs=0.02)
