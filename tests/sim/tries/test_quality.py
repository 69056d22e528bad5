"""What the simulator says of a lossy policy's text, against a walk over the recording's views by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Commit, Draft, Ratio, Verify
from paceline.reports.summary import quality_of
from paceline.runs.log import QUALITY_FIELDS
from paceline.sim.recorded import recorded_pool

from ...strategies import synthetic_traces, traces
from .small_traces import Anything, Script, request_of, table, trace_of, trunk_of, with_ngram
from .small_traces import replay_bare as replay
from .test_lossy import RULES, VIEWS

KNOWN = ("divergences", "seen_tokens", "scored_tokens", "trunk_tokens", "same_tokens", "same_start", "exact_start")


def run(steps, *, budget=5, **scenario):
    trace = trace_of(request_of(VIEWS, budget=budget, own={(10, 20): (-0.5, -0.75)}))
    return replay(trace, Script(recorded_pool(trace), steps), **scenario)


def test_a_text_of_the_target_is_its_own_measure():
    log, _ = run([Draft("draft", 2), Verify("target")])
    assert table(log, "requests", *KNOWN) == [(0, 5, 5, 5, 5, 5, 5)]
    assert log.requests["log_prob"][0] == log.requests["trunk_log_prob"][0] == -2.5
    quality = quality_of(log)
    assert (quality.num_divergences, quality.divergences_per_1000, quality.known_share) == (0, 0.0, 1.0)
    assert quality.text_agreement == quality.prefix_agreement == 1.0
    assert quality.log_prob_per_token == quality.own_log_prob_per_token == -0.5
    assert not quality.lossy
    assert quality.answers_total is None


def test_one_departure_is_one_divergence_though_two_positions_differ():
    """10 20 30 13 14 for 10 11 12 13 14: the target itself writes 30 after 10 20."""
    log, outputs = run([Draft("draft", 2), Verify("target", Ratio(0.75))])
    assert outputs == {"r0": [10, 20, 30, 13, 14]}
    assert table(log, "requests", *KNOWN) == [(1, 5, 5, 5, 3, 1, 3)]
    assert log.requests["divergent_tokens"].tolist() == [2]
    # 20 has the log-probability -0.75, every other token the -0.5 of what its member writes itself.
    assert log.requests["log_prob"].tolist() == [-2.75]
    quality = quality_of(log)
    assert quality.lossy
    assert quality.divergences_per_1000 == 200.0
    assert (quality.text_agreement, quality.prefix_agreement) == (0.6, 0.2)
    assert quality.log_prob_per_token == -0.55


def test_what_is_not_on_record_is_not_known():
    """20 is committed, then 21 31 and a token nobody knows, and the rest back on the trunk."""
    log, outputs = run([Draft("draft", 1), Commit(1), Draft("draft", 4), Commit(4)])
    assert outputs == {"r0": [10, 20, 21, 31, -1]}
    # Seen: 10, 20 and 21 diverge, 31 does too; what the target thinks of 31 is not recorded.
    assert table(log, "requests", *KNOWN) == [(3, 4, 3, 5, 1, 1, 4)]
    quality = quality_of(log)
    assert quality.divergences_per_1000 == 750.0
    assert quality.known_share == 0.6


def test_unknown_quality_is_told_as_none():
    log, _ = run([Draft("draft", 2), Verify("target")])
    blank = {name: np.full_like(log.requests[name], -1) for name in ("divergences", "same_tokens", "same_start")}
    object.__setattr__(log, "requests", {**log.requests, **blank})
    quality = quality_of(log)
    assert quality.num_divergences is quality.divergences_per_1000 is quality.text_agreement is None
    assert quality.log_prob_per_token == -0.5
    object.__setattr__(log, "requests", {**log.requests, "trunk_tokens": np.array([-1])})
    assert quality_of(log) is None
    assert quality_of(log, tag="a") is None


def by_hand(record, target, tokens):
    """(divergences, seen, log-probabilities) while the text is on record, from the trie alone."""
    trie = record.trie
    paths = {0: ()}
    for node in range(1, trie.num_nodes):
        parent, token = int(trie.parent[node]), int(trie.token[node])
        # A drawn trie may hold nodes that no member's token leads to; a recorder writes none, and replay finds none.
        if parent in paths and token in trie.next_token[:, parent]:
            paths[node] = (*paths[parent], token)
    places = {path: node for node, path in paths.items()}
    divergences, log_probs = 0, []
    for position, token in enumerate(tokens):
        node = places.get(tuple(tokens[:position]))
        if node is None:
            return divergences, position, log_probs
        wrote = int(trie.next_token[target, node])
        divergences += wrote != token
        if wrote == token:
            log_probs.append(float(trie.next_log_prob[target, node]))
        else:
            child = places.get((*tokens[:position], token))
            log_probs += [] if child is None else [float(trie.own_log_prob[target, child])]
    return divergences, len(tokens), log_probs


@given(trace=synthetic_traces(max_models=3) | traces(), seed=st.integers(0, 999), batch=st.integers(1, 3))
def test_any_text_is_measured_as_by_hand_while_it_is_on_record(trace, seed, batch):
    trace = with_ngram(trace)
    policy = Anything(recorded_pool(trace), seed, rules=RULES, commits=True)
    log, outputs = replay(trace, policy, batch=batch)
    trunks = trunk_of(trace)
    target = len(trace.meta.models) - 1
    rows = {row[0]: row[1:] for row in table(log, "requests", "request_id", *QUALITY_FIELDS)}
    for record in trace.requests:
        row = dict(zip(QUALITY_FIELDS, rows[record.request_id], strict=True))
        tokens, trunk = outputs[record.request_id], trunks[record.request_id]
        divergences, known, log_probs = by_hand(record, target, tokens)
        assert row["exact_start"] == known
        same = [ours == theirs for ours, theirs in zip(tokens, trunk, strict=False)]
        assert (row["same_tokens"], row["trunk_tokens"]) == (sum(same), len(trunk))
        assert row["same_start"] == (same.index(False) if False in same else len(same))
        assert row["scored_tokens"] <= row["seen_tokens"] <= len(tokens)
        assert row["divergences"] >= divergences
        if known == len(tokens):
            assert (row["divergences"], row["seen_tokens"]) == (divergences, len(tokens))
            assert row["scored_tokens"] == len(log_probs)
            assert row["log_prob"] == pytest.approx(sum(log_probs))


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 999))
def test_exact_steps_have_no_divergences(trace, seed):
    log, _ = replay(trace, Anything(recorded_pool(trace), seed))
    quality = quality_of(log)
    assert not quality.lossy
    assert (quality.num_divergences, quality.text_agreement, quality.known_share) == (0, 1.0, 1.0)
    assert quality.log_prob_per_token == quality.own_log_prob_per_token
