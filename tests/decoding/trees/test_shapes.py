"""Shapes of trees: their notation, their bounds, and what grows from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.trees import ROOT, Branches, DynamicTree, FixedTree, Growth, tree_shape

widths = st.lists(st.integers(1, 4), min_size=1, max_size=4)
dynamic = st.builds(DynamicTree, st.integers(1, 4), st.integers(1, 5), st.integers(1, 24))


@st.composite
def some_paths(draw):
    paths = {(), (0,)}
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(sorted(paths)))
        paths.add((*parent, draw(st.integers(0, 3))))
    return FixedTree(tuple(paths - {()}))


shapes = st.one_of(widths.map(FixedTree.of_widths), some_paths(), dynamic)


@given(shapes)
def test_a_shape_reads_its_own_text(shape):
    assert tree_shape(shape.text) == shape


@pytest.mark.parametrize(
    "text",
    ["", "0", "4x0", "4x", "x", "a", "1.0", "0+1.0", "-1+0", "40x40", "beam=4", "beam=0,depth=1", "beam=a,depth=1"],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ArgumentError):
        tree_shape(text)


@pytest.mark.parametrize(
    ("text", "again"), [("beam=4,depth=3,beam=2", "beam=2 again"), ("0+0+1", "0 again"), ("0+0.1+0.1", "0.1 again")]
)
def test_what_is_given_twice_is_refused(text, again):
    with pytest.raises(ArgumentError, match=f"once, got {again}"):
        tree_shape(text)


@pytest.mark.parametrize("end", [",tokens=0", ",tokens=2000", ",width=3", ",tokens=3.5"])
def test_other_dynamic_shapes_are_refused(end):
    with pytest.raises(ArgumentError):
        tree_shape(f"beam=4,depth=5{end}")


@pytest.mark.parametrize("text", ["2x" * 300 + "2", "1025", "0+0.0+1.1", "1+2"])
def test_trees_that_cannot_be_are_refused(text):
    with pytest.raises(ArgumentError):
        tree_shape(text)


def branches(data, width, eos):
    tokens = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=width, unique=True))
    return Branches(tokens, [-data.draw(st.integers(0, 3)) / 1024 for _ in tokens])


@given(shapes, st.integers(1, 6), st.data())
def test_what_grows_is_a_tree_within_its_bounds(shape, room, data):
    growth = Growth(shape, room=room, eos=frozenset({0}))
    forwards = 0
    while growth.asks:
        assert all(node == ROOT or growth.tokens[node] != 0 for node, _ in growth.asks)
        forwards += 1
        growth.take([branches(data, width, 0) for _, width in growth.asks])
    kept = growth.kept()
    tree = growth.tree(kept)
    assert 1 <= len(kept) <= shape.most_nodes
    assert forwards == 1 + len(tree.widths) <= min(room, shape.depth)
    tokens = [growth.tokens[node] for node in kept]
    for node, parent in enumerate(tree.parents):
        assert parent < node
        assert parent == ROOT or (tree.fed[parent] >= 0 and tokens[parent] != 0)
        assert len(tree.path_to(node)) <= room
    assert len({(parent, token) for parent, token in zip(tree.parents, tokens, strict=True)}) == len(kept)
    fed = [index for index in tree.fed if index >= 0]
    assert len(set(fed)) == len(fed) <= tree.num_fed


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.data())
def test_a_dynamic_tree_keeps_the_best_of_all_that_grew(beams, depth, tokens, data):
    growth = Growth(DynamicTree(beams, depth, tokens), room=9, eos=frozenset())
    while growth.asks:
        growth.take([branches(data, width, 0) for _, width in growth.asks])
    kept, scores = growth.kept(), growth._scores
    left = [score for node, score in enumerate(scores) if node not in kept]
    assert not left or min(scores[node] for node in kept) >= max(left)
