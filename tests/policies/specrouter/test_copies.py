"""Copies: only of what matches, as long as they pay, learnt from what the target wrote, whatever was played."""

from dataclasses import replace
from inspect import signature
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import NO_SIGNAL
from paceline.decoding.seen import PendingToken
from paceline.policies import Pool, Verify, check_policy, make_policy
from paceline.policies.check import check_pool
from paceline.policies.specrouter.copies import Copies
from paceline.policies.specrouter.estimates import EARLIER, OWN, CopiedTokens, cell_of
from paceline.policies.specrouter.options import CONSTANTS, RouterOptions
from paceline.policies.specrouter.plan import CopyWorth
from paceline.policies.specrouter.policy import SpecRouter

POOL = check_pool()
OPTIONS = RouterOptions(
    **{
        name: option.default for name, option in list(signature(SpecRouter).parameters.items())[1:]
    }  # the pool comes first
)
# A copied token takes nothing, and saves a second if it is right.
FREE = CopyWorth(Verify("target"), 1.0, (0.0,) * OPTIONS.most)


class Seen:
    """A request before its next round."""

    tag = "a"

    def __init__(self, name, prompt, answer=(), room=99, pending=()):
        self.request_id, self.prompt, self._answer, self.room = name, tuple(prompt), list(answer), room
        self.pending = [PendingToken(token, "draft", "mid", NO_SIGNAL) for token in pending]
        self.num_pending = len(pending)

    def emitted_from(self, start):
        return self._answer[start:]


def copies_of(**options):
    return Copies(POOL, replace(OPTIONS, **options), CONSTANTS)


def judged_by(name, saved_s=1.0):
    return CopyWorth(Verify(name), saved_s, FREE.cost_s)


def copied(copies, seen, worth=FREE):
    copies.begin(seen)
    found = copies.best(seen, (worth,))
    return () if found is None else found.draft.copy


def done(name):
    return type("Outcome", (), {"request_id": name, "done": True})()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 12))
def test_what_is_copied_followed_the_end_of_the_text_before_and_fits(text, room):
    found = list(copied(copies_of(), Seen("r", text, room=room)))
    assert len(found) < room
    if found:
        pieces = [text[at : at + 2] for at in range(len(text) - 1)]
        assert [text[-1], found[0]] in pieces
    if text[-1] not in text[:-1]:
        assert not found


@pytest.mark.parametrize("before", [0, 2])
def test_answers_that_end_in_mid_round_change_nothing_for_a_request_under_way(before):
    copies = copies_of(store=8)  # two answers fill a generation
    for number in range(before):
        copies.begin(Seen(f"old {number}", [9], [1, 2, 3, 4]))
        copies.learn(done(f"old {number}"))
    for number in range(3):
        copies.begin(Seen(f"other {number}", [9], [5, 6, 7, 8]))
    asked = Seen("r", [1], [2], pending=[3])
    copies.begin(Seen("r", [1], [2]))
    found = copies.best(asked, (judged_by("mid"),))
    for number in range(3):
        copies.learn(done(f"other {number}"))
    assert copies.best(asked, (judged_by("mid"),)) == found
    assert (found is not None) == (before > 0)


def test_earlier_answers_are_copied_once_they_are_done():
    copies = copies_of()
    copies.begin(Seen("a", [7], [1, 2, 3, 4, 5]))
    assert copied(copies, Seen("b", [1, 2])) == ()
    copies.learn(done("a"))
    assert copied(copies, Seen("c", [1, 2])) == (3, 4, 5)
    assert copied(copies, Seen("b", [1, 2], [3])) == (4, 5)


@pytest.mark.parametrize(("without", "own", "earlier"), [("lookups", (), (6,)), ("answers", (4,), ())])
def test_either_source_can_be_left_out(without, own, earlier):
    copies = copies_of(without=without)
    copies.begin(Seen("a", [9], [5, 6]))
    copies.learn(done("a"))
    assert copied(copies, Seen("b", [3, 4, 1, 3]))[:1] == own
    assert copied(copies, Seen("c", [5])) == earlier


def test_no_more_is_copied_than_pays():
    text = Seen("r", [1, 2, 3, 4, 5, 6, 1, 2, 3])
    whole = copied(copies_of(), text)
    assert whole[:3] == (4, 5, 6)
    dear = CopyWorth(Verify("target"), 1.0, tuple(0.9 * count for count in range(1, OPTIONS.most + 1)))
    assert copied(copies_of(), text, dear) == ()
    longer = CopyWorth(Verify("target"), 1.0, tuple(0.6 * count for count in range(1, OPTIONS.most + 1)))
    some = copied(copies_of(), text, longer)
    assert 0 < len(some) < len(whole)
    assert whole[: len(some)] == some


