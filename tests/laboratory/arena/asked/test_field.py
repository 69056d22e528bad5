"""Who plays."""

import pytest
from paceline.base.errors import ArgumentError
from paceline_laboratory.arena.cells import asked_field, default_field


def test_the_default_field_sees_nothing_ahead_and_needs_no_option():
    field = default_field()
    assert {"plain", "two-level", "specrouter", "cas-spec", "hedgespec", "banditspec"} <= set(field)
    assert not {"oracle-chain", "oracle-window", "chain", "per-tag", "guarded", "tree", "tree-dynamic"} & set(field)
    assert [spec.label for spec in asked_field(None, None)] == list(field)


def test_policies_take_its_place_and_added_ones_join_it():
    assert [spec.label for spec in asked_field(["specrouter"], ["ngram"])] == ["specrouter", "ngram"]
    added = asked_field(None, ["two-level,most=8"])
    assert [spec.label for spec in added] == [*default_field(), "two-level,most=8"]


def test_a_policy_twice_is_told():
    with pytest.raises(ArgumentError, match="`policies` must differ, got plain twice"):
        asked_field(None, ["plain"])
