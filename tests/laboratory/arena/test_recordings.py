"""Recordings of the arena: made once, put together, drawn and imported."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.policies.spec import make_policy
from paceline.sim.cost.make import default_cost, make_cost
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace, read_rounds, read_trace, write_trace
from paceline.traces.folder import META
from paceline_laboratory.arena import recordings
from paceline_laboratory.arena.recordings import (
    Entry,
    RecordingShelf,
    RecordingUnavailableError,
    StaleSource,
    TurnoverSource,
    catalogue,
    deep,
    gone_stale,
    hsd,
    spec_bench,
    turned_over,
)

from ...data_folder import data_files

DRAWN = {name: catalogue()[name].source for name in ("synth-flat", "synth-deep", "synth-bursty", "synth-ladder")}
IMPORTED = {"specbench": (spec_bench(), 3), "hsd": (hsd(), 4)}
TAGS = ("code", "math", "prose")
FRESH = make_trace(
    SyntheticSpec(name="fresh", requests=11, tokens=48, models=("draft", "mid", "target"), acceptance=(0.8, 0.9))
)
FRESH = replace(FRESH, requests=tuple(replace(one, tag=TAGS[place // 4]) for place, one in enumerate(FRESH.requests)))
STALE = FRESH.shifted({"draft": -0.6}, seed=1)
HALF = 6


@dataclass(frozen=True)
class Counted:
    """Writes a file with its text, and counts how often."""

    text: str
    needs: tuple[str, ...] = ()
    slow = False
    made: list[str] = field(default_factory=list)
    fails: bool = False

    def recipe(self) -> object:
        return self.text

    def make(self, out: Path, *, name: str, shelf: RecordingShelf) -> None:
        self.made.append(name)
        out.mkdir()
        texts = [(shelf.recording(other) / "text").read_text() for other in self.needs]
        (out / "text").write_text("+".join([*texts, self.text]))
        if self.fails:
            raise OSError("disk full")


def shelf_of(work, **sources):
    return RecordingShelf(work=work, entries={name: Entry(what="", source=each) for name, each in sources.items()})


def test_a_recording_is_made_once_and_anew_without_its_fingerprint(tmp_path):
    source = Counted("a")
    for _ in range(2):
        path = shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one"]
    assert path == tmp_path / "recordings" / "one.trace"
    (tmp_path / "recordings" / "one.made.json").write_text("[]")
    shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one", "one"]
    with pytest.raises(ArgumentError, match="must be one of one, got 'other'"):
        shelf_of(tmp_path, one=source).recording("other")


def test_another_recipe_makes_it_and_what_is_made_of_it_anew_and_one_that_failed_is_not_there(tmp_path):
    second = Counted("b", needs=("one",))
    with pytest.raises(OSError, match="disk full"):
        shelf_of(tmp_path, one=Counted("a", fails=True)).recording("one")
    assert not (tmp_path / "recordings" / "one.trace").exists()
    shelf_of(tmp_path, one=Counted("a"), two=second).recording("two")
    path = shelf_of(tmp_path, one=Counted("c"), two=second).recording("two")
    assert (path / "text").read_text() == "c+b"
    assert len(second.made) == 2


MAKER = """
import sys
from pathlib import Path
from paceline_laboratory.arena.recordings import made_once

folder, who = Path(sys.argv[1]), sys.argv[2]

def make(part):
    print("makes", who, flush=True)
    sys.stdin.readline()
    part.mkdir()
    (part / "who").write_text(who)

made_once(folder / "one.trace", "a", make)
print("done", flush=True)
"""


class Maker:
    """Another process that makes a recording, as slowly as somebody says."""

    def __init__(self, folder, who):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", MAKER, str(folder), who], **pipes)

    def said(self, line):
        assert self.process.stdout.readline().strip() == line

    def waits(self):
        assert "which another process makes" in self.process.stderr.readline()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def test_of_processes_one_makes_it_and_the_others_wait_also_for_one_that_is_killed(tmp_path):
    first = Maker(tmp_path, "first")
    first.said("makes first")
    second = Maker(tmp_path, "second")
    second.waits()
    os.kill(first.process.pid, signal.SIGKILL)
    second.said("makes second")
    third = Maker(tmp_path, "third")
    third.waits()
    second.go_on()
    for maker in (second, third):
        maker.said("done")
        maker.process.communicate(timeout=600)
    assert (tmp_path / "one.trace" / "who").read_text() == "second"
    first.process.communicate(timeout=600)


def test_the_shipped_recording_is_as_it_came(tmp_path):
    path = RecordingShelf(work=tmp_path).recording("pico")
    for file in ("requests.parquet", "nodes.parquet", META):
        assert (path / file).read_bytes() == (shipped("recordings", "pico.trace") / file).read_bytes()


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
    halves = mixed.requests[:HALF], mixed.requests[HALF:]
    assert [{one.tag for one in half} for half in halves] == [set(TAGS)] * 2
    for place, one in enumerate(mixed.requests):
        assert found[one.request_id] == (fresh if place < HALF else stale)[one.request_id]
    # A chain without the drafter notices nothing.
    assert steps_by_request(mixed, "mid:4/target") == steps_by_request(FRESH, "mid:4/target")


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
    for phases in ((("code",), ("math",)), (("code", "math"), ("math", "prose")), (TAGS, ("poems",))):
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Each of them, read again."""
    shelf = RecordingShelf(work=tmp_path_factory.mktemp("work"))
    return {name: read_trace(shelf.recording(name)) for name in DRAWN}


