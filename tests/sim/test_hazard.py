"""The estimate of acceptance against processes whose rates are known, and the draws made from it."""

from math import erfc
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.engine_logs import FALLING, difficult_rounds, difficult_texts
from paceline.sim import difficulty
from paceline.sim.difficulty import Beside, BesideOutcome, Neighbours, falling, filter_positions
from paceline.sim.hazard import Hazard, fit_lengths, stated_lengths
from paceline.traces.meta import MOST
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

from ..traces.rounds.rounds_strategies import bernoulli_trace, rounds_traces

LONG = 1_000_000


def one_drafter(*requests, by_start=True, window=None):
    """A recording of drafter `d` from (tag, length of the text, rows of start, accepted, drafted) by request."""
    records = []
    for index, (tag, length, rows) in enumerate(requests):
        columns = np.array(rows, np.int32).reshape(-1, 3).T
        rounds = Rounds(start=columns[0], accepted=columns[1], drafted=columns[2])
        found = {"d": rounds} if len(rows) else {}
        records.append(RoundsRequest(request_id=f"q{index}", tag=tag, num_tokens={"": length}, rounds=found))
    drafters = (DrafterInfo(name="d", by_start=by_start, window=window),)
    return RoundsRecording(meta=RoundsMeta(name="by hand", source="test", drafters=drafters), requests=tuple(records))


def one_after_another(accepted, drafted):
    start = np.concatenate(([0], np.cumsum(np.asarray(accepted)[:-1] + 1)))
    return np.stack((start, accepted, np.broadcast_to(drafted, start.shape)), axis=1)


def drawn_rounds(hazard, request_id, length, window):
    """Accepted tokens of rounds that follow one another, all of them drawn."""
    accepted, start = [], 0
    while start < length:
        kept = 0
        while kept < window and hazard.agrees(request_id, 0, start=start, depth=kept, known=0):
            kept += 1
        accepted.append(kept)
        start += kept + 1
    return accepted


def rounds_of_a_walk(rng, rho, hazards, length):
    """Rounds whose lengths depend on a normal walk along the text; the last of `hazards` ends the window."""
    noise = rng.standard_normal(length) * np.sqrt(1 - rho**2)
    z, walk = rng.standard_normal(), []
    for step in noise:
        walk.append(z)
        z = rho * z + step
    survival = np.cumprod(hazards)
    accepted, start = [], 0
    while start < length:
        kept = int((0.5 * erfc(-walk[start] / 2**0.5) < survival).sum())
        accepted.append(kept)
        start += kept + 1
    return one_after_another(accepted, len(hazards))


def test_rates_are_those_counted_where_nothing_is_censored():
    rng = np.random.default_rng(0)
    accepted = np.minimum(rng.geometric(0.3, 20_000) - 1, 6)
    fit = Hazard(one_drafter(("a", LONG, one_after_another(accepted, 9)))).fit(0)
    counted = [(accepted > depth).sum() / (accepted >= depth).sum() for depth in range(6)]
    np.testing.assert_allclose(fit.depths.hazards(0.0), [*counted, 0.0], rtol=1e-12)


def test_a_censored_round_tells_of_agreements_only():
    rows = [(0, 1)] * 150 + [(1, 1)] * 450 + [(0, 2)] * 100 + [(1, 2)] * 200 + [(2, 2)] * 300 + [(3, 3)] * 600
    accepted, drafted = np.array(rows).T
    hazards = Hazard(one_drafter(("a", LONG, one_after_another(accepted, drafted)))).fit(0).depths.hazards(0.0)
    assert hazards == pytest.approx([155 / 180, 90 / 110, 1.0])


def test_nothing_is_refused_where_nothing_was():
    trace = one_drafter(("a", LONG, one_after_another(np.full(100, 4), 4)), ("b", 50, []))
    hazard = Hazard(trace)
    assert drawn_rounds(hazard, "q0", 500, 4) == drawn_rounds(hazard, "q1", 500, 4) == [4] * 100


def test_depths_seen_too_rarely_share_a_rate():
    """Of 1000 rounds 400 get to depth 2 and 200 to depth 3, none farther: from depth 2 on 600 decisions were seen."""
    accepted = np.repeat([0, 1, 2, 3], [300, 300, 200, 200])
    fit = Hazard(one_drafter(("a", LONG, one_after_another(accepted, 9)))).fit(0)
    assert fit.depths.hazards(0.0) == pytest.approx([70 / 100, 40 / 70, 20 / 60])


