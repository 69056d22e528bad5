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
from paceline.sim.cost.measured import TimedCost
from paceline.sim.difficulty import Beside, BesideOutcome
from paceline.sim.recorded import UnrecordedContextError
from paceline.sim.replay_tables import tables_of
from paceline.sim.rounds import RoundsTables
from paceline.sim.rounds_answers import WHOLE, known_tokens
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.meta import NgramInfo
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, RoundsMeta

from ...unit_cost import UnitCost
from ..tries.small_traces import Anything, Script, table
from .small_rounds import WatchedTables, one_request, recording_of, recordings, rounds_of, sequential


def run(recording, policy, *, tables=None, cost=None, **scenario):
    """(log, outputs), of a policy by its text, by the steps that it takes, or as it is."""
    outputs = {}
    tables = tables or RoundsTables(recording)
    if isinstance(policy, str):
        policy = make_policy(policy, tables.pool)
    elif isinstance(policy, list):
        policy = Script(tables.pool, policy)
    scenario = Scenario(tables=tables, cost=cost or UnitCost(), **scenario)
    return simulate(scenario, policy, "policy", outputs=outputs), outputs


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
FEATURE = recording_of(one_request({"": 11}, {"feature": BITS}), drafters=(("feature", True, 4),))
NEEDS = "needs a round that was not recorded; leave out `strict`"


def test_steps_by_hand():
    log, outputs = run(FEATURE, "feature:4/target", strict=True)
    assert outputs == {"r0": list(range(1, 12))}
    assert log.rounds()["accepted"].tolist() == [2, 4, 0, 1]
    assert log.rounds()["emitted"].tolist() == [3, 5, 1, 2]


def test_beyond_a_round_kept_whole_is_unknown():
    steps = [Verify("target")] * 3 + [Draft("feature", 6)]
    log, _ = run(FEATURE, steps)
    assert log.steps["modelled"][log.steps["drafted"] > 0].tolist()[0] in (1, 2)
    with pytest.raises(UnrecordedContextError, match=f"r0: draft at output position 7 {NEEDS}"):
        run(FEATURE, steps, strict=True)


def test_two_drafters_in_one_round():
    """The second drafter's round starts where its own run began; after a refused token nothing is drawn."""
    feature, tokens = rounds_of((0, 2, 2), (3, 1, 2)), rounds_of((0, 1, 3), (2, 3, 3))
    recording = recording_of(one_request({"": 9}, {"feature": feature, "tokens": tokens}))
    steps = [Draft("feature", 2), Draft("tokens", 3), Draft("feature", 2), Verify("target")]
    log, _ = run(recording, steps, seed=3)
    assert log.steps["modelled"].tolist()[:2] == [0, 0]
    assert log.rounds()["accepted"].tolist()[0] >= 5
    log, outputs = run(recording, [Draft("tokens", 3), Draft("feature", 4), Verify("target")], strict=True)
    assert log.rounds()["accepted"].tolist()[0] == 1
    assert outputs["r0"] == list(range(1, 10))


@pytest.mark.parametrize(("first", "length"), [("feature:2/", 7), ("tokens:2/", 12), ("", 9)])
def test_an_answer_is_as_long_as_its_first_method_wrote(first, length):
    rounds = {"feature": rounds_of((0, 0, 4)), "tokens": rounds_of((0, 0, 4))}
    log, outputs = run(recording_of(one_request({"": 9, "feature": 7, "tokens": 12}, rounds)), f"{first}target")
    assert outputs == {"r0": list(range(1, length + 1))}
    assert summarise_run(log).divergent_tokens == 0


def test_drafts_that_a_commit_takes_leave_the_text_and_are_counted():
    recording = recording_of(one_request({"": 6}, {"feature": rounds_of((0, 1, 3))}))
    log, outputs = run(recording, [Draft("feature", 3), Commit(2)])
    assert outputs == {"r0": [1, 0, 3, 4, 5, 6]}
    summary = summarise_run(log)
    assert (summary.divergent_tokens, summary.reanchored) == (1, 1)
    assert summary.exact_share < 1
    with pytest.raises(UnrecordedContextError, match="re-anchor at output position 2"):
        run(recording, [Draft("feature", 3), Commit(2)], strict=True)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([Draft("feature", 3, ConfidenceBelow(0.4))], "ConfidenceBelow.* needs probabilities, and recording 'by hand'"),
        ([Draft("feature", 3), Verify("target", Ratio(0.5))], "Ratio.* needs probabilities, and recording 'by hand'"),
        ([Draft("feature", 2), Verify("tokens")], "tokens only drafts and cannot verify: .* holds no verdicts"),
        ([Draft("tokens", 2)], "decisions of drafter tokens to draw others from, got none"),
    ],
)
def test_what_rounds_do_not_hold_is_refused(steps, told):
    with pytest.raises((ValueError, PolicyError), match=told):
        run(recording_of(one_request({"": 6}, {"feature": BITS})), steps)


