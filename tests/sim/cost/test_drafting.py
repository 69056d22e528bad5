"""Drafters that cost by the round: files, what-ifs, and the charges that follow."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostRangeError, DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.cost.make import make_cost
from paceline.sim.cost.what_if import Price, PricedAsCost

from .shapes import RECORDING, seconds

TARGET = {"intercept_s": 1.0}
TERMS = st.floats(1e-6, 1e3)


def cost_of(tmp_path, draft, **options):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": draft, "target": TARGET}))
    return make_cost(str(file), RECORDING, **options)


@pytest.mark.parametrize(
    ("draft", "terms"),
    [
        ({"per_round_s": 0.5}, (0.5, 0.0, None)),
        ({"per_token_s": 0.25}, (0.0, 0.25, None)),
        ({"per_round_s": 0.5, "per_token_s": 0.25}, (0.5, 0.25, None)),
        ({"per_round_s": 0.5, "intercept_s": 0.125}, (0.5, None, None)),
        ({"per_round_s": 0.5, "new_tokens": [1, 2], "seconds": [1, 2]}, (0.5, None, None)),
        ({"per_round_s": 0.5, "new_tokens": [1], "context_tokens": [0], "seconds": [[1]]}, (0.5, None, None)),
        ({"intercept_s": 0.125}, None),
    ],
)
def test_every_form_takes_seconds_by_the_round(tmp_path, draft, terms):
    cost = cost_of(tmp_path, draft)
    assert cost.draft_terms("draft") == terms
    assert cost.draft_terms("target") is None


def test_what_stands_beside_per_round_is_the_cost_of_forwards(tmp_path):
    cost = cost_of(tmp_path, {"per_round_s": 0.5, "new_tokens": [1, 3], "seconds": [1, 3]}, extrapolate=True)
    assert seconds(cost, 2, model="draft") == 2.0
    assert seconds(cost, 4, model="draft") == 4.0
    assert "seconds beyond what was measured: draft" in cost.notes()


def test_terms_of_drafting_do_not_say_what_judging_takes(tmp_path):
    cost = cost_of(tmp_path, {"per_round_s": 0.5, "per_token_s": 0.25})
    with pytest.raises(CostRangeError, match=r"draft has per_round_s and per_token_s only.*asked to judge"):
        seconds(cost, 2, model="draft")
    assert cost.notes() == ("drafts cost by the round, whatever they read and for how many rows: draft",)


@given(per_round=TERMS, per_token=TERMS, tokens=st.integers(1, 64), factor=st.floats(1e-3, 1e3))
def test_scaled_terms_scale_the_draft(per_round, per_token, tokens, factor):
    figures = {"draft": DrafterFigures(terms=DraftTerms(per_round, per_token), forwards=None)}
    plain = FileCost("f", figures | {"target": CostLine(intercept_s=1.0)})
    as_other = PricedAsCost("as", {"d": Price(cost=plain, model="draft")})
    assert as_other.draft_terms("d") == plain.draft_terms("draft")
    terms = DraftTerms(per_round * factor, per_token * factor)
    assert terms.seconds(tokens) == pytest.approx(factor * (per_round + per_token * tokens))


def test_scale_goes_with_the_terms(tmp_path):
    draft = {"per_round_s": 0.5, "per_token_s": 0.25}
    cost = cost_of(tmp_path, draft, scale={"draft": 4.0})
    assert cost.draft_terms("draft") == (2.0, 1.0, None)
    assert cost_of(tmp_path, {"per_round_s": 0.5, **TARGET}, scale={"draft": 4.0}).draft_terms("draft") == (
        2.0,
        None,
        None,
    )
    assert cost_of(tmp_path, draft, scale={"target": 4.0}).draft_terms("draft") == (0.5, 0.25, None)


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        ({"per_round_s": 0}, "draft: per_round_s or per_token_s must be at least 1e-12"),
        ({"per_round_s": -1}, "draft.per_round_s: .*got -1"),
        ({"per_round_s": "1", "intercept_s": 1}, "draft.per_round_s: .*got '1'"),
        ({"per_round_s": 1, "intercept_s": -1}, "draft.intercept_s: .*got -1"),
        ({"per_round_s": 1, "per_token_s": 1, "intercept_s": 1}, "draft.intercept_s: extra inputs"),
        ({"per_round_s": 1, "per_round": 1}, "draft: must be an object with .*per_round_s.*got 'keys per_round'"),
        ({"per_round_s": True}, "draft.per_round_s: .*got True"),
    ],
)
def test_terms_that_are_wrong_are_told_in_one_line(tmp_path, draft, told):
    with pytest.raises(ValueError, match=told) as caught:
        cost_of(tmp_path, draft)
    assert "\n" not in str(caught.value)


def test_the_target_drafts_nothing(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": TARGET, "target": {"per_round_s": 1, "intercept_s": 1}}))
    with pytest.raises(ValueError, match=r"target: must be without per_round_s and per_token_s.*got 'keys per_round_s"):
        make_cost(str(file), RECORDING)
