"""Families of chains."""

from paceline.decoding.pool import Member, Pool
from paceline.policies.chains import parse_chain
from paceline_laboratory.replays import chain, three_levels, two_levels

POOL = Pool((Member(name="a"), Member(name="b"), Member(name="c"), Member(name="target")))


def test_every_chain_is_one_of_the_pool():
    below = ("a", "b", "c")
    two = two_levels(below, "target", (1, 4))
    three = three_levels(POOL, lower=(1, 2), upper=(3,))
    assert two == ["a:1/target", "a:4/target", "b:1/target", "b:4/target", "c:1/target", "c:4/target"]
    assert three[:2] == ["a:1/b:3/target", "a:2/b:3/target"]
    assert len(three) == 3 * 2
    drafting = Pool((Member(name="a"), Member(name="b"), Member(name="c", drafts_only=True), Member(name="target")))
    assert three_levels(drafting, lower=(1, 2), upper=(3,)) == three[:2]
    for text in (*two, *three):
        found = parse_chain(text, POOL)
        assert chain(found.members, found.windows) == text
