"""CAS-Spec learns which pieces pay, and says what it needs."""

import pytest
from paceline.policies import Member, Pool, make_policy
from paceline.policies.cascades import CasSpec
from paceline.policies.check import check_pool

from .recordings import flat, recording, replayed, seconds_of


def test_it_learns_to_be_faster_than_its_warm_up():
    tables = recording(0.4, 0.9)
    cost = flat(draft=0.02, mid=0.1, target=1.0)
    policy = CasSpec(tables.pool)
    taken = seconds_of(replayed(tables, cost, policy))
    fixed = [
        seconds_of(replayed(tables, cost, make_policy(f"{name}:4/target", tables.pool))) for name in ("draft", "mid")
    ]
    assert taken < min(fixed)
    assert policy.plan


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"most": 0}, r"most must be in \[1, 1,000\], got 0"),
        ({"most": 10**9}, r"most must be in \[1, 1,000\], got 1000000000"),
        ({"every": 0}, r"every must be in \[1, 1,000,000\], got 0"),
        ({"every": 10**9, "refresh": 10**9}, r"every must be in \[1, 1,000,000\], got 1000000000"),
        ({"warmup": 0}, r"warmup must be in \[1, 1,000,000\], got 0"),
        ({"warmup": 10**9}, r"warmup must be in \[1, 1,000,000\], got 1000000000"),
        ({"recent": 0.0}, r"recent must be in \(0, 1\], got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        CasSpec(check_pool(), **options)


def test_it_needs_a_drafter():
    with pytest.raises(ValueError, match="cas-spec needs a drafter below the target"):
        CasSpec(Pool((Member(name="target"),)))