# -- prompt lookup

TEXT = (7, 8, 9, 7, 8, 9, 5)


def with_ids(**rest):
    return one_request(
        {"": 7, "feature": 9}, {"feature": rounds_of((0, 1, 4))}, prompt=(1, 7, 8), prompt_tokens=3, output=TEXT, **rest
    )


def test_prompt_lookup_where_all_ids_are_known():
    recording = recording_of(with_ids())
    assert RoundsTables(recording).pool.names == ("ngram", "feature", "tokens", "target")
    log, outputs = run(recording, "ngram", strict=True)
    assert outputs == {"r0": list(TEXT)}
    assert summarise_run(log).exact_share == 1
    assert summarise_run(log).levels[-1].accepted > 0
    without = recording_of(with_ids(), one_request({"": 3}, {}, request_id="r1"))
    assert RoundsTables(without).pool.names == ("feature", "tokens", "target")


def test_suffixes_are_copied_where_all_ids_are_known():
    """Of the request's own text and of earlier answers; what the target keeps of a copy is known to the token."""
    log, outputs = run(recording_of(with_ids(), with_ids(request_id="again")), "suffix", strict=True)
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
        log, outputs = run(trace, [Draft("lookup", 3), Verify("target")], strict=True)
        assert outputs == {"r0": list(output)}
        accepted[occurrence] = summarise_run(log).levels[-1].accepted
    assert accepted["first"] > accepted["last"]


def test_nothing_is_looked_up_after_a_token_without_an_id():
    recording, steps = recording_of(with_ids()), [Draft("feature", 3), Draft("ngram", 3), Verify("target")]
    log, outputs = run(recording, steps)
    assert table(log, "steps", "drafted", "modelled")[1] == (0, 1)
    assert outputs["r0"][:7] == list(TEXT)
    assert len(outputs["r0"]) == 9  # as many as the feature drafter's text; what no log has are no ids
    assert min(outputs["r0"][7:]) < 0
    assert summarise_run(log).divergent_tokens == 0
    with pytest.raises(UnrecordedContextError, match="lookup at output position"):
        run(recording, steps, strict=True)


# -- drafts that ended by the drafter's own rule, steps in which nothing was drafted, and rounds that were placed

BY_START = pytest.mark.parametrize("by_start", [True, False])
STOPPING = ((0, 5, 5), (6, 0, 0), (7, 2, 2), (10, 1, 3), (12, 2, 5))


def stopping(*, by_start=True, rows=STOPPING, length=15, placed=None):
    """Window 5: a whole draft, an empty one, a short one that was kept, a short one that was refused, a whole one."""
    rounds = replace(rounds_of(*rows), placed=placed)
    return recording_of(one_request({"": length}, {"d": rounds}), drafters=(("d", by_start, 5),))


@BY_START
def test_a_draft_is_as_short_as_it_was_and_is_not_continued(by_start):
    recording = stopping(by_start=by_start)
    log, outputs = run(recording, "d:5/target", strict=True)
    assert outputs == {"r0": list(range(1, 16))}
    assert log.rounds()["emitted"].tolist() == [6, 1, 3, 2, 3]
    assert log.rounds()["drafted"].tolist() == [5, 0, 2, 3, 3]
    summary = summarise_run(log)
    assert (summary.exact_share, summary.levels[0].forwards) == (1, 5 + 0 + 2 + 3 + 3)
    steps = [Verify("target")] * 7 + [Draft("d", 1), Draft("d", 4), Draft("d", 4), Verify("target")]
    log, _ = run(recording, steps, strict=True)
    assert log.steps["drafted"].tolist()[7:11] == [1, 1, 0, 0]
    assert log.steps["emitted"].tolist()[10] == 3


def test_less_than_was_drafted_is_answered_from_the_record():
    log, _ = run(stopping(), [Verify("target")] * 10 + [Draft("d", 2), Verify("target")], strict=True)
    assert (log.steps["drafted"].tolist()[10], log.steps["accepted"].tolist()[11]) == (2, 1)


