"""What is fitted comes out as it was put in, and what was interrupted or broken does not enter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.ledger import DRAFT
from paceline.profiles.profile import Shape
from paceline.runtime.profiling.beside import fit_beside
from paceline.runtime.profiling.probe import ProbedOp
from paceline.runtime.profiling.smooth import fit_smooth

SECONDS = st.floats(1e-6, 1e-2)


def op(num_rows, num_tokens, beside_s):
    return ProbedOp(DRAFT, 0, num_rows, num_tokens, (), beside_s, 1, 0.0)


@settings(deadline=None)
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


@settings(deadline=None)
@given(terms=st.tuples(*[st.floats(1e-9, 1e-5)] * 4), once=st.floats(1e-5, 1e-3))
def test_a_forward_shaped_like_the_model_is_fitted(terms, once):
    per_row, per_new, per_context, per_pair = terms
    shapes = [
        Shape(
            "m", rows, new, held, once + rows * (per_row + per_new * new + (per_context + per_pair * new) * held), 0.0
        )
        for rows in (1, 3, 8) for new in (1, 4, 20) for held in (0, 50, 300)
    ]  # fmt: skip
    found = fit_smooth(shapes)
    assert found.held_out_error < 1e-4
    for shape in shapes:
        new_tokens, held = shape.rows * shape.new_tokens, shape.rows * shape.context_tokens
        assert found.seconds(shape.rows, new_tokens, held) == pytest.approx(shape.seconds, rel=1e-4)
