"""Results that are kept."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_laboratory.arena import store as kept
from paceline_laboratory.arena.cells import ArenaCell
from paceline_laboratory.arena.store import PARTS, ArenaStore, AskedRun, LeftOut, Played

CELL = ArenaCell(recording="pico", ladder="steep", load="batch-1")
PLAYED = Played(
    cell=CELL, policy="two-level", seed=1, tokens=2215, seconds=1.25, seconds_at=(0.1, 1.0, None), mean_e2e_s=0.02,
    exact_share=1.0, path="stepped", think_us=3.5,
)  # fmt: skip
LEFT_OUT = LeftOut(cell=CELL, policy="two-level", seed=1, why="needs text")
MADE_OF = dict.fromkeys(PARTS, "0")
RUN = AskedRun(trace=Path("a.trace"), cell=CELL, policy="two-level", seed=1, made_of=MADE_OF)


@given(
    st.builds(
        Played,
        cell=st.just(CELL),
        policy=st.text(),
        seed=st.integers(0, 9),
        tokens=st.integers(1, 10**9),
        seconds=st.floats(1e-9, 1e9),
        seconds_at=st.tuples(*[st.none() | st.floats(0, 1e9)] * 3),
        mean_e2e_s=st.floats(1e-9, 1e9),
        exact_share=st.none() | st.floats(0, 1),
        path=st.sampled_from(["walked", "stepped"]),
        chain=st.text(),
        think_us=st.none() | st.floats(0, 1e6),
    )
)
def test_what_came_comes_back_from_json(played):
    again = kept.outcome_from_json(kept.outcome_to_json(played))
    assert again == played
    assert again.think_us == played.think_us


@pytest.mark.parametrize("outcome", [PLAYED, LEFT_OUT])
def test_what_was_added_is_found_by_whoever_opens_the_folder(tmp_path, outcome):
    store = ArenaStore(tmp_path)
    assert store.found(RUN) is None
    store.add(RUN, outcome)
    assert store.found(RUN) == ArenaStore(tmp_path).found(RUN) == outcome


@pytest.mark.parametrize("part", PARTS)
def test_a_result_is_of_what_it_was_made_of(tmp_path, part):
    ArenaStore(tmp_path).add(RUN, PLAYED)
    other, store = replace(RUN, made_of=MADE_OF | {part: "1"}), ArenaStore(tmp_path)
    assert store.found(other) is None
    assert store.changed(other) == (part,)
    for new in (replace(RUN, seed=2), replace(RUN, policy="plain")):
        assert (store.found(new), store.changed(new)) == (None, ())
    store.add(other, replace(PLAYED, tokens=7))
    assert store.found(other).tokens == 7
    assert ArenaStore(tmp_path).found(RUN) == PLAYED  # as where the part is changed back


def test_lines_before_one_that_was_cut_off_are_kept_and_so_is_what_comes_after(tmp_path, capsys):
    ArenaStore(tmp_path).add(RUN, PLAYED)
    (file,) = (tmp_path / "results").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    store = ArenaStore(tmp_path)
    second = replace(RUN, seed=2)
    store.add(second, replace(PLAYED, seed=2))
    again = ArenaStore(tmp_path)
    assert again.found(RUN) == PLAYED
    assert again.found(second) == replace(PLAYED, seed=2)
    assert "1 lines are no results; their runs are played anew" in capsys.readouterr().err


def test_a_file_is_only_added_to(tmp_path):
    store = ArenaStore(tmp_path)
    store.add(RUN, PLAYED)
    (file,) = (tmp_path / "results").iterdir()
    before = file.read_bytes()
    store.add(RUN, replace(PLAYED, tokens=9))
    assert file.read_bytes().startswith(before)
    assert ArenaStore(tmp_path).found(RUN).tokens == 9
