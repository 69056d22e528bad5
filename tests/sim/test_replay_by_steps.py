"""Steps given one at a time: what `simulate` makes of them at batch 1, to the bit, and what is refused."""

from functools import cache

import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.seen import start_of
from paceline.policies import Commit, Draft, PolicyError, Verify, make_policy
from paceline.sim import Replay, Scenario, simulate
from paceline.sim.recorded import UnrecordedContextError, placement_of
from paceline.sim.replay_tables import tables_of
from paceline.studies.agree import synthetic_cost
from paceline.traces import TrieRecording

from ..unit_cost import UnitCost
from .cost import timed_recordings
from .rounds.small_rounds import one_request, recording_of, sequential
from .tries.small_traces import easy_cost, request_of, trace_of
from .tries.test_trees import Trees, recording  # noqa: F401 - a fixture


class Watched:
    """A policy, and everything that goes in and out of it."""

    def __init__(self, policy):
        self.policy, self.asked, self.told = policy, [], []

    def decide(self, seen):
        step = self.policy.decide(seen)
        facts = (seen.request_id, seen.load.now_s, seen.num_emitted, seen.num_pending, seen.room, seen.last)
        caches = tuple(seen.cached(name) for name in seen.pool.names if not seen.pool.is_model_free(name))
        load = (seen.load.num_running, seen.load.context_tokens, *seen.load.duration_s, *seen.load.new_tokens)
        self.asked.append((step, *facts, caches, load, tuple(token.token for token in seen.pending)))
        return step

    def learn(self, outcome):
        self.told.append(outcome)
        self.policy.learn(outcome)


def driven(replay, policy):
    """Texts, and the clock at the end of each request."""
    texts, ends = {}, []
    for request_id in replay.requests:
        seen = replay.reset(request_id)
        while not replay.done:
            assert replay.step(policy.decide(seen)) == replay.outcomes[-1]
            for outcome in replay.outcomes:
                policy.learn(outcome)
        texts[request_id] = seen.emitted_from(0)
        ends.append(replay.seconds)
    return texts, ends


def check_equal(recorded, make, cost=None, *, start=None, devices=None, **both):
    """Both ways ask the same, tell the same, and end at the same time."""
    tables = tables_of(recorded)
    replay = Replay(recorded, cost, start=start, devices=devices, **both)
    ours, theirs = Watched(make(replay.pool)), Watched(make(tables.pool))
    scenario = Scenario(
        tables=tables,
        cost=replay.cost,
        start=None if start is None else start_of(start),
        placement=placement_of(devices, tables.pool),
        **both,
    )
    outputs = {}
    log = simulate(scenario, theirs, "theirs", outputs=outputs)
    texts, ends = driven(replay, ours)
    assert ours.asked == theirs.asked
    assert ours.told == theirs.told
    assert texts == outputs
    assert ends == log.requests["finished_at_s"].tolist()
    assert len(ours.told) > len(texts)
    return ours


@cache
def some_of(name):
    """A few requests, of most tags."""
    whole = paceline.open_recording(name)
    return TrieRecording(meta=whole.meta, requests=tuple(whole.requests)[::13])


POLICIES = (
    "plain",
    "draft:4/target",
    "draft:3/mid:6/target",
    "ngram:6/mid:6/target",
    "ngram",
    "adaptive",
    "confident",
    "two-level",
    "banditspec,kind=exp3",
    "specrouter",
    "pearl",
    "cascade",
    "early-commit",
    "via-sd",
    "cs-drafting",
)


@pytest.mark.parametrize("policy", POLICIES)
def test_is_simulate_at_batch_1_to_the_bit(policy):
    check_equal(some_of("pico"), lambda pool: make_policy(policy, pool))


@pytest.mark.parametrize("policy", ["draft:4/target", "adaptive", "pearl"])
@pytest.mark.parametrize(
    "options",
    [
        {"start": "draft"},
        {"decide_s": 0.1, "seed": 3},
        {"devices": "each"},
        {"cost": "h100"},
    ],
    ids=str,
)
@pytest.mark.one_in(2)
def test_options_mean_what_they_mean_there(policy, options):
    check_equal(some_of("smollm2"), lambda pool: make_policy(policy, pool), **options)


def test_commits_are_steps_of_their_own():
    watched = check_equal(some_of("pico"), lambda pool: make_policy("early-commit", pool))
    assert any(isinstance(outcome.step, Commit) for outcome in watched.told)


def test_trees_are_judged_as_there(recording):  # noqa: F811
    check_equal(recording, lambda pool: Trees("draft", "3x2x1"), synthetic_cost(recording.meta.model_names))


@pytest.mark.parametrize("start", ["recorded", "prefill", "draft"])
@pytest.mark.parametrize("policy", ["plain", "feature:4/target", "tokens:3/target", "adaptive,draft=feature"])
@pytest.mark.one_in(2)
def test_imported_rounds_are_answered_as_there(policy, start):
    bits = [True, True, False, True, False, True, True, True, True, True, True, False]
    requests = [
        one_request(
            {"": 13}, {"feature": sequential(bits, 4), "tokens": sequential(bits[::-1], 4)}, request_id=f"r{index}"
        )
        for index in range(3)
    ]
    check_equal(recording_of(*requests), lambda pool: make_policy(policy, pool), UnitCost(), start=start)


