"""Trees in a session and a loop of toy models: what is legal, what stays, and that the text is the target's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import Ratio
from paceline.decoding.steps import Commit, Draft, PolicyError, Verify
from paceline.decoding.trees import DraftTree, FixedTree, tree_shape
from paceline.policies import check_policy
from paceline.policies.check import ToyWorld

from ..script import Script, run
from .test_shapes import shapes

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


@given(shapes, st.sampled_from(["draft", "mid"]), st.sampled_from(["slim", "target"]), st.integers(0, 99))
def test_text_is_the_targets_own(shape, draft, middle, seed):
    report = check_policy(lambda pool: Trees(pool, shape, draft, middle), seed=seed)
    assert report.lossless


def test_a_path_stays_and_the_rest_goes():
    policy = Script(TREE, TARGET, *[TARGET] * 20)
    session = run(policy, budget=8)
    drafted, judged = policy.learnt[:2]
    assert (drafted.num_drafted, judged.num_judged) == (15, 15)
    assert judged.num_emitted == judged.num_accepted + 1
    assert session.tree is None
    assert ToyWorld(session.pool, ends=0.0).trunk(session) == session.emitted


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