def test_the_spread_between_requests_is_found():
    rng = np.random.default_rng(1)
    alpha, betas, requests = np.array([1.5, 1.0, 0.5, 0.5]), 0.8 * rng.standard_normal(400), []
    for beta in betas:
        survival = np.cumprod(1 / (1 + np.exp(-alpha - beta)))
        accepted = (rng.random((40, 1)) < survival).sum(axis=1)
        requests.append(("a", LONG, one_after_another(accepted, 4)))
    fit = Hazard(one_drafter(*requests)).fit(0).depths
    assert fit.sigma == pytest.approx(betas.std(), abs=0.04)
    np.testing.assert_allclose(fit.alpha, alpha + betas.mean(), atol=0.06)
    assert np.corrcoef(fit.beta, betas)[0, 1] > 0.9
    np.testing.assert_allclose(np.sqrt(np.mean((fit.beta - betas) ** 2)), fit.spread.mean(), rtol=0.25)


def test_few_rounds_do_not_blow_up_the_spread():
    rng = np.random.default_rng(2)
    rounds = [(rng.random((6, 3)) < 0.97).cumprod(axis=1).sum(axis=1) for _ in range(80)]
    requests = [("a", LONG, one_after_another(accepted, 3)) for accepted in rounds]
    fit = Hazard(one_drafter(*requests)).fit(0).depths
    assert fit.sigma < 1.0
    assert fit.hazards(0.0) == pytest.approx([0.97] * 2, abs=0.02)


def test_requests_with_nothing_in_common_are_told_apart():
    never, always = ([(start, kept, 1) for start in range(0, 200, 2)] for kept in (0, 1))
    hazard = Hazard(one_drafter(("a", 201, never), ("a", 201, always)))
    assert hazard.fit(0).depths.sigma < 10
    assert np.mean(drawn_rounds(hazard, "q0", 2000, 1)) < 0.05
    assert np.mean(drawn_rounds(hazard, "q1", 2000, 1)) > 0.95


@pytest.mark.parametrize("rho", [0.0, 0.6, *(pytest.param(rho, marks=pytest.mark.slow) for rho in (0.3, 0.85))])
def test_persistence_along_the_text_is_found_and_lengths_kept(rho):
    rng = np.random.default_rng(3)
    rows = [rounds_of_a_walk(rng, rho, [0.8, 0.75, 0.6, 0.7], 400) for _ in range(150)]
    trace = one_drafter(*[("a", 400, row) for row in rows], *[("a", 400, [])] * 150)
    hazard = Hazard(trace)
    assert hazard.fit(0).difficulty.persistence == pytest.approx(rho, abs=0.06)
    drawn = np.concatenate([drawn_rounds(hazard, f"q{150 + index}", 400, 4) for index in range(150)])
    recorded = np.concatenate([row[:, 1] for row in rows])
    assert drawn.mean() + 1 == pytest.approx(recorded.mean() + 1, rel=0.015)
    for tokens in range(1, 5):
        assert np.mean(drawn >= tokens) == pytest.approx(np.mean(recorded >= tokens), abs=0.02)


def test_the_end_of_a_text_is_no_refusal():
    rng = np.random.default_rng(5)
    requests = []
    for _ in range(200):
        refusals = np.append(np.flatnonzero(rng.random(39) > 0.9), 39)
        start = np.arange(40)
        accepted = np.minimum(refusals[np.searchsorted(refusals, start)] - start, 6)
        requests.append(("a", 40, np.stack((start, accepted, np.full(40, 6)), axis=1)))
    rates = Hazard(one_drafter(*requests)).fit(0).depths.hazards(0.0)
    assert rates == pytest.approx([0.9] * 6, abs=0.01)


def test_texts_shorter_than_a_draft_are_used_all_the_same():
    trace = one_drafter(*[("a", 4, [(0, 1, 8), (2, 1, 8)])] * 600)
    assert Hazard(trace).fit(0).depths.hazards(0.0) == [1.0, 0.0]


def test_a_request_without_rounds_is_like_others_of_its_tag():
    rng = np.random.default_rng(6)

    def rows(rate):
        return one_after_another((rng.random((100, 5)) < rate).cumprod(axis=1).sum(axis=1), 5)

    known = [("poor", LONG, rows(0.3)) for _ in range(20)] + [("good", LONG, rows(0.9)) for _ in range(20)]
    hazard = Hazard(one_drafter(*known, ("poor", LONG, []), ("good", LONG, []), ("rare", LONG, [])))
    poor, good, rare = (np.mean(drawn_rounds(hazard, f"q{index}", 4000, 5)) for index in (40, 41, 42))
    assert poor == pytest.approx(0.43, abs=0.1)
    assert good == pytest.approx(3.69, abs=0.3)
    assert rare == pytest.approx(poor, abs=0.2) or rare == pytest.approx(good, abs=0.4)
    # Fewer than 8 of its tag have rounds: all stand in, by their tokens.
    few = Hazard(one_drafter(("a", 9, [(0, 0, 4)]), ("b", 9, [(0, 2, 4)]), ("a", 9, []))).fit(0).stand_ins
    assert [few.of(2, draw) for draw in (0.0, 0.24, 0.26, 0.99)] == [0, 0, 1, 1]


