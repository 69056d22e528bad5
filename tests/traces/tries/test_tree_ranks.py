"""Branches of token trees in a recording: written, read, refused where they cannot be, absent where none were asked."""

from dataclasses import replace

import numpy as np
import pytest
from paceline.traces import TraceFormatError, read_trace, write_trace
from paceline.traces.contexts.trie import TreeRanks
from paceline.traces.meta import Closure, TreeClosure

from .test_validate import trace

# Of the model below the target, which ranks 5 and 3 after the root, and 6 after node 3.
RANK, RANKED = [-1, 1, -1, 0, 0], [2, 0, 0, 1, 0]


def with_trees(mode="greedy", **changed):
    plain = trace(mode)
    closure = Closure(kind="monotone", reach=2, run=1, trees=(TreeClosure(model="d", shape="2x1"),))
    requests = []
    for request in plain.requests:
        own = request.trie.own_log_prob[:1]
        columns = {
            "rank": np.array([RANK], np.int32),
            "ranked": np.array([RANKED], np.int32),
            "branch_log_prob": np.where(np.array([RANK]) >= 0, own, 0.0),
        }
        columns |= {name: np.array([value], columns[name].dtype) for name, value in changed.items()}
        requests.append(replace(request, trie=replace(request.trie, ranks=TreeRanks(**columns))))
    return replace(plain, meta=plain.meta.model_copy(update={"closure": closure}), requests=tuple(requests))


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_what_was_written_is_read(mode, tmp_path):
    whole = with_trees(mode)
    write_trace(whole, tmp_path / "a.trace")
    found = read_trace(tmp_path / "a.trace")
    assert found.meta == whole.meta
    for before, after in zip(whole.requests, found.requests, strict=True):
        for name in ("rank", "ranked", "branch_log_prob"):
            np.testing.assert_array_equal(getattr(before.trie.ranks, name), getattr(after.trie.ranks, name))


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"rank": [0, 1, -1, 0, 0]}, "at the root"),
        ({"rank": [-1, 2, -1, 0, 0]}, "below those asked for at the parent"),
        ({"rank": [-1, -2, -1, 0, 0]}, "below those asked for at the parent"),
        ({"rank": [-1, 0, -1, 1, 0]}, "0 of the model's next token only"),
        ({"rank": [-1, 1, -1, -1, 0]}, "count up from 0"),
        ({"rank": [-1, 1, -1, 0, -1]}, "must have its branches as children"),
        ({"ranked": [2, 0, -1, 1, 0]}, "must be >= 0"),
        ({"branch_log_prob": [0.0, -2.0, 0.0, -1.0, -1.0]}, "must equal own_log_prob if greedy"),
        ({"branch_log_prob": [0.0, -0.5, 0.0, -1.0, -1.0]}, "must not grow with the rank"),
        ({"branch_log_prob": [-1.0, -1.0, 0.0, -1.0, -1.0]}, "must be 0 without a rank"),
        ({"branch_log_prob": [0.0, np.nan, 0.0, -1.0, -1.0]}, "must be numbers on its grid"),
    ],
)
def test_what_cannot_be_is_refused(changed, rule, tmp_path):
    with pytest.raises(TraceFormatError, match=rule):
        write_trace(with_trees(**changed), tmp_path / "a.trace")
    assert not (tmp_path / "a.trace").exists()


def test_branches_go_with_what_the_closure_says(tmp_path):
    whole = with_trees()
    none = replace(whole, meta=trace().meta)
    lacks = replace(trace(), meta=whole.meta)
    for odd in (none, lacks, replace(whole, requests=(whole.requests[0], trace().requests[1]))):
        with pytest.raises(TraceFormatError, match="must be branches of"):
            write_trace(odd, tmp_path / "a.trace")


def test_trees_are_of_models_below_the_target():
    meta = trace().meta
    for name in ("t", "other"):
        closure = {"kind": "monotone", "reach": 2, "run": 1, "trees": [{"model": name, "shape": "2"}]}
        with pytest.raises(ValueError, match="must name models below the target"):
            type(meta).model_validate({**meta.model_dump(), "closure": closure})


def test_a_recording_without_trees_says_nothing_of_them(tmp_path):
    write_trace(trace(), tmp_path / "a.trace")
    assert "trees" not in (tmp_path / "a.trace" / "meta.json").read_text()
    assert "trees" not in trace().meta.model_dump()["closure"]
    assert read_trace(tmp_path / "a.trace").requests[0].trie.ranks is None
