"""What the scheduler goes by: seconds, agreement, survival, and the verdicts they are made of."""

from math import exp, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Draft, Verify
from paceline.policies.check import check_pool
from paceline.policies.estimates import PerformanceProfiler
from paceline.policies.specrouter.estimates import NO_PROB, PairAgreement, RoundEvidence, Survival, doubt
from paceline.policies.specrouter.options import CONSTANTS
from paceline.policies.specrouter.policy import SpecRouter

from ...decoding.script import Script
from ...decoding.script import run as run_one


def test_seconds_are_interpolated_and_follow_the_best_known_member_beyond():
    profiler = PerformanceProfiler(check_pool())
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
    """Every forward moves a mean or adds one, so a member's row and those that follow it are read anew each time."""
    kept, told = PerformanceProfiler(check_pool()), []
    for count, (level, tokens, power, look) in enumerate(forwards):
        told.append((level, 100 * count + tokens, 2.0**power))
        kept.note(level, new_tokens=told[-1][1], seconds=told[-1][2])
        if look:
            kept.table(6)
            kept.table(3, num_rows=4)
    fresh = PerformanceProfiler(check_pool())
    for level, tokens, seconds in told:
        fresh.note(level, new_tokens=tokens, seconds=seconds)
    assert kept.table(6).tolist() == fresh.table(6).tolist()
    assert kept.table(3, num_rows=4).tolist() == fresh.table(3, num_rows=4).tolist()


def test_what_was_read_stays_until_a_mean_moves():
    profiler = PerformanceProfiler(check_pool())
    for level in (1, 4):
        profiler.note(level, new_tokens=1, seconds=1.0)
    first = profiler.table(4)
    profiler.note(4, new_tokens=1, seconds=1.04)
    assert profiler.table(4) is first
    profiler.note(4, new_tokens=1, seconds=3.0)
    assert profiler.table(4)[4, 0] > 1.5
    assert first[4, 0] == 1.0, "whoever has it keeps what was read"


def test_a_member_that_takes_no_time_says_nothing_of_how_seconds_grow():
    alone, beside = PerformanceProfiler(check_pool()), PerformanceProfiler(check_pool())
    for width in (1, 3, 9):
        beside.note(0, new_tokens=width, seconds=0.0)
    for level, width, seconds in ((2, 3, 3.0), (4, 1, 4.0), (4, 5, 8.0)):
        for profiler in (alone, beside):
            profiler.note(level, new_tokens=width, seconds=seconds)
        assert beside.table(5)[0].tolist() == [0.0] * 5
        assert beside.table(12)[1:].tolist() == alone.table(12)[1:].tolist()


def test_a_cell_forgets_and_rows_are_kept_apart():
    profiler = PerformanceProfiler(check_pool())
    for seconds in [1.0] * 50 + [2.0] * 200:
        profiler.note(1, new_tokens=1, seconds=seconds)
    profiler.note(1, new_tokens=8, seconds=5.0)
    assert profiler.narrowest_s(1, 1) == pytest.approx(2.0, rel=1e-3)
    assert profiler.narrowest_s(1, 8) == 5.0
    assert profiler.narrowest_s(1, 2) is None


def test_entering_a_chain_costs_the_prompt_per_token_of_the_answer():
    profiler = PerformanceProfiler(check_pool())
    profiler.note(1, new_tokens=16, seconds=8.0)
    assert profiler.entry_s()[1] == 0.0
    profiler.note_prompt(num_prompt=16, budget=8)
    profiler.note_answer(4)
    assert profiler.entry_s()[1] == 2.0


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


def test_evidence_goes_stale():
    agreement = PairAgreement(2)
    for _ in range(20):
        agreement.note("a", 0, 1, kept=True, similar=nan)
    before = agreement.freshness()[0, 1]
    agreement.fade()
    assert 0 < agreement.freshness()[0, 1] < before


def test_what_most_tokens_have_no_simscore_of_is_the_rate_of_equal_ones():
    """A member that copies has no distribution; what little has one says nothing of the rest."""
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
    survival = Survival(CONSTANTS)
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
    """Tokens on their own are as sure as they say; after a wrong one the drafter is sure of all that follows."""
    survival = Survival(CONSTANTS)
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
    for index in range(400):
        agreement.note("a", *pair, kept=index % 20 < 20 * kept, similar=similar)


def test_simscores_say_how_many_are_accepted_pair_by_pair():
    """One pair's promise too much and another's too little: their sum is right, and neither is to be believed."""
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
    pool = check_pool()
    knowledge = SpecRouter(pool, without="ease").scheduler.knowledge
    hopes, target = [], pool.target_level
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
    """Follows a script of three levels and collects verdicts."""

    def __init__(self, *steps):
        self.script, self.verdicts = Script(*steps), []
        self.evidence = RoundEvidence("a", self.verdicts, [])

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


def test_verdicts_are_what_the_verifier_would_have_said():
    """Checked against the target's own text: whoever wrote in its context is right where it wrote the same token."""
    rounds = [Draft("draft", 4), Verify("mid"), Draft("draft", 3), Verify("mid"), Verify("slim"), Verify("target")] * 9
    policy = Watched(*rounds)
    session = run_one(policy, budget=60)
    by_target = [verdict for verdict in policy.verdicts if verdict.verifier == "target"]
    written = {(v.written.drafter, v.endorsers) for v in by_target}
    assert ("draft", ("draft",)) in written  # refused by a level between
    assert ("draft", ("draft", "mid", "slim")) in written
    assert {v.kept for v in by_target if v.endorsers == ("draft",)} <= {True, False}
    assert all(v.verifier not in v.endorsers for v in policy.verdicts)
    kept = [v.written.token for v in by_target if v.kept and len(v.endorsers) > 1]
    assert len(kept) > 0
    assert set(kept) <= set(session.emitted)


def test_seconds_below_what_was_seen_fall_along_the_first_slope_but_not_faster_than_in_proportion():
    wide, steep = PerformanceProfiler(check_pool()), PerformanceProfiler(check_pool())
    wide.note(4, new_tokens=8, seconds=16.0)
    assert wide.table(1)[4, 0] == pytest.approx(2.0)
    for profiler, more in ((wide, 24.0), (steep, 100.0)):
        profiler.note(4, new_tokens=8, seconds=16.0)
        profiler.note(4, new_tokens=16, seconds=more)
    assert wide.table(1)[4, 0] == pytest.approx(9.0)
    assert steep.table(1)[4, 0] == pytest.approx(2.0)
