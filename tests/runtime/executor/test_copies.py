"""Tokens that a policy tells a model-free member to copy: judged as any draft, and refused beyond the vocabulary."""

import pytest
from paceline.base.files import shipped
from paceline.policies import Draft, Verify
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.on_disk import read_trace

from ..offline import Offline


class Copies:
    """Copies the same tokens in every round."""

    def __init__(self, copy):
        self.draft = Draft("ngram", len(copy), copy=copy)

    def decide(self, seen):
        return Verify("target") if seen.num_pending or not seen.has_room else self.draft

    def learn(self, outcome):
        pass


def test_the_text_is_that_of_the_target_alone(tiny_pool):
    alone = Offline(tiny_pool, "plain").run()
    copying = Offline(tiny_pool, Copies((3, 1, 4, 1, 5))).run(batch=3)
    assert copying.failed == {}
    assert copying.texts == alone.texts
    assert copying.log.steps["drafted"].max() == 5


def test_ids_that_no_member_knows_are_refused_in_both_worlds(tiny_pool):
    size = tiny_pool.target.model.config.vocab_size
    run = Offline(tiny_pool, Copies((1, size))).run(batch=2)
    assert len(run.failed) == len(run.sessions)
    assert all(str(error) == f"draft copy must hold ids below {size:,}, got {size}" for error in run.failed.values())
    trace = read_trace(shipped("recordings", "pico.trace"))
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace))
    with pytest.raises(ValueError, match="draft copy must hold ids below 1,536, got 1536"):
        simulate(scenario, Copies((1_536,)), "copies")