def questions(rng, count, known=0):
    return [
        (f"q{rng.randrange(6)}", {"start": rng.randrange(600), "depth": known + rng.randrange(9), "known": known})
        for _ in range(count)
    ]


@pytest.mark.parametrize("by_start", [True, False])
@pytest.mark.parametrize("known", [0, 2])
def test_draws_do_not_depend_on_the_order_of_questions(by_start, known):
    trace = bernoulli_trace(by_start=by_start)
    asked = questions(Random(0), 2000, known)
    one, other = Hazard(trace, seed=4), Hazard(trace, seed=4)
    forwards = [one.agrees(request_id, 0, **where) for request_id, where in asked]
    backwards = [other.agrees(request_id, 0, **where) for request_id, where in reversed(asked)]
    assert forwards == backwards[::-1]
    assert {True, False} == set(forwards)


@pytest.mark.parametrize("by_start", [True, False])
def test_another_seed_is_other_luck_from_the_same_estimate(by_start):
    trace = bernoulli_trace(by_start=by_start)
    first, second = Hazard(trace, seed=0), Hazard(trace, seed=1)
    shared = first.reseeded(1)
    asked = questions(Random(1), 500)
    answers = [
        [hazard.agrees(request_id, 0, **where) for request_id, where in asked] for hazard in (first, second, shared)
    ]
    assert answers[0] != answers[1] == answers[2]
    assert shared.fit(0) is first.fit(0)


def test_chances_beside_other_rounds_are_worked_out_once_for_all_seeds(monkeypatch):
    filtered, asked = [], []

    class Counted:
        def __init__(self, positions):
            self._positions = positions

        def chance(self, depth, beside):
            asked.append((depth, beside))
            return self._positions.chance(depth, beside)

    def counting(*given):
        filtered.append(given)
        return Counted(filter_positions(*given))

    monkeypatch.setattr("paceline.sim.hazard.filter_positions", counting)
    first = Hazard(bernoulli_trace(by_start=True))
    others = [first.reseeded(seed) for seed in range(3)]
    for hazard in (first, *others, first.reseeded(0)):
        for start in range(20):
            hazard.agrees("q3", 0, start=start, depth=1, known=0, beside=Beside(BesideOutcome.refused, 2))
    offsets = {round(hazard._draws["q3", 0].beta / 0.1) for hazard in (first, *others)}
    assert len(filtered) == len(asked) == len(offsets)


def test_a_longer_window_agrees_as_far_as_a_shorter_one():
    hazard = Hazard(bernoulli_trace(by_start=True))
    for start in range(300):
        agreed = [hazard.agrees("q3", 0, start=start, depth=depth, known=0) for depth in range(12)]
        assert agreed == sorted(agreed, reverse=True)


def test_a_token_of_a_token_drafter_has_one_fate_in_every_round():
    trace = bernoulli_trace(by_start=False)
    hazard = Hazard(trace)
    rates = hazard.fit(0).depths.hazards(0.0)
    assert max(rates) - min(rates) < 0.1
    answers = [
        [hazard.agrees("q5", 0, start=p - depth, depth=depth, known=0) for depth in range(6)] for p in range(10, 500)
    ]
    assert np.mean([len(set(answer)) == 1 for answer in answers]) > 0.85
    assert np.mean(answers) == pytest.approx(0.7, abs=0.06)


def test_a_token_drafter_goes_on_as_well_as_it_did_in_another_round():
    rng = np.random.default_rng(5)
    accepted = np.where(rng.random(4000) < 0.5, 0, rng.geometric(0.1, 4000))
    hazard = Hazard(one_drafter(("a", LONG, one_after_another(accepted, 99)), by_start=False))
    rates = hazard.fit(0).depths.hazards(0.0)
    for depth, run in ((0, 3), (3, 0)):
        told = {"depth": depth, "known": 0, "beside": Beside(BesideOutcome.reached, run)}
        share = np.mean([hazard.agrees("q0", 0, start=start, **told) for start in range(2000)])
        assert share == pytest.approx(rates[3], abs=0.02) != pytest.approx(rates[0], abs=0.2)


