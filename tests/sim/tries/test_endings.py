"""Where a text ends: at its end-of-sequence token, or at its budget."""

import pytest
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.recorded import recorded_pool
from paceline.traces import write_trace

from .small_traces import THREE, Script, request_of, table, trace_of
from .small_traces import replay_bare as replay

EOS = 63
STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted")

# Draft, mid and target. The trunk is 10 11 12 end; the draft model would end the text after 10.
VIEWS = {
    (): (10, 10, 10),
    (10,): (EOS, 11, 11),
    (10, EOS): (1, 1, 1),
    (10, 11): (12, 12, 12),
    (10, 11, 12): (EOS, EOS, EOS),
    (10, 11, 12, EOS): (5, 5, 5),
}
CHAINS = ("target", "draft:1/target", "draft:4/target", "mid:9/target", "draft:2/mid:3/target", "draft:9/mid:9/target")


def ending(budget=8, requests=1):
    records = (request_of(VIEWS, request_id=f"r{index}", budget=budget) for index in range(requests))
    return trace_of(*records, models=THREE, eos=EOS)


def run(trace, steps):
    return replay(trace, Script(recorded_pool(trace), steps), strict=True)


def test_recordings_by_hand_are_sound(tmp_path):
    write_trace(ending(), tmp_path / "t.trace")


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_text_ends_with_its_last_token(chain, batch):
    trace = ending(requests=3)
    log, outputs = replay(trace, make_policy(chain, recorded_pool(trace)), strict=True, batch=batch)
    assert list(outputs.values()) == [[10, 11, 12, EOS]] * 3
    assert not log.requests["divergent_tokens"].any()
    assert log.requests["emitted_tokens"].tolist() == [4] * 3


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_a_text_ends_at_its_budget(chain, budget):
    trace = ending(budget)
    _, outputs = replay(trace, make_policy(chain, recorded_pool(trace)), strict=True)
    assert outputs == {"r0": [10, 11, 12, EOS][:budget]}


def test_nothing_is_drafted_after_an_end():
    log, outputs = run(ending(), [Draft("draft", 6), Verify("target"), Draft("draft", 6), Verify("target")])
    assert outputs == {"r0": [10, 11, 12, EOS]}
    assert table(log, "steps", *STEP) == [
        (DRAFT, 0, 6, 2, 0, 0, 0, 0),  # 10 end
        (VERIFY, 2, 0, 0, 2, 1, 1, 2),  # the target writes 11 where the draft ended
        (DRAFT, 0, 6, 2, 0, 0, 0, 0),  # 12 end
        (VERIFY, 2, 0, 0, 2, 2, 0, 2),  # no token of its own after the end
    ]


def test_a_verifier_below_the_target_may_write_the_end():
    steps = [Draft("draft", 1), Verify("target"), Draft("mid", 1), Verify("mid"), Verify("target")]
    with pytest.raises(Exception, match="nothing left to judge"):  # mid endorses its own token
        run(ending(), steps)
    steps = [Draft("mid", 2), Draft("draft", 1), Verify("mid"), Verify("target")]
    log, outputs = run(ending(), steps)
    assert table(log, "steps", *STEP)[:4] == [
        (DRAFT, 1, 2, 2, 0, 0, 0, 0),
        (DRAFT, 0, 1, 1, 0, 0, 0, 0),
        (VERIFY, 1, 0, 0, 1, 1, 1, 0),  # accepts 12, writes the end
        (VERIFY, 2, 0, 0, 4, 4, 0, 4),
    ]
    assert outputs == {"r0": [10, 11, 12, EOS]}


def test_a_budget_of_one():
    log, outputs = run(ending(1), [Draft("draft", 4), Verify("target")])
    assert outputs == {"r0": [10]}
    assert table(log, "steps", *STEP) == [(DRAFT, 0, 4, 1, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 1, 1, 0, 1)]
    log, outputs = run(ending(1), [])
    assert outputs == {"r0": [10]}
    assert table(log, "steps", *STEP) == [(VERIFY, 2, 0, 0, 0, 0, 1, 1)]


def test_a_correction_takes_the_last_place():
    """The draft fills the budget; what the target refuses makes room for its own token."""
    log, outputs = run(ending(2), [Draft("draft", 4), Verify("target")])
    assert outputs == {"r0": [10, 11]}
    assert table(log, "steps", *STEP) == [(DRAFT, 0, 4, 2, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 2, 1, 1, 2)]


def test_the_end_may_be_looked_up():
    views = {(): (7, 10), (10,): (7, EOS), (10, EOS): (7, 7)}
    trace = trace_of(request_of(views, prompt=(4, 10, EOS, 5, 4)), eos=EOS, ngram=True)
    log, outputs = run(trace, [Draft("ngram", 4), Verify("target")])
    assert outputs == {"r0": [10, EOS]}
    assert table(log, "steps", *STEP) == [(DRAFT, 0, 4, 2, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 2, 2, 0, 2)]


def test_without_an_end_token_every_id_is_text():
    trace = trace_of(request_of(VIEWS, budget=4), models=THREE, eos=None)
    log, outputs = replay(trace, make_policy("draft:4/target", recorded_pool(trace)))
    assert outputs == {"r0": [10, 11, 12, EOS]}
    assert log.steps["drafted"].tolist()[0] == 4
