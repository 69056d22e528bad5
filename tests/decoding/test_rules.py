"""Rules and stops are arithmetic: the same verdict for floats, numpy arrays and torch tensors."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import Deferral, Ensemble, Equilibrium, Fuzzy, Ruling, ruling, token_factor, unknown_facts
from paceline.policies import (
    Band,
    ConfidenceBelow,
    Divergence,
    EntropyAbove,
    Exact,
    Facts,
    GapBelow,
    ProductBelow,
    Ratio,
    RefusalAbove,
    Signal,
    Typical,
    Vouched,
)

PROBS = st.floats(0.0, 1.0)
SHARES = st.floats(0.01, 1.0)
FACTS = st.builds(
    Facts,
    same=st.booleans(),
    draft_prob=PROBS,
    target_prob=PROBS,
    top_prob=PROBS,
    entropy=st.floats(0.0, 10.0),
    tvd=PROBS,
    judge=st.integers(0, 4),
    draft_top_prob=PROBS,
    own_draft_prob=PROBS,
    own_prob=PROBS,
)


@st.composite
def bands(draw):
    accept = draw(SHARES)
    return Band(accept, draw(st.floats(0.0, accept, exclude_max=True)))


WEIGHTS = st.floats(0.01, 5.0)
KINDS = (
    st.just(Exact()),
    st.builds(Ratio, SHARES),
    st.builds(Typical, SHARES, SHARES),
    st.builds(Divergence, PROBS),
    st.builds(Fuzzy, PROBS),
    bands(),
    st.builds(Vouched, st.integers(1, 4)),
    *(st.builds(Deferral, st.just(kind), PROBS) for kind in ("chow", "diff", "opt", "token")),
    st.builds(Equilibrium, generator=WEIGHTS, discriminator=WEIGHTS, eta=WEIGHTS, rounds=st.integers(1, 9)),
    st.builds(Ensemble, st.floats(0.01, 0.99)),
)
RULES = st.one_of(*KINDS)


def accepted_by_definition(rule, facts):
    """Each rule once more, in the words of its paper."""
    match rule:
        case Exact():
            return facts.same
        case Ratio(theta=share):
            return facts.target_prob >= share * facts.top_prob
        case Typical():
            return facts.target_prob > min(rule.eps, rule.delta * math.exp(-facts.entropy))
        case Divergence():
            return facts.tvd <= rule.tau
        case Fuzzy():
            return facts.same or facts.tvd <= rule.tau
        case Band():
            return facts.target_prob >= rule.accept * facts.top_prob
        case Vouched():
            return facts.same or facts.judge >= rule.level
        case Deferral(kind="chow"):
            return facts.same or not facts.draft_top_prob < 1 - rule.eps
        case Deferral(kind="diff"):
            return facts.same or not facts.draft_top_prob < facts.top_prob - rule.eps
        case Deferral(kind="opt"):
            return facts.same or not facts.draft_top_prob < facts.top_prob - rule.eps * facts.tvd
        case Deferral(kind="token"):
            return facts.same or not facts.target_prob < facts.top_prob * (1 - rule.eps)
        case Equilibrium():
            return facts.same or game(rule, facts)[1][0] >= 0.5
        case Ensemble(weight=weight):
            of_token = weight * facts.target_prob + (1 - weight) * facts.draft_prob
            return facts.same or of_token >= weight * facts.own_prob + (1 - weight) * facts.own_draft_prob
    raise AssertionError(rule)


def game(rule, facts):
    """The Consensus Game as its paper has it: policies over candidates and verdicts, piKL update by update."""
    tiny = 2.0**-100
    a = (facts.draft_prob + tiny) / (facts.draft_prob + facts.own_draft_prob + 2 * tiny)
    b = (facts.target_prob + tiny) / (facts.target_prob + facts.own_prob + 2 * tiny)
    # [verdict][candidate] for the generator, [candidate][verdict] for the discriminator; verdict 0 is "correct".
    generators, discriminators = [np.array([[a, 1 - a], [1 - a, a]])], [np.array([[b, 1 - b], [1 - b, b]])]
    with np.errstate(divide="ignore"):
        prior, belief = np.log(generators[0]), np.log(discriminators[0])
    for number in range(1, rule.rounds + 1):
        gains = np.mean(discriminators, axis=0).T / 2, np.mean(generators, axis=0).T / 2
        slack = 1 / (rule.eta * number)
        generator = np.exp((gains[0] + rule.generator * prior) / (slack + rule.generator))
        discriminator = np.exp((gains[1] + rule.discriminator * belief) / (slack + rule.discriminator))
        generators.append(generator / generator.sum(axis=1, keepdims=True))
        discriminators.append(discriminator / discriminator.sum(axis=1, keepdims=True))
    return generators[-1][0], discriminators[-1][:, 0]


@given(st.builds(Equilibrium, generator=WEIGHTS, discriminator=WEIGHTS, eta=WEIGHTS, rounds=st.integers(1, 9)), FACTS)
def test_the_equilibrium_is_that_of_the_whole_game(rule, facts):
    names = ("draft_prob", "own_draft_prob", "target_prob", "own_prob")
    likely = facts._replace(**{name: 0.01 + 0.99 * getattr(facts, name) for name in names})
    drafter, verifier = rule.consensus(likely)
    generator, discriminator = game(rule, likely)
    assert drafter == pytest.approx(generator[0], abs=1e-9)
    assert verifier == pytest.approx(discriminator[0], abs=1e-9)
    assert generator.sum() == pytest.approx(1.0)
    assert discriminator.sum() == pytest.approx(1.0)  # so one number says it all


@given(st.tuples(*KINDS), st.lists(FACTS, min_size=4, max_size=8))
def test_rules_accept_by_their_definition(rules, rows):
    for rule, facts in product(rules, rows):
        assert rule.accepts(facts) == accepted_by_definition(rule, facts)


@given(RULES, st.lists(FACTS, min_size=1, max_size=5))
def test_rules_work_elementwise_on_arrays_and_tensors(rule, rows):
    one_by_one = [bool(rule.accepts(facts)) for facts in rows]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    assert np.asarray(rule.accepts(Facts(*columns))).tolist() == one_by_one
    tensors = [torch.from_numpy(column) for column in columns]
    assert rule.accepts(Facts(*tensors)).tolist() == one_by_one


@given(bands(), st.lists(FACTS, min_size=1, max_size=5))
def test_a_band_escalates_elementwise_and_never_what_it_keeps(band, rows):
    for facts in rows:
        ratio = facts.target_prob - band.escalate * facts.top_prob
        expected = Ruling.keep if band.accepts(facts) else Ruling.escalate if ratio < 0 else Ruling.refuse
        assert ruling(band, facts) is expected
    one_by_one = [bool(band.escalates(facts)) for facts in rows]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    assert band.escalates(Facts(*columns)).tolist() == one_by_one
    assert band.escalates(Facts(*map(torch.from_numpy, columns))).tolist() == one_by_one


@given(RULES)
def test_what_is_known_of_a_token_outside_the_record(rule):
    for judge in range(5):
        kept = isinstance(rule, Vouched) and judge >= rule.level
        assert ruling(rule, unknown_facts(judge)) is (Ruling.keep if kept else Ruling.refuse)


@given(RULES)
def test_only_exact_is_lossless(rule):
    assert rule.lossless == isinstance(rule, Exact)


LAWS = st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4).map(lambda row: np.array(row) / sum(row))


@given(st.floats(0.01, 0.99), LAWS, LAWS)
def test_an_ensemble_refuses_weight_times_the_distance(weight, target, draft):
    """A drafted token stays with min(1, mixture / draft): in the mean 1 - weight x TVD."""
    stays = np.minimum(1, Ensemble(weight).law(target, draft) / draft)
    assert (draft * stays).sum() == pytest.approx(1 - weight * abs(target - draft).sum() / 2)


@given(st.floats(0.01, 0.99), LAWS, LAWS)
def test_an_ensemble_keeps_what_the_mixture_of_all_tokens_keeps(weight, target, draft):
    """Greedy: it refuses only where the mixture's best token is another one, and keeps no less than `Exact`."""
    token, own, best = (int(law.argmax()) for law in (draft, target, Ensemble(weight).law(target, draft)))
    probs = {"target_prob": target[token], "draft_prob": draft[token], "own_prob": target[own]}
    facts = unknown_facts(0)._replace(same=token == own, own_draft_prob=draft[own], **probs)
    kept = Ensemble(weight).accepts(facts)
    assert kept or best != token
    assert kept or token != own
    if best in (token, own) and token != own:
        assert kept == (best == token)