def test_a_request_dropped_from_the_cache_draws_the_same_again(monkeypatch):
    monkeypatch.setattr("paceline.sim.hazard._MOST_CACHED", 2)
    trace = bernoulli_trace(by_start=True)
    asked = questions(Random(2), 300)
    crowded = Hazard(trace)
    alone = [crowded.reseeded(0).agrees(request_id, 0, **where) for request_id, where in asked]
    assert [crowded.agrees(request_id, 0, **where) for request_id, where in asked] == alone
    assert len(crowded._draws) <= 2


@pytest.mark.parametrize(
    "rows", [[], [(0, 0, 0)], [(0, 0, 0), (1, 0, 0)]], ids=["no round", "an empty draft", "empty drafts"]
)
def test_nothing_to_fit_is_said_in_one_line(rows):
    hazard = Hazard(one_drafter(("a", 20, rows)))
    with pytest.raises(ValueError, match=r"^recording must hold decisions of drafter d to draw others from, got none$"):
        hazard.agrees("q0", 0, start=0, depth=0, known=0)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("by_start", [True, False])
def test_one_round_is_enough(by_start, window):
    hazard = Hazard(one_drafter(("a", 20, [(0, 2, -1)]), by_start=by_start, window=window))
    assert hazard.fit(0).depths.hazards(0.0) == pytest.approx([2 / 3])
    assert isinstance(hazard.agrees("q0", 0, start=70_000, depth=5, known=0), bool)


def test_a_window_nobody_told_is_no_limit():
    rows = one_after_another(np.repeat([0, 1, 2, 3], 500), -1)
    told, untold = (
        Hazard(one_drafter(("a", LONG, rows), window=window)).fit(0).depths.hazards(0.0) for window in (3, None)
    )
    assert told == pytest.approx([150 / 200, 100 / 150, 50 / 100])
    assert untold == pytest.approx([150 / 200, 100 / 150, 50 / 100, 0.0])


@given(
    trace=rounds_traces(), seed=st.integers(0, 3), start=st.integers(0, 300), depth=st.integers(0, 80), data=st.data()
)
def test_any_recording_draws_or_says_why_not(trace, seed, start, depth, data):
    hazard = Hazard(trace, seed=seed)
    request = data.draw(st.sampled_from(trace.requests))
    drafter = data.draw(st.integers(0, len(trace.meta.drafters) - 1))
    known = data.draw(st.integers(0, depth))
    decisions = 0
    for one in trace.requests:
        rounds = one.rounds.get(trace.meta.drafters[drafter].name)
        decisions += 0 if rounds is None else int((rounds.accepted + (rounds.drafted != rounds.accepted)).sum())
    asked = {"start": start, "depth": depth, "known": known}
    try:
        answer = hazard.agrees(request.request_id, drafter, **asked)
    except ValueError:
        with pytest.raises(ValueError, match="must hold decisions of drafter"):
            hazard.fit(drafter)
        return
    assert decisions
    assert Hazard(trace, seed=seed).agrees(request.request_id, drafter, **asked) == answer
    assert 0.0 <= hazard.fit(drafter).difficulty.persistence < 1.0


RATES = st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6)


@pytest.mark.parametrize("rho", [0.8, *(pytest.param(rho, marks=pytest.mark.slow) for rho in (0.0, 0.5))])
def test_thresholds_are_found_where_rates_by_depth_hide_them(rho):
    trace = difficult_rounds(difficult_texts(rho, requests=150), 8)
    fit = Hazard(trace).fit(0)
    assert fit.persistence == pytest.approx(rho, abs=0.1)
    found = filter_positions(fit.depths.hazards(0.0), fit.decisions, fit.window, fit.persistence)
    np.testing.assert_allclose(_shares(found.falling), FALLING, atol=0.08)
    if rho == 0.8:  # the rates themselves are all but level
        assert max(fit.depths.hazards(0.0)[1:]) - min(fit.depths.hazards(0.0)[1:]) < 0.1


def _shares(thresholds):
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    return np.interp(thresholds, grid, np.cumsum(density))


@given(rates=RATES, rho=st.floats(0, 0.95), here=st.integers(0, 9), there=st.integers(0, 9), data=st.data())
def test_a_round_started_later_agrees_at_least_as_often(rates, rho, here, there, data):
    found = filter_positions(rates, np.full(len(rates), 1e4), data.draw(st.integers(1, 8)), rho)
    agreed, refused, reached = (found.chance(here, Beside(outcome, there)) for outcome in BesideOutcome)
    assert 0 <= min(agreed, refused, reached) <= max(agreed, refused, reached) <= 1 + 1e-9
    if here <= there:
        assert agreed == pytest.approx(1)
    if here >= there:
        assert refused == pytest.approx(0)
    assert found.chance(here + 1, Beside(BesideOutcome.reached, there)) <= reached + 1e-9


