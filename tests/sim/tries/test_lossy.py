"""Steps that leave the trunk: followed while the recording can, then counted; and how the text is measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY
from paceline.decoding.rules import Deferral, Ensemble, Equilibrium, Fuzzy
from paceline.policies import Band, Commit, Divergence, Draft, Exact, Ratio, Typical, Verify, Vouched
from paceline.reports import summarise_run
from paceline.reports.quality import quality_of
from paceline.runs.log import QUALITY_FIELDS
from paceline.sim.recorded import UnrecordedContextError, recorded_pool

from ...strategies import synthetic_traces, traces
from .small_traces import THREE, TWO, Anything, Script, replay_bare, request_of, table, trace_of, trunk_of, with_ngram

STEP = ("kind", "level", "drafted", "judged", "accepted", "own", "emitted", "modelled")
RULES = (Exact(), Ratio(0.5), Typical(0.3, 0.2), Ratio(0.2), Divergence(0.5), Fuzzy(0.2), Band(0.9, 0.6))
RULES += (Vouched(1), Vouched(2), Deferral("token", 0.4), Deferral("opt", 0.1), Equilibrium(), Ensemble(0.4))
# The trunk is 10 11 12 13 14. The draft model writes 20 after 10; the target finds 20 exp(-0.25) times as probable as
# its own best token, and would go on with 30 after it, which was not recorded.
VIEWS = {
    (): (10, 10),
    (10,): (20, 11),
    (10, 11): (12, 12),
    (10, 11, 12): (13, 13),
    (10, 11, 12, 13): (14, 14),
    (10, 11, 12, 13, 14): (1, 1),
    (10, 20): (21, 30),
    (10, 20, 21): (31, 32),
}


def run(steps, *, own_log_prob=-0.75, **scenario):
    trace = trace_of(request_of(VIEWS, budget=5, own={(10, 20): (-0.5, own_log_prob)}))
    return replay_bare(trace, Script(recorded_pool(trace), steps), **scenario)


def test_what_a_lossy_verifier_keeps():
    steps = [Draft("draft", 2), Verify("target", Ratio(0.75))]
    log, outputs = run(steps)
    assert table(log, "steps", *STEP) == [
        (DRAFT, 0, 2, 0, 0, 0, 0, 0),
        (VERIFY, 1, 0, 2, 2, 1, 3, 0),  # 10 20, and 30 after them: all as recorded
        (VERIFY, 1, 0, 0, 0, 1, 1, 0),  # nothing is recorded after 30: back on the trunk, as many tokens in
        (VERIFY, 1, 0, 0, 0, 1, 1, 0),
    ]
    assert outputs == {"r0": [10, 20, 30, 13, 14]}
    assert (log.requests["divergent_tokens"].tolist(), log.requests["reanchored"].tolist()) == ([2], [1])
    assert summarise_run(log).exact_share == 1 - 1 / 8  # 2 drafted, 2 judged, 3 own, and the way back
    told = "request r0: re-anchor at output position 3 needs a context outside"
    with pytest.raises(UnrecordedContextError, match=told):
        run(steps, strict=True)


@pytest.mark.parametrize(
    ("own_log_prob", "keeps", "refuses"),
    [
        (-0.75, Ratio(0.778), Ratio(0.779)),  # exp(-0.75) / exp(-0.5) = 0.7788
        (-1.25, Typical(0.28, 1.0), Typical(0.29, 0.78)),  # exp(-1.25) = 0.2865, entropy 1: 0.78 exp(-1) = 0.2869
        (-1.25, Typical(0.29, 0.77), Typical(0.29, 0.79)),  # 0.77 exp(-1) = 0.2833
        (-9.0, Divergence(0.25), Exact()),  # the recorded distance is 0.25 everywhere
    ],
)
def test_the_threshold_of_a_rule(own_log_prob, keeps, refuses):
    kept, outputs = run([Draft("draft", 2), Verify("target", keeps)], own_log_prob=own_log_prob)
    assert kept.steps["accepted"][1] == 2
    assert outputs["r0"][:3] == [10, 20, 30]
    refused, outputs = run([Draft("draft", 2), Verify("target", refuses)], own_log_prob=own_log_prob, strict=True)
    assert refused.steps["accepted"][1] == 1
    assert outputs == {"r0": [10, 11, 12, 13, 14]}
    assert not refused.requests["divergent_tokens"].any()


def test_a_commit_takes_tokens_as_they_are():
    steps = [Draft("draft", 2), Commit(2)]
    log, outputs = run(steps)
    assert table(log, "steps", "op", *STEP)[:3] == [
        (0, DRAFT, 0, 2, 0, 0, 0, 0, 0),
        (-1, COMMIT, 1, 0, 0, 0, 0, 2, 0),
        (1, VERIFY, 1, 0, 0, 0, 1, 1, 0),  # what the target writes after 10 20 is recorded
    ]
    assert outputs == {"r0": [10, 20, 30, 13, 14]}
    assert (log.requests["divergent_tokens"].tolist(), log.requests["reanchored"].tolist()) == ([2], [1])
    assert log.steps["end_s"][1] == log.steps["end_s"][0]  # it runs nothing
    log, _ = run(steps, decide_s=1.0)  # but to decide takes its time
    assert log.steps["end_s"][1] == log.steps["end_s"][0] + 1.0
    assert log.requests["finished_at_s"][0] == pytest.approx(log.ops["duration_s"].sum() + len(log.steps["op"]))


def followed(views, steps, *, budget=2, models=TWO, **scenario):
    trace = trace_of(request_of(views, budget=budget), models=models)
    return replay_bare(trace, Script(recorded_pool(trace), steps), **scenario)


def test_a_distance_needs_no_probability_of_the_token_and_may_refuse_the_targets_own():
    """The draft's token was not followed in the recording; how far the two models are apart there was recorded."""
    views = {(): (20, 10), (10,): (11, 11), (10, 11): (1, 1)}
    strict = [Draft("draft", 1), Verify("target", Divergence(0.1))]
    assert followed(views, strict, strict=True)[1] == {"r0": [10, 11]}
    log, _ = followed(views, [Draft("draft", 1), Verify("target", Divergence(1.0))])
    assert log.steps["accepted"][1] == 1
    log, outputs = run([Draft("draft", 2), Verify("target", Divergence(0.2))], strict=True)
    assert log.steps["accepted"][1] == 0
    assert outputs == {"r0": [10, 11, 12, 13, 14]}


