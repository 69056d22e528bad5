"""A policy whose thinking is timed decides as it would alone."""

from paceline.policies import make_policy
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.replays import TimedSteps

from ..sim.tries.small_traces import replay

TRACE = make_trace(SyntheticSpec(name="small", requests=3, tokens=12, prompt_tokens=4, acceptance=(0.7,)))


def test_every_step_is_timed_and_none_is_changed():
    pool = recorded_pool(TRACE)
    alone, _ = replay(TRACE, make_policy("two-level", pool))
    timed = TimedSteps(make_policy("two-level", pool))
    log, _ = replay(TRACE, timed)
    assert {name: column.tolist() for name, column in log.steps.items()} == {
        name: column.tolist() for name, column in alone.steps.items()
    }
    assert len(timed.steps_s) == (~log.steps["prefill"].astype(bool)).sum()
    assert min(timed.steps_s) > 0
    assert timed.deciding_s > 0 < timed.learning_s
