"""Replay of imported recordings: what a round says is answered as it says, and only the rest is drawn."""

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.rules import Ratio
from paceline.decoding.seen import Start
from paceline.decoding.steps import PolicyError
from paceline.policies import Commit, ConfidenceBelow, Draft, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim.recorded import UnrecordedContextError
from paceline.sim.replay_tables import tables_of
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.meta import NgramInfo

from ...unit_cost import UnitCost
from ..tries.small_traces import Anything, Script, table
from .small_rounds import WatchedTables, one_request, recording_of, recordings, rounds_of, sequential


def run(recording, policy, *, tables=None, name="policy", **scenario):
    outputs = {}
    tables = RoundsTables(recording) if tables is None else tables
    log = simulate(Scenario(tables=tables, cost=UnitCost(), **scenario), policy, name, outputs=outputs)
    return log, outputs


def follow(recording, steps, **scenario):
    """`run`, of a policy that takes these steps."""
    return run(recording, Script(RoundsTables(recording).pool, steps), **scenario)


def told(request, info, start, depth):
    """What the rounds say of a drafted token, worked out from each of them in turn; None if they say nothing."""
    position = start + depth
    rounds = request.rounds.get(info.name)
    for at, kept, drafted in zip(*(column.tolist() for column in _columns(rounds)), strict=True) if rounds else ():
        most = info.window if drafted < 0 else drafted
        refused = at + kept if at + kept < request.length(info.name) and (most is None or kept < most) else None
        if info.by_start and at != start:
            continue
        if at <= position < at + kept or position == refused:
            return position != refused
    return None


def _columns(rounds):
    return rounds.start, rounds.accepted, rounds.drafted


class Oracle:
    """Checks every answer of a world against the recorded rounds."""

    def __init__(self, recording):
        self.infos = recording.meta.drafters
        self.requests = {request.request_id: request for request in recording.requests}
        self.first: dict[str, str] = {}
        self.drawn: dict[tuple, bool] = {}
        self.num_modelled = 0

    def length(self, request):
        return request.length(self.first.get(request.request_id, ""))

    def __call__(self, session, step, level, row):
        if isinstance(step, Verify):
            return self.judged(session, row)
        request = self.requests[session.request_id]
        self.first.setdefault(session.request_id, self.infos[level].name)
        assert len(row.tokens) == len(row.places) == min(step.tokens, session.room)
        emitted, pending = len(session.emitted), len(session.tokens)
        if any(token != emitted + index + 1 for index, token in enumerate(session.tokens)):
            assert not any(row.tokens)
            assert row.num_modelled == 0
            return None
        depth = 0
        while depth < pending and session.drafters[-1 - depth] == level:
            depth += 1
        return self.drafted(request, level, emitted + pending - depth, depth, row)

    def drafted(self, request, level, start, depth, row):
        modelled = 0
        for index, token in enumerate(row.tokens):
            position = start + depth + index
            if position >= self.length(request):
                assert not any(row.tokens[index:])
                break
            known = told(request, self.infos[level], start, depth + index)
            if known is None:
                modelled += 1
                key = (request.request_id, level, start, depth + index)
                assert self.drawn.setdefault(key, bool(token)) == bool(token)
            else:
                assert known == bool(token)
            assert token in (0, position + 1)
            if not token:
                assert not any(row.tokens[index:])
                break
        assert row.num_modelled == modelled
        self.num_modelled += modelled

    def judged(self, session, row):
        trunk = [len(session.emitted) + index + 1 for index in range(len(session.tokens))]
        kept = next((i for i, (a, b) in enumerate(zip(session.tokens, trunk, strict=True)) if a != b), len(trunk))
        assert row.num_accepted == kept
        assert row.num_modelled == 0
        assert len(row.tvd) == min(kept + 1, len(trunk))
        assert all(isnan(distance) for distance in row.tvd)


