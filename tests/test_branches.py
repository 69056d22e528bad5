"""The notation of answers that branch: what it says, and what is refused under the name that its user knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.names import MOST_DEPTH, Branch, as_text, branches_of, num_paths_of


@given(st.dictionaries(st.integers(0, MOST_DEPTH), st.integers(1, 9), min_size=1, max_size=4))
def test_a_text_says_its_branches(paths):
    branches = tuple(Branch(paths[depth], depth) for depth in sorted(paths))
    assert branches_of("it", as_text(branches)) == branches


def test_ten_thousand_paths_are_the_most():
    assert num_paths_of(branches_of("it", "100@0/100@1")) == 10_000
    assert branches_of("it", f"10000@{MOST_DEPTH}") == (Branch(10_000, MOST_DEPTH),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it must be N@DEPTH, others behind a slash, as 4@0/2@32, got ''"),
        ("4", "it must be N@DEPTH, others behind a slash, as 4@0/2@32, got '4'"),
        ("4@0/", "got '4@0/'"),
        ("-1@0", "got '-1@0'"),
        ("2@-3", "got '2@-3'"),
        ("\u0664@0", "got '\u0664@0'"),
        ("12345678901@0", "it must make at most 10,000 paths of a prompt, got 12,345,678,901"),
        ("2@12345678901", "it must have ascending depths in [0, 2,147,483,647], got 2@12345678901"),
        ("0@4", "it must have at least 1 path at each depth, got 0@4"),
        ("2@4/2@4", "it must have ascending depths in [0, 2,147,483,647], got 2@4/2@4"),
        ("2@4/2@0", "got 2@4/2@0"),
        ("2@2147483648", "got 2@2147483648"),
        ("101@0/100@1", "it must make at most 10,000 paths of a prompt, got 10,100"),
    ],
)
def test_what_is_no_branching_is_refused(text, told):
    with pytest.raises(ArgumentError) as error:
        branches_of("it", text)
    assert told in str(error.value)