def test_a_commit_may_end_a_request():
    log, outputs = run([Draft("draft", 1), Commit(1), Draft("draft", 4), Commit(4)])
    assert outputs == {"r0": [10, 20, 21, 31, -1]}  # -1: a token that nobody recorded
    assert log.requests["divergent_tokens"].tolist() == [4]
    assert log.steps["modelled"].tolist() == [0, 0, 1, 0]
    assert log.requests["finished_at_s"][0] == log.ops["start_s"][-1] + log.ops["duration_s"][-1]


def test_a_verdict_on_an_unknown_token_is_modelled():
    """Also where the context before it was taken back to the trunk."""
    steps = [Draft("draft", 1), Commit(1), Draft("draft", 4), Commit(3), Verify("target")]
    log, outputs = run(steps)
    draft, commit, verify = table(log, "steps", *STEP)[2:5]
    assert draft == (DRAFT, 0, 4, 0, 0, 0, 0, 1)  # 20 21 31, and one beyond the recording
    assert commit == (COMMIT, 1, 0, 0, 0, 0, 3, 0)
    assert verify[3] == verify[-1] == 1
    assert len(outputs["r0"]) == 5
    assert log.requests["reanchored"].tolist() == [1]
    assert summarise_run(log).exact_share < 1


def test_a_text_without_an_end_goes_on_where_the_target_ends():
    """Off the trunk the end of the text was refused; back on it there is no further trunk to come back to."""
    views = {(): (5, 10), (10,): (6, 63), (10, 63): (1, 1), (5,): (6, 7)}
    trace = trace_of(request_of(views, budget=8), eos=63)
    log, outputs = replay_bare(trace, Script(recorded_pool(trace), [Draft("draft", 2), Commit(2)]))
    assert outputs == {"r0": [5, 6, 63]}  # the last context before the trunk's end writes the end
    assert log.requests["reanchored"].tolist() == [1]
    assert log.requests["divergent_tokens"].tolist() == [3]  # two tokens differ, one is too many


def test_an_unknown_token_is_looked_up_in_vain():
    steps = [Draft("draft", 4), Commit(4), Draft("ngram", 2), Verify("target")]
    trace = trace_of(request_of({(): (7, 8), (7,): (7, 8), (8,): (1, 1)}, prompt=(7, 9), budget=8), ngram=True)
    log, _ = replay_bare(trace, Script(recorded_pool(trace), steps))
    assert log.steps["drafted"][2] == 0
    assert log.steps["modelled"][2] == 1


# Three models: the draft writes 20 after 10 and 21 after that; mid would write 11 and then 21; so would the target,
# but for 12 after 10 11. Mid finds 20 exp(-0.25) times as probable as its own best token, the target exp(-1.5) times.
THREE_VIEWS = {
    (): (10, 10, 10),
    (10,): (20, 11, 11),
    (10, 11): (12, 12, 12),
    (10, 11, 12): (13, 13, 13),
    (10, 20): (21, 21, 22),
    (10, 20, 21): (23, 23, 23),
    (10, 20, 21, 23): (1, 1, 1),
}


def run_three(steps, **scenario):
    own = {(10, 20): (-0.5, -0.75, -2.0)}
    trace = trace_of(request_of(THREE_VIEWS, budget=4, own=own), models=THREE)
    return replay_bare(trace, Script(recorded_pool(trace), steps), **scenario)


