"""What policies go by: rates, seconds of members and forwards, prices of rounds, text to read, agreement, survival."""

from math import exp, inf, log, nan
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import ServerLoad
from paceline.decoding.trees import DraftTree, FixedTree
from paceline.policies import Draft, Outcome, Verify
from paceline.policies.blocks import DepthAcceptance, RunningRatio, TextToRead, acceptance_rate
from paceline.policies.check import check_pool
from paceline.policies.estimates import (
    DraftSeconds,
    ForwardWatch,
    MemberSeconds,
    PerformanceProfiler,
    RoundWork,
    WorkPrices,
)
from paceline.policies.specrouter.estimates import NO_PROB, PairAgreement, RoundEvidence, Survival, doubt
from paceline.policies.specrouter.options import CONSTANTS
from paceline.policies.specrouter.policy import OperationTimer, SpecRouter

from ..decoding.script import Script, run


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=50), st.integers(1, 100))
def test_it_is_a_weighted_mean_of_rounds(rounds, memory):
    rate = acceptance_rate(memory=memory)
    assert rate.rate == pytest.approx(0.5)
    told = [(1.0, 2.0), *((min(pair), max(pair)) for pair in rounds if max(pair))]
    for taken, asked in told[1:]:
        rate.note(taken, asked)
    kept = 1.0 - 1.0 / memory
    weights = [kept**age for age in reversed(range(len(told)))]
    taken, asked = (sum(w * pair[i] for w, pair in zip(weights, told, strict=True)) for i in (0, 1))
    assert rate.rate == pytest.approx(taken / asked)


POOL = check_pool()
STATED = "draft:1/mid:3/slim:5/target:10"


def outcome(step, seconds, *, drafted=0, judged=0, rows=1):
    return Outcome("r7", step, drafted, judged, 0, 1, 1, None, (), seconds, rows, done=False)


def test_nothing_is_known_before_it_was_seen():
    seconds = MemberSeconds(POOL)
    assert seconds.draft_s("draft", 1) is None
    assert seconds.verify_s("target", 1) is None
    seconds.charge(outcome(Draft("ngram", 4), 1e-6))
    assert seconds.draft_s("ngram", 1) is None, "an empty lookup says nothing of a token"


def test_a_batch_is_charged_in_equal_shares():
    seconds = MemberSeconds(POOL)
    assert seconds.charge(outcome(Draft("draft", 4), 8.0, drafted=4, rows=2)) == 4.0
    assert seconds.draft_s("draft", 1) == 1.0


@given(st.floats(0.1, 5.0), st.floats(0.0, 1.0), st.lists(st.integers(0, 12), min_size=2, max_size=40))
def test_a_line_is_found_again(base, slope, widths):
    seconds = MemberSeconds(POOL, memory=50)
    for width in widths:
        seconds.charge(outcome(Verify("target"), base + slope * (width + 1), judged=width))
    if len(set(widths)) > 1:
        for width in (1, 5, 13):
            wanted = max(base + slope * width, 0.0)
            assert seconds.verify_s("target", width) >= 0.99 * min(wanted, base)
        assert seconds.verify_s("target", max(widths) + 1) == pytest.approx(base + slope * (max(widths) + 1), rel=1e-3)


@given(per_round=st.floats(0.0, 5.0), per_token=st.floats(0.01, 1.0), lengths=st.lists(st.integers(1, 8), min_size=2))
def test_what_a_draft_costs_by_the_round_is_found_again(per_round, per_token, lengths):
    seconds = MemberSeconds(POOL)
    for length in lengths:
        seconds.charge(outcome(Draft("draft", 8), per_round + per_token * length, drafted=length))
    if len(set(lengths)) > 1:
        for length in (1, 3, 16):
            assert seconds.draft_s("draft", length) == pytest.approx(per_round + per_token * length, rel=1e-3)


def test_drafts_of_one_length_say_nothing_of_a_round():
    seconds = MemberSeconds(POOL)
    for _ in range(3):
        seconds.charge(outcome(Draft("draft", 4), 2.0, drafted=4))
    assert [seconds.draft_s("draft", tokens) for tokens in (1, 4, 8)] == pytest.approx([0.5, 2.0, 4.0])


