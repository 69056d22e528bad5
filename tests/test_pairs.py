"""Any two values meet, in far fewer rows than all combinations."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from .pairs import pairs


@given(st.lists(st.integers(1, 4), min_size=3, max_size=5))
def test_any_two_values_meet(sizes):
    rows = pairs(*[[(place, value) for value in range(size)] for place, size in enumerate(sizes)])
    assert all([place for place, _ in row] == list(range(len(sizes))) for row in rows)
    met = {pair for row in rows for pair in combinations(row, 2)}
    for first, second in combinations(range(len(sizes)), 2):
        assert met >= set(product([(first, value) for value in range(sizes[first])],
                                  [(second, value) for value in range(sizes[second])]))  # fmt: skip
    assert len(rows) == len(set(rows))


def test_rows_are_few():
    assert len(pairs("ab", "cd", "ef")) == 4
    assert len(pairs("abc", "def", "ghi", "jkl")) <= 11
