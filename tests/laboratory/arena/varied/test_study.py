from dataclasses import replace

import pytest
from paceline.laboratory.arena import run as arena_run
from paceline.laboratory.arena.board.runs import BoardRuns
from paceline.laboratory.arena.cell import ArenaCell
from paceline.laboratory.arena.play import play
from paceline.laboratory.arena.played import BEST_STATIC
from paceline.laboratory.arena.split import Side, Split
from paceline.laboratory.arena.stage import player
from paceline.laboratory.arena.stage.recording_stage import RecordingStage
from paceline.laboratory.arena.varied import study
from paceline.laboratory.arena.varied.change import Change, changes_of, constants_of
from paceline.laboratory.arena.varied.study import Study, of_change, of_ingredients
from paceline.policies.spec import PolicySpec
from paceline.policies.specrouter.constants import CONSTANTS
from paceline.policies.specrouter.options import INGREDIENTS
from paceline.traces import SyntheticSpec, make_trace, open_recording, write_trace

SPLIT = Split(tune=("a",), report=("b",))
SPEC = SyntheticSpec(requests=4, tokens=24, models=("draft", "mid", "target"), acceptance=(0.6, 0.8), tags=("x", "y"))
CELLS = tuple(ArenaCell(recording=name, ladder="even", load="batch-1") for name in ("a", "b"))


class OneChain:
    """In place of a search, which takes seconds."""

    def __init__(self, stage):
        self._stage = stage

    def best(self, cell, seed):
        chain = "draft:2/target"
        return replace(play(self._stage, cell, PolicySpec.parse(chain), seed), policy=BEST_STATIC, chain=chain)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two small recordings, few constants, and no search."""
    for seed, name in enumerate(("a", "b")):
        write_trace(make_trace(replace(SPEC, name=name, seed=seed)), tmp_path / f"{name}.trace")

    class Shelf:
        entries = dict.fromkeys(("a", "b"))

        def __init__(self, work):
            self.work = work

        def is_at_hand(self, name):
            return True

        def recording(self, name):
            return tmp_path / f"{name}.trace"

    monkeypatch.setattr(arena_run, "RecordingShelf", Shelf)
    monkeypatch.setattr(player, "CellStatics", OneChain)
    monkeypatch.setattr(study, "changes_of", lambda record: changes_of(record)[:3])
    monkeypatch.setattr(study, "constants_of", lambda record: dict(list(constants_of(record).items())[:2]))


def test_a_study_is_played_whole_and_then_kept(small, tmp_path):
    asked = Study(cells=CELLS)
    first = asked.play(tmp_path / "work")
    assert (first.failed, first.left_out) == ((), ())
    assert {run.policy for run in first.played} == {BEST_STATIC, "plain", *asked.policies()}
    again = asked.play(tmp_path / "work")
    assert again.num_kept == len(first.played)
    assert again.played == first.played
    constants, tune, report = asked.tables(BoardRuns(first.played), SPLIT)
    assert [row[0] for row in constants.rows] == list(constants_of(CONSTANTS))[:2]
    assert None not in constants.rows[0]
    assert constants.rows[1].count(None) == 2  # the doubled one was not asked for
    assert [row[:2] for row in tune.rows] == [row[:2] for row in report.rows] == [(one, 1) for one in of_ingredients()]


@pytest.mark.parametrize("only", ["constants", "ingredients"])
def test_either_half_may_be_asked_for_alone(only):
    both, half = Study(cells=CELLS), Study(cells=CELLS, **{only: True}, **{_other(only): False})
    assert set(half.policies()) < set(both.policies())
    assert len(half.tables(BoardRuns(()), SPLIT)) == {"constants": 1, "ingredients": 2}[only]


def _other(only):
    return {"constants": "ingredients", "ingredients": "constants"}[only]


def test_every_ingredient_can_be_left_out_and_every_constant_be_changed(tmp_path):
    write_trace(make_trace(SPEC), tmp_path / "t.trace")
    pool = RecordingStage(open_recording(tmp_path / "t.trace")).tables(0).pool
    assert set(INGREDIENTS) < set(of_ingredients())
    for text in Study(cells=CELLS).policies():
        PolicySpec.parse(text).build(pool)
    assert {change.field for change in changes_of(CONSTANTS)} == set(constants_of(CONSTANTS))


def test_the_least_change_plays_as_the_router_does(tmp_path):
    write_trace(make_trace(SPEC), tmp_path / "t.trace")
    stage = RecordingStage(open_recording(tmp_path / "t.trace"))
    cell = ArenaCell(recording="a", ladder="even", load="batch-1")
    name = next(iter(constants_of(CONSTANTS)))
    same = Change(field=name, factor=1.0 + 1e-12)
    varied, ours = (play(stage, cell, PolicySpec.parse(text), 0) for text in (of_change(same), "specrouter"))
    assert varied.seconds == ours.seconds


def test_the_sides_of_the_split_are_told_apart(small, tmp_path):
    asked = Study(cells=CELLS[:1], ingredients=False)
    (constants,) = asked.tables(BoardRuns(asked.play(tmp_path / "work").played), SPLIT)
    heads = [head.words for head in constants.columns]
    row = dict(zip(heads, constants.rows[0], strict=True))
    assert row[f"{Side.tune}, halved (%)"] is not None
    assert row[f"{Side.report}, halved (%)"] is None
