"""What is found by its name, imported, or fitted to."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import paceline
import pytest
from paceline.base.files import recording_path, shipped
from paceline.policies import Signal, make_policy
from paceline.policies.learned import chances_of, read_head
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.fit import fit_head, fit_shared_head, judged_tokens
from paceline.traces import SyntheticSpec, make_trace, write_trace
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.errors import TraceFormatError
from paceline.traces.rounds.on_disk import write_rounds

from ..cli.command_line import done, refused
from ..sim.rounds.small_rounds import one_request, recording_of, sequential
from ..traces.importers.foreign_files import one_file_each


def test_a_recording_is_a_folder_or_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    assert recording_path(None) == recording_path("pico") == shipped("recordings", "pico.trace")
    assert paceline.open_recording("pico-coupled").about.name == "pico-coupled"
    (tmp_path / "pico").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recording_path("pico") == Path("pico")  # what is here goes first
    assert recording_path(tmp_path / "pico") == tmp_path / "pico"
    shipped_ones = r"\(pico, pico-coupled, smollm2, smollm2-coupled\)"
    with pytest.raises(
        TraceFormatError, match=f"nobody: trace: no such folder; must be .* shipped one {shipped_ones}, got .nobody"
    ):
        paceline.open_recording("nobody")


def test_texts_do_for_paths_and_nothing_is_overwritten(tmp_path):
    (file,) = one_file_each(tmp_path)["positions"]
    made = paceline.import_logs(str(file), str(tmp_path / "x.trace"), format_name="positions")
    assert "saw" not in made.lines()[0]
    assert "".join(str(made).split()) == "".join("".join(made.lines()).split())  # broken at the width of tables
    assert made.lines()[0] in unescape(made._repr_html_())
    assert not made.tables()
    assert [row["name"] for row in made.to_dicts()] == list(made.meta.drafter_names)
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir())
    with pytest.raises(FileExistsError, match=r"x\.trace: exists already; a recording is never overwritten"):
        paceline.import_logs([file], tmp_path / "x.trace")
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "x.trace").iterdir()) == before


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
    told = json.loads(done("policy", "fit", "specdec++", "--trace", PICO, "--out", file, "--json", "-"))
    head = read_head(str(file))
    assert (told["auc"], told["num_tokens"]) == (head.held_out.auc, head.num_tokens)
    again = refused("policy", "fit", "specdec++", "--out", file)
    assert "exists already; what was fitted is never overwritten" in again
    other = refused("policy", "fit", "svip", "--out", tmp_path / "x.json")
    assert "NAME must be a policy that is fitted in advance, specdec++, got 'svip'" in other


def made(tmp_path, **options):
    path = tmp_path / "made.trace"
    write_trace(make_trace(SyntheticSpec(name="made", tokens=8, **options)), path)
    return path


@pytest.mark.parametrize(
    ("recorded", "options", "rule"),
    [
        ({"requests": 3, "acceptance": (0.5,)}, {}, "that are held out must have tokens of draft .* got 0 of 0"),
        ({"requests": 8, "acceptance": (1.0,)}, {}, "that are fitted to must have .* refused, got 42 of 42 kept"),
        (None, {"drafter": "ngram"}, "drafter must have probabilities, got 'ngram', which is model-free"),
        (None, {"drafter": "target"}, "draft must be a member below the target, got 'target'"),
        (None, {"window": 0}, "`window` must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(tmp_path, recorded, options, rule):
    with pytest.raises(ValueError, match=rule):
        fit_head(PICO if recorded is None else made(tmp_path, **recorded), **options)


def test_imported_logs_have_no_probabilities_to_fit_to(tmp_path):
    recording = recording_of(one_request({"": 8, "feature": 8}, {"feature": sequential([True, False] * 4, 3)}))
    write_rounds(recording.requests, lambda: recording.meta, tmp_path / "log.trace")
    with pytest.raises(ValueError, match="recording by hand must hold probabilities of tokens"):
        fit_head(tmp_path / "log.trace")


def test_a_log_in_place_of_a_recording_names_its_importer(tmp_path):
    spaced = tmp_path / "of today"
    spaced.mkdir()
    files = {"vllm-detailed": tmp_path, "positions": tmp_path, "vllm-metrics": spaced}
    for name, folder in files.items():
        file = one_file_each(folder)[name][0]
        typed = f"'{file}'" if folder is spaced else file
        told = f"must be a .trace folder; `paceline trace import {name} {typed} --out NAME.trace` makes one of it"
        for opens in (paceline.open_recording, read_trace):
            with pytest.raises(TraceFormatError, match=re.escape(f"{file}: trace: {told}, got ")):
                opens(file)
    other = tmp_path / "notes.txt"
    other.write_text("no log\n")
    for opens in (paceline.open_recording, read_trace):
        with pytest.raises(TraceFormatError, match="one of logs that it knows, got 'a file that is none of them'"):
            opens(other)