def test_an_unknown_distance_is_refused():
    facts = unknown_facts(0)._replace(same=True, target_prob=0.5, top_prob=0.5, entropy=1.0)
    assert not Divergence(1.0).accepts(facts)
    assert Fuzzy(0.0).accepts(facts), "but what the verifier writes itself stays under a fuzzy rule"


LEAST = {"chance": 0.0, "bias": 0.0, "prob": 0.0, "root_entropy": 0.0, "gap": 0.0, "place": 0.0}


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: Ratio(0.0), r"theta must be in \(0, 1\], got 0.0"),
        (lambda: Ratio(math.nan), r"theta must be in \(0, 1\], got nan"),
        (lambda: Typical(0.0, 0.5), r"eps must be in \(0, 1\], got 0.0"),
        (lambda: Typical(0.5, 2.0), r"delta must be in \(0, 1\], got 2.0"),
        (lambda: Divergence(1.1), r"tau must be in \[0, 1\], got 1.1"),
        (lambda: Fuzzy(-0.1), r"tau must be in \[0, 1\], got -0.1"),
        (lambda: Band(0.0, 0.0), r"accept must be in \(0, 1\], got 0.0"),
        (lambda: Band(0.3, 0.3), r"escalate must be in \[0, accept=0.3\), got 0.3"),
        (lambda: Band(0.6, -0.1), r"escalate must be in \[0, accept=0.6\), got -0.1"),
        (lambda: Vouched(0), r"level must be >= 1, got 0"),
        (lambda: Deferral("best", 0.2), r"kind must be one of chow, diff, opt, token, got 'best'"),
        (lambda: Deferral("opt", 1.5), r"eps must be in \[0, 1\], got 1.5"),
        (lambda: Ensemble(0.0), r"weight must be in \(0, 1\), got 0.0"),
        (lambda: Ensemble(1.0), r"weight must be in \(0, 1\), got 1.0"),
        (lambda: Equilibrium(generator=0.0), r"generator must be in \[0.01, 100\], got 0.0"),
        (lambda: Equilibrium(discriminator=math.nan), r"discriminator must be in \[0.01, 100\], got nan"),
        (lambda: Equilibrium(eta=0.0), r"eta must be > 0 and finite, got 0.0"),
        (lambda: Equilibrium(rounds=0), r"rounds must be in \[1, 100\], got 0"),
        (lambda: ConfidenceBelow(-0.1), r"prob must be in \[0, 1\], got -0.1"),
        (lambda: EntropyAbove(-1.0), r"nats must be in \[0, inf\], got -1.0"),
        (lambda: GapBelow(2.0), r"gap must be in \[0, 1\], got 2.0"),
        (lambda: ProductBelow(7.0), r"prob must be in \[0, 1\], got 7.0"),
        (lambda: RefusalAbove(**{**LEAST, "chance": 1.5}), r"chance must be in \[0, 1\], got 1.5"),
        (lambda: RefusalAbove(**{**LEAST, "bias": math.nan}), r"bias must be in \[-50, 50\], got nan"),
    ],
)
def test_thresholds_out_of_range_are_refused(build, rule):
    with pytest.raises(ValueError, match=rule):
        build()


