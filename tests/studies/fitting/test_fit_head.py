"""What a head is fitted to is what rounds of a fixed window judge, and its chances are those its stop multiplies."""

import json
from dataclasses import replace

import numpy as np
import pytest
from paceline.base.files import shipped
from paceline.policies import Signal, make_policy
from paceline.policies.learned import chances_of, read_head
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.fit import fit_head, fit_shared_head, judged_tokens
from paceline.traces import SyntheticSpec, make_trace, write_trace
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.rounds.on_disk import write_rounds

from ...cli.command_line import paceline
from ...sim.rounds.small_rounds import one_request, recording_of, sequential

PICO = shipped("recordings", "pico.trace")


@pytest.fixture(scope="module")
def pico():
    return read_trace(PICO)


@pytest.mark.parametrize("window", [1, 5])
def test_rounds_are_those_of_a_chain_of_that_window(pico, window):
    text = f"draft:{window}/target"
    tables = TrieTables(pico)
    log = simulate(Scenario(tables=tables, cost=make_cost("cpu", pico)), make_policy(text, tables.pool), text)
    steps = log.steps
    rounds = (steps["judged"] > 0) & (steps["prefill"] == 0)
    for place, request in enumerate(pico.requests):
        mine = rounds & (steps["request"] == place)
        accepted, judged = steps["accepted"][mine], steps["judged"][mine]
        found = judged_tokens(request, pico.meta.model_names.index("draft"), window)
        ends = np.cumsum(found.rounds)
        kept = [int(found.kept[end - count : end].sum()) for end, count in zip(ends, found.rounds, strict=True)]
        assert kept == accepted.tolist()
        assert list(found.rounds) == np.minimum(accepted + 1, judged).tolist()


def test_the_stop_multiplies_the_fitted_chances(pico):
    head = fit_head(PICO, window=6).head
    found = judged_tokens(pico.requests[3], 0, 6)
    agreement = found.agreement(head.start)
    weights = np.array([head.bias, *head.weights.values()])
    chances = chances_of(np.column_stack([found.signals, agreement]), weights)
    for row, before, chance in zip(found.signals, agreement, chances, strict=True):
        prob, root, gap, place = row.tolist()
        factor = head.stop(0.5, before).factor(Signal(prob, root * root, gap), round(1 / place) - 1)
        assert factor == pytest.approx(chance, abs=1e-12)


def test_a_head_says_more_than_chance_on_requests_it_has_not_seen():
    fit = fit_head(PICO).head.held_out
    assert fit.auc > 0.8
    assert fit.calibration_error < 0.1


def test_a_head_of_one_recording_alone_has_its_weights():
    shared, own = fit_shared_head([PICO], window=6).head, fit_head(PICO, window=6).head
    assert shared == replace(own, drafter=None, target=None, members=())


def test_a_head_of_several_recordings_is_fitted_to_all_their_tokens(tmp_path):
    path = made(tmp_path, requests=12, models=("small", "large"), acceptance=(0.5,), seed=3)
    shared, parts = fit_shared_head([PICO, path]), [fit_head(each) for each in (PICO, path)]
    assert shared.head.num_tokens == sum(part.head.num_tokens for part in parts)
    assert shared.num_held_out == sum(part.num_held_out for part in parts)
    assert shared.head.recording == "pico, made"
    low, high = sorted(part.head.start for part in parts)
    assert low < shared.head.start < high


def test_the_command_writes_the_head_it_tells_of(tmp_path):
    file = tmp_path / "head.json"
    ran = paceline("policy", "fit", "specdec++", "--trace", str(PICO), "--out", str(file), "--json", "-")
    assert ran.code == 0
    told, head = json.loads(ran.out), read_head(str(file))
    assert (told["auc"], told["num_tokens"]) == (head.held_out.auc, head.num_tokens)
    again = paceline("policy", "fit", "specdec++", "--out", str(file))
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "exists already; what was fitted is never overwritten" in again.err


def made(tmp_path, **options):
    path = tmp_path / "made.trace"
    write_trace(make_trace(SyntheticSpec(name="made", tokens=8, **options)), path)
    return path


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"requests": 3, "acceptance": (0.5,)}, "requests that are held out must have tokens of draft .* got 0 of 0"),
        ({"requests": 8, "acceptance": (1.0,)}, "requests that are fitted to must have .* refused, got 42 of 42 kept"),
    ],
)
def test_recordings_that_say_too_little_are_refused(tmp_path, options, rule):
    with pytest.raises(ValueError, match=rule):
        fit_head(made(tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"drafter": "ngram"}, "drafter must have probabilities, got 'ngram', which is model-free"),
        ({"drafter": "target"}, "draft must be a member below the target, got 'target'"),
        ({"window": 0}, "`window` must be >= 1, got 0"),
    ],
)
def test_other_drafters_and_windows_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        fit_head(PICO, **options)


def test_imported_logs_have_no_probabilities_to_fit_to(tmp_path):
    recording = recording_of(one_request({"": 8, "feature": 8}, {"feature": sequential([True, False] * 4, 3)}))
    write_rounds(recording.requests, lambda: recording.meta, tmp_path / "log.trace")
    with pytest.raises(ValueError, match="recording by hand must hold probabilities of tokens"):
        fit_head(tmp_path / "log.trace")


def test_other_policies_have_nothing_to_fit(tmp_path):
    ran = paceline("policy", "fit", "svip", "--out", str(tmp_path / "x.json"))
    assert ran.code == 2
    assert "NAME must be a policy that is fitted beforehand, specdec++, got 'svip'" in ran.err
