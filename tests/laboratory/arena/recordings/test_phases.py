from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from paceline.base.errors import ArgumentError
from paceline.policies.spec import make_policy
from paceline.sim.cost.make import default_cost, make_cost
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace, read_trace, write_trace
from paceline_laboratory.arena.pools import TargetTexts
from paceline_laboratory.arena.recordings import (
    Entry,
    RecordingShelf,
    StaleSource,
    TrainedSource,
    TurnoverSource,
    gone_stale,
    turned_over,
)

RECIPES = Path(__file__).with_name("recipes.toml")
TAGS = ("code", "math", "prose")
FRESH = make_trace(
    SyntheticSpec(name="fresh", requests=11, tokens=48, models=("draft", "mid", "target"), acceptance=(0.8, 0.9))
)
FRESH = replace(FRESH, requests=tuple(replace(one, tag=TAGS[place // 4]) for place, one in enumerate(FRESH.requests)))
STALE = FRESH.shifted({"draft": -0.6}, seed=1)
HALF = 6


def steps_by_request(trace, chain="draft:3/mid:4/target"):
    """For each request every step: by whom, tokens drafted, accepted and emitted."""
    log = simulate(
        Scenario(tables=tables_of(trace), cost=make_cost(default_cost(trace), trace), batch=1),
        make_policy(chain, tables_of(trace).pool),
        chain,
    )
    columns = np.stack([log.steps[name] for name in ("level", "drafted", "accepted", "emitted")], axis=1)
    ids = log.requests["request_id"].tolist()
    return {one: columns[log.steps["request"] == row].tolist() for row, one in enumerate(ids)}


def test_every_request_is_replayed_as_in_the_recording_it_is_from():
    mixed = gone_stale(FRESH, STALE, name="mixed")
    assert sorted(one.request_id for one in mixed.requests) == sorted(one.request_id for one in FRESH.requests)
    fresh, stale, found = map(steps_by_request, (FRESH, STALE, mixed))
    assert fresh != stale
    for place, one in enumerate(mixed.requests):
        assert found[one.request_id] == (fresh if place < HALF else stale)[one.request_id]


def test_a_chain_without_the_drafter_notices_nothing():
    mixed = gone_stale(FRESH, STALE, name="mixed")
    assert steps_by_request(mixed, "mid:4/target") == {
        one.request_id: steps_by_request(FRESH, "mid:4/target")[one.request_id] for one in mixed.requests
    }


def test_both_halves_hold_every_tag():
    requests = gone_stale(FRESH, STALE, name="mixed").requests
    assert {one.tag for one in requests[:HALF]} == {one.tag for one in requests[HALF:]} == set(TAGS)


def test_what_is_put_together_is_a_sound_recording(tmp_path):
    write_trace(gone_stale(FRESH, STALE, name="mixed"), tmp_path / "mixed.trace")
    read = read_trace(tmp_path / "mixed.trace")
    assert read.summary().total.num_requests == len(FRESH.requests)
    assert read.meta.name == "mixed"


def test_another_target_or_other_members_are_refused():
    other = make_trace(
        SyntheticSpec(requests=11, tokens=48, models=("draft", "mid", "target"), acceptance=(0.8, 0.9), seed=5)
    )
    with pytest.raises(ArgumentError, match="the same text of the target"):
        gone_stale(FRESH, other, name="mixed")
    larger = replace(STALE, meta=STALE.meta.model_copy(update={"vocab_size": 40000}))
    with pytest.raises(ArgumentError, match="the same vocab_size, got 32000 and 40000"):
        gone_stale(FRESH, larger, name="mixed")


def test_phases_follow_each_other_and_in_each_tags_take_turns():
    requests = turned_over(FRESH, (("prose", "code"), ("math",)), name="turned").requests
    assert [one.tag for one in requests] == ["code", "prose", "code", "prose", "code", "prose", "code"] + ["math"] * 4
    assert {one.request_id for one in requests} == {one.request_id for one in FRESH.requests}


@pytest.mark.parametrize("phases", [(("code",), ("math",)), (("code", "math"), ("math", "prose")), (TAGS, ("poems",))])
def test_phases_name_each_tag_once(phases):
    with pytest.raises(ArgumentError, match="phases must name each tag"):
        turned_over(FRESH, phases, name="turned")


@dataclass(frozen=True)
class Given:
    """A source that writes what it is given."""

    recording: object

    needs = ()

    def recipe(self) -> object:
        return self.recording.meta.name

    def make(self, out: Path, *, name: str, shelf: object) -> None:
        write_trace(self.recording, out)


def test_they_are_made_of_what_the_shelf_has(tmp_path):
    entries = {
        "fresh": Entry(what="", source=Given(FRESH)),
        "aged": Entry(what="", source=StaleSource(fresh="fresh", stale=Given(STALE))),
        "turned": Entry(what="", source=TurnoverSource(recording="fresh", phases=(("code", "math"), ("prose",)))),
    }
    shelf = RecordingShelf(work=tmp_path, entries=entries)
    assert read_trace(shelf.recording("aged")).meta.name == "aged"
    assert [one.tag for one in read_trace(shelf.recording("turned")).requests][-3:] == ["prose"] * 3
    folders = {path.name for path in (tmp_path / "recordings").iterdir() if path.is_dir()}
    assert folders == {"fresh.trace", "aged.trace", "turned.trace"}


def test_a_stale_pool_differs_in_what_its_drafter_has_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(TargetTexts, "agreement", lambda self, model: 0.5)
    fresh = TrainedSource(pool="llama", file=RECIPES)
    stale = TrainedSource(pool="llama", file=RECIPES, goals={"draft": 0.4})
    entries = {
        "fresh": Entry(what="", source=fresh),
        "aged": Entry(what="", source=StaleSource(fresh="fresh", stale=stale)),
    }
    aged = read_trace(RecordingShelf(work=tmp_path, entries=entries).recording("aged"))
    assert len(aged.requests) == 2
    pools = tmp_path / "pools"
    for file in ("target/model.safetensors", "tokenizer.json", "prompts.jsonl"):
        assert (pools / "llama" / file).read_bytes() == (pools / "llama-stale" / file).read_bytes()
    weights = [pools / name / "draft" / "model.safetensors" for name in ("llama", "llama-stale")]
    assert weights[0].read_bytes() != weights[1].read_bytes()


def test_goals_are_of_students_and_within_range():
    with pytest.raises(ValueError, match="goals must be of draft, not of mid"):
        TrainedSource(pool="llama", file=RECIPES, goals={"mid": 0.4}).recipe()
    with pytest.raises(ValueError, match=r"the goal of draft must be in \(0, 1\], got 1.4"):
        TrainedSource(pool="llama", file=RECIPES, goals={"draft": 1.4}).recipe()
