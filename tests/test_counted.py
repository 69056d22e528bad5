"""Counts and their nouns."""

import pytest
from paceline.base.errors import counted


@pytest.mark.parametrize(
    ("count", "noun", "plural", "told"),
    [
        (0, "request", None, "0 requests"),
        (1, "request", None, "1 request"),
        (2, "request", None, "2 requests"),
        (2215, "token", None, "2,215 tokens"),
        (1, "policy", "policies", "1 policy"),
        (3, "policy", "policies", "3 policies"),
    ],
)
def test_one_has_no_plural(count, noun, plural, told):
    assert counted(count, noun, plural) == told
