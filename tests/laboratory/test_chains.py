"""Families of chains."""

from paceline.decoding.pool import Member, Pool
from paceline.laboratory.chains import chain, three_levels, two_levels
from paceline.policies.chain_notation import parse_chain

POOL = Pool((Member(name="a"), Member(name="b"), Member(name="c"), Member(name="target")))


def test_every_chain_is_one_of_the_pool():
    below = ("a", "b", "c")
    two = two_levels(below, "target", (1, 4))
    three = three_levels(below, "target", lower=(1, 2), upper=(3,), verifying=("b", "c"))
    assert two == ["a:1/target", "a:4/target", "b:1/target", "b:4/target", "c:1/target", "c:4/target"]
    assert three[:2] == ["a:1/b:3/target", "a:2/b:3/target"]
    assert len(three) == 3 * 2
    assert len(three_levels(below, "target", lower=(1, 2), upper=(3,), verifying=("b",))) == 2
    for text in (*two, *three):
        found = parse_chain(text, POOL)
        assert chain(found.members, found.windows) == text