@pytest.mark.parametrize("name", DRAWN)
def test_every_tag_agrees_as_stated_and_a_probability_tells_of_it_about_as_much_as_in_the_shipped_one(drawn, name):
    summary = drawn[name].summary()
    assert list(summary.by_tag) == list(DRAWN[name].acceptance)
    for tag, asked in DRAWN[name].acceptance.items():
        assert list(summary.by_tag[tag].agreement.values()) == pytest.approx(asked, abs=0.05)
    assert summary.total.num_trunk_tokens >= (10_000 if name in ("synth-flat", "synth-bursty") else 5_000)
    # Share of pairs of an agreed and a missed token in which the agreed one has the higher probability.
    agrees, probs = [], []
    for request in drawn[name].requests:
        trie = request.trie
        agrees.append(trie.agreement[0])
        probs.append(trie.next_log_prob[0, trie.trunk[:-1]])
    agrees, probs = np.concatenate(agrees), np.concatenate(probs)
    missed = np.sort(probs[~agrees])
    below = np.searchsorted(missed, probs[agrees], side="left") + np.searchsorted(missed, probs[agrees], side="right")
    assert 0.8 < below.mean() / 2 / len(missed) < 0.92  # draft of pico: 0.90, of pico-coupled: 0.85


def test_tags_take_turns_and_only_the_bursty_one_and_the_ladder_have_memory(drawn):
    tags = [request.tag for request in drawn["synth-flat"].requests]
    assert tags[:6] == ["easy", "usual", "hard"] * 2
    for name, asked in (("synth-flat", 0.0), ("synth-deep", -0.1), ("synth-bursty", 0.6), ("synth-ladder", 0.15)):
        usual = [request.trie.agreement[1] for request in drawn[name].requests if request.tag == "usual"]
        now = np.concatenate([each[:-1] for each in usual])
        then = np.concatenate([each[1:] for each in usual])
        assert np.corrcoef(now, then)[0, 1] == pytest.approx(asked, abs=0.08)


def test_recipes_differ_are_json_and_hold_the_code(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    logs = tmp_path / hsd().folder / "h100_a.jsonl.gz"
    logs.parent.mkdir()
    logs.write_bytes(b"one")
    names = (*DRAWN, "hsd")
    before = {name: json.dumps(catalogue()[name].source.recipe()) for name in names}
    assert len(set(before.values())) == len(names)
    logs.write_bytes(b"two")
    assert json.dumps(hsd().recipe()) != before["hsd"]
    logs.write_bytes(b"one")
    monkeypatch.setattr(recordings, "code_version", lambda roots: f"changed {roots}")
    assert all(json.dumps(catalogue()[name].source.recipe()) != before[name] for name in names)


def test_the_same_recipe_gives_the_same_bytes(drawn, tmp_path):
    deep().make(tmp_path / "again.trace", name="synth-deep", shelf=None)
    write_trace(drawn["synth-deep"], tmp_path / "first.trace")
    for file in ("nodes.parquet", "requests.parquet"):
        assert (tmp_path / "again.trace" / file).read_bytes() == (tmp_path / "first.trace" / file).read_bytes()


@pytest.fixture(params=IMPORTED)
def imported(request, tmp_path, monkeypatch):
    """A recording by name, where its logs lie."""
    source, count = IMPORTED[request.param]
    files = data_files(source.folder, source.pattern)
    if len(files) != count:
        pytest.skip(f"no {source.folder} in PACELINE_DATA")
    monkeypatch.setenv("PACELINE_DATA", str(files[0].parents[1]))
    return read_rounds(RecordingShelf(work=tmp_path).recording(request.param))


def test_a_part_of_the_logs_is_imported_with_every_method(imported):
    source, _ = IMPORTED[imported.meta.name]
    drafters = {"specbench": {"eagle", "sps"}, "hsd": {"eagle", "hsd"}}
    assert {each.name for each in imported.meta.drafters} == drafters[imported.meta.name]
    assert imported.meta.source == source.format_name
    assert sum(request.length("") for request in imported.requests) >= 5_000
    assert len({request.tag for request in imported.requests}) == {"specbench": 13, "hsd": 1}[imported.meta.name]


@pytest.mark.parametrize("name", IMPORTED)
def test_absent_logs_are_said_in_one_line_with_where_they_were_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(RecordingUnavailableError, match="PACELINE_DATA") as refused:
        RecordingShelf(work=tmp_path).recording(name)
    assert str(tmp_path / "nowhere" / IMPORTED[name][0].folder) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.trace"))