@BY_START
def test_where_no_round_started_a_draft_ends_as_recorded_ones_did(by_start):
    """Two drafts of five in every recorded step but one in four, which drafted nothing."""
    rows = [(start, 1 if start % 8 else 0, 2 if start % 8 else 0) for start in range(0, 200, 2)]
    recording, drafted = stopping(by_start=by_start, rows=rows, length=201), []
    for seed in range(12):
        log, _ = run(recording, [Verify("target"), Draft("d", 5), Verify("target")], seed=seed)
        drafted.append(int(log.steps["drafted"][1]))
        assert log.steps["modelled"][1] >= 1
    assert set(drafted) == {0, 2}
    with pytest.raises(UnrecordedContextError, match=f"r0: draft at output position 1 {NEEDS}"):
        run(recording, [Verify("target"), Draft("d", 5)], strict=True)


def test_as_much_as_every_draft_had_is_asked_without_a_draw():
    """Drafts of three, four and five tokens: whether a fourth comes at position 1 is drawn, the first three do."""
    rows = [(start, 1, 3 + start % 3) for start in range(0, 400, 2)]
    recording = stopping(by_start=False, rows=rows, length=401)
    log, _ = run(recording, [Verify("target"), Draft("d", 3)], strict=True)
    assert (log.steps["drafted"][1], log.steps["modelled"][1]) == (3, 0)
    with pytest.raises(UnrecordedContextError, match="draft at output position 1 needs a round"):
        run(recording, [Verify("target"), Draft("d", 4)], strict=True)


@pytest.mark.parametrize(
    ("by_start", "placed", "modelled"),
    [  # the empty draft, and of the round at 10 the token that stayed and the one that was refused
        (True, (1, 3), 1 + 2),
        (False, (3,), 2),
    ],
)
def test_what_was_placed_is_replayed_and_counts_as_modelled(by_start, placed, modelled):
    recording = stopping(by_start=by_start, placed=np.isin(np.arange(5), placed))
    log, _ = run(recording, "d:5/target")
    assert log.rounds()["emitted"].tolist() == [6, 1, 3, 2, 3]
    assert log.steps["modelled"].sum() == modelled
    assert summarise_run(log).exact_share < 1
    with pytest.raises(UnrecordedContextError, match=f"r0: draft at output position {6 if by_start else 10} {NEEDS}"):
        run(recording, "d:5/target", strict=True)


@given(recording=recordings(stopping=True), batch=st.integers(1, 3))
def test_drafters_that_stop_by_themselves_take_the_recorded_steps(recording, batch):
    for info in recording.meta.drafters:
        log, _ = run(recording, f"{info.name}:{info.window or 5}/target", batch=batch)
        rounds, ids = log.rounds(), log.requests["request_id"].tolist()
        for request in recording.requests:
            if info.name in request.rounds:
                mine = rounds["request"] == ids.index(request.request_id)
                assert rounds["accepted"][mine].tolist() == request.rounds[info.name].accepted.tolist()


# -- how methods began: after a prefill that wrote a token, or with a draft on the bare prompt

AFTER, BARE = ((1, 2, 3), (4, 0, 3), (5, 3, 3)), ((0, 1, 3), (2, 3, 3), (6, 1, 3))
AFTER_S, BARE_S = [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)], [(0.7, 0.8), (0.9, 1.0), (1.1, 1.2)]
ROUNDS_BEGUN = {"after": rounds_of(*AFTER, seconds=AFTER_S), "bare": rounds_of(*BARE, seconds=BARE_S)}


def begun(request, *drafters):
    """A recording of drafters, of which those called `bare` drafted before the prefill."""
    infos = [DrafterInfo(name=name, by_start=True, window=3, prefilled=name != "bare") for name in drafters]
    return RoundsRecording(
        meta=RoundsMeta(name="starts", source="spec-bench", drafters=tuple(infos)), requests=(request,)
    )


def both(**more):
    return begun(one_request({"": 8, "after": 8, "bare": 8}, ROUNDS_BEGUN, **more), "after", "bare")


def alone(name, **more):
    return begun(one_request({name: 8}, {name: ROUNDS_BEGUN[name]}, **more), name)


