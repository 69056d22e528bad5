"""A recording that all runs on it share."""

import pytest
from paceline.policies.spec import make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline_laboratory.arena.play import reordered


@pytest.mark.parametrize("policy", ["two-level", "draft:3/mid:6/target", "specrouter"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_order_shares_its_tables_and_is_played_as_if_it_had_its_own(stage, policy, seed):
    shared, own = stage.tables(seed), TrieTables(reordered(stage.recording, seed))
    logs = [
        simulate(Scenario(tables=tables, cost=stage.cost("steep"), seed=seed), make_policy(policy, tables.pool), policy)
        for tables in (shared, own)
    ]
    for name, column in logs[0].steps.items():
        assert column.tolist() == logs[1].steps[name].tolist()
    first = stage.recording.requests[0].request_id
    assert shared.of(first) is stage.tables(0).of(first)


def test_capacity_is_what_the_target_alone_writes_in_a_large_batch(stage):
    alone = 1 / stage.cost("even").forward_s("target", num_rows=1, new_tokens=1, context_tokens=0)
    assert alone < stage.capacity_per_s("even") < 32 * alone