def test_a_whole_draft_has_a_part_of_its_own():
    """Two windows tell it; one is taken to be in proportion. A size of batch that nobody saw is as the nearest."""
    drafts = DraftSeconds()
    assert drafts.of(1, 4) is None
    drafts.note(1, 4, 5.2)
    assert drafts.of(1, 4).tolist() == pytest.approx([0, 1.3, 2.6, 3.9, 5.2])
    drafts.note(1, 2, 4.6)
    assert drafts.of(1, 8).tolist() == pytest.approx([0, *(4 + 0.3 * window for window in range(1, 9))])
    assert drafts.of(9, 8).tolist() == drafts.of(1, 8).tolist()
    drafts.note(16, 4, 10.0)
    assert drafts.of(31, 4)[4] == pytest.approx(10)
    assert drafts.of(1, 4)[4] == pytest.approx(5.2)


@given(st.lists(st.floats(0.1, 0.9), min_size=1, max_size=5), st.integers(1, 8))
def test_without_rounds_each_request_keeps_its_share_at_every_depth(own, most):
    tokens = DepthAcceptance(most, memory=16).tokens(np.array(own))
    wanted = [sum(rate**depth for rate in own for depth in range(window + 1)) for window in range(most + 1)]
    assert tokens.tolist() == pytest.approx(wanted)


def test_depths_at_which_less_is_kept_are_found():
    """The second token of each draft is kept every other time, the first always: of half-sure requests."""
    depths = DepthAcceptance(2, memory=1000)
    for turn in range(400):
        kept = 1 + turn % 2
        depths.note(
            Outcome("r", Verify("target"), 0, 2, kept, 1, kept + 1, kept if kept < 2 else None, (), 1.0, 1, done=False),
            0.75,
        )
    none, one, two = depths.tokens(np.array([0.75]))
    assert (none, one) == (1.0, pytest.approx(1.75))
    assert two == pytest.approx(1.75 + 0.75 * 0.5, rel=0.02)


def test_stated_costs_are_charged_by_forward():
    seconds = MemberSeconds(POOL, STATED)
    assert seconds.charge(outcome(Draft("draft", 4), 99.0, drafted=3)) == 3.0
    assert seconds.charge(outcome(Verify("slim"), 99.0, judged=3)) == 5.0
    assert seconds.draft_s("ngram", 1) == 0.0
    assert seconds.verify_s("target", 9) == 10.0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("draft:1/mid:3/slim:5", "costs must name every model of the pool, target is missing"),
        (STATED.replace("10", "0"), "costs must read member:number with numbers > 0, .* got 'target:0'"),
        (STATED.replace("10", "nan"), "got 'target:nan'"),
        (STATED.replace("10", "inf"), "got 'target:inf'"),
        (STATED.replace(":10", ""), "got 'target'"),
        (STATED + "/nobody:1", "unknown model 'nobody'"),
        (STATED + "/draft:2", "costs must name a member once, draft is repeated in"),
        (STATED + "/ngram:1/ngram:1", "costs must name a member once, ngram is repeated in"),
        ("", "unknown model ''"),
    ],
)
def test_texts_that_are_no_costs_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        MemberSeconds(POOL, text)


def test_a_tree_costs_a_forward_for_each_layer():
    tree = outcome(DraftTree("mid", FixedTree.of_widths((4, 2, 1))), 9.0, drafted=20)
    assert MemberSeconds(POOL, STATED).charge(tree) == 9.0  # three of 3
    assert MemberSeconds(POOL).charge(tree) == 9.0  # as measured


def after(load, level, *, num_forwards, new_tokens, duration_s, context_tokens=0):
    load.num_forwards[level], load.new_tokens[level] = num_forwards, new_tokens
    load.duration_s[level], load.context_tokens = duration_s, context_tokens


