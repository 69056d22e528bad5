import json

import numpy as np
import pytest
from paceline.traces import read_trace
from paceline.traces.contexts.store import write_trace
from paceline_laboratory.arena import recordings as synthetic
from paceline_laboratory.arena.recordings import RecordingShelf, bursty, catalogue, deep, flat, ladder

SOURCES = {"synth-flat": flat(), "synth-deep": deep(), "synth-bursty": bursty(), "synth-ladder": ladder()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each of them, read again."""
    shelf = RecordingShelf(work=tmp_path_factory.mktemp("work"))
    return {name: read_trace(shelf.recording(name)) for name in SOURCES}


@pytest.mark.parametrize("name", SOURCES)
def test_every_tag_agrees_as_stated_and_tags_differ(made, name):
    summary = made[name].summary()
    assert list(summary.by_tag) == list(SOURCES[name].acceptance)
    for tag, asked in SOURCES[name].acceptance.items():
        assert list(summary.by_tag[tag].agreement.values()) == pytest.approx(asked, abs=0.05)
    assert summary.total.num_trunk_tokens >= (10_000 if name in ("synth-flat", "synth-bursty") else 5_000)


@pytest.mark.parametrize("name", SOURCES)
def test_a_probability_tells_of_agreement_about_as_much_as_in_the_shipped_recording(made, name):
    """Share of pairs of an agreed and a missed token in which the agreed one has the higher probability."""
    agrees, probs = [], []
    for request in made[name].requests:
        trie = request.trie
        agrees.append(trie.agreement[0])
        probs.append(trie.next_log_prob[0, trie.trunk[:-1]])
    agrees, probs = np.concatenate(agrees), np.concatenate(probs)
    missed = np.sort(probs[~agrees])
    below = np.searchsorted(missed, probs[agrees], side="left") + np.searchsorted(missed, probs[agrees], side="right")
    assert 0.8 < below.mean() / 2 / len(missed) < 0.92  # draft of pico: 0.90, of pico-coupled: 0.85


def test_tags_take_turns(made):
    tags = [request.tag for request in made["synth-flat"].requests]
    assert tags[:6] == ["easy", "usual", "hard"] * 2


def test_only_the_bursty_one_and_the_ladder_have_memory(made):
    for name, asked in (("synth-flat", 0.0), ("synth-deep", -0.1), ("synth-bursty", 0.6), ("synth-ladder", 0.15)):
        usual = [request.trie.agreement[1] for request in made[name].requests if request.tag == "usual"]
        now = np.concatenate([each[:-1] for each in usual])
        then = np.concatenate([each[1:] for each in usual])
        assert np.corrcoef(now, then)[0, 1] == pytest.approx(asked, abs=0.08)


def test_recipes_are_all_different_and_are_json():
    recipes = {json.dumps(catalogue()[name].source.recipe()) for name in SOURCES}
    assert len(recipes) == len(SOURCES)


def test_other_code_is_another_recipe(monkeypatch):
    before = {name: catalogue()[name].source.recipe() for name in SOURCES}
    monkeypatch.setattr(synthetic, "code_version", lambda roots: f"changed {roots}")
    assert all(catalogue()[name].source.recipe() != before[name] for name in SOURCES)


def test_the_same_recipe_gives_the_same_bytes(made, tmp_path):
    deep().make(tmp_path / "again.trace", name="synth-deep", shelf=None)
    write_trace(made["synth-deep"], tmp_path / "first.trace")
    for file in ("nodes.parquet", "requests.parquet"):
        assert (tmp_path / "again.trace" / file).read_bytes() == (tmp_path / "first.trace" / file).read_bytes()
