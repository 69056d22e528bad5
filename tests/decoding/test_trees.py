"""Token trees: their notation and bounds, what grows, what is legal, and that the text is the target's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.decoding.rules import Ratio
from paceline.decoding.steps import Commit, Draft, PolicyError, Verify
from paceline.decoding.trees import ROOT, Branches, DraftTree, DynamicTree, FixedTree, Growth, tree_shape
from paceline.policies import check_policy
from paceline.policies.check import ToyWorld

from .script import Script, run

NO_SHAPES = (
    *("", "0", "4x0", "4x", "x", "a", "1.0", "0+1.0", "-1+0", "40x40", "beam=4", "beam=0,depth=1", "beam=a,depth=1"),
    *(f"beam=4,depth=5{end}" for end in (",tokens=0", ",tokens=2000", ",width=3", ",tokens=3.5")),
    *("2x" * 300 + "2", "1025", "0+0.0+1.1", "1+2"),
)
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


TREE = DraftTree("draft", tree_shape("3x2x1"))
TARGET = Verify("target")


class Trees:
    """Drafts a tree where it may; some are judged by a middle member first, some are followed by a chain's draft."""

    def __init__(self, pool, shape, draft, middle):
        self.tree, self.middle, self.target = DraftTree(draft, shape), Verify(middle), Verify(pool.target)
        self.further = Draft("draft", 2)

    def decide(self, seen):
        if not seen.num_pending:
            return self.tree if seen.has_room and seen.num_emitted % 3 else self.target
        if seen.parents is not None:
            assert not seen.has_room
            assert len(seen.parents) == seen.num_pending == len(seen.pending) == seen.waiting("target")
            return self.middle
        if seen.last.num_own and seen.has_room and seen.waiting("target") == seen.num_pending and seen.num_emitted % 2:
            return self.further
        return self.target

    def learn(self, outcome):
        if isinstance(outcome.step, DraftTree):
            assert outcome.num_drafted >= 1
            assert not outcome.num_judged
        elif outcome.refused_at is not None and outcome.num_judged:
            assert outcome.refused_at == outcome.num_accepted
            assert len(outcome.tvd) == outcome.num_accepted + 1


@settings(max_examples=4)
@given(shapes, st.sampled_from(["draft", "mid"]), st.sampled_from(["slim", "target"]), st.integers(0, 99))
def test_text_is_the_targets_own(shape, draft, middle, seed):
    report = check_policy(lambda pool: Trees(pool, shape, draft, middle), seed=seed)
    assert report.lossless


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((Draft("draft", 2), TREE), "nothing pending, and 2 tokens are"),
        ((TREE, TREE), "the only step on it is a Verify"),
        ((TREE, Draft("draft", 1)), "the only step on it is a Verify"),
        ((TREE, Commit(1)), "the only step on it is a Verify"),
        ((TREE, Verify("target", Ratio(0.5))), "verified by Exact"),
        ((TREE, Verify("draft")), "nothing left to judge"),
        ((TREE, Verify("ngram")), "model-free and cannot verify"),
        ((DraftTree("target", TREE.shape),), "the target does not draft"),
        ((DraftTree("ngram", TREE.shape),), "no distribution"),
    ],
)
def test_steps_that_a_tree_does_not_allow_are_refused(steps, words):
    with pytest.raises(PolicyError, match=words):
        run(Script(*steps))


def test_a_world_without_trees_refuses_them():
    class Chains:
        def __init__(self, world):
            for name in ("open", "close", "draft", "verify", "signal"):
                setattr(self, name, getattr(world, name))

    with pytest.raises(PolicyError, match="token trees are not known here"):
        run(Script(TREE), world=Chains(ToyWorld(run(Script(*[TARGET] * 9), budget=2).pool)))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="must be a FixedTree or a DynamicTree"):
        DraftTree("draft", "4x2")
    assert FixedTree(((0,), (1,))) == tree_shape("2")


@pytest.mark.parametrize("text", NO_SHAPES)
def test_other_texts_are_refused(text):
    with pytest.raises(ArgumentError):
        tree_shape(text)


def test_what_is_given_twice_is_refused():
    for text, again in (("beam=4,depth=3,beam=2", "beam=2"), ("0+0+1", "0"), ("0+0.1+0.1", "0.1")):
        with pytest.raises(ArgumentError, match=f"once, got {again} again"):
            tree_shape(text)


def test_numbers_of_a_shape_become_python_integers():
    """With small integers of numpy the most nodes of this tree were 84."""
    shape = DynamicTree(np.uint8(20), np.uint8(5), np.uint8(200))
    assert (shape.most_nodes, type(shape.beams)) == (200, int)
    assert [type(rank) for path in FixedTree(((np.uint8(0),),)).paths for rank in path] == [int]
    with pytest.raises(ArgumentError, match="beams of a tree must be a whole number"):
        DynamicTree(2.5, 3, 4)
    with pytest.raises(ArgumentError, match="a rank of a tree must be a whole number"):
        FixedTree(((0,), (0.5,)))
