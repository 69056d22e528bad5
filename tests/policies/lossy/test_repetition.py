"""The share of n-grams that a text has already shown."""

import pytest
from paceline.policies.lossy import repeated_share


@pytest.mark.parametrize(
    ("tokens", "order", "share"),
    [([], 3, 0.0), ([1, 1, 1], 3, 0.0), ([1, 1, 1, 1], 3, 0.5), ([1, 2, 1, 2, 1, 2], 2, 0.6), ([1, 2, 3, 4], 1, 0.0)],
)
def test_how_much_a_text_repeats_itself(tokens, order, share):
    assert repeated_share(tokens, order) == pytest.approx(share)
