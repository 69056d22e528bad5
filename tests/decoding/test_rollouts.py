"""What a notation says of the paths of a prompt, and what it refuses."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.names import Branch
from paceline.decoding.rollouts import Fork, Rollouts, rollouts_of


@st.composite
def branchings(draw, *, max_depth: int = 12) -> Rollouts:
    depths = sorted(draw(st.sets(st.integers(0, max_depth), min_size=1, max_size=3)))
    return Rollouts(branches=tuple(Branch(draw(st.integers(1, 3)), depth) for depth in depths))


@given(branchings())
def test_a_notation_reads_as_it_prints(rollouts):
    assert rollouts_of(str(rollouts)) == rollouts
    assert rollouts_of(rollouts) is rollouts


@given(branchings())
def test_every_path_branches_at_every_depth_from_its_own_on(rollouts):
    forks = rollouts.forks("p")
    starts = {"p": -1} | {fork.request_id: fork.depth for fork in forks}
    assert len(starts) == rollouts.num_paths == 1 + len(forks)
    left = Counter((fork.parent_id, fork.depth) for fork in forks)
    expected = {
        (path, branch.depth): branch.num_paths - 1
        for path, start in starts.items()
        for branch in rollouts.branches
        if branch.depth > start and branch.num_paths > 1
    }
    assert left == expected
    for fork in forks:
        parent, _, number = fork.request_id.rpartition(".")
        assert parent == fork.parent_id
        assert int(number) >= 1


def test_paths_are_called_by_the_order_in_which_they_leave():
    assert rollouts_of("2@0/2@32").forks("p") == (Fork("p.1", "p", 0), Fork("p.2", "p", 32), Fork("p.1.1", "p.1", 32))


@pytest.mark.parametrize("text", ["", "0@4", "2@4/2@4", "101@0/100@1", 2, ["2@0"]])
def test_what_is_refused_is_called_by_its_name(text):
    with pytest.raises(ArgumentError, match=r"^`rollouts` must "):
        rollouts_of(text)


def test_branches_are_checked_however_they_come():
    with pytest.raises(ArgumentError, match=r"`rollouts` must have ascending depths .*, got 2@-1"):
        Rollouts(branches=(Branch(2, -1),))
    with pytest.raises(ArgumentError, match="`rollouts` must branch somewhere, as 4@0, got nothing"):
        Rollouts(branches=())


def test_a_run_refuses_depths_beyond_the_answer_and_ids_that_meet():
    rollouts_of("2@0/2@7").check(["a", "b"], 8)
    with pytest.raises(ArgumentError, match=r"depths must be < 7, the `max_new_tokens` of an answer, got 7"):
        rollouts_of("2@0/2@7").check(["a"], 7)
    with pytest.raises(ArgumentError, match=r"a path of prompt 'a' is called 'a.1', as another prompt is"):
        rollouts_of("2@0").check(["a", "a.1"], 7)