def test_each_operation_is_taken_in_once_and_by_the_forward():
    profiler, load = PerformanceProfiler(POOL), ServerLoad(5)
    watch = ForwardWatch(profiler, (1, TARGET))
    watch.look(load)
    assert not profiler.known(1), "nothing has run"
    after(load, 1, num_forwards=4, new_tokens=32, duration_s=0.4)
    after(load, TARGET, num_forwards=1, new_tokens=40, duration_s=2.0)
    after(load, 2, num_forwards=1, new_tokens=9, duration_s=7.0)
    watch.look(load)
    watch.look(load)
    assert profiler.narrowest_s(1, 8) == pytest.approx(0.1)
    assert profiler.narrowest_s(TARGET, 40) == 2.0
    assert not profiler.known(2), "nobody watches it"
    after(load, TARGET, num_forwards=1, new_tokens=40, duration_s=4.0)
    watch.look(load)
    assert profiler.narrowest_s(TARGET, 40) == 3.0, "the mean of two, the first of which counts once"


@pytest.mark.parametrize("curve", [lambda new: 1.0 + 0.02 * new, lambda new: max(1.0, new / 64)])
def test_held_tokens_are_told_from_new_ones_whatever_the_curve(curve):
    profiler, rng = PerformanceProfiler(POOL), Random(0)
    for _ in range(400):
        rows = rng.choice((16, 32, 64))
        width, held = rng.choice((1, 2, 4)), rng.randrange(5_000, 20_000)
        profiler.note(TARGET, new_tokens=rows * width, seconds=curve(rows * width) + 1e-4 * held, held_tokens=held)
    for held in (1024, 8192, 65536):
        table = profiler.table(4, num_rows=32, held_tokens=held)[TARGET]
        assert table[[0, 1, 3]] == pytest.approx([curve(32 * width) + 1e-4 * held for width in (1, 2, 4)], rel=0.02)


def test_seconds_that_fall_as_contexts_grow_are_taken_as_level():
    profiler = PerformanceProfiler(POOL)
    for held in range(1000, 2000, 10):
        profiler.note(TARGET, new_tokens=8, seconds=2.0 - held * 1e-4, held_tokens=held)
    far, near = (profiler.table(1, num_rows=8, held_tokens=held)[TARGET, 0] for held in (10**6, 1024))
    assert far == near


DRAFT, TARGET = POOL.level("draft"), POOL.target_level
COSTS = "draft:1/mid:3/slim:6/target:10"


def came_of(step, **counts):
    zeros = dict.fromkeys(("num_drafted", "num_judged", "num_accepted", "num_own", "num_emitted"), 0)
    rest = {"request_id": "r", "refused_at": None, "tvd": (), "duration_s": 0.0, "num_rows": 1, "done": False}
    return Outcome(step=step, **zeros | rest | counts)


def a_round(drafted, accepted):
    """A draft of so many tokens, and the target's judgement."""
    work = RoundWork(len(POOL.members))
    work.note(came_of(Draft("draft", drafted), num_drafted=drafted), POOL)
    work.note(came_of(Verify("target"), num_judged=drafted, num_emitted=accepted + 1), POOL)
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


def test_requests_as_they_come():
    to_read = TextToRead()
    to_read.see("a", lacking=100, remaining=40)
    assert to_read.by_answer_token == 100 / 40 / 0.5, "half of a budget is used as long as nothing is known"
    to_read.see("a", lacking=1, remaining=30)
    assert to_read.by_answer_token == 100 / 40 / 0.5, "what has been read was read for the whole answer"


def test_those_that_run_if_they_lack_more():
    to_read = TextToRead()
    to_read.see("a", lacking=10, remaining=40)
    to_read.see("a", lacking=50, remaining=20)  # nobody drafted
    assert to_read.by_answer_token == 50 / 20 / 0.5


