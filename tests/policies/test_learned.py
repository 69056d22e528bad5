"""SpecDec++ and its head: fitted chances, a head survives its file or is refused, and drafts end where it says."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.pool import Member, Pool
from paceline.policies import Draft, check_policy
from paceline.policies.check import check_pool
from paceline.policies.learned import RIDGE, SpecDec, chances_of, fit_logistic, fit_of, moved, read_head

from .making import seen_of

HEAD = str(Path(__file__).parent / "learned" / "head.json")
SHARED = replace(read_head(HEAD), drafter=None, target=None, members=())


def spoiled(tmp_path, **changes):
    """The head's file with other values; None takes a key away."""
    table = json.loads(Path(HEAD).read_text(encoding="utf-8")) | changes
    file = tmp_path / "spoiled.json"
    file.write_text(json.dumps({key: value for key, value in table.items() if value is not None}), encoding="utf-8")
    return file


def test_a_head_survives_its_file(tmp_path):
    file = tmp_path / "again.json"
    for head in (read_head(HEAD), SHARED):
        file.write_text(head.to_json(), encoding="utf-8")
        assert read_head(str(file)) == head
    assert read_head(HEAD).to_json() == Path(HEAD).read_text(encoding="utf-8")
    for text, rule in (
        ("{", "must be JSON, got"),
        ("[]", "the file must be an object, got a list"),
        (
            replace(SHARED, target="target").to_json(),
            "target must be null where drafter is, and nowhere else, got 'tar",
        ),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rule):
            read_head(str(file))


WEIGHTS = {"prob": 1, "root_entropy": 1, "gap": 1, "place": 1, "agreement": 1}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": "other"}, "format must be paceline-acceptance-head, version 1, got 'other', version 1"),
        ({"version": 2}, "format must be paceline-acceptance-head, version 1, got .*, version 2"),
        ({"start": None}, "the file must have the keys format, version, drafter, .*, got no start"),
        ({"more": 1}, "the file must have the keys .* and no others, got 'more'"),
        ({"start": 1.5}, r"start must be in \[0, 1\], got 1.5"),
        ({"bias": "x"}, "bias must be a finite number, got 'x'"),
        ({"bias": 60}, r"bias must be in \[-50, 50\], got 60"),
        ({"bias": 49.8, "weights": WEIGHTS}, r"bias must be in \[-50, 50\], got 50.8"),
        ({"weights": {**WEIGHTS, "gap": 51}}, r"gap must be in \[-50, 50\], got 51.0"),
        ({"weights": {"gap": 1}}, "weights must have the keys prob, .*, got no prob"),
        ({"weights": [1]}, "weights must be an object, got a list"),
        ({"num_tokens": 0}, "num_tokens must be a whole number >= 1, got 0"),
        ({"num_tokens": True}, "num_tokens must be a whole number >= 1, got True"),
        ({"members": "draft"}, "members must be a list of texts, got a text"),
        ({"drafter": 3}, "drafter must be a text, got a number"),
        ({"held_out": {}}, "held_out must have the keys num_rows, .*, got no num_rows"),
    ],
)
def test_a_file_that_is_not_sound_is_refused(tmp_path, changes, rule):
    file = spoiled(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"head {file}: {rule}"):
        read_head(str(file))


def test_other_members_are_refused():
    pool = Pool((Member(name="small"), Member(name="target")))
    told = "fitted to draft before target in recording pico, got a pool of small, target"
    with pytest.raises(ValueError, match=told):
        read_head(HEAD).drafter_in(pool)
    assert read_head(HEAD).drafter_in(check_pool()) == "draft"


def test_a_head_of_several_pools_tells_of_the_smallest_model_of_any():
    head = SHARED
    pool = Pool((Member(name="copies", model_free=True), Member(name="small"), Member(name="large")))
    assert head.drafter_in(pool) == "small"
    with pytest.raises(ValueError, match="no model below its target"):
        head.drafter_in(Pool((Member(name="large"),)))


@given(st.floats(0.0, 1.0), st.integers(1, 20), st.data())
def test_agreement_moves_towards_the_round_and_stays_a_share(agreement, num_judged, data):
    accepted = data.draw(st.integers(0, num_judged))
    after, share = moved(agreement, accepted, num_judged), accepted / num_judged
    assert min(agreement, share) - 1e-12 <= after <= max(agreement, share) + 1e-12


@st.composite
def outcomes(draw):
    """Rows of two numbers, and what happened; both values happen."""
    count = draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    happened = rng.random(count) < 0.6
    happened[0], happened[-1] = True, False
    return np.round(rng.normal(size=(count, 2)), draw(st.integers(0, 3))), happened


@given(outcomes())
def test_no_step_from_the_fitted_weights_gains(given):
    rows, happened = given
    weights = fit_logistic(rows, happened)
    wrong = chances_of(rows, weights) - happened
    slope = np.concatenate([[wrong.sum()], rows.T @ wrong + RIDGE * weights[1:]])
    assert slope == pytest.approx(np.zeros(3), abs=1e-6)


@given(outcomes())
def test_chances_add_up_to_what_happened(given):
    rows, happened = given
    assert chances_of(rows, fit_logistic(rows, happened)).sum() == pytest.approx(happened.sum(), abs=1e-6)


def test_many_rows_give_the_weights_back():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40_000, 2))
    happened = rng.random(40_000) < chances_of(rows, np.array([0.5, -2.0, 1.0]))
    assert fit_logistic(rows, happened) == pytest.approx([0.5, -2.0, 1.0], abs=0.06)


@given(outcomes())
def test_the_auc_counts_pairs(given):
    rows, happened = given
    chances = chances_of(rows, np.array([0.0, 1.0, 0.0]))
    above = chances[happened][:, None], chances[~happened][None, :]
    pairs = (above[0] > above[1]) + 0.5 * (above[0] == above[1])
    assert fit_of(chances, happened).auc == pytest.approx(pairs.mean())


def test_calibration_is_how_far_chances_are_from_shares():
    happened = np.arange(100) % 2 == 0
    assert fit_of(np.full(100, 0.5), happened).calibration_error == pytest.approx(0.0)
    assert fit_of(np.full(100, 0.9), happened).calibration_error == pytest.approx(0.4)
    assert fit_of(np.where(happened, 1.0, 0.0), happened).auc == 1.0


@pytest.mark.parametrize("happened", [np.ones(3, dtype=bool), np.zeros(3, dtype=bool)])
def test_one_value_alone_is_refused(happened):
    with pytest.raises(ValueError, match="happened must hold both values"):
        fit_logistic(np.zeros((3, 1)), happened)


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


def test_the_request_s_own_rounds_move_its_stop_and_nobody_else_s():
    head, policy = read_head(HEAD), SpecDec(check_pool(), head=HEAD)
    own, other = (seen_of(request_id=name) for name in ("r", "other"))
    fresh = policy.decide(own)
    assert fresh == Draft("draft", 16, head.stop(0.7, head.start))
    policy.learn(outcome(0, 0))
    policy.learn(outcome(0, 0))
    assert policy.decide(own).stop == head.stop(0.7, head.start * 0.64)
    assert policy.decide(other) == fresh
    policy.learn(outcome(1, None, done=True))
    assert policy.decide(own) == fresh


def outcome(accepted, refused_at, *, done=False):
    judged = accepted + (refused_at is not None)
    return SimpleNamespace(request_id="r", num_judged=judged, num_accepted=accepted, refused_at=refused_at, done=done)
