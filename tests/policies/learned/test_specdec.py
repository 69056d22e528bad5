"""SpecDec++ drafts until a refusal is likely enough, by what its head says and how the request went."""

from pathlib import Path

import pytest
from paceline.policies import Draft, check_policy
from paceline.policies.check import check_pool
from paceline.policies.learned import SpecDec, read_head

HEAD = str(Path(__file__).parent / "head.json")


class Watched(SpecDec):
    """Keeps how long drafts were and the chance of a refusal in each, by the head's own factors."""

    drafts = ()

    def decide(self, seen):
        last = seen.last
        if last is not None and last.num_drafted:
            stop, kept, chances = last.step.stop, 1.0, []
            for index, token in enumerate(seen.pending):
                kept *= stop.factor(token.signal, index)
                chances.append(1.0 - kept)
            type(self).drafts = (*self.drafts, (chances, stop.chance, len(chances) < min(last.step.tokens, 30)))
        return super().decide(seen)


def test_drafts_end_at_the_first_token_by_which_a_refusal_is_likely():
    Watched.drafts = ()
    check_policy(lambda pool: Watched(pool, head=HEAD, h=0.7, most=9))
    ended = [chances for chances, most, _ in Watched.drafts if chances[-1] > most]
    assert len(ended) > 20
    for chances, most, _ in Watched.drafts:
        assert all(chance <= most for chance in chances[:-1])


@pytest.mark.parametrize(("h", "longest"), [(0.0, 1), (1.0, 9)])
def test_thresholds_of_no_and_of_every_chance(h, longest):
    Watched.drafts = ()
    check_policy(lambda pool: Watched(pool, head=HEAD, h=h, most=9))
    assert max(len(chances) for chances, _, _ in Watched.drafts) == longest


def outcome(accepted, refused_at, *, done=False, request_id="r"):
    judged = accepted + (refused_at is not None)
    found = {"request_id": request_id, "num_judged": judged, "num_accepted": accepted, "refused_at": refused_at}
    return type("Outcome", (), found | {"done": done})()


def test_the_request_s_own_rounds_move_its_stop_and_nobody_else_s():
    head = read_head(HEAD)
    policy = SpecDec(check_pool(), head=HEAD)
    of = {name: type("Seen", (), {"request_id": name, "last": None})() for name in ("r", "other")}
    fresh = policy.decide(of["r"])
    assert fresh == Draft("draft", 16, head.stop(0.7, head.start))
    policy.learn(outcome(0, 0))
    policy.learn(outcome(0, 0))
    assert policy.decide(of["r"]).stop == head.stop(0.7, head.start * 0.64)
    assert policy.decide(of["other"]) == fresh
    policy.learn(outcome(1, None, done=True))
    assert policy.decide(of["r"]) == fresh


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, "head must name the file of an acceptance head, which `paceline policy fit specdec.. --trace TRACE"),
        ({"head": HEAD, "h": 1.5}, r"h must be in \[0, 1\], got 1.5"),
        ({"head": HEAD, "most": 0}, r"most must be in \[1, 1,000,000\], got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        SpecDec(check_pool(), **options)