def test_answers_are_as_long_as_those_that_are_done():
    to_read = TextToRead()
    for name in range(200):
        to_read.see(str(name), lacking=10, remaining=40)
        to_read.see(str(name), lacking=10, remaining=32)
        to_read.end(str(name), 1)
    to_read.see("last", lacking=10, remaining=40)
    assert abs(to_read.by_answer_token - 10 / 40 / (9 / 40)) < 0.01


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.integers(1, 50), st.booleans()), max_size=40))
def test_sums_are_those_of_the_requests_that_run(steps):
    to_read, running = TextToRead(), {}
    for name, lacking, remaining, ends in steps:
        remaining = min(remaining, running.get(name, (0, 50))[1])
        to_read.see(name, lacking, remaining)
        running[name] = lacking, remaining
        if ends and len(running) > 1:
            to_read.end(name, 0)
            del running[name]
        lacks = sum(one for one, _ in running.values()) / sum(one for _, one in running.values())
        assert to_read.by_answer_token >= lacks


def test_requests_that_ended_count_no_more():
    """One runs that lacks a token for each of its answer; all that ended had nothing to read."""
    to_read = TextToRead()
    to_read.see("runs", lacking=50, remaining=50)
    for number in range(9):
        to_read.see(str(number), lacking=0, remaining=50)
        to_read.end(str(number), 50)
    assert to_read.by_answer_token >= 1.0


TOP = 2


class Profiler:
    """Keeps what it is told; knows nothing."""

    def __init__(self):
        self.num_lookups = 0
        self.told = []

    def note(self, level, *, new_tokens, seconds):
        self.told.append((level, new_tokens, seconds))

    def narrowest_s(self, level, num_rows):
        return None

    def guessed_s(self, level, num_rows):
        return inf


def verified(request, *, rows, seconds):
    return Outcome(request, Verify("target"), 0, 3, 3, 1, 4, None, (), seconds, rows, done=False)


def timer():
    profiler = Profiler()
    return profiler, OperationTimer(profiler, TOP)


def load_after(rows, new_tokens, seconds):
    """The load load_after an operation of the target."""
    load = ServerLoad(TOP + 1)
    load.batch[TOP], load.new_tokens[TOP], load.duration_s[TOP] = rows, new_tokens, seconds
    return load


def test_an_operation_is_learnt_by_all_the_tokens_it_was_fed():
    profiler, clock = timer()
    for request, fed in (("r0", 4), ("r1", 1), ("r2", 5)):
        clock.note(TOP, fed, verified(request, rows=3, seconds=0.5))
    for _ in range(2):
        clock.settle(load_after(4, 50, 0.5), begins=False)
    assert profiler.told == [(TOP, 50, 0.5)]


def test_equal_operations_are_learnt_each():
    profiler, clock = timer()
    for _ in range(2):
        clock.note(TOP, 4, verified("r0", rows=1, seconds=0.5))
        clock.settle(load_after(1, 4, 0.5), begins=False)
    assert profiler.told == [(TOP, 4, 0.5)] * 2


def test_a_prefill_among_verifications_is_learnt_once():
    profiler, clock = timer()
    clock.note(TOP, 4, verified("r0", rows=2, seconds=0.5))
    for begins in (True, False, True):
        clock.settle(load_after(3, 44, 0.5), begins=begins)
    assert profiler.told == [(TOP, 44, 0.5)]


def test_prefills_alone_are_learnt_by_the_requests_that_begin():
    profiler, clock = timer()
    for _ in range(2):
        clock.settle(load_after(2, 80, 0.7), begins=True)
    assert profiler.told == [(TOP, 80, 0.7)]
    clock.settle(load_after(0, 0, 0.0), begins=True)
    assert len(profiler.told) == 1, "what was never fed took nothing"


def test_rows_of_a_verifier_below_are_gathered():
    profiler, clock = timer()
    load = load_after(1, 1, 0.1)
    clock.note(1, 4, verified("r0", rows=2, seconds=0.5))
    clock.settle(load, begins=False)
    clock.note(1, 3, verified("r0", rows=2, seconds=0.5))
    assert profiler.told == []
    clock.note(1, 2, verified("r1", rows=2, seconds=0.5))
    assert profiler.told == [(1, 5, 0.5)]


def test_a_draft_is_learnt_by_the_forward():
    profiler, clock = timer()
    clock.note(0, 1, Outcome("r0", Draft("draft", 4), 4, 0, 0, 0, 0, None, (), 0.4, 1, done=False))
    assert profiler.told == [(0, 1, 0.1)]


