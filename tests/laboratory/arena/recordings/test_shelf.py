"""A recording is made once, appears whole, and is made anew only where its recipe changed."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paceline.base.errors import ArgumentError
from paceline.traces.folder import META
from paceline_laboratory.arena.recordings import Entry, RecordingShelf, Shelf, recording


@dataclass(frozen=True)
class Counted:
    """Writes a file with its text, and counts how often."""

    text: str
    needs: tuple[str, ...] = ()
    made: list[str] = field(default_factory=list)
    fails: bool = False

    def recipe(self) -> object:
        return self.text

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        self.made.append(name)
        out.mkdir()
        texts = [(shelf.recording(other) / "text").read_text() for other in self.needs]
        (out / "text").write_text("+".join([*texts, self.text]))
        if self.fails:
            raise OSError("disk full")


def shelf_of(work, **sources):
    return RecordingShelf(work=work, entries={name: Entry(what="", source=each) for name, each in sources.items()})


def test_a_recording_is_made_once(tmp_path):
    source = Counted("a")
    for _ in range(2):
        path = shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one"]
    assert path == tmp_path / "recordings" / "one.trace"


def test_another_recipe_makes_it_and_what_is_made_of_it_anew(tmp_path):
    second = Counted("b", needs=("one",))
    shelf_of(tmp_path, one=Counted("a"), two=second).recording("two")
    path = shelf_of(tmp_path, one=Counted("c"), two=second).recording("two")
    assert (path / "text").read_text() == "c+b"
    assert len(second.made) == 2


def test_one_that_failed_is_not_there(tmp_path):
    shelf = shelf_of(tmp_path, one=Counted("a", fails=True))
    with pytest.raises(OSError, match="disk full"):
        shelf.recording("one")
    assert not (tmp_path / "recordings" / "one.trace").exists()
    assert shelf_of(tmp_path, one=Counted("a")).recording("one").exists()


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

    def ended(self):
        self.go_on()
        self.process.communicate(timeout=600)


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path):
    first = Maker(tmp_path, "first")
    first.said("makes first")
    second = Maker(tmp_path, "second")
    second.waits()
    first.go_on()
    first.said("done")
    second.said("done")
    assert (tmp_path / "one.trace" / "who").read_text() == "first"
    for maker in (first, second):
        maker.process.communicate(timeout=600)


def test_who_waits_for_a_process_that_is_killed_makes_it(tmp_path):
    first = Maker(tmp_path, "first")
    first.said("makes first")
    second = Maker(tmp_path, "second")
    second.waits()
    os.kill(first.process.pid, signal.SIGKILL)
    second.said("makes second")
    second.ended()
    assert (tmp_path / "one.trace" / "who").read_text() == "second"
    first.process.communicate(timeout=600)


def test_one_without_its_fingerprint_is_made_anew(tmp_path):
    source = Counted("a")
    shelf_of(tmp_path, one=source).recording("one")
    (tmp_path / "recordings" / "one.made.json").write_text("[]")
    shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one", "one"]


def test_an_unknown_name_is_said_with_those_there_are(tmp_path):
    with pytest.raises(ArgumentError, match="must be one of one, got 'other'"):
        shelf_of(tmp_path, one=Counted("a")).recording("other")


def test_the_shipped_recording_is_as_it_came(tmp_path):
    from paceline.base.files import shipped

    path = recording("pico", tmp_path)
    for file in ("requests.parquet", "nodes.parquet", META):
        assert (path / file).read_bytes() == (shipped("recordings", "pico.trace") / file).read_bytes()
