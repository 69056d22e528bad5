import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.estimates import Estimates
from paceline.policies.check import check_pool

POOL = check_pool()
DRAFT, MID, TARGET = POOL.level("draft"), POOL.level("mid"), POOL.level("target")


def test_nothing_is_known_at_first():
    estimates = Estimates(POOL)
    assert estimates.forward_s("draft", num_rows=1, new_tokens=1) is None
    assert estimates.agreement("draft", "target") is None
    assert estimates.similarity("draft", "target") is None


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(1e-6, 10.0)), min_size=1, max_size=6))
def test_repeated_forwards_count_as_often_as_they_ran(runs):
    """The simulator tells of 20 equal forwards at once, the runtime of each: both must come to the same average."""
    grouped, single = Estimates(POOL), Estimates(POOL)
    for repeats, seconds in runs:
        grouped.note_forwards(DRAFT, [(2, 3, repeats, seconds)])
        for _ in range(repeats):
            single.note_forwards(DRAFT, [(2, 3, 1, seconds)])
    wanted = single.forward_s("draft", num_rows=2, new_tokens=3)
    assert grouped.forward_s("draft", num_rows=2, new_tokens=3) == pytest.approx(wanted)
    assert grouped.forward_s("draft", num_rows=2, new_tokens=4) is None


def test_a_verification_moves_the_pairs_that_took_part():
    estimates = Estimates(POOL, alpha=0.5)
    # mid stands behind two tokens, draft behind one; the target refuses the third token.
    estimates.note_judged([MID, MID, DRAFT], TARGET, 2, (0.1, 0.3, 0.8))
    assert estimates.agreement("mid", "target") == 1.0
    assert estimates.similarity("mid", "target") == pytest.approx(0.8)
    assert estimates.agreement("draft", "target") == 0.0
    assert estimates.similarity("draft", "target") == pytest.approx(0.2)
    estimates.note_judged([DRAFT, DRAFT, DRAFT, DRAFT], TARGET, 1, (0.0, 1.0))
    assert estimates.agreement("draft", "target") == pytest.approx(0.75 * 0.5)
    assert estimates.agreement("draft", "mid") is None


def test_a_member_without_a_distribution_has_no_similarity():
    estimates = Estimates(POOL)
    estimates.note_judged([0, 0], TARGET, 1, (float("nan"), float("nan")))
    assert estimates.agreement("ngram", "target") == 0.5
    assert estimates.similarity("ngram", "target") is None


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.5])
def test_a_weight_is_a_share(alpha):
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\]"):
        Estimates(POOL, alpha=alpha)