def test_a_first_draft_over_a_prompt_is_told_from_the_forwards_that_follow():
    """As far as others tell what these take: were all taken to be alike, the member would look dear for good."""
    profiler, clock = timer()
    profiler.guessed_s = lambda level, num_rows: 0.1
    clock.note(0, 60, Outcome("r0", Draft("draft", 4), 4, 0, 0, 0, 0, None, (), 1.5, 1, done=False))
    ((level, tokens, seconds),) = profiler.told
    assert (level, tokens) == (0, 60)
    assert abs(seconds - 1.2) < 1e-12


def test_a_lookup_is_learnt_whole_however_much_it_reads_or_copies():
    profiler, clock = timer()
    profiler.num_lookups = 1
    for fed, copied in ((900, 6), (40, 1)):
        clock.note(0, fed, Outcome("r0", Draft("ngram", 8), copied, 0, 0, 0, 0, None, (), 0.25, 1, done=False))
    assert profiler.told == [(0, 1, 0.25)] * 2


def test_lookups_of_an_operation_are_learnt_one_by_one():
    profiler, clock = timer()
    profiler.num_lookups = 1
    for request in ("r0", "r1", "r2", "r3"):
        clock.note(0, 40, Outcome(request, Draft("ngram", 8), 6, 0, 0, 0, 0, None, (), 1.0, 4, done=False))
    assert profiler.told == [(0, 1, 0.25)]


def test_seconds_are_interpolated_and_follow_the_best_known_member_beyond():
    profiler = PerformanceProfiler(POOL)
    for width, seconds in ((1, 4.0), (3, 6.0), (9, 12.0)):
        profiler.note(4, new_tokens=width, seconds=seconds)
    profiler.note(2, new_tokens=9, seconds=3.0)
    table = profiler.table(5)
    assert table[4].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert table[2].tolist() == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0])
    assert np.isinf(table[1]).all()
    assert [profiler.known(level) for level in range(5)] == [False, False, True, False, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 80), st.integers(0, 9), st.booleans()), min_size=1, max_size=30
    )
)
def test_a_table_that_is_kept_up_is_one_that_is_read_at_once(forwards):
    kept, told = PerformanceProfiler(POOL), []
    for count, (level, tokens, power, look) in enumerate(forwards):
        told.append((level, 100 * count + tokens, 2.0**power))
        kept.note(level, new_tokens=told[-1][1], seconds=told[-1][2])
        if look:
            kept.table(6)
            kept.table(3, num_rows=4)
    fresh = PerformanceProfiler(POOL)
    for level, tokens, seconds in told:
        fresh.note(level, new_tokens=tokens, seconds=seconds)
    assert kept.table(6).tolist() == fresh.table(6).tolist()
    assert kept.table(3, num_rows=4).tolist() == fresh.table(3, num_rows=4).tolist()


def test_what_was_read_stays_until_a_mean_moves():
    profiler = PerformanceProfiler(POOL)
    for level in (1, 4):
        profiler.note(level, new_tokens=1, seconds=1.0)
    first = profiler.table(4)
    profiler.note(4, new_tokens=1, seconds=1.04)
    assert profiler.table(4) is first
    profiler.note(4, new_tokens=1, seconds=3.0)
    assert profiler.table(4)[4, 0] > 1.5
    assert first[4, 0] == 1.0, "whoever has it keeps what was read"


def test_a_member_that_takes_no_time_says_nothing_of_how_seconds_grow():
    alone, beside = PerformanceProfiler(POOL), PerformanceProfiler(POOL)
    for width in (1, 3, 9):
        beside.note(0, new_tokens=width, seconds=0.0)
    for level, width, seconds in ((2, 3, 3.0), (4, 1, 4.0), (4, 5, 8.0)):
        for profiler in (alone, beside):
            profiler.note(level, new_tokens=width, seconds=seconds)
        assert beside.table(5)[0].tolist() == [0.0] * 5
        assert beside.table(12)[1:].tolist() == alone.table(12)[1:].tolist()


