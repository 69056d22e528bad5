"""Rejection sampling by exact enumeration: who may judge a token so that texts stay the target's, and the pieces."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.rejection_sampling import SeededChance, acceptance, judge, residual
from paceline.runtime.sampling import probabilities, truncated
from paceline.traces.meta import Sampling

from .enumerating import VOCABULARY, TableModel, outcomes, total_variation

NUM_TOKENS = 3
PLAIN = Sampling(mode="rejection", temperature=0.8, seed=0)
TRUNCATED = Sampling(mode="rejection", temperature=1.3, seed=0, top_k=3, top_p=0.9)


DRAFT, MID, TARGET = (TableModel(level + 1, PLAIN) for level in range(3))


@cache
def alone(target, num_tokens=NUM_TOKENS):
    """The target's own distribution over texts, by the product rule."""
    texts = {(): 1.0}
    for _ in range(num_tokens):
        texts = {
            (*text, token): prob * theirs
            for text, prob in texts.items()
            for token, theirs in enumerate(target.probs(text).tolist())
            if theirs > 0
        }
    return texts


def routed(through_middle, *, num_drafted=1, stop_below=0.0, lookup=False):
    """Total variation of two tokens of a chain draft / mid / target from the target's own.

    `through_middle(tokens, draft_probs)` says, in every round, whether mid judges the draft before the target does.
    A draft ends early after a token less probable than `stop_below`; of a `lookup` it is a function of the text.
    """

    def judged_by(model, text, tokens, probs, chance):
        theirs = [model.probs((*text, *tokens[:place])) for place in range(len(tokens) + 1)]
        kept, own = judge(tokens, probs, torch.stack(theirs), chance)
        return [*tokens[:kept], own], theirs[: kept + 1]

    def round_from(text, chance):
        tokens, probs = [], []
        for _ in range(num_drafted):
            context = (*text, *tokens)
            probs.append(None if lookup else DRAFT.probs(context))
            tokens.append((sum(context) + len(context) + 1) % VOCABULARY if lookup else chance.draw(probs[-1]))
            if not lookup and float(probs[-1][tokens[-1]]) < stop_below:
                break
        if through_middle(tokens, probs):
            tokens, probs = judged_by(MID, text, tokens, probs, chance)
        tokens, _ = judged_by(TARGET, text, tokens, probs, chance)
        return (*text, *tokens)[:2]

    found = {}
    for text, prob in outcomes(lambda chance: round_from((), chance)).items():
        rest = outcomes(lambda chance, text=text: round_from(text, chance)) if len(text) < 2 else {text: 1.0}
        for longer, theirs in rest.items():
            found[longer] = found.get(longer, 0.0) + prob * theirs
    return total_variation(found, alone(TARGET, 2))


def by_top_probability(tokens, probs):
    return float(probs[0].max()) > 0.6


def by_entropy(tokens, probs):
    return float(torch.special.entr(probs[0]).sum()) > 0.8


def always(tokens, probs):
    return True


def never(tokens, probs):
    return False


@pytest.mark.parametrize("route", [always, never, by_top_probability, by_entropy])
def test_a_route_chosen_by_what_stands_before_a_token_is_lossless(route):
    assert routed(route) < 1e-9
    rows = [DRAFT.probs(text) for text in ((), (0,), (1,), (2,), (3,))]
    assert route in (always, never) or len({route([], [probs]) for probs in rows}) == 2, "it depends on the text"


@pytest.mark.parametrize("route", [always, never])
def test_a_draft_of_several_tokens_that_may_stop_early_is_lossless(route):
    assert routed(route, num_drafted=2, stop_below=0.3) < 1e-9
    assert routed(route, num_drafted=2, lookup=True) < 1e-9


@pytest.mark.parametrize(
    ("route", "num_drafted"),
    [
        (lambda tokens, probs: tokens[0] == 0, 1),
        (lambda tokens, probs: float(probs[0][tokens[0]]) < 0.3, 1),
        (lambda tokens, probs: tokens[1] < 2, 2),
    ],
    ids=["by its value", "by its probability", "by a later token"],
)
def test_a_route_chosen_by_looking_at_the_token_is_biased(route, num_drafted):
    assert routed(route, num_drafted=num_drafted) > 1e-3