@pytest.mark.parametrize(
    ("trace", "before"),
    [
        (both(), (True, False, False)),
        (alone("after"), (True, True)),
        (alone("bare"), (False, False)),
        (begun(one_request({"": 8}, {})), (True,)),
    ],
    ids=["both", "after", "bare", "target alone"],
)
def test_who_waits_for_the_prefill(trace, before):
    waits = RoundsTables(trace).prefill_before
    assert waits(Start.recorded) == before
    assert (set(waits(Start.prefill)), set(waits(Start.draft))) == ({True}, {False})


@pytest.mark.parametrize(("name", "prefills", "emitted"), [("after", 1, [3, 1, 3]), ("bare", 0, [2, 4, 2])])
def test_each_method_begins_as_it_did(name, prefills, emitted):
    for trace in (both(), alone(name)):
        log, outputs = run(trace, f"{name}:3/target", strict=True)
        assert outputs == {"r0": list(range(1, 9))}
        assert log.steps["prefill"].sum() == prefills
        assert log.rounds()["emitted"].tolist() == emitted


def test_what_was_recorded_otherwise_is_drawn_at_the_other_start():
    """From position 0 no round of a drafter speaks that began after a prefill."""
    log, _ = run(alone("after"), "after:3/target", start=Start.draft)
    assert log.steps["modelled"][0] > 0
    assert log.steps["prefill"].sum() == 0


def test_the_prefill_does_not_end_an_answer_that_a_method_wrote_longer():
    """The target alone wrote one token; nobody knows at the prefill whose text the answer is."""
    trace = begun(one_request({"": 1, "after": 8}, {"after": ROUNDS_BEGUN["after"]}), "after")
    assert run(trace, "after:3/target")[1] == {"r0": list(range(1, 9))}
    log, outputs = run(begun(one_request({"after": 1}, {"after": rounds_of()}), "after"), "after:3/target")
    assert outputs == {"r0": [1]}
    assert len(log.rounds()["emitted"]) == 0


@settings(max_examples=15)
@given(seed=st.integers(0, 999), start=st.sampled_from(list(Start)))
def test_whatever_a_policy_does_the_text_is_the_target_s(seed, start):
    trace = both()
    log, outputs = run(trace, Anything(RoundsTables(trace).pool, seed), start=start)
    assert outputs["r0"] == list(range(1, 9))
    assert log.steps["prefill"].sum() <= 1


def test_a_draft_waits_where_another_could_begin():
    steps = [Draft("after", 3), Verify("target"), Draft("bare", 3), Verify("target")]
    assert run(both(), steps)[0].steps["prefill"].tolist()[:2] == [1, 0]
    assert run(both(), steps[2:])[0].steps["prefill"].sum() == 0


def finished_s(trace, policy, **scenario):
    log, _ = run(trace, policy, cost=TimedCost(trace), **scenario)
    return log.requests["first_token_at_s"][0], log.requests["finished_at_s"][0]


@pytest.mark.parametrize("prefill_s", [{"after": 2.0, "bare": 3.0}, {"after": 2.0, "bare": 0.1, "": 0.5}])
def test_a_method_takes_its_own_seconds(prefill_s):
    rounds_s = {"": 4.0, "after": sum(map(sum, AFTER_S)), "bare": sum(map(sum, BARE_S))}
    wall_s = {name: seconds + prefill_s.get(name, 0.0) for name, seconds in rounds_s.items()}
    trace = both(wall_s=wall_s, prefill_s=prefill_s)
    for name in ("after", "bare"):
        assert finished_s(trace, f"{name}:3/target")[1] == pytest.approx(wall_s[name])
    for start in (Start.prefill, Start.draft):
        assert finished_s(trace, "plain", start=start)[1] == pytest.approx(wall_s[""])


def test_where_nobody_knows_whose_the_prefill_is_the_rest_comes_later():
    """The least of the two is charged for the prefill, and what the method took longer with its first draft."""
    rounds = dict.fromkeys(("after", "other"), ROUNDS_BEGUN["after"])
    prefill_s = {"after": 2.0, "other": 3.0}
    wall_s = {name: 2.1 + seconds for name, seconds in prefill_s.items()}
    trace = begun(one_request({"after": 8, "other": 8}, rounds, wall_s=wall_s, prefill_s=prefill_s), *rounds)
    for name in rounds:
        assert finished_s(trace, f"{name}:3/target") == pytest.approx((2.0, wall_s[name]))


def test_a_prefill_that_was_not_timed_takes_a_step_s_share():
    """Three rounds and the prefill share the seconds of the answer."""
    rounds = {"after": rounds_of(*AFTER)}
    trace = begun(one_request({"after": 8}, rounds, wall_s={"after": 4.0}), "after")
    assert finished_s(trace, "after:3/target") == pytest.approx((1.0, 4.0))