def test_a_cell_forgets_and_rows_are_kept_apart():
    profiler = PerformanceProfiler(POOL)
    for seconds in [1.0] * 50 + [2.0] * 200:
        profiler.note(1, new_tokens=1, seconds=seconds)
    profiler.note(1, new_tokens=8, seconds=5.0)
    assert profiler.narrowest_s(1, 1) == pytest.approx(2.0, rel=1e-3)
    assert profiler.narrowest_s(1, 8) == 5.0
    assert profiler.narrowest_s(1, 2) is None


def test_entering_a_chain_costs_the_prompt_per_token_of_the_answer():
    profiler = PerformanceProfiler(POOL)
    profiler.note(1, new_tokens=16, seconds=8.0)
    assert profiler.entry_s()[1] == 0.0
    profiler.note_prompt(num_prompt=16, budget=8)
    profiler.note_answer(4)
    assert profiler.entry_s()[1] == 2.0


def test_joining_a_request_costs_the_text_that_a_member_lacks_per_token_to_come():
    """Of a mean answer, or of the rest of the budget if that is less; a few tokens are read with the next ones."""
    profiler = PerformanceProfiler(POOL)
    for width, seconds in ((16, 1.0), (32, 8.0)):
        profiler.note(1, new_tokens=width, seconds=seconds)
    profiler.note_prompt(num_prompt=16, budget=8)
    assert profiler.joining_s([0, 32, 0], 8)[1] == 2.0  # of an unfinished answer half the budget
    profiler.note_answer(2)
    assert [profiler.joining_s([0, lacks, 0], left)[1] for lacks, left in ((32, 8), (32, 1), (16, 8))] == [
        4.0,
        8.0,
        0.0,
    ]
    assert not PerformanceProfiler(POOL, "draft:1/mid:2/slim:3/target:4").joining_s([32, 32, 0], 8).any()


def test_agreement_goes_from_a_guess_over_all_tags_to_its_own():
    agreement = PairAgreement(3, similarity="argmax")
    guess = agreement.rates(None)
    assert guess[0, 2] < guess[1, 2] < 1.0
    for _ in range(40):
        agreement.note("a", 0, 2, kept=True, similar=nan)
    assert agreement.rates("a")[0, 2] > agreement.rates("b")[0, 2] > guess[0, 2]
    assert agreement.rates("b")[1, 2] > guess[1, 2]  # who is larger misses fewer
    for _ in range(4000):
        agreement.note("a", 0, 2, kept=False, similar=nan)
    assert agreement.rates("a")[0, 2] < 0.02


def test_simscore_is_used_as_long_as_it_predicts_acceptance():
    greedy, sampling = PairAgreement(2), PairAgreement(2)
    rng = np.random.default_rng(0)
    for similar in rng.uniform(0.3, 0.9, 500):
        greedy.note("a", 0, 1, kept=True, similar=similar)
        sampling.note("a", 0, 1, kept=bool(rng.random() < similar), similar=similar)
    assert not greedy.uses_simscore
    assert greedy.rates("a")[0, 1] > 0.95
    assert sampling.uses_simscore
    assert sampling.rates("a")[0, 1] == pytest.approx(0.6, abs=0.03)
    assert greedy.reads_distances
    for _ in range(CONSTANTS.simscore_trial - 500):
        greedy.note("a", 0, 1, kept=True, similar=0.5)
        sampling.note("a", 0, 1, kept=True, similar=1.0)
    assert not greedy.reads_distances
    assert sampling.reads_distances
    assert not PairAgreement(2, similarity="argmax").reads_distances
    assert PairAgreement(2, similarity="simscore").reads_distances


def test_evidence_goes_stale():
    agreement = PairAgreement(2)
    for _ in range(20):
        agreement.note("a", 0, 1, kept=True, similar=nan)
    before = agreement.freshness()[0, 1]
    agreement.fade()
    assert 0 < agreement.freshness()[0, 1] < before