def test_an_escalated_token_is_left_to_the_target():
    steps = [Draft("draft", 3), Verify("mid", Band(0.9, 0.8)), Verify("target", Vouched(1))]
    log, outputs = run_three(steps, strict=True)
    assert table(log, "steps", *STEP, "escalated")[:3] == [
        (DRAFT, 0, 3, 0, 0, 0, 0, 0, 0),
        (VERIFY, 1, 0, 3, 3, 1, 0, 0, 1),  # 10 stays, 20 is escalated, 21 after it stays; mid writes 23
        (VERIFY, 2, 0, 4, 1, 1, 2, 0, 0),  # mid endorses 10; the target refuses 20, and all after it goes
    ]
    assert outputs == {"r0": [10, 11, 12, 13]}


def test_what_a_band_does_not_escalate_it_replaces_or_keeps():
    log, outputs = run_three([Draft("draft", 3), Verify("mid", Band(0.9, 0.7)), Verify("target")], strict=True)
    assert table(log, "steps", "accepted", "own", "escalated")[1] == (1, 1, 0)
    assert outputs == {"r0": [10, 11, 12, 13]}
    log, outputs = run_three([Draft("draft", 3), Verify("mid", Band(0.7, 0.5)), Verify("target", Vouched(1))])
    assert table(log, "steps", "accepted", "own", "escalated")[1:3] == [(3, 1, 0), (4, 0, 0)]
    assert outputs == {"r0": [10, 20, 21, 23]}, "the target takes mid's word"


def test_a_word_that_is_taken_needs_no_record():
    views = {(): (7, 8, 8), (8,): (9, 9, 9)}
    steps = [Draft("draft", 1), Verify("mid", Divergence(1.0))]
    log, outputs = followed(views, [*steps, Verify("target", Vouched(1))], models=THREE)
    assert outputs["r0"][0] == 7  # a token nobody recorded anything after
    assert table(log, "steps", "kind", "judged", "accepted", "modelled")[2] == (VERIFY, 2, 2, 0)
    assert followed(views, [*steps, Verify("target")], models=THREE)[1]["r0"][0] == 8


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Deferral("token", 0.23), 2),  # exp(-0.25) = 0.7788
        (Deferral("token", 0.22), 1),
        (Deferral("diff", 0.0), 2),  # all models are as sure of their best token: exp(-0.5)
        (Deferral("opt", 0.0), 2),
        (Deferral("chow", 0.40), 2),  # exp(-0.5) = 0.6065
        (Deferral("chow", 0.39), 1),
        (Fuzzy(0.25), 2),
        (Fuzzy(0.24), 1),
        (Equilibrium(discriminator=0.01), 2),
        (Equilibrium(discriminator=100.0), 1),
    ],
    ids=str,
)
def test_where_a_cascade_defers_and_where_the_game_ends(rule, kept):
    own = {(10, 20): (-0.5, -0.75), (10, 11): (-3.0, -0.5)}
    trace = trace_of(request_of(VIEWS, budget=5, own=own))
    log, _ = replay_bare(trace, Script(recorded_pool(trace), [Draft("draft", 2), Verify("target", rule)]))
    assert log.steps["accepted"][1] == kept
    assert not log.steps["modelled"][:2].any()


def test_a_game_over_a_token_nobody_recorded_is_modelled():
    """What the draft gives to the target's own token is not known where that token was not followed."""
    log, _ = followed({(): (7, 8), (7,): (9, 9)}, [Draft("draft", 1), Verify("target", Equilibrium())])
    assert table(log, "steps", "judged", "accepted")[1] == (1, 0)
    assert log.steps["modelled"][1] >= 1


@given(trace=synthetic_traces(max_models=3) | traces(), seed=st.integers(0, 999), batch=st.integers(1, 3))
def test_any_steps_come_to_an_end(trace, seed, batch):
    trace = with_ngram(trace)
    policy = Anything(recorded_pool(trace), seed, rules=RULES, commits=True)
    log, outputs = replay_bare(trace, policy, batch=batch)
    trunks = trunk_of(trace)
    differ = []
    for record in trace.requests:
        written, trunk = outputs[record.request_id], trunks[record.request_id]
        assert len(written) == record.max_new_tokens
        differ.append(sum(a != b for a, b in zip(written, trunk, strict=False)) + len(written) - len(trunk))
    assert log.requests["divergent_tokens"].tolist() == differ
    assert log.requests["emitted_tokens"].tolist() == [record.max_new_tokens for record in trace.requests]
    assert 0 <= summarise_run(log).exact_share <= 1
    if not log.steps["modelled"].any() and not log.requests["reanchored"].any():
        assert summarise_run(log).exact_share == 1


KNOWN = ("divergences", "seen_tokens", "scored_tokens", "trunk_tokens", "same_tokens", "same_start", "exact_start")


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
    log, outputs = replay_bare(trace, policy, batch=batch)
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
