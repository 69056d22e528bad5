"""Rejection sampling by exact enumeration: chains over four tokens write what the target alone would write."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.sampling import SeededChance, acceptance, judge, probabilities, residual, truncated
from paceline.traces.meta import Sampling

from ...pairs import pairs
from .enumerating_chance import outcomes, total_variation
from .nested_decoder import VOCABULARY, Lookup, NestedDecoder, TableModel

NUM_TOKENS = 3
PLAIN = Sampling(mode="rejection", temperature=0.8, seed=0)
TRUNCATED = Sampling(mode="rejection", temperature=1.3, seed=0, top_k=3, top_p=0.9)


def chain(num_levels, sampling, *, lookup=False):
    drafter = (Lookup(),) if lookup else (TableModel(1, sampling),)
    return (*drafter, *(TableModel(level + 1, sampling) for level in range(1, num_levels)))


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


def distance(models, windows, **named):
    """Total variation of the chain's texts from the target's own."""
    return total_variation(NestedDecoder(models, windows, **named).texts(NUM_TOKENS), alone(models[-1]))


WINDOWS = (
    (1,), (2,), (3,), (1, 1), (1, 2), (2, 2), (3, 2), (1, 3), (3, 3), (1, 1, 1), (1, 2, 2), (2, 1, 3), (3, 3, 3),
)  # fmt: skip


@pytest.mark.parametrize(("windows", "lookup", "sampling"), pairs(WINDOWS, (False, True), (PLAIN, TRUNCATED)), ids=str)
def test_a_chain_writes_what_its_target_would(sampling, lookup, windows):
    verdicts = set()
    judges = {level: noted(verdicts, level) for level in range(1, len(windows) + 1)}
    assert distance(chain(len(windows) + 1, sampling, lookup=lookup), windows, judges=judges) < 1e-9
    assert verdicts == {(level, refused) for level in judges for refused in (False, True)}


def noted(verdicts, level):
    """`judge`, with a note of whether the level refused something or kept all of something."""

    def judged(tokens, draft_probs, target_probs, chance):
        kept, own = judge(tokens, draft_probs, target_probs, chance)
        if tokens:
            verdicts.add((level, kept < len(tokens)))
        return kept, own

    return judged


def own_instead_of_residual(tokens, draft_probs, target_probs, chance):
    """The known defect: a refused token is replaced by a draw from the verifier's own distribution."""
    for index, (token, probs) in enumerate(zip(tokens, draft_probs, strict=True)):
        draft_prob = 1.0 if probs is None else float(probs[token])
        if not chance.accepts(acceptance(float(target_probs[index, token]), draft_prob)):
            return index, chance.draw(target_probs[index])
    return len(tokens), chance.draw(target_probs[-1])


@pytest.mark.parametrize("lookup", [False, True], ids=["drafter", "lookup"])
@pytest.mark.parametrize(("windows", "level"), [((1, 2), 1), ((2, 2), 1), ((1, 1, 2), 1), ((1, 2, 2), 2)])
def test_a_middle_level_that_corrects_from_its_own_distribution_is_found(windows, level, lookup):
    models = chain(len(windows) + 1, PLAIN, lookup=lookup)
    assert distance(models, windows, judges={level: own_instead_of_residual}) > 1e-3


def test_a_target_that_takes_judged_tokens_for_the_drafters_is_found():
    assert distance(chain(3, PLAIN), (1, 2), forgetful=True) > 1e-3


# -- who judges a token