@pytest.mark.parametrize("policy", ["plain", "eagle:4/target"])
def test_seconds_of_recorded_rounds_are_those_that_were_measured(policy):
    rounds = timed_recordings.rounds_of([2, 0, 4, 1], draft_s=[0.25, 0.5, 0.25, 0.75], verify_s=[1.0, 1.5, 1.0, 1.25])
    requests = [timed_recordings.request_of(f"r{index}", {"eagle": rounds}, wall_s={"": 12.0}) for index in range(2)]
    check_equal(timed_recordings.recording_of(*requests), lambda pool: make_policy(policy, pool), "timed")


def test_compare_has_the_same_seconds():
    replay = Replay("pico")
    driven(replay, make_policy("draft:4/target", replay.pool))
    (row,) = (row for row in paceline.compare("pico", "draft:4/target").runs.rows if row.policy == "draft:4/target")
    assert replay.seconds == row.duration_s


def test_requests_come_in_any_order_and_again():
    replay = Replay("pico")
    policy = make_policy("draft:4/target", replay.pool)
    first, *_, last = replay.requests

    def seconds_of(request_id):
        before, seen = replay.seconds, replay.reset(request_id)
        while not replay.done:
            replay.step(policy.decide(seen))
        return pytest.approx(replay.seconds - before), seen.emitted_from(0)

    once = [seconds_of(last), seconds_of(first)]
    replay.reset(last)
    replay.step(Draft("draft", 4))  # given up half-way
    assert [seconds_of(last), seconds_of(first)] == once


@pytest.mark.parametrize("name", ["pico", "rounds"])
def test_a_request_is_given_up_wherever_it_stands(name):
    rounds = {"feature": sequential([True, False] * 5, 4)}
    recorded = some_of(name) if name == "pico" else recording_of(one_request({"": 11}, rounds))
    replay = Replay(recorded, UnitCost(), start="prefill")
    request_id, drafter = next(iter(replay.requests)), "draft" if name == "pico" else "feature"
    for _ in range(2):
        seen = replay.reset(request_id)
        assert (seen.load.num_running, seen.num_pending, seen.num_emitted) == (1, 0, 1)
        replay.step(Draft(drafter, 2))


def test_an_illegal_step_changes_nothing():
    replay = Replay("pico")
    seen = replay.reset("math-01" if "math-01" in replay.requests else next(iter(replay.requests)))
    before = replay.seconds, seen.num_emitted
    for step, why in [
        (Draft("target", 2), "the target does not draft"),
        (Commit(1), "commit beyond pending"),
        (Draft("nobody", 2), "unknown model 'nobody'"),
        (None, "got None, not a step"),
    ]:
        with pytest.raises(PolicyError, match=f"policy Replay, request {seen.request_id}(, step |: ).*{why}") as caught:
            replay.step(step)
        assert "\n" not in str(caught.value)
    assert (replay.seconds, seen.num_emitted, replay.done) == (*before, False)
    assert replay.step(Draft("draft", 2)).num_drafted == 2


def test_no_step_before_a_request_begins_or_after_it_has_ended():
    replay = Replay("pico")
    with pytest.raises(ArgumentError, match="`step` goes with a request that runs, and no request has begun"):
        replay.step(Verify("target"))
    request_id = next(iter(replay.requests))
    replay.reset(request_id)
    while not replay.done:
        replay.step(Verify("target"))
    with pytest.raises(ArgumentError, match=f"and request {request_id} has ended: call reset"):
        replay.step(Verify("target"))


def test_standing_still_ends_the_request():
    replay = Replay("pico")
    for request_id in replay.requests:
        replay.reset(request_id)
        if not replay.step(Draft("ngram", 4)).num_drafted:
            break
    for _ in range(6):
        replay.step(Draft("ngram", 4))
    with pytest.raises(PolicyError, match="no progress in 8 steps"):
        replay.step(Draft("ngram", 4))
    assert replay.done
    replay.reset(request_id)
    replay.step(Verify("target"))


def test_what_is_not_recorded_ends_the_request():
    views = {(): (10, 10), (10,): (20, 11), (10, 20): (30, 12), (10, 11): (12, 12), (10, 11, 12): (13, 13)}
    trace = trace_of(request_of(views, budget=4))
    replay = Replay(trace, easy_cost(trace), strict=True)
    for _ in range(2):
        replay.reset("r0")
        replay.step(Draft("draft", 2))
        replay.step(Commit(2))  # 20 is not what the target writes, and nothing is recorded after 30
        with pytest.raises(UnrecordedContextError, match="request r0: "):
            replay.step(Verify("target"))
        assert replay.done


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Replay(7), "`recording` must be a path or an opened recording, got 7"),
        (lambda: Replay("pico", 7), "`cost` must be a CostModel or the name of one, got 7"),
        (lambda: Replay("pico", start="later"), "`start` must be one of prefill, draft, recorded, got 'later'"),
        (lambda: Replay("pico", devices="two"), "`devices` must be one, each or NAME=DEVICE"),
        (lambda: Replay("pico", decide_s=-1.0), "`decide_s` must be"),
        (lambda: Replay("pico").reset("math"), "`request_id` must be a request of pico"),
    ],
)
def test_bad_arguments_are_named(make, why):
    with pytest.raises(ArgumentError, match=why):
        make()
