"""Which steps may change the text, and which only what is proposed."""

import pytest
from paceline.policies import Commit, Divergence, Draft, Exact, Ratio, Typical, Verify
from paceline.policies.about import StepWatch, WatchedPolicy
from paceline.sim.recorded import recorded_pool

from ..sim.tries.small_traces import Script, replay, request_of, trace_of
from ..sim.tries.test_lossy import VIEWS


@pytest.mark.parametrize(
    ("step", "inexact", "lossy"),
    [
        (Draft("draft", 2), False, False),
        (Verify("target"), False, False),
        (Verify("mid", Exact()), False, False),
        (Verify("mid", Ratio(0.5)), True, False),
        (Verify("target", Typical(0.3, 0.2)), True, True),
        (Verify("target", Ratio(0.2)), True, True),
        (Verify("target", Divergence(0.2)), True, True),
        (Commit(1), True, True),
    ],
    ids=str,
)
def test_which_steps_are_lossy(step, inexact, lossy):
    watch = StepWatch("target")
    for seen in (Draft("draft", 1), step, Verify("target")):
        watch.note(seen)
    assert (watch.inexact, watch.lossy) == (inexact, lossy)


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ([Verify("mid", Ratio(0.5))], False),
        ([Verify("mid", Ratio(0.5)), Verify("mid", Typical(0.3, 0.2)), Verify("slim")], False),
        ([Verify("mid", Ratio(0.5)), Verify("slim", Ratio(0.5))], True),
        ([Verify("target", Ratio(0.5))], True),
        ([Commit(1)], True),
    ],
    ids=str,
)
def test_under_rejection_sampling_one_lossy_member_below_the_target_is_not_lossy(steps, drawn):
    watch = StepWatch("target")
    for step in (Draft("draft", 1), *steps, Verify("target")):
        watch.note(step)
    assert watch.lossy_drawn is drawn


def test_a_watched_policy_does_what_it_does_unwatched():
    trace = trace_of(request_of(VIEWS, budget=5))
    steps = [Draft("draft", 2), Verify("target", Ratio(0.75))]
    watch = StepWatch("target")
    pool = recorded_pool(trace)
    plain, watched = Script(pool, steps), WatchedPolicy(Script(pool, steps), watch)
    assert replay(trace, plain)[1] == replay(trace, watched)[1]
    assert watch.lossy