def test_what_most_tokens_have_no_simscore_of_is_the_rate_of_equal_ones():
    agreement = PairAgreement(3, similarity="simscore")
    for index in range(400):
        agreement.note("a", 0, 2, kept=index % 4 == 0, similar=nan)
        agreement.note("a", 1, 2, kept=True, similar=0.5)
    rates = agreement.rates("a")
    assert rates[0, 2] == pytest.approx(0.25, abs=0.03)
    assert rates[1, 2] == pytest.approx(0.5, abs=0.03)
    assert agreement.weight("a")[0, 2] > 400


def test_a_pair_seen_in_hard_text_alone_is_expected_to_do_better_in_easy_text():
    eased, flat = PairAgreement(3, similarity="argmax"), PairAgreement(3, similarity="argmax", eased=False)
    rng = np.random.default_rng(0)
    for _ in range(30):
        for tag, rate in (("hard", 0.5), ("easy", 0.95)):
            kept = rng.random(8) < rate
            for agreement in (eased, flat):
                agreement.rates(tag)
                for index in range(8):
                    agreement.note(tag, 0, 2, kept=bool(kept[index]), similar=nan)
                    if tag == "hard":
                        agreement.note(tag, 1, 2, kept=index % 3 > 0, similar=nan)
    assert eased.rates("easy")[1, 2] > flat.rates("easy")[1, 2] + 0.1
    assert eased.rates("hard")[1, 2] == pytest.approx(0.62, abs=0.06)


@pytest.mark.parametrize(("hazard", "of_doubt"), [(0.05, 0.5), (0.2, 0.3), (0.1, 1.0)])
def test_the_hazards_are_found(hazard, of_doubt):
    survival = Survival()
    rng = np.random.default_rng(1)
    for _ in range(4000):
        probs = rng.uniform(0.05, 0.99, 6)
        kept = rng.random(6) < np.exp(-hazard) * probs**of_doubt
        num_kept = int(np.append(kept, False).argmin())
        survival.note_run("a", [((0, 0, 1), doubt(prob)) for prob in probs], num_kept)
    for tag in ("a", "other"):
        found = survival.hazard(tag, (0, 0, 1))
        run = 3 * (found[0] + found[1] * log(2.0))
        assert run == pytest.approx(3 * (hazard + of_doubt * log(2.0)), rel=0.25)


def test_runs_that_go_on_astray_are_not_taken_at_their_drafter_s_word():
    survival = Survival()
    rng = np.random.default_rng(2)
    for _ in range(3000):
        probs = rng.uniform(0.3, 0.99, 6)
        kept = rng.random(6) < probs
        num_kept = int(np.append(kept, False).argmin())
        probs[num_kept + 1 :] = 0.97
        survival.note_run("a", [((0, 0, 1), doubt(prob)) for prob in probs], num_kept)
    hazard, of_doubt = survival.hazard("a", (0, 0, 1))
    assert exp(-6 * (hazard + of_doubt * doubt(0.97))) < 0.6 * 0.97**6


def test_doubt_of_any_probability():
    assert doubt(nan) == NO_PROB == log(2.0)
    assert doubt(1.0) == 0.0
    assert exp(-doubt(0.3)) == pytest.approx(0.3)
    assert doubt(0.0) > 100


def similar_tokens(agreement, pair, kept, similar):
    for index in range(200):
        agreement.note("a", *pair, kept=index % 20 < 20 * kept, similar=similar)


def test_simscores_say_how_many_are_accepted_pair_by_pair():
    agreement = PairAgreement(3)
    similar_tokens(agreement, (0, 2), 0.5, 0.5)
    similar_tokens(agreement, (1, 2), 0.8, 0.8)
    assert agreement.uses_simscore
    agreement = PairAgreement(3)
    similar_tokens(agreement, (0, 2), 0.7, 0.5)
    similar_tokens(agreement, (1, 2), 0.6, 0.8)
    assert not agreement.uses_simscore
    assert agreement.rates("a")[0, 2] > agreement.rates("a")[1, 2]


