"""What is fitted comes out as it was put in, and what was interrupted or broken does not enter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT
from paceline.runtime.profiling.forwards import fit_smooth, reload_of
from paceline.runtime.profiling.probe import ProbedOp, fit_beside
from paceline.traces.profile import AfterAway, MeasuredForward

SECONDS = st.floats(1e-6, 1e-2)


def op(num_rows, num_tokens, beside_s):
    return ProbedOp(DRAFT, 0, num_rows, num_tokens, (), beside_s, 1, 0.0)


@given(per_op=SECONDS, per_row=SECONDS, per_token=SECONDS)
def test_what_operations_cost_comes_out(per_op, per_row, per_token):
    ops = [
        op(rows, rows * tokens, per_op + rows * per_row + rows * tokens * per_token)
        for rows in (1, 2, 6, 12)
        for tokens in (1, 2, 4)
    ]
    found = fit_beside(ops)
    for one in ops:
        assert found.seconds(0, one.num_rows, one.num_tokens) == pytest.approx(one.beside_s, rel=1e-6)


def test_an_operation_that_was_interrupted_is_left_out():
    ops = [op(rows, rows, 1e-3 * rows) for rows in (1, 2, 4) for _ in range(9)]
    assert fit_beside([*ops, op(1, 1, 1.0)]).seconds(0, 1, 1) == pytest.approx(1e-3)


@given(terms=st.tuples(*[st.floats(1e-9, 1e-5)] * 4), once=st.floats(1e-5, 1e-3))
def test_a_forward_shaped_like_the_model_is_fitted(terms, once):
    per_row, per_new, per_context, per_pair = terms
    shapes = [
        MeasuredForward(
            "m", rows, new, held, once + rows * (per_row + per_new * new + (per_context + per_pair * new) * held), 0.0
        )
        for rows in (1, 3, 8) for new in (1, 4, 20) for held in (0, 50, 300)
    ]  # fmt: skip
    found = fit_smooth(shapes)
    assert found.held_out_error < 1e-4
    for shape in shapes:
        new_tokens, held = shape.rows * shape.new_tokens, shape.rows * shape.context_tokens
        assert found.seconds(shape.rows, new_tokens, held) == pytest.approx(shape.seconds, rel=1e-4)


@pytest.mark.parametrize(("num_shapes", "known"), [(1, False), (3, False), (4, True)])
def test_of_too_few_shapes_to_leave_any_out_no_error_is_known(num_shapes, known):
    shapes = [MeasuredForward("m", 1, new, 10, 1e-3 + 1e-4 * new, 0.0) for new in range(1, num_shapes + 1)]
    assert (fit_smooth(shapes).held_out_error is not None) == known


SECONDS_AWAY = st.lists(st.floats(1e-5, 1e-2), min_size=3, max_size=3)


@given(lines=st.lists(SECONDS_AWAY, min_size=1, max_size=4))
def test_weights_that_were_away_for_longer_come_back_no_sooner(lines):
    cells = [
        AfterAway(new_tokens=1 + place, away_s=away_s, seconds=seconds, spread=0.0)
        for place, line in enumerate(lines)
        for away_s, seconds in zip((0.0, 1e-3, 4e-3), line, strict=True)
    ]
    found = reload_of(cells)
    assert (found.new_tokens, found.away_s) == (tuple(range(1, len(lines) + 1)), (1e-3, 4e-3))
    for line, (first, last) in zip(lines, found.longer_s, strict=True):
        assert first == max(0.0, line[1] - line[0])
        assert last == max(first, line[2] - line[0])
