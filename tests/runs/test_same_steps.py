"""Two logs of one policy: equal ones agree, and any number that is changed is found where it stands."""

import copy
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Commit, Draft, Verify, make_policy
from paceline.policies.about import StepWatch
from paceline.reports.agreement import agreement_table, difference_text, total_line
from paceline.runs.agreement import AROUND, compare_runs
from paceline.sim.recorded import recorded_pool
from paceline.studies.agree import NotedDrafts
from paceline.traces import SyntheticSpec, make_trace
from rich.console import Console

from ..sim.tries.small_traces import Script, replay

SIZES = {"requests": 4, "tokens": 14, "prompt_tokens": 4, "reach": 8, "run": 5}
TRACE = make_trace(SyntheticSpec(name="small", models=("draft", "mid", "target"), acceptance=(0.6, 0.8), **SIZES))
POOL = recorded_pool(TRACE)
CHAIN = "draft:2/mid:3/target"
COMPARED = [
    *(("steps", column) for column in ("kind", "level", "asked", "drafted", "judged", "accepted", "own")),
    *(("ops", column) for column in ("num_rows", "num_forwards", "new_tokens")),
]


def run(policy=CHAIN, **scenario):
    return replay(TRACE, make_policy(policy, POOL), name=policy, **scenario)


def compare(one, other):
    return compare_runs(one[0], other[0], replayed_tokens=one[1], ran_tokens=other[1])


def changed(run, part, column, row, by=1):
    """The same run with one number of its log changed."""
    log, tokens = run
    columns = {name: values.copy() for name, values in getattr(log, part).items()}
    columns[column][row] += by
    return replace(log, **{part: columns}), copy.deepcopy(tokens)


def place_of(log, row):
    """(request, index among its steps) of a row of the steps."""
    owner = log.steps["request"][row]
    return log.requests["request_id"][owner], int((log.steps["request"][:row] == owner).sum())


def first_of(agreement):
    return agreement.difference.request_id, agreement.difference.step


@pytest.mark.parametrize("batch", [1, 3])
def test_equal_runs_agree(batch):
    log, tokens = run(batch=batch)
    later = {name: values + (name.endswith("_s")) for name, values in log.steps.items()}  # seconds are not compared
    agreement = compare((log, tokens), (replace(log, steps=later), tokens))
    assert agreement.difference is None
    assert (agreement.policy, agreement.num_requests, agreement.num_other_answers) == (CHAIN, 4, 0)
    assert (agreement.num_steps, agreement.num_ops) == (len(log.steps["op"]), len(log.ops["kind"]))
    assert agreement.num_tokens == sum(map(len, tokens.values())) == 56


@given(st.data(), st.sampled_from([1, 3]))
def test_a_step_or_an_operation_that_differs_is_found(data, batch):
    one = run(batch=batch)
    steps = one[0].steps
    part, column = data.draw(st.sampled_from(COMPARED))
    row = place = data.draw(st.integers(0, len(getattr(one[0], part)[column]) - 1))
    if part == "ops":
        place = int(np.flatnonzero(steps["op"] == row)[0])  # at its first step
    agreement = compare(one, changed(one, part, column, row, by=-1 if column == "level" else 1))
    before = steps["op"] < steps["op"][place]
    assert first_of(agreement) == place_of(one[0], place)
    assert (agreement.num_steps, agreement.num_ops) == (before.sum(), steps["op"][place])
    assert (agreement.num_tokens, agreement.num_other_answers) == (steps["emitted"][before].sum(), 0)


@given(st.data(), st.sampled_from([1, 3]))
def test_a_token_that_differs_is_found_at_the_step_that_committed_it(data, batch):
    log, tokens = run(batch=batch)
    request_id = data.draw(st.sampled_from(sorted(tokens)))
    position = data.draw(st.integers(0, len(tokens[request_id]) - 1))
    other = copy.deepcopy(tokens)
    other[request_id][position] += 1
    agreement = compare((log, tokens), (log, other))
    difference = agreement.difference
    assert difference.request_id == request_id
    assert agreement.num_other_answers == 1
    assert difference.num_committed <= position
    assert list(difference.committed) == tokens[request_id][: difference.num_committed][-AROUND:]
    assert list(difference.replayed.tokens) == tokens[request_id][difference.num_committed :][:AROUND]
    assert list(difference.ran.tokens) == other[request_id][difference.num_committed :][:AROUND]
    assert difference.replayed.did == difference.ran.did
    expected = "verify by target" if difference.step else "prefill by target: the first token committed"
    assert difference.ran.did.startswith(expected)