# -- what rounds say of tokens that start elsewhere

# Four kept of five, then one refused; a whole draft; an empty one; two kept, at the end of the text.
ROUNDS = rounds_of((0, 4, 5), (5, 5, 5), (11, 0, 0), (12, 2, 5))


def known(*, by_start, rounds=ROUNDS, length=14, window=5):
    info = DrafterInfo(name="d", by_start=by_start, window=window)
    return known_tokens(one_request({"": length}, {"d": rounds}), info)


@pytest.mark.parametrize(
    ("start", "depth", "told"),
    [
        (2, 0, Beside(BesideOutcome.agreed, 2)),
        (2, 1, Beside(BesideOutcome.agreed, 3)),
        (2, 2, Beside(BesideOutcome.refused, 4)),
        (2, 3, Beside(BesideOutcome.agreed, 0)),
        (6, 3, Beside(BesideOutcome.agreed, 4)),
        (6, 4, Beside(BesideOutcome.reached, 5)),
        (10, 0, Beside(BesideOutcome.reached, 5)),
        (11, 0, None),
        (9, 2, Beside(BesideOutcome.reached, 2)),  # nothing of this token, something of one before it
        (10, 1, Beside(BesideOutcome.reached, 1)),
        (13, 0, Beside(BesideOutcome.agreed, 1)),
        (0, 5, Beside(BesideOutcome.agreed, 0)),  # beyond its own refusal, where nobody asks
    ],
)
def test_what_another_round_says(start, depth, told):
    assert known(by_start=True).beside(start, depth) == told


def test_its_own_round_is_not_another():
    assert known(by_start=True).beside(5, 4) is None
    assert known(by_start=True, rounds=rounds_of((0, 2, 5))).beside(0, 2) is None


@pytest.mark.parametrize(("start", "depth", "run"), [(8, 2, 5), (10, 0, 5), (5, 5, None), (4, 6, None), (0, 0, None)])
def test_a_token_drafter_knows_how_long_it_has_gone_well(start, depth, run):
    told = known(by_start=False).beside(start, depth)
    assert told == (None if run is None else Beside(BesideOutcome.reached, run))


@pytest.mark.parametrize("by_start", [True, False])
def test_where_a_drafter_stops_by_itself(by_start):
    found = known(by_start=by_start)
    stops = [found.num_drafted(start) for start in (0, 5, 11, 12, 3)]
    assert stops == [WHOLE, WHOLE, 0, WHOLE, None]
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(0) == 3
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(3) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(5) == WHOLE
    # A draft that the text's end cut did not stop by itself, and one of an unknown window may not have.
    assert known(by_start=by_start, rounds=rounds_of((11, 3, 3))).num_drafted(11) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 0, 0)), window=None).num_drafted(0) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 0, 0)), window=None).num_drafted(3) == 0


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    start=st.integers(0, 40),
    depth=st.integers(0, 8),
)
def test_the_last_round_before_a_token_speaks_of_it(rows, start, depth):
    columns, position = [], 0
    for accepted, whole in rows:
        columns.append((position, accepted, accepted if whole else 5 if accepted < 5 else 6))
        position += accepted + 1
    found = known(by_start=True, rounds=rounds_of(*columns), length=50, window=6).beside(start, depth)
    told = None
    for at, accepted, drafted in columns:
        there = start + depth - at
        if at != start and 0 <= there < accepted:
            told = Beside(BesideOutcome.agreed, there)
        if at != start and there == accepted and drafted > accepted:
            told = Beside(BesideOutcome.refused, there)
    if told is not None or (found is not None and found.outcome is not BesideOutcome.reached):
        assert found == told


def test_placed_rounds_are_told_apart():
    rounds = rounds_of((0, 2, 3), (3, 0, 0), (4, 3, 3))
    marked = type(rounds)(
        start=rounds.start, accepted=rounds.accepted, drafted=rounds.drafted, placed=np.array([False, True, True])
    )
    for by_start in (True, False):
        found = known(by_start=by_start, rounds=marked, window=3)
        assert [found.was_placed(start) for start in (0, 3, 4)] == [False, True, True]
        assert [found.num_placed(0, 0, 3), found.num_placed(4, 0, 2), found.num_placed(4, 1, 9)] == [0, 2, 2]