SIGNALS = st.builds(Signal, prob=PROBS, entropy=st.floats(0.0, 10.0), gap=PROBS)
LOGITS = st.floats(-50.0, 50.0)
REFUSALS = st.builds(
    RefusalAbove, chance=PROBS, bias=LOGITS, prob=LOGITS, root_entropy=LOGITS, gap=LOGITS, place=LOGITS
)
STOPS = st.one_of(
    REFUSALS,
    st.builds(ConfidenceBelow, PROBS),
    st.builds(EntropyAbove, st.floats(0.0, 10.0)),
    st.builds(GapBelow, PROBS),
    st.builds(ProductBelow, PROBS),
)


def stopped_by_definition(stop, signal, product):
    match stop:
        case ConfidenceBelow():
            return signal.prob < stop.prob
        case EntropyAbove():
            return signal.entropy > stop.nats
        case GapBelow():
            return signal.gap < stop.gap
        case ProductBelow():
            return product < stop.prob
        case RefusalAbove():
            return 1.0 - product > stop.chance
    raise AssertionError(stop)


@given(STOPS, SIGNALS, PROBS)
def test_stops_hold_by_their_definition(stop, signal, product):
    assert stop.holds(signal, product) == stopped_by_definition(stop, signal, product)


@given(STOPS, st.lists(st.tuples(SIGNALS, PROBS), min_size=1, max_size=5))
def test_stops_work_elementwise_on_tensors(stop, rows):
    one_by_one = [bool(stop.holds(signal, product)) for signal, product in rows]
    numbers = torch.tensor([[*signal, product] for signal, product in rows], dtype=torch.float64).T
    assert stop.holds(Signal(*numbers[:3]), numbers[3]).tolist() == one_by_one


@given(REFUSALS, st.lists(SIGNALS, min_size=1, max_size=6))
def test_a_refusal_is_the_chance_that_not_all_are_kept(stop, signals):
    factors = [token_factor(stop)(signal, index) for index, signal in enumerate(signals)]
    for index, (signal, factor) in enumerate(zip(signals, factors, strict=True)):
        sums = (stop.prob * signal.prob, stop.root_entropy * math.sqrt(signal.entropy), stop.gap * signal.gap)
        odds = math.exp(stop.bias + sum(sums) + stop.place / (1 + index))
        assert factor == pytest.approx(odds / (1.0 + odds), abs=1e-12)
    numbers = torch.tensor([list(signal) for signal in signals], dtype=torch.float64).T
    places = torch.arange(len(signals), dtype=torch.float64)
    assert token_factor(stop)(Signal(*numbers), places).tolist() == pytest.approx(factors, abs=1e-12)


@pytest.mark.parametrize("stop", [ProductBelow(0.5), ConfidenceBelow(0.5), None])
def test_rules_without_a_factor_multiply_probabilities(stop):
    assert token_factor(stop)(Signal(0.25, 1.0, 0.1), 7) == 0.25


@pytest.mark.parametrize("stop", [ConfidenceBelow(1.0), EntropyAbove(0.0), GapBelow(1.0)])
def test_a_drafter_without_a_distribution_never_stops(stop):
    nothing = Signal(math.nan, math.nan, math.nan)
    assert not stop.holds(nothing, math.nan)