def test_a_pair_that_was_left_alone_is_hoped_for_more_as_others_become_known():
    knowledge = SpecRouter(POOL, without="ease").scheduler.knowledge
    hopes, target = [], POOL.target_level
    for index in range(20):
        knowledge.agreement.note("a", 1, target, kept=index % 2 == 0, similar=nan)
    for _ in range(8):
        for _ in range(50):
            knowledge.agreement.note("a", 2, target, kept=True, similar=nan)
        figures = knowledge.figures("a", 1)
        hopes.append(knowledge.optimistic("a", figures).rates[1, target] - figures.rates[1, target])
        raised = knowledge.optimistic("a", figures).rates
        assert (raised[:target, target] <= 1.0).all()
    assert hopes == sorted(hopes)
    assert hopes[-1] > 1.1 * hopes[0]


class Watched:
    """Follows a script of three levels and collects what it tells."""

    def __init__(self, *steps):
        self.script, self.runs = Script(*steps), []
        self.evidence = RoundEvidence("a", self.runs)

    def decide(self, seen):
        if not seen.num_pending:
            self.evidence.settle(seen)
        step = self.script.decide(seen) if self.script.steps else Verify("target")
        if isinstance(step, Verify):
            waiting = seen.waiting(step.model) if seen.num_pending else 0
            first = seen.num_pending - waiting
            self.evidence.before(step.model, seen.pending[first:], first)
        return step

    def learn(self, outcome):
        if isinstance(outcome.step, Verify):
            self.evidence.after(outcome)


def test_distances_that_do_not_count_are_not_read():
    runs = []
    evidence = RoundEvidence("a", runs)
    evidence.before("target", (SimpleNamespace(drafter="draft"),), 0)
    evidence.after(SimpleNamespace(num_accepted=1, refused_at=None, num_emitted=2), measured=False)  # it has none
    assert runs[0].tvd == ()


def test_verdicts_are_what_the_verifier_would_have_said():
    rounds = [Draft("draft", 4), Verify("mid"), Draft("draft", 3), Verify("mid"), Verify("slim"), Verify("target")] * 9
    policy = Watched(*rounds)
    session = run(policy, budget=60)
    tokens = [
        (run.verifier, names, token, index < run.num_kept)
        for run in policy.runs
        for index, (token, names) in enumerate(zip(run.tokens[: run.num_known], run.endorsers, strict=False))
    ]
    by_target = [token for token in tokens if token[0] == "target"]
    written = {(token.drafter, names) for _, names, token, _ in by_target}
    assert ("draft", ("draft",)) in written  # refused by a level between
    assert ("draft", ("draft", "mid", "slim")) in written
    assert False in {right for _, names, _, right in by_target if names == ("draft",)}
    assert all(verifier not in names for verifier, names, _, _ in tokens)
    assert {run.together for run in policy.runs} == {True, False}
    kept = [token.token for _, names, token, right in by_target if right and len(names) > 1]
    assert len(kept) > 0
    assert set(kept) <= set(session.emitted)


def test_seconds_below_what_was_seen_fall_along_the_first_slope_but_not_faster_than_in_proportion():
    wide, steep = PerformanceProfiler(POOL), PerformanceProfiler(POOL)
    wide.note(4, new_tokens=8, seconds=16.0)
    assert wide.table(1)[4, 0] == pytest.approx(2.0)
    for profiler, more in ((wide, 24.0), (steep, 100.0)):
        profiler.note(4, new_tokens=8, seconds=16.0)
        profiler.note(4, new_tokens=16, seconds=more)
    assert wide.table(1)[4, 0] == pytest.approx(9.0)
    assert steep.table(1)[4, 0] == pytest.approx(2.0)


def test_a_ratio_of_nothing_is_none_and_a_memory_is_one_round_or_more():
    ratio = RunningRatio(memory=3)
    with pytest.raises(ZeroDivisionError):
        _ = ratio.rate
    ratio.note(6.0, 4.0)
    assert (ratio.rate, ratio.num_rounds) == (1.5, 1)
    with pytest.raises(ValueError, match="memory must be >= 1, got 0"):
        acceptance_rate(memory=0)