def routed(through_middle, *, num_drafted=1, stop_below=0.0):
    """Total variation of two tokens of a chain draft / mid / target from the target's own.

    `through_middle(tokens, draft_probs)` says, in every round, whether mid judges the draft before the target does.
    A draft ends early after a token less probable than `stop_below`.
    """
    draft, mid, target = chain(3, PLAIN)

    def judged_by(model, text, tokens, probs, chance):
        theirs = [model.probs((*text, *tokens[:place])) for place in range(len(tokens) + 1)]
        kept, own = judge(tokens, probs, torch.stack(theirs), chance)
        return [*tokens[:kept], own], theirs[: kept + 1]

    def round_from(text, chance):
        tokens, probs = [], []
        for _ in range(num_drafted):
            probs.append(draft.probs((*text, *tokens)))
            tokens.append(chance.draw(probs[-1]))
            if float(probs[-1][tokens[-1]]) < stop_below:
                break
        if through_middle(tokens, probs):
            tokens, probs = judged_by(mid, text, tokens, probs, chance)
        tokens, _ = judged_by(target, text, tokens, probs, chance)
        return (*text, *tokens)[:2]

    found = {}
    for text, prob in outcomes(lambda chance: round_from((), chance)).items():
        rest = outcomes(lambda chance, text=text: round_from(text, chance)) if len(text) < 2 else {text: 1.0}
        for longer, theirs in rest.items():
            found[longer] = found.get(longer, 0.0) + prob * theirs
    return total_variation(found, alone(target, 2))


@pytest.mark.parametrize(
    "route",
    [
        lambda tokens, probs: True,
        lambda tokens, probs: False,
        lambda tokens, probs: float(probs[0].max()) > 0.6,
        lambda tokens, probs: float(torch.special.entr(probs[0]).sum()) > 0.8,
    ],
    ids=["always", "never", "by the top probability", "by the entropy"],
)
def test_a_route_chosen_by_what_stands_before_a_token_is_lossless(route):
    assert routed(route) < 1e-9


@pytest.mark.parametrize("through_middle", [False, True])
def test_a_draft_that_stops_after_an_improbable_token_is_lossless(through_middle):
    assert routed(lambda tokens, probs: through_middle, num_drafted=2, stop_below=0.3) < 1e-9


def test_those_routes_do_depend_on_the_text():
    draft = chain(3, PLAIN)[0]
    rows = [draft.probs(text) for text in ((), (0,), (1,), (2,), (3,))]
    assert len({float(probs.max()) > 0.6 for probs in rows}) == 2
    assert len({float(torch.special.entr(probs).sum()) > 0.8 for probs in rows}) == 2


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


# -- the pieces


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


def test_a_residual_leaves_its_arguments_alone():
    target_probs, draft_probs = torch.tensor([0.25, 0.75]).double(), torch.tensor([0.5, 0.5]).double()
    assert residual(target_probs, draft_probs, 0).tolist() == [0.0, 1.0]
    assert residual(target_probs, None, 0).tolist() == [0.0, 1.0]
    assert target_probs.tolist() == [0.25, 0.75]


def test_nothing_drafted_is_plain_sampling():
    probs = torch.tensor([[0.1, 0.0, 0.2, 0.7]], dtype=torch.float64)
    assert outcomes(lambda chance: judge([], [], probs, chance)) == {(0, 0): 0.1, (0, 2): 0.2, (0, 3): 0.7}


def test_equal_distributions_refuse_nothing():
    probs = probabilities(truncated(torch.randn(6, 40, generator=torch.Generator().manual_seed(3)), PLAIN))
    chance = SeededChance(seed=1, request_id="a")
    for _ in range(200):
        tokens = [chance.draw(row) for row in probs[:-1]]
        assert judge(tokens, list(probs[:-1]), probs, chance)[0] == 5


@pytest.mark.parametrize("draft_prob", [0.0, float("nan")])
def test_a_token_that_cannot_have_been_drawn_is_refused(draft_prob):
    with pytest.raises(ValueError, match="draft_prob must be > 0 for a token that was drafted"):
        acceptance(0.5, draft_prob)


def test_lengths_must_fit():
    probs = torch.full((2, 4), 0.25, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"K tokens must come with K draft_probs and K \+ 1 target_probs, got 2, 1 and 2"
    ):
        judge([0, 1], [None], probs, SeededChance(seed=0, request_id="a"))


def test_probabilities_are_float64_and_truncated():
    probs = probabilities(truncated(torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.bfloat16), TRUNCATED))
    assert probs.dtype == torch.float64
    assert probs[0, 0] == 0
    assert abs(float(probs.sum()) - 1) < 1e-15