@given(st.data(), st.sampled_from([1, 3]))
def test_a_drafted_token_that_differs_is_found_though_it_is_refused(data, batch):
    noted = NotedDrafts(make_policy(CHAIN, POOL), StepWatch("target"))
    log, tokens = replay(TRACE, noted, name=CHAIN, batch=batch)
    drafted = log.steps["drafted"].tolist()
    assert sum(map(len, noted.drafts.values())) == sum(drafted), "all that is drafted is noted"
    both = {"replayed_tokens": tokens, "ran_tokens": tokens, "replayed_drafts": noted.drafts}
    assert compare_runs(log, log, **both, ran_drafts=noted.drafts).difference is None
    request_id, told = data.draw(st.sampled_from(sorted(noted.drafts)))
    ids = noted.drafts[request_id, told]
    other = {**noted.drafts, (request_id, told): (*ids[:-1], ids[-1] + 1)}
    difference = compare_runs(log, log, **both, ran_drafts=other).difference
    assert (difference.request_id, difference.step) == (request_id, told)  # the prefill is step 0
    assert difference.replayed.did.replace(str(list(ids)), str([*ids[:-1], ids[-1] + 1])) == difference.ran.did


def test_the_earliest_difference_is_told_and_of_an_operation_the_step_that_differs():
    one = run(batch=3)
    spoilt = changed(changed(one, "steps", "accepted", 20), "steps", "own", 7)
    assert first_of(compare(one, spoilt)) == place_of(one[0], 7)
    # Other rows of the operation differ only in what it did as a whole.
    op = int(np.flatnonzero(one[0].ops["num_rows"] == 3)[-1])
    row = int(np.flatnonzero(one[0].steps["op"] == op)[2])
    spoilt = changed(changed(one, "ops", "new_tokens", op), "steps", "drafted", row)
    assert first_of(compare(one, spoilt)) == place_of(one[0], row)


def test_a_run_in_which_a_request_failed():
    log, tokens = run()
    rows = log.steps["request"] == 3
    kept = np.flatnonzero(~rows | (np.cumsum(rows) <= 2))
    failed = log.requests["failed"].astype(object)
    failed[3] = "logits hold NaN"
    steps = {name: values[kept] for name, values in log.steps.items()}
    short = replace(log, steps=steps, requests={**log.requests, "failed": failed})
    emitted = int(short.steps["emitted"][short.steps["request"] == 3].sum())
    other = {**tokens, "small-3": tokens["small-3"][:emitted]}
    difference = compare((log, tokens), (short, other)).difference
    assert (difference.request_id, difference.step) == ("small-3", 2)
    assert difference.ran.did == "nothing more: the request failed (logits hold NaN)"
    assert difference.ran.tokens == ()
    assert compare((short, other), (log, tokens)).difference.ran.tokens == tuple(tokens["small-3"][emitted:][:AROUND])


def test_steps_that_run_nothing():
    steps = [Draft("draft", 3), Commit(2), Verify("mid"), Verify("target")]
    pool = recorded_pool(TRACE)
    one, other = (replay(TRACE, Script(pool, steps), name="script") for _ in range(2))
    assert compare(one, other).difference is None
    difference = compare(one, replay(TRACE, Script(pool, [Draft("draft", 3), Commit(1)]), name="script")).difference
    assert (difference.request_id, difference.step) == ("small-0", 2)
    assert difference.replayed.did == "commit of 2 pending tokens, unjudged"
    assert difference.ran.did == "commit of 1 pending token, unjudged"


def test_runs_that_cannot_be_compared():
    log, tokens = run()
    with pytest.raises(ValueError, match="both runs must have the same members, got"):
        compare((log, tokens), (replace(log, meta={**log.meta, "members": ["a", "b", "c"]}), tokens))
    other = {**log.requests, "request_id": np.array(["small-0", "small-1", "small-2", "else"])}
    with pytest.raises(ValueError, match="both runs must hold the same requests, got else in one of them"):
        compare((log, tokens), (replace(log, requests=other), {**tokens, "else": tokens["small-3"]}))
    with pytest.raises(ValueError, match="request small-1: the log must account for every committed token, got 14 of"):
        compare((log, tokens), (log, {**tokens, "small-1": [*tokens["small-1"], 1]}))


def test_in_words():
    one = run()
    agreements = [compare(one, run()), compare(one, changed(one, "steps", "accepted", 3))]
    console = Console(width=120, record=True, file=StringIO())
    console.print(agreement_table(agreements))
    text = console.export_text()
    assert all(words in text for words in (CHAIN, "none", "request small-0, step 3", "steps compared", "56"))
    steps, tokens = (sum(getattr(row, name) for row in agreements) for name in ("num_steps", "num_tokens"))
    assert total_line(agreements) == f"compared {steps} steps, {tokens} tokens: policies that differ: 1 of 2"
    assert total_line(agreements[:1]).endswith(", 56 tokens: no difference")
    told = difference_text(agreements[1], agreements[1].difference, lambda ids: " ".join(map(str, ids)))
    first, *rest = told.splitlines()
    start = f"{CHAIN}: request small-0, step 3, after 1 committed token; "
    assert first.startswith(start)
    assert first.endswith("answers differ in 0 of 4 requests")
    heads = ["both had committed", "simulator", "runtime", "simulator commits next", "runtime commits next"]
    assert [line.strip().split("  ")[0] for line in rest] == heads
