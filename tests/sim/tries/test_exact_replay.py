"""Whatever exact verifiers do, a replay commits what the target alone would write."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace

from ...strategies import synthetic_traces, traces
from .small_traces import Anything, replay, table, trunk_of, with_ngram

STEP = ("request", "kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted", "modelled")


@st.composite
def chains(draw, names):
    """A chain of some of the models, the last one its target."""
    below = [name for name in names[:-1] if draw(st.booleans())]
    return "/".join([*(f"{name}:{draw(st.integers(1, 6))}" for name in below), names[-1]])


@given(data=st.data(), trace=synthetic_traces(), batch=st.integers(1, 4))
def test_any_chain_commits_the_trunk(data, trace, batch):
    chain = data.draw(chains(trace.meta.model_names))
    log, outputs = replay(trace, make_policy(chain, recorded_pool(trace)), batch=batch)
    assert outputs == trunk_of(trace)
    assert not log.requests["divergent_tokens"].any()
    assert not log.requests["reanchored"].any()
    emitted = np.bincount(log.steps["request"], weights=log.steps["emitted"])
    assert emitted.tolist() == [len(tokens) for tokens in trunk_of(trace).values()]


@given(trace=synthetic_traces(), seed=st.integers(0, 99), ngram=st.booleans())
def test_any_legal_steps_commit_the_trunk(trace, seed, ngram):
    trace = with_ngram(trace) if ngram else trace
    log, outputs = replay(trace, Anything(recorded_pool(trace), seed))
    assert outputs == trunk_of(trace)
    assert not log.requests["divergent_tokens"].any()


@given(trace=traces(), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_any_trie_replays_its_trunk_and_ends(trace, seed, batch):
    """Tries of any shape, where most contexts are missing and the trunk may end before the budget."""
    log, outputs = replay(trace, Anything(recorded_pool(trace), seed), batch=batch)
    for record, (request_id, trunk) in zip(trace.requests, trunk_of(trace).items(), strict=True):
        assert outputs[request_id][: len(trunk)] == trunk
        assert len(outputs[request_id]) == record.max_new_tokens
    assert sum(map(len, outputs.values())) == log.steps["emitted"].sum()


@given(trace=synthetic_traces(max_models=3), policy=st.sampled_from(["adaptive", "confident", "ngram", "anything"]))
def test_a_batch_changes_the_order_never_the_steps(trace, policy):
    """Requests neither see nor disturb one another, whatever policy does not look at the load."""
    trace = with_ngram(trace)
    pool = recorded_pool(trace)

    def run(batch):
        decider = Anything(pool, 1) if policy == "anything" else make_policy(policy, pool)
        log, outputs = replay(trace, decider, batch=batch)
        return outputs, sorted(table(log, "steps", *STEP), key=lambda row: row[0])

    outputs, steps = run(1)
    for batch in (2, 5):
        assert run(batch) == (outputs, steps)


def test_a_batch_interleaves_requests():
    trace = make_trace(SyntheticSpec(requests=3, tokens=8))
    pool = recorded_pool(trace)
    alone, _ = replay(trace, make_policy("draft:2/target", pool), batch=1)
    together, _ = replay(trace, make_policy("draft:2/target", pool), batch=3)
    assert alone.steps["request"].tolist() == sorted(alone.steps["request"].tolist())
    assert together.steps["request"][:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert together.ops["num_rows"][:2].tolist() == [3, 3]
    assert alone.requests["admitted_at_s"].tolist()[1:] == alone.requests["finished_at_s"].tolist()[:-1]
    assert together.requests["admitted_at_s"].tolist() == [0.0, 0.0, 0.0]


def test_more_running_than_requests():
    trace = make_trace(SyntheticSpec(requests=2, tokens=4))
    _, outputs = replay(trace, make_policy("plain", recorded_pool(trace)), batch=9)
    assert outputs == trunk_of(trace)


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.9])
def test_tokens_per_round_of_two_levels(rate):
    """(1 - a^(n+1)) / (1 - a) (Leviathan et al. 2023, arXiv:2211.17192, Thm 3.8)."""
    budget = 600
    spec = SyntheticSpec(requests=30, tokens=budget, prompt_tokens=1, acceptance=(rate,), reach=7, seed=5)
    trace = make_trace(spec)
    trie = [record.trie for record in trace.requests]
    # The rate this sample came to; what the theorem says is how the rounds follow from it.
    agree = np.mean([one.next_token[0, one.trunk[:-1]] == one.next_token[1, one.trunk[:-1]] for one in trie])
    assert agree == pytest.approx(rate, abs=0.01)
    for window in (1, 4, 8):
        log, _ = replay(trace, make_policy(f"draft:{window}/target", recorded_pool(trace)), strict=True)
        rounds = log.rounds()
        starts = np.concatenate([[0], np.cumsum(rounds["emitted"])[:-1]]) % budget
        whole = starts <= budget - window - 1  # the budget cuts later rounds short
        theory = (1 - agree ** (window + 1)) / (1 - agree)
        assert rounds["emitted"][whole].mean() == pytest.approx(theory, rel=0.02)


def test_runs_of_agreement_break_the_formula():
    """So that the test above can fail: with autocorrelation 0.8 rounds are not geometric."""
    trace = make_trace(SyntheticSpec(requests=20, tokens=600, autocorrelation=0.8, reach=8))
    log, _ = replay(trace, make_policy("draft:4/target", recorded_pool(trace)), strict=True)
    assert abs(log.rounds()["emitted"].mean() / ((1 - 0.8**5) / (1 - 0.8)) - 1) > 0.05


class Alternating:
    """Both kinds of step by every model, in turn."""

    def __init__(self, pool):
        self._names, self._turn = pool.names, 0

    def decide(self, seen):
        self._turn += 1
        name = self._names[self._turn % len(self._names)]
        if name == self._names[-1] or seen.room < 1:
            return Verify(self._names[-1])
        return Draft(name, 1 + self._turn % 3)

    def learn(self, outcome):
        pass


@given(trace=synthetic_traces(), seed=st.integers(0, 99))
def test_a_forward_per_drafted_token_and_per_verification(trace, seed):
    pool = recorded_pool(trace)
    for policy in (Anything(pool, seed), Alternating(pool)):
        log, _ = replay(trace, policy)
        for level in range(len(pool.names)):
            mine, ops = log.steps["level"] == level, log.ops["level"] == level
            drafted = int(log.steps["drafted"][mine & (log.steps["kind"] == DRAFT)].sum())
            verified = int((mine & (log.steps["kind"] == VERIFY)).sum())
            assert log.ops["num_forwards"][ops].sum() == drafted + verified