@given(rates=RATES, rho=st.floats(0, 0.95))
def test_rates_come_out_as_they_went_in(rates, rho):
    found = filter_positions(rates, np.full(len(rates), 1e12), len(rates), rho)
    if (np.diff(found.thresholds) < 0).all():
        for depth, rate in enumerate(rates):
            assert found.chance(depth, Beside(BesideOutcome.reached, depth)) == pytest.approx(rate, abs=1e-6)


def test_what_did_not_happen_where_rates_come_from_has_an_answer():
    found = filter_positions([1.0, 0.0], np.array([100.0, 100.0]), 2, 0.3)
    for outcome in BesideOutcome:
        for there in range(4):
            assert 0 <= found.chance(0, Beside(outcome, there)) <= 1


def test_levels_fall_by_what_cannot_be_chance():
    values = np.array([1.0, 0.99, 1.2, 0.2, 0.19])
    assert falling(values, np.full(5, 1e-8)).tolist() == pytest.approx([1.063333, 1.063333, 1.063333, 0.2, 0.19])
    assert falling(values, np.full(5, 0.01)).tolist() == pytest.approx([1.063333] * 3 + [0.195] * 2)
    assert falling(values, np.full(5, 10.0)).tolist() == pytest.approx([values.mean()] * 5)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(1e-6, 10)), min_size=1, max_size=8))
def test_levels_never_rise_and_keep_the_mean(pairs):
    values, variances = np.array(pairs).T
    level = falling(values, variances)
    assert (np.diff(level) <= 1e-9).all()
    assert (level / variances).sum() == pytest.approx((values / variances).sum(), rel=1e-6, abs=1e-6)


def request(*drafted, length=1000):
    start = np.arange(0, 10 * len(drafted), 10, dtype=np.int32)
    rounds = Rounds(start=start, accepted=np.zeros(len(drafted), np.int32), drafted=np.array(drafted, np.int32))
    return RoundsRequest(request_id="r", tag="", num_tokens={"": length}, rounds={"d": rounds})


def fit(*requests, window=5):
    return fit_lengths(requests, DrafterInfo(name="d", by_start=True, window=window))


@pytest.mark.parametrize("drafted", [(5, 5), (-1, -1), (-2, 5), ()])
def test_a_drafter_that_never_stopped_by_itself_has_no_lengths(drafted):
    assert fit(request(*drafted)) is None


def test_a_draft_that_the_text_may_have_cut_tells_nothing():
    assert fit(request(5, 5, 3, length=24)) is None
    assert fit(request(5, 5, 3, length=26)) is not None


def test_a_whole_draft_has_no_end():
    found = fit(request(5, 0, 5, 2))
    drawn = [found.draw(0, whose, which) for whose in (0.0, 0.99) for which in (0.0, 0.3, 0.6, 0.9)]
    assert drawn == [MOST, 0, MOST, 2] * 2


def test_a_request_with_many_rounds_is_its_own_model():
    many, few = [0] * 92, [5] * 8
    found = fit(request(*many), request(*few))
    draws = np.random.default_rng(0).random((4000, 2))
    own = np.mean([found.draw(0, *draw) == 0 for draw in draws])
    other = np.mean([found.draw(1, *draw) == 0 for draw in draws])
    assert own == pytest.approx(0.92 + 0.08 * 0.92, abs=0.02)
    assert other == pytest.approx(0.5 * 0.92, abs=0.02)
    assert fit(request(*many), request()).draw(1, 0.0, 0.5) == 0


def test_what_every_draft_had_needs_no_draw():
    assert fit(request(5, 3, 4)).fewest == 3
    assert fit(request(5, 0)).fewest == 0


def test_a_stated_draft_is_whole_whatever_the_window():
    found = stated_lengths(0.4, num_requests=2)
    assert [found.draw(1, 0.5, which) for which in (0.0, 0.39, 0.41, 0.99)] == [MOST, MOST, 0, 0]


def test_steps_of_a_walk_are_made_where_other_tokens_are_kept(monkeypatch):
    """Of 13 in each of 11 trials most would be of the same tokens."""
    made, steps_of = [], difficulty.steps_of
    monkeypatch.setattr(difficulty, "steps_of", lambda *asked: made.append(asked) or steps_of(*asked))
    found = difficulty.fit_difficulty(Neighbours(wanted=0.2, chained=True), 0.8 ** np.arange(6.0))
    assert 0 < found.persistence < 1
    assert len(made) <= 6 * 11