@given(recording=recordings(), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_what_is_recorded_is_answered_as_recorded(recording, seed, batch):
    oracle = Oracle(recording)
    tables = WatchedTables(recording, oracle)
    log, outputs = run(recording, Anything(tables.pool, seed), tables=tables, batch=batch, seed=seed)
    for request in recording.requests:
        length = oracle.length(request)
        text = outputs[request.request_id]
        assert text == list(range(1, len(text) + 1))
        # Longer only where a drafter first ran beyond the end of its own text.
        assert length <= len(text) <= max(request.num_tokens.values())
    summary = summarise_run(log)
    assert (summary.exact_share == 1) == (oracle.num_modelled == 0)
    assert log.steps["modelled"].sum() == oracle.num_modelled
    assert summary.reanchored == 0


@settings(max_examples=15)
@given(recording=recordings(), seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_two_policies_meet_the_same_luck(recording, seeds):
    oracle = Oracle(recording)  # it also refuses two answers to one question
    for seed in seeds:
        tables = WatchedTables(recording, oracle)
        oracle.first = {}
        run(recording, Anything(tables.pool, seed), tables=tables, seed=7)


@settings(max_examples=15)
@given(recording=recordings(), batch=st.integers(1, 3))
def test_each_method_with_its_own_window_takes_the_recorded_steps(recording, batch):
    for info in recording.meta.drafters:
        requests = [request for request in recording.requests if info.name in request.rounds]
        window = info.window or max(
            1, *(int(max(rounds.drafted.max(), rounds.accepted.max())) for rounds in _all(requests, info))
        )
        log, _ = run(recording, make_policy(f"{info.name}:{window}/target", RoundsTables(recording).pool), batch=batch)
        rounds = log.rounds()
        ids = log.requests["request_id"].tolist()
        for request in requests:
            mine = rounds["request"] == ids.index(request.request_id)
            recorded = request.rounds[info.name]
            if info.window is None and (recorded.drafted < 0).any():
                continue  # nobody knows whether a round was kept whole
            assert rounds["accepted"][mine].tolist() == recorded.accepted.tolist()


def _all(requests, info):
    return [request.rounds[info.name] for request in requests]


@given(
    rate=st.floats(0, 1),
    autocorrelation=st.floats(0, 0.9),
    seed=st.integers(0, 2**20),
    window=st.integers(1, 8),
)
def test_a_token_drafter_replays_as_its_trie_does(rate, autocorrelation, seed, window):
    spec = SyntheticSpec(
        requests=2,
        tokens=40,
        models=("draft", "target"),
        acceptance=(rate,),
        autocorrelation=autocorrelation,
        reach=8,
        run=8,
        seed=seed,
    )
    trace = make_trace(spec)
    everywhere, once = [], []
    for record in trace.requests:
        trie = record.trie
        bits = (trie.next_token[0] == trie.next_token[1])[trie.trunk[:-1]].tolist()
        starts = [(start, *_kept(bits, start, 8)) for start in range(len(bits))]
        for rounds, requests in ((rounds_of(*starts), everywhere), (sequential(bits, 8), once)):
            requests.append(one_request({"": len(bits)}, {"draft": rounds}, request_id=record.request_id))
    want = _accepted(trace, window)
    assert _accepted(recording_of(*everywhere, drafters=(("draft", False, 8),)), window, strict=True) == want
    for (kept, modelled), (truth, _) in zip(
        _accepted(recording_of(*once, drafters=(("draft", False, 8),)), window), want, strict=True
    ):
        assert modelled or kept == truth


def _kept(bits, start, window):
    asked = min(window, len(bits) - start)
    return next((depth for depth in range(asked) if not bits[start + depth]), asked), window


def _accepted(recording, window, *, strict=False):
    """Per request, accepted tokens by round and how many decisions were modelled."""
    scenario = Scenario(tables=tables_of(recording), cost=UnitCost(), strict=strict, start=Start.draft)
    log = simulate(scenario, make_policy(f"draft:{window}/target", scenario.tables.pool), "p")
    rounds = log.rounds()
    return [
        (rounds["accepted"][rounds["request"] == index].tolist(), int(log.steps["modelled"][steps].sum()))
        for index in range(len(recording.requests))
        for steps in [log.steps["request"] == index]
    ]


# -- by hand

BITS = rounds_of((0, 2, 4), (3, 4, 4), (8, 0, 4), (9, 1, 4))


def test_steps_by_hand():
    recording = recording_of(one_request({"": 11}, {"feature": BITS}), drafters=(("feature", True, 4),))
    log, outputs = run(recording, make_policy("feature:4/target", RoundsTables(recording).pool), strict=True)
    assert outputs == {"r0": list(range(1, 12))}
    assert log.rounds()["accepted"].tolist() == [2, 4, 0, 1]
    assert log.rounds()["emitted"].tolist() == [3, 5, 1, 2]


def test_beyond_a_round_kept_whole_is_unknown():
    recording = recording_of(one_request({"": 11}, {"feature": BITS}), drafters=(("feature", True, 4),))
    steps = [Verify("target")] * 3 + [Draft("feature", 6)]
    log, _ = follow(recording, steps)
    drafts = log.steps["drafted"] > 0
    assert log.steps["modelled"][drafts].tolist()[0] in (1, 2)
    with pytest.raises(UnrecordedContextError, match="r0: draft at output position 7 needs a round that was not rec"):
        follow(recording, steps, strict=True)


def test_two_drafters_in_one_round():
    """The second drafter's round starts where its own run began; after a refused token nothing is drawn."""
    feature, tokens = rounds_of((0, 2, 2), (3, 1, 2)), rounds_of((0, 1, 3), (2, 3, 3))
    recording = recording_of(one_request({"": 9}, {"feature": feature, "tokens": tokens}))
    steps = [Draft("feature", 2), Draft("tokens", 3), Draft("feature", 2), Verify("target")]
    log, outputs = follow(recording, steps, seed=3)
    assert log.steps["modelled"].tolist()[:2] == [0, 0]
    assert log.rounds()["accepted"].tolist()[0] >= 5
    steps = [Draft("tokens", 3), Draft("feature", 4), Verify("target")]
    log, outputs = follow(recording, steps, strict=True)
    assert log.rounds()["accepted"].tolist()[0] == 1
    assert outputs["r0"] == list(range(1, 10))


@pytest.mark.parametrize(("first", "length"), [("feature", 7), ("tokens", 12), ("target", 9)])
def test_an_answer_is_as_long_as_its_first_method_wrote(first, length):
    lengths = {"": 9, "feature": 7, "tokens": 12}
    rounds = {"feature": rounds_of((0, 0, 4)), "tokens": rounds_of((0, 0, 4))}
    recording = recording_of(one_request(lengths, rounds))
    chain = "target" if first == "target" else f"{first}:2/target"
    log, outputs = run(recording, make_policy(chain, RoundsTables(recording).pool))
    assert outputs == {"r0": list(range(1, length + 1))}
    assert summarise_run(log).divergent_tokens == 0


def test_drafts_that_a_commit_takes_leave_the_text_and_are_counted():
    recording = recording_of(one_request({"": 6}, {"feature": rounds_of((0, 1, 3))}))
    log, outputs = follow(recording, [Draft("feature", 3), Commit(2)])
    assert outputs == {"r0": [1, 0, 3, 4, 5, 6]}
    summary = summarise_run(log)
    assert (summary.divergent_tokens, summary.reanchored) == (1, 1)
    assert summary.exact_share < 1
    with pytest.raises(UnrecordedContextError, match="re-anchor at output position 2"):
        follow(recording, [Draft("feature", 3), Commit(2)], strict=True)


@pytest.mark.parametrize(
    "steps",
    [[Draft("feature", 3, ConfidenceBelow(0.4))], [Draft("feature", 3), Verify("target", Ratio(0.5))]],
)
def test_what_needs_probabilities_is_refused(steps):
    recording = recording_of(one_request({"": 6}, {"feature": BITS}))
    with pytest.raises(
        ValueError, match=r"(ConfidenceBelow|Ratio).* needs probabilities, and recording 'by hand' holds"
    ):
        follow(recording, steps)


def test_a_drafter_gives_no_verdicts():
    recording = recording_of(one_request({"": 6}, {"feature": BITS}))
    with pytest.raises(PolicyError, match=r"tokens only drafts and cannot verify: .* the recording holds no verdicts"):
        follow(recording, [Draft("feature", 2), Verify("tokens")])


def test_a_drafter_that_never_ran_cannot_be_modelled():
    recording = recording_of(one_request({"": 6}, {"feature": BITS}))
    with pytest.raises(ValueError, match="decisions of drafter tokens to draw others from, got none"):
        follow(recording, [Draft("tokens", 2)])


# -- prompt lookup

TEXT = (7, 8, 9, 7, 8, 9, 5)


def with_ids(**rest):
    return one_request(
        {"": 7, "feature": 9}, {"feature": rounds_of((0, 1, 4))}, prompt=(1, 7, 8), prompt_tokens=3, output=TEXT, **rest
    )


def test_prompt_lookup_where_all_ids_are_known():
    recording = recording_of(with_ids())
    tables = RoundsTables(recording)
    assert tables.pool.names == ("ngram", "feature", "tokens", "target")
    log, outputs = run(recording, make_policy("ngram", tables.pool), strict=True)
    assert outputs == {"r0": list(TEXT)}
    assert summarise_run(log).exact_share == 1
    assert summarise_run(log).levels[-1].accepted > 0
    without = recording_of(with_ids(), one_request({"": 3}, {}, request_id="r1"))
    assert RoundsTables(without).pool.names == ("feature", "tokens", "target")


def test_suffixes_are_copied_where_all_ids_are_known():
    """Of the request's own text and of earlier answers; what the target keeps of a copy is known to the token."""
    recording = recording_of(with_ids(), with_ids(request_id="again"))
    tables = RoundsTables(recording)
    log, outputs = run(recording, make_policy("suffix", tables.pool), strict=True)
    assert outputs == {"r0": list(TEXT), "again": list(TEXT)}
    assert summarise_run(log).exact_share == 1
    accepted = [log.steps["accepted"][log.steps["request"] == place].sum() for place in (0, 1)]
    assert 0 < accepted[0] < accepted[1]


def test_the_lookup_is_that_of_the_recording():
    prompt, output = (4, 7, 8, 9, 4, 1, 4), (7, 8, 9, 5)
    recording = recording_of(one_request({"": 4}, {}, prompt=prompt, prompt_tokens=7, output=output))
    accepted = {}
    for occurrence in ("first", "last"):
        ngram = NgramInfo(name="lookup", max_match=1, occurrence=occurrence)
        trace = replace(recording, meta=recording.meta.model_copy(update={"ngram": ngram}))
        assert RoundsTables(trace).pool.names[0] == "lookup"
        log, outputs = follow(trace, [Draft("lookup", 3), Verify("target")], strict=True)
        assert outputs == {"r0": list(output)}
        accepted[occurrence] = summarise_run(log).levels[-1].accepted
    assert accepted["first"] > accepted["last"]


def test_nothing_is_looked_up_after_a_token_without_an_id():
    recording = recording_of(with_ids())
    steps = [Draft("feature", 3), Draft("ngram", 3), Verify("target")]
    log, outputs = follow(recording, steps)
    assert table(log, "steps", "drafted", "modelled")[1] == (0, 1)
    assert outputs["r0"][:7] == list(TEXT)
    assert len(outputs["r0"]) == 9  # as many as the feature drafter's text; what no log has are no ids
    assert min(outputs["r0"][7:]) < 0
    assert summarise_run(log).divergent_tokens == 0
    with pytest.raises(UnrecordedContextError, match="lookup at output position"):
        follow(recording, steps, strict=True)


def test_signals_are_not_known():
    seen_probs = []

    class Looking(Script):
        def decide(self, seen):
            seen_probs.extend(token.signal.prob for token in seen.pending)
            return super().decide(seen)

    recording = recording_of(one_request({"": 6}, {"feature": BITS}))
    run(recording, Looking(RoundsTables(recording).pool, [Draft("feature", 3)]))
    assert seen_probs
    assert np.isnan(seen_probs).all()
