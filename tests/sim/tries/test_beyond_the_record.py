"""Where a recording ends: exact within its reach, counted beyond it, refused if asked to be strict."""

import numpy as np
import pytest
from paceline.policies import Draft, PolicyError, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim.recorded import UnrecordedContextError, recorded_pool
from paceline.traces import SyntheticSpec, make_trace

from .small_traces import THREE, Script, request_of, table, trace_of, trunk_of
from .small_traces import replay_bare as replay

CHAIN = "draft:4/mid:6/target"


def three_levels(reach, run, **options):
    spec = {"requests": 12, "tokens": 60, "models": THREE, "acceptance": (0.6, 0.8)}
    return make_trace(SyntheticSpec(**spec, reach=reach, run=run, **options))


def summary_of(trace, chain, **scenario):
    log, outputs = replay(trace, make_policy(chain, recorded_pool(trace)), **scenario)
    assert outputs == trunk_of(trace)
    return summarise_run(log)


@pytest.mark.parametrize(
    ("chain", "reach", "run"),
    [
        ("draft:4/target", 3, 0),  # a draft of 4 asks at most 3 tokens off the trunk what comes next
        ("mid:4/target", 3, 0),
        ("draft:4/mid:1/target", 5, 4),
        (CHAIN, 5 + 5, 4),  # at most 5 kept by mid when it drafts 4 more and adds its own
    ],
)
def test_within_its_reach_a_recording_answers_everything(chain, reach, run):
    assert summary_of(three_levels(reach, run), chain, strict=True).exact_share == 1.0


@pytest.mark.parametrize(("chain", "reach", "run"), [("draft:4/target", 2, 0), (CHAIN, 6, 4), (CHAIN, 10, 2)])
def test_beyond_its_reach_it_is_modelled_and_counted(chain, reach, run):
    trace = three_levels(reach, run)
    share = summary_of(trace, chain).exact_share
    assert 0.5 < share < 1.0
    with pytest.raises(
        UnrecordedContextError, match=r"request synthetic-\d+: (draft|verify) at output position \d+ needs"
    ):
        summary_of(trace, chain, strict=True)


def test_a_longer_reach_is_more_exact():
    shares = [summary_of(three_levels(reach, 4), CHAIN).exact_share for reach in (1, 4, 7, 10)]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


VIEWS = {
    (): (20, 30, 10),
    (10,): (11, 11, 11),
    (10, 11): (1, 1, 1),
    (20,): (21, 22, 23),
    (20, 21): (24, 24, 24),
}


def test_every_modelled_decision_is_counted():
    trace = trace_of(request_of(VIEWS, budget=6), models=THREE)
    steps = [Draft("draft", 5), Verify("mid"), Verify("target")]
    log, outputs = replay(trace, Script(recorded_pool(trace), steps))
    names = ("drafted", "judged", "accepted", "own", "emitted", "modelled")
    assert table(log, "steps", *names)[:3] == [
        (5, 0, 0, 0, 0, 2),  # 20 21 24, and two tokens nobody knows
        (0, 5, 0, 1, 0, 0),  # mid writes 30 where draft wrote 20: recorded
        (0, 1, 0, 1, 1, 0),  # the target writes 10
    ]
    assert outputs["r0"][:2] == [10, 11]
    steps = [Draft("mid", 2), Draft("draft", 2), Verify("mid"), Verify("target")]
    log, _ = replay(trace, Script(recorded_pool(trace), steps))
    drafted, again, verdict, target = table(log, "steps", *names)[:4]
    assert drafted == (2, 0, 0, 0, 0, 1)  # 30, and one after it
    assert again == (2, 0, 0, 0, 0, 2)
    accepted = verdict[2]
    assert verdict == (0, 2, accepted, 1, 0, min(accepted + 1, 2) + 1)
    assert target[2:] == (0, 1, 1, 0)  # refused at the first token, which is recorded


def test_an_unknown_token_has_no_signal():
    seen = []

    class Looking(Script):
        def decide(self, view):
            seen.append([(token.token, token.drafter, token.judge, token.signal) for token in view.pending])
            return super().decide(view)

    trace = trace_of(request_of(VIEWS, budget=4), models=THREE)
    replay(trace, Looking(recorded_pool(trace), [Draft("draft", 4), Verify("target")]))
    tokens = seen[1]
    assert [token[:3] for token in tokens] == [(value, "draft", "draft") for value in (20, 21, 24, -1)]
    known, unknown = [token[3] for token in tokens[:3]], tokens[3][3]
    assert [tuple(signal) for signal in known] == [(np.exp(-0.5), 1.0, 0.25)] * 3
    assert np.isnan(unknown).all()


def test_the_same_seed_gives_the_same_log():
    trace = three_levels(4, 2)
    pool = recorded_pool(trace)

    def run(seed):
        log, _ = replay(trace, make_policy(CHAIN, pool), seed=seed, batch=3)
        return log

    first, again, other = run(0), run(0), run(1)
    for part in ("ops", "steps", "requests"):
        for name, column in getattr(first, part).items():
            np.testing.assert_array_equal(column, getattr(again, part)[name])
    assert first.meta == again.meta
    assert first.steps["modelled"].any()
    assert first.steps["accepted"].tolist() != other.steps["accepted"].tolist()


def test_two_policies_meet_the_same_luck():
    """A policy's log does not depend on what ran before it, nor on how many requests run at a time."""
    trace = three_levels(4, 2)
    pool = recorded_pool(trace)
    columns = ("request", "kind", "level", "drafted", "judged", "accepted", "modelled")

    def run(chain, batch=1):
        log, _ = replay(trace, make_policy(chain, pool), batch=batch)
        return sorted(table(log, "steps", *columns), key=lambda row: row[0])

    alone = run(CHAIN)
    run("draft:8/mid:2/target")
    assert run(CHAIN) == alone == run(CHAIN, batch=5)


def test_errors_of_a_run_survive_the_clock():
    """SimPy makes the error of a process anew; message and fields must come through."""
    trace = three_levels(4, 2)
    pool = recorded_pool(trace)
    with pytest.raises(PolicyError) as caught:
        replay(trace, Script(pool, [Draft("target", 1)]), name="mine")
    error = caught.value
    assert (error.policy, error.request_id, error.step) == ("mine", "synthetic-0", Draft("target", 1))
    assert str(error).startswith("policy mine, request synthetic-0, step Draft(model='target', tokens=1, stop=None): ")


@pytest.mark.parametrize(("option", "value"), [("batch", 0), ("batch", -1), ("decide_s", -1e-9), ("decide_s", np.inf)])
def test_a_scenario_that_cannot_be(option, value):
    trace = three_levels(1, 1)
    with pytest.raises(ValueError, match=f"{option}`? must be "):
        replay(trace, make_policy("plain", recorded_pool(trace)), **{option: value})
