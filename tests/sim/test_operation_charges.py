"""Operations are charged by the rows they have, in the places that the runtime's caches give them."""

from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from paceline.decoding.results import VERIFY
from paceline.policies import make_policy
from paceline.sim.charges import OperationCharges
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.measured import ProfiledCost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.profile import BatchShape, BesideForwards

from ..profiles.profiles import made_profile

DRAFT, TARGET = range(2)


class Seen(ProfiledCost):
    """Notes the shapes that are charged."""

    def __init__(self, profile):
        super().__init__(profile, "seen", ["draft", "target"])
        self.shapes, self.away = [], []

    def batch_s(self, model, shape, *, first):
        self.shapes.append(shape)
        return super().batch_s(model, shape, first=first)

    def reloads_s(self, model, new_tokens, away):
        self.away.append((model, list(away)))
        return super().reloads_s(model, new_tokens, away)


def charges_of(cost, now_s=lambda: 0.0):
    return OperationCharges(cost, SimpleNamespace(names=("draft", "target"), feature_level=None), now_s)


def request(name, *, new=1, held=10, pending=0):
    return SimpleNamespace(
        request_id=name,
        feed=lambda level, verify: (new, held),
        tokens=[0] * pending,
        first_unjudged=lambda level: 0,
    )


def drafted(count):
    return SimpleNamespace(tokens=[0] * count)


def test_a_draft_is_a_forward_for_each_token_while_any_row_writes():
    cost = Seen(made_profile())
    rows = [(request("a", new=3, held=10), None), (request("b", held=20), None), (request("c"), None)]
    forwards, seconds = charges_of(cost).draft(DRAFT, rows, [drafted(3), drafted(1), drafted(2)])
    assert cost.shapes == [
        BatchShape(3, 5, 3, 21),
        BatchShape(2, 2, 1, 14, apart=True),  # b stopped, and its row stands between
        BatchShape(1, 1, 1, 15),
    ]
    beside_s = made_profile().meta.members[0].drafting.seconds(3, 3, 6)
    assert seconds == pytest.approx(beside_s + sum(each_s for *_, each_s in forwards))


def test_a_draft_of_nothing_has_no_forward():
    forwards, seconds = charges_of(Seen(made_profile())).draft(DRAFT, [(request("a"), None)], [drafted(0)])
    assert forwards == []
    assert seconds == pytest.approx(made_profile().meta.members[0].drafting.seconds(0, 1, 0))


def test_a_new_request_takes_the_first_free_row():
    cost = Seen(made_profile())
    charges = charges_of(cost)
    charges.verify(TARGET, [(request(name), None) for name in "abc"])
    charges.close("a")
    charges.verify(TARGET, [(request("b"), None), (request("c"), None)])
    charges.verify(TARGET, [(request("b"), None), (request("d"), None)])
    charges.verify(TARGET, [(request("d"), None), (request("c"), None)])
    assert [shape.apart for shape in cost.shapes] == [False, False, False, True]


def test_weights_are_away_since_the_member_ran_last():
    """By the run's clock, on which everything passes that takes time between two forwards."""
    cost, clock = Seen(made_profile()), SimpleNamespace(now_s=3.0)
    charges = charges_of(cost, lambda: clock.now_s)
    (forward,), first_s = charges.verify(TARGET, [(request("a", pending=2), None)])
    clock.now_s += first_s + 0.25  # of which 0.25 s are not an operation's: the policy's, or a pause
    _, drafts_s = charges.draft(DRAFT, [(request("a"), None)], [drafted(2)])
    clock.now_s += drafts_s
    charges.verify(TARGET, [(request("a"), None)])
    (_, never), (_, never_either), (name, since) = cost.away
    assert never == never_either == [(1.0, float("inf"))]
    assert name == "target"
    beside_s = made_profile().meta.members[-1].verifying.seconds(1, 1, 3)
    assert first_s == pytest.approx(forward[3] + beside_s)
    assert since == [(1.0, pytest.approx(beside_s + 0.25 + drafts_s))]
    assert charges.lookup_s(1) == BesideForwards(per_op_s=1e-5).seconds(0, 1, 0)


@pytest.mark.parametrize("chain", ["draft:4/target", "plain", "adaptive"])
@pytest.mark.parametrize("decide_s", [0.0, 0.125])
def test_all_that_takes_time_in_a_run_keeps_weights_away(chain, decide_s):
    """Between forwards of the target lies what the log says was between them, drafts and decisions among it."""
    trace = make_trace(SyntheticSpec(models=("draft", "target"), requests=2, tokens=12, acceptance=(0.5,)))
    cost, tables = Seen(made_profile()), TrieTables(trace)
    log = simulate(Scenario(tables=tables, cost=cost, decide_s=decide_s), make_policy(chain, tables.pool), chain)
    beside_s = made_profile().meta.members[-1].verifying
    ops = [dict(zip(log.ops, row, strict=True)) for row in zip(*log.ops.values(), strict=True)]
    verifies = [op for op in ops if op["kind"] == VERIFY]
    judged = np.bincount(log.steps["op"], log.steps["judged"] + 1, minlength=len(ops))[log.ops["kind"] == VERIFY]
    seen = [away_s for name, ((_, away_s),) in cost.away if name == "target"]
    for place in range(1, len(verifies)):
        before, op = verifies[place - 1], verifies[place]
        forwards_end_s = before["start_s"] + before["duration_s"] - beside_s.seconds(1, 1, int(judged[place - 1]))
        assert seen[place] == pytest.approx(op["start_s"] - forwards_end_s)
    assert len(seen) == len(verifies) > 4
    assert median(seen[1:]) > decide_s  # only a prefill is not decided upon


def test_outside_a_run_nothing_keeps_weights_away_but_what_is_charged():
    """As where an oracle tries rounds: on a clock on which nothing else passes, a run finds weights as long away."""
    clock = SimpleNamespace(now_s=0.0)
    tried, run = Seen(made_profile()), Seen(made_profile())
    for cost, now_s in ((tried, None), (run, lambda: clock.now_s)):
        charges = charges_of(cost, now_s)
        for _ in range(3):
            clock.now_s += charges.draft(DRAFT, [(request("a"), None)], [drafted(2)])[1]
            clock.now_s += charges.lookup_s(1)
            clock.now_s += charges.verify(TARGET, [(request("a", pending=2), None)])[1]
    assert [name for name, _ in tried.away] == [name for name, _ in run.away] == ["draft", "target"] * 3
    seconds, expected = ([away_s for _, ((_, away_s),) in cost.away] for cost in (tried, run))
    assert seconds == pytest.approx(expected)
    assert 0 < min(seconds) < max(seconds[2:]) < 1


def test_an_oracle_of_operations_is_as_good_as_any_of_its_chains():
    trace = make_trace(SyntheticSpec(models=("draft", "target"), requests=2, tokens=12, acceptance=(0.5,)))
    tables = TrieTables(trace)

    def total_s(name):
        scenario = Scenario(tables=tables, cost=Seen(made_profile()), decide_s=0.0)
        return float(simulate(scenario, make_policy(name, tables.pool), name).requests["finished_at_s"].max())

    assert total_s("oracle-window") <= min(map(total_s, ("plain", "draft:1/target", "draft:4/target"))) * (1 + 1e-9)
