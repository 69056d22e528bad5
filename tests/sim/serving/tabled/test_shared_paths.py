"""Replicas share the rounds of policies that are equal, and of no others."""

import numpy as np
import pytest
from paceline.policies.by_name import make_policy
from paceline.policies.fixed import Chain
from paceline.sim.serving.shared_paths import SharedPaths
from paceline.traces.workloads.arrival import Arrival

from ..engine.served_runs import pico
from .test_tabled_equal import check


class Listing(Chain):
    """Has an attribute that is compared element by element."""

    about = Chain.about

    def __init__(self, pool, numbers):
        super().__init__(pool, "draft:4/target")
        self.numbers = np.array(numbers)


def made(text):
    return make_policy(text, pico().pool)


@pytest.mark.parametrize(
    ("policies", "same"),
    [
        ((made("draft:4/target"), made("draft:4/target")), True),
        ((made("draft:4/target"), made("draft:3/target")), False),
        ((made("confident"), made("svip")), False),
        ((Listing(pico().pool, [1, 2]), Listing(pico().pool, [1, 3])), False),
    ],
)
def test_equal_policies_share_their_rounds(policies, same):
    tables, paths = pico(), SharedPaths()
    answers = tables.answers(seed=0, strict=False)
    first, second = (paths.of(policy, "it", tables.pool, answers) for policy in policies)
    assert (first is second) == same


def test_replicas_whose_policies_cannot_be_compared_are_served_all_the_same():
    tables = pico()
    arrivals = [Arrival(f"q{index}", index * 10**9, 5 + index, 30) for index in range(8)]
    check(arrivals, tables, lambda: Listing(tables.pool, range(3)), num_replicas=2)
