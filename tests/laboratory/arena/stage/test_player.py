"""What a player tells of runs that cannot be."""

import pytest
from paceline.traces.contexts.store import write_trace
from paceline_laboratory.arena.cells import ArenaCell
from paceline_laboratory.arena.run import Player, RunOf
from paceline_laboratory.arena.store import LeftOut, Played


@pytest.fixture
def played(trace, tmp_path):
    write_trace(trace, tmp_path / "a.trace")
    player = Player()
    return lambda policy, load: player.outcome(
        RunOf(trace=tmp_path / "a.trace", cell=ArenaCell.parse(f"pico/steep/{load}"), policy=policy, seed=0)
    )


@pytest.mark.parametrize("policy", ["pearl", "dsi", "pipespec", "per-tag,default=pearl"])
def test_working_ahead_is_not_applicable_under_arrivals(played, policy):
    found = played(policy, "half")
    assert isinstance(found, LeftOut)
    assert (found.policy, found.why) == (policy, NOT_APPLICABLE)


def test_working_ahead_plays_in_batches(played):
    assert isinstance(played("pearl", "batch-8"), Played)


NOT_APPLICABLE = "not applicable: nobody works ahead here: ServedWorld carries out one step of a request at a time"