@st.composite
def distributions(draw, vocabulary=VOCABULARY):
    weights = draw(st.lists(st.integers(0, 20), min_size=vocabulary, max_size=vocabulary).filter(any))
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


@given(distributions(), distributions())
def test_one_token_follows_the_verifier(draft_probs, target_probs):
    """Leviathan et al., A.1: min(draft, target) + (1 - its sum) x residual = target."""

    def run(chance):
        token = chance.draw(draft_probs)
        kept, own = judge([token], [draft_probs], torch.stack([target_probs, target_probs]), chance)
        return token if kept else own

    found = outcomes(run)
    assert all(abs(found.get(token, 0.0) - prob) < 1e-12 for token, prob in enumerate(target_probs.tolist()))


@given(distributions(), distributions())
def test_the_chance_to_stay_is_one_less_the_total_variation(draft_probs, target_probs):
    kept = sum(
        prob * acceptance(theirs, prob)
        for prob, theirs in zip(draft_probs.tolist(), target_probs.tolist(), strict=True)
        if prob > 0
    )
    assert abs(kept - (1 - float((draft_probs - target_probs).abs().sum()) / 2)) < 1e-12


@given(distributions(), st.integers(0, VOCABULARY - 1))
def test_a_point_mass_leaves_the_rest_of_the_target(target_probs, token):
    left = residual(target_probs, None, token)
    assert abs(float(left.sum()) - 1) < 1e-12
    if target_probs[token] < 1:
        assert left[token] == 0
        assert torch.allclose(left * (1 - target_probs[token]), target_probs.where(left > 0, 0.0), atol=1e-12)


def test_an_empty_residual_is_the_target():
    probs = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert residual(probs, probs, 0).tolist() == probs.tolist()
    sure = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert residual(sure, None, 1).tolist() == sure.tolist()
    target_probs, draft_probs = torch.tensor([0.25, 0.75]).double(), torch.tensor([0.5, 0.5]).double()
    assert residual(target_probs, draft_probs, 0).tolist() == [0.0, 1.0]
    assert residual(target_probs, None, 0).tolist() == [0.0, 1.0]
    assert target_probs.tolist() == [0.25, 0.75], "left alone"


def test_nothing_drafted_is_plain_sampling():
    probs = torch.tensor([[0.1, 0.0, 0.2, 0.7]], dtype=torch.float64)
    assert outcomes(lambda chance: judge([], [], probs, chance)) == {(0, 0): 0.1, (0, 2): 0.2, (0, 3): 0.7}


def test_equal_distributions_refuse_nothing():
    probs = probabilities(truncated(torch.randn(6, 40, generator=torch.Generator().manual_seed(3)), PLAIN))
    chance = SeededChance(seed=1, request_id="a")
    for _ in range(200):
        tokens = [chance.draw(row) for row in probs[:-1]]
        assert judge(tokens, list(probs[:-1]), probs, chance)[0] == 5


def test_what_cannot_be_judged_is_refused():
    for draft_prob in (0.0, float("nan")):
        with pytest.raises(ValueError, match="draft_prob must be > 0 for a token that was drafted"):
            acceptance(0.5, draft_prob)
    told = r"K tokens must come with K draft_probs and K \+ 1 target_probs, got 2, 1 and 2"
    with pytest.raises(ValueError, match=told):
        judge([0, 1], [None], torch.full((2, 4), 0.25, dtype=torch.float64), SeededChance(seed=0, request_id="a"))


def test_probabilities_are_float64_and_truncated():
    probs = probabilities(truncated(torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.bfloat16), TRUNCATED))
    assert probs.dtype == torch.float64
    assert probs[0, 0] == 0
    assert abs(float(probs.sum()) - 1) < 1e-15
