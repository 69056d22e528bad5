"""When a level of a chain is due: the rule of docs/design.md, for chains of four levels too."""

from types import SimpleNamespace

import pytest
from paceline.policies import Draft, Verify
from paceline.policies.check import check_pool
from paceline.policies.fixed import Chain

CHAIN = "draft:2/mid:3/slim:4/target"


def step(waiting, *, has_room=True):
    """What the chain does when so many tokens wait for mid, slim and target."""
    counts = dict(zip(("mid", "slim", "target"), waiting, strict=True))
    seen = SimpleNamespace(
        num_pending=counts["target"], has_room=has_room, found_nothing=False, waiting=counts.__getitem__
    )
    return Chain(check_pool(), CHAIN).decide(seen)


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        ((0, 0, 0), Draft("draft", 2)),
        ((1, 1, 1), Verify("mid")),
        ((0, 2, 2), Draft("draft", 2)),
        ((0, 3, 3), Verify("slim")),
        # Nothing waits for slim: it is passed over.
        ((0, 0, 4), Verify("target")),
        ((0, 0, 3), Draft("draft", 2)),
        # Enough wait for the target by its own count, but what slim has not kept yet stops the climb.
        ((0, 2, 4), Draft("draft", 2)),
        ((0, 2, 6), Draft("draft", 2)),
        ((0, 3, 6), Verify("slim")),
    ],
)
def test_a_level_that_is_not_due_stops_the_climb(waiting, wanted):
    assert step(waiting) == wanted


def test_without_room_one_waiting_token_is_enough():
    assert step((0, 1, 5), has_room=False) == Verify("slim")
    assert step((0, 0, 1), has_room=False) == Verify("target")
