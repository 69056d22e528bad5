"""Work is priced by forwards of the batch it is done in, whatever else ran beside it when it was counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import ServerLoad
from paceline.policies import Draft, Outcome, Verify
from paceline.policies.check import check_pool
from paceline.policies.estimates import RoundWork, WorkPrices

POOL = check_pool()
DRAFT, TARGET = POOL.level("draft"), POOL.target_level
COSTS = "draft:1/mid:3/slim:6/target:10"


def outcome(step, **counts):
    zeros = dict.fromkeys(("num_drafted", "num_judged", "num_accepted", "num_own", "num_emitted"), 0)
    rest = {"request_id": "r", "refused_at": None, "tvd": (), "duration_s": 0.0, "num_rows": 1, "done": False}
    return Outcome(step=step, **zeros | rest | counts)


def a_round(drafted, accepted):
    """A draft of so many tokens, and the target's judgement."""
    work = RoundWork(len(POOL.members))
    work.note(outcome(Draft("draft", drafted), num_drafted=drafted), POOL)
    work.note(outcome(Verify("target"), num_judged=drafted, num_emitted=accepted + 1), POOL)
    return work


class Seen:
    """A request that has nothing to read."""

    request_id, context_tokens, remaining = "r", 100, 50

    def __init__(self, load):
        self.load = load

    def cached(self, name):
        return 100


def prices_after(*ops):
    """Prices that saw operations: level, new tokens and seconds of one forward each."""
    prices, load = WorkPrices(POOL, ("draft",)), ServerLoad(len(POOL.members))
    for level, new_tokens, seconds in ops:
        load.num_forwards[level], load.new_tokens[level], load.duration_s[level] = 1, new_tokens, seconds
        prices.see(Seen(load))
    return prices


def test_a_round_takes_its_drafts_and_its_verification():
    prices = WorkPrices(POOL, ("draft",), COSTS)
    assert prices.seconds(a_round(4, 2), num_rows=1, held_tokens=0) == 4 * 1 + 10
    work = RoundWork(len(POOL.members))
    work.add(a_round(4, 2), kept=0.5)
    work.add(a_round(2, 2), kept=0.5)
    assert prices.seconds(work, num_rows=1, held_tokens=0) == 4 * (0.5 * 4 + 2) / 4 + 10 * 1.5
    assert work.tokens == 0.5 * 3 + 3


def test_prompts_of_others_in_the_same_operation_change_no_price():
    alone = ((DRAFT, 8, 0.1), (TARGET, 40, 1.0), (TARGET, 48, 1.1))
    work = a_round(4, 2)
    quiet = prices_after(*alone).seconds(work, num_rows=8, held_tokens=0)
    busy = prices_after(*alone, (TARGET, 640, 9.0), (TARGET, 1040, 14.0)).seconds(work, num_rows=8, held_tokens=0)
    assert busy == pytest.approx(quiet)
    assert quiet == pytest.approx((4 * 0.1 + 1.0) / 8)


def test_a_batch_shares_what_a_forward_takes():
    prices = prices_after((DRAFT, 1, 0.1), (DRAFT, 8, 0.1), (TARGET, 5, 1.0), (TARGET, 40, 1.0), (TARGET, 48, 1.0))
    one, eight = (prices.seconds(a_round(4, 2), num_rows=rows, held_tokens=0) for rows in (1, 8))
    assert eight == pytest.approx(one / 8)


def test_members_that_never_ran_are_priceless():
    prices = prices_after((TARGET, 40, 1.0))
    assert prices.seconds(a_round(1, 1), num_rows=8, held_tokens=0) == float("inf")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 64))
def test_wider_rounds_never_cost_less(fewer, more, num_rows):
    prices = prices_after((DRAFT, 8, 0.1), (TARGET, 40, 1.0), (TARGET, 80, 1.5), (TARGET, 640, 9.0))
    narrow, wide = (a_round(tokens, 0) for tokens in sorted((fewer, more)))
    seconds = [prices.seconds(work, num_rows=num_rows, held_tokens=0) for work in (narrow, wide)]
    assert seconds[0] <= seconds[1] + 1e-12