def test_what_the_target_wrote_tells_up_to_the_first_other_token():
    """Nothing was copied, and it tells as much."""
    copies = copies_of(without="answers")
    copies.begin(Seen("r", [1, 2, 3, 4, 5, 1]))  # 2, 3, 4, 5, 1 might follow
    before = copies._copied.rates("a").copy()
    copies.begin(Seen("r", [1, 2, 3, 4, 5, 1], [2, 9, 4]))
    after = copies._copied.rates("a")
    one, two, three = (cell_of(OWN, length, 1.0, 1) for length in (1, 2, 4))
    assert after[one] > before[one]
    assert after[two] < before[two]
    assert after[three] == before[three], "of what came after a wrong token nothing is known"


def test_within_a_round_copies_follow_what_is_pending_and_levels_below_the_target_judge_them():
    copies, text = copies_of(), [1, 2, 3, 4, 5, 6, 9, 1, 2]
    copies.begin(Seen("r", text))
    within = Seen("r", text, pending=[3, 4])
    assert copies.best(within, (FREE,)) is None, "the target judges copies alone"
    found = copies.best(within, (judged_by("mid"), FREE))
    assert found.judge == Verify("mid")
    assert found.draft.copy[:2] == (5, 6)
    assert copies.best(Seen("r", text, pending=[8]), (judged_by("mid"),)) is None, "what is pending never stood there"


def test_who_saves_most_judges():
    text = Seen("r", [1, 2, 3, 4, 1, 2, 3])
    for most, judge in ((2.0, "mid"), (0.5, "target")):
        copies = copies_of()
        copies.begin(text)
        assert copies.best(text, (judged_by("mid", most), FREE)).judge == Verify(judge)


def test_a_request_that_was_put_back_copies_as_if_it_had_not_been():
    """What was pending is gone, what was committed is not."""
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    put_back, other = copies_of(), copies_of()
    put_back.begin(Seen("r", text))
    assert put_back.best(Seen("r", text, pending=[3, 7]), (judged_by("mid"),)) is None
    other.begin(Seen("r", text))
    for copies in (put_back, other):
        assert copied(copies, Seen("r", text, [3, 4]))[:2] == (5, 6)
    assert put_back._copied.rates("a") == other._copied.rates("a")


def test_rates_of_copies_come_to_the_share_that_was_right_and_tags_start_from_all():
    tokens, cell = CopiedTokens(CONSTANTS), cell_of(EARLIER, 5, 0.6, 3)
    for index in range(400):
        tokens.note("a", cell, kept=index % 4 != 0)
    assert tokens.rates("a")[cell] == pytest.approx(0.75, abs=0.03)
    assert tokens.rates("b")[cell] == pytest.approx(0.75, abs=0.03)
    for _ in range(100):
        tokens.note("b", cell, kept=False)
    assert tokens.rates("b")[cell] < 0.1
    assert tokens.rates("a")[cell] == pytest.approx(0.75, abs=0.03)


@given(st.sampled_from((OWN, EARLIER)), st.integers(1, 400), st.floats(0.01, 1.0), st.integers(1, 9))
def test_cells_tell_sources_lengths_and_shares_apart(source, length, share, count):
    rates = CopiedTokens(CONSTANTS).rates("a")
    cell = cell_of(source, length, share, count)
    longer = cell_of(source, 2 * length, share, count)
    assert longer == cell or rates[longer] > rates[cell], "a longer match is trusted more"
    assert cell_of(1 - source, length, share, count) != cell
    assert cell == cell_of(source, 2 ** int(log2(length)), share, count)


def test_nothing_is_kept_of_requests_that_are_done():
    made = []

    def build(pool):
        made.append(make_policy("specrouter", pool))
        return made[-1]

    check_policy(build)
    assert made
    for policy in made:
        assert not policy._copies._open
        assert not policy._copies._texts._open


def test_without_a_member_that_copies_nothing_is_read():
    pool = Pool(POOL.members[1:])
    made = []

    def build(pool):
        made.append(make_policy("specrouter", pool))
        return made[-1]

    assert check_policy(build, pool=pool).lossless
    assert all(policy._copies is None for policy in made)
