"""What pending tokens alone decide: rounds played once and walked requests are those of the loop, to the bit."""

import re
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.decoding.steps import PolicyError
from paceline.policies import Commit, Draft, Policy, Ratio, Verify
from paceline.policies.about import About
from paceline.policies.by_name import make_policy
from paceline.policies.fixed import Chain
from paceline.sim import in_step, rounds_once
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel, CostRangeError, DraftTerms
from paceline.sim.cost.by_name import make_cost
from paceline.sim.in_step import AskedInStep, InStepReplay, RunSetting
from paceline.sim.recorded import UnrecordedContextError
from paceline.sim.rounds_once import FixedRounds
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.profile import DecideSeconds

from ...pairs import pairs
from ..tries.small_traces import easy_cost, request_of, trace_of
from .recorded import begun, contexts, logs, stepped, texts

VIEWS = {(): (5, 5), (5,): (6, 6), (5, 6): (7, 8), (5, 6, 7): (9, 9), (5, 6, 8): (1, 1), (5, 6, 8, 1): (2, 2)}


def rounds_of(tables, policy, *, strict=False, seed=0):
    answers = tables.answers(seed=seed, strict=strict)
    return FixedRounds(policy=policy, name="it", pool=tables.pool, answers=answers)


def check_request(tables, fixed, policy, recorded_id, most):
    """Play one request both ways, operation by operation."""
    pool, answers = tables.pool, tables.answers(seed=3, strict=False)
    session = begun(pool, answers, "served", recorded_id, most)
    prefill = Verify(pool.target)
    judged = answers.judged(session, prefill, pool.target_level)
    session.prefilled(prefill, judged, duration_s=0.0, num_rows=1)
    if session.done:
        return
    steps = stepped(make_policy(policy, pool), pool, answers, session)
    budget, done = session.budget, False
    while not done:
        position = len(session.emitted)
        played = fixed.round(recorded_id, position, budget - position)
        for op in played.ops[:-1]:
            assert next(steps) == (tuple(op), None)
        assert next(steps) == (tuple(played.ops[-1]), (played.committed, played.ends))
        assert fixed.tokens(recorded_id, position, played.committed) == session.emitted[position:]
        done = played.ends
    assert session.done
    assert next(steps, None) is None


@given(st.data())
def test_room_matters_only_below_what_a_round_needs(data):
    tables = data.draw(contexts())
    policy = make_policy(data.draw(texts(tables.pool)), tables.pool)
    recorded = data.draw(st.sampled_from(tables.trace.requests))
    ends = frozenset(tables.trace.meta.eos_token_ids)
    answer = tables.of(recorded.request_id).trunk_tokens
    length = next((index for index, token in enumerate(answer) if token in ends), len(answer))
    position = data.draw(st.integers(0, max(min(length, recorded.max_new_tokens - 1), 0)))
    played = [
        rounds_of(tables, policy).round(recorded.request_id, position, room)
        for room in range(1, recorded.max_new_tokens - position + 1)
    ]
    for room, each in enumerate(played, 1):
        if room >= each.needs:
            assert played[room - 1 :] == [each] * (len(played) - room + 1)
            break
        assert each.committed <= room
    shared = rounds_of(tables, policy)
    order = data.draw(st.permutations(range(1, len(played) + 1)))
    assert [shared.round(recorded.request_id, position, room) for room in order] == [played[room - 1] for room in order]


def small(**options):
    return TrieTables(trace_of(*(request_of(VIEWS, request_id=name, budget=4) for name in ("r0", "r1")), **options))


def test_equal_rounds_are_one_object_and_asked_for_once():
    policy = Counts(small().pool, "draft:1/target")
    fixed = rounds_of(small(), policy)
    first = fixed.round("r0", 0, 4)
    assert (first.committed, first.needs, len(first.ops)) == (2, 3, 2)
    assert fixed.round("r0", 0, 3) is first
    asked = len(policy.asked)
    assert fixed.round("r1", 0, 4) is first
    assert len(policy.asked) == asked <= 6


def test_rounds_of_two_policies_stand_beside_each_other(monkeypatch):
    """Replicas of one run share what the recording answers: what one has closed, the other may have open."""
    monkeypatch.setattr(rounds_once, "MOST_OPEN", 1)
    pool, answers = small().pool, small().answers(seed=0, strict=False)
    chains = ("draft:1/target", "draft:2/target")
    both = [FixedRounds(policy=Chain(pool, text), name=text, pool=pool, answers=answers) for text in chains]
    for recorded_id in ("r0", "r1", "r0"):
        alone = rounds_of(small(), Chain(pool, "draft:1/target")).tokens(recorded_id, 0, 2)
        assert [fixed.tokens(recorded_id, 0, 2) for fixed in both] == [alone, alone]


def test_tables_of_few_requests_are_held(monkeypatch):
    monkeypatch.setattr(rounds_once, "MOST_OPEN", 1)
    answers = small().answers(seed=0, strict=False)
    fixed = FixedRounds(policy=Chain(small().pool, "draft:1/target"), name="it", pool=small().pool, answers=answers)
    first = fixed.round("r0", 0, 4)
    assert fixed.round("r1", 0, 3) is first
    assert fixed.tokens("r0", 0, 2) == [5, 6]
    assert [name.rpartition(" ")[2] for name in answers._open] == ["r0"]
    # It was played to its end when it was first asked for.
    answers.replay = None
    assert fixed.round("r1", 2, 2).committed == 1


class Says(Policy):
    """A policy that says that pending tokens decide, and does what a test wants."""

    about = About(lossless=True, by_pending=True)

    def __init__(self, decide):
        self._decide = decide

    def decide(self, seen):
        return self._decide(seen)


@pytest.mark.parametrize(
    "looked_at",
    ["load", "last", "room", "tag", "num_emitted", "pending", "request_id", "remaining", "cached", "slo", "_signal"],
)
def test_what_may_not_be_looked_at_is_named(looked_at):
    tables = small()
    fixed = rounds_of(tables, Says(lambda seen: getattr(seen, looked_at) and Verify("target")))
    with pytest.raises(ValueError, match=f"by_pending may look at .*and not at {looked_at}"):
        fixed.round("r0", 1, 3)


def test_what_a_policy_breaks_of_its_word_is_said():
    tables = small()
    for decide, rule in (
        (lambda seen: Commit(1) if seen.num_pending else Draft("draft", 1), "lossless rules"),
        (lambda seen: Verify("target", Ratio(0.5)), "lossless rules"),
        (lambda seen: Draft("nobody", 1), "unknown model 'nobody'"),
        (lambda seen: Draft("draft", 1) if seen.has_room else None, "not a step"),
    ):
        with pytest.raises((ValueError, PolicyError), match=rule):
            rounds_of(tables, Says(decide)).round("r0", 1, 3)
    views = {(): (5, 5, 5), (5,): (6, 6, 6), (5, 6): (6, 6, 6)}
    three = TrieTables(trace_of(request_of(views, budget=2), models=("draft", "mid", "target")))
    decide = [Draft("draft", 1), Draft("mid", 1)]
    with pytest.raises(PolicyError, match="all its drafts are by one member, draft so far"):
        rounds_of(three, Says(lambda seen: decide[seen.num_pending])).round("r0", 0, 2)


def test_who_does_not_say_so_is_refused():
    tables = small()
    with pytest.raises(ValueError, match="policy it does not say that pending tokens alone decide"):
        rounds_of(tables, make_policy("adaptive", tables.pool))


def test_a_position_outside_the_answer_is_refused():
    fixed = rounds_of(small(), Chain(small().pool, "draft:1/target"))
    for position, room in ((-1, 1), (0, 0), (2, 3)):
        with pytest.raises(ValueError, match=f"at most 4, got {position} and {room}"):
            fixed.round("r0", position, room)
    with pytest.raises(ValueError, match="within the recorded answer of 2 tokens"):
        rounds_of(small(eos=6), Chain(small().pool, "draft:1/target")).round("r0", 3, 1)


def test_a_strict_recording_comes_to_its_end():
    views = {(): (5, 5), (5,): (6, 7), (5, 7): (1, 1), (5, 7, 1): (1, 1)}
    tables = TrieTables(trace_of(request_of(views, budget=3)))
    fixed = rounds_of(tables, Chain(tables.pool, "draft:3/target"), strict=True)
    with pytest.raises(UnrecordedContextError, match=r"draft at output position"):
        fixed.round("r0", 0, 3)


SMALL = TrieTables(make_trace(SyntheticSpec(requests=5, tokens=30, prompt_tokens=3, models=("draft", "mid", "target"),
                                            acceptance=(0.6, 0.8), reach=6, run=3)))  # fmt: skip


@dataclass
class Terms(CostModel):
    """Seconds that grow with all that is asked; no binary fractions. Beyond `most` tokens held it knows nothing."""

    per_round_s: float | None = None
    per_token_s: float | None = None
    most: int = 1 << 30
    name: str = "terms"
    lookup_s: float = 0.0017
    asked: set = field(default_factory=set)

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        if context_tokens > self.most:
            raise CostRangeError(f"{model} holds {context_tokens}")
        self.asked.add((model, num_rows, new_tokens, context_tokens))
        return 0.1 + len(model) / 7 + new_tokens / 31 + context_tokens / 1009

    def draft_terms(self, model):
        return None if self.per_round_s is None else DraftTerms(self.per_round_s, self.per_token_s)


def came_of(scenario, policy, **options):
    """(log, outputs) of a run, or its error in words."""
    outputs = {}
    try:
        return simulate(scenario, policy, "it", outputs=outputs, **options), outputs
    except Exception as error:  # noqa: BLE001 - whatever it is, both have to raise it
        return type(error), str(error)


def same(one, other):
    """Logs are equal to the bit, columns in type and order too; or errors are."""
    (log, outputs), (other_log, other_outputs) = one, other
    assert outputs == other_outputs
    if isinstance(log, type):
        assert log is other_log
        return
    assert log.meta == other_log.meta
    for part in ("ops", "steps", "requests"):
        columns, others = getattr(log, part), getattr(other_log, part)
        assert list(columns) == list(others)
        for name, column in columns.items():
            assert column.dtype == others[name].dtype, name
            assert column.tolist() == others[name].tolist() or column.tobytes() == others[name].tobytes(), name


def costs():
    seconds = st.floats(0, 1)
    # One that ends raises in some place of some request.
    return st.builds(Terms, st.none() | seconds, st.none() | seconds, st.just(1 << 30) | st.integers(0, 40))


@given(st.data())
def test_walked_requests_leave_the_log_of_the_loop(data):
    tables = data.draw(contexts())
    text = data.draw(texts(tables.pool))
    cost = data.draw(costs())
    scenario = Scenario(
        tables=tables,
        cost=cost,
        batch=data.draw(st.sampled_from([1, 1, 2, 3, 5])),
        seed=data.draw(st.integers(0, 9)),
        strict=data.draw(st.booleans()),
        decide_s=data.draw(st.none() | st.floats(0, 0.01)),
        start=data.draw(st.sampled_from([None, Start.draft])),
    )
    looped = came_of(scenario, make_policy(text, tables.pool), stepwise=True)
    asked, cost.asked = cost.asked, set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_step, "MOST_NOTED", data.draw(st.sampled_from([1, 7, 1 << 17])))
        same(came_of(scenario, make_policy(text, tables.pool)), looped)
    assert cost.asked == asked


CHAINS = ("plain", "draft:4/target", "draft:3/mid:6/target", "svip", "draft:9/mid:2/target")


@pytest.mark.parametrize(("cost", "policy", "batch"), pairs(["cpu", "h100", "rtx4090"], CHAINS, [1, 4]))
def test_seconds_of_any_cost_are_those_of_the_loop(cost, policy, batch, monkeypatch):
    monkeypatch.setattr(in_step, "MOST_PRICED", 12)
    monkeypatch.setattr(in_step, "MOST_NOTED", 100)
    scenario = Scenario(tables=SMALL, cost=make_cost(cost, SMALL.trace), batch=batch)
    one, other = (came_of(scenario, make_policy(policy, SMALL.pool), stepwise=stepwise) for stepwise in (False, True))
    same(one, other)
    assert not isinstance(one[0], type)


def test_rounds_are_walked_and_nobody_is_asked_twice():
    policy = Counts(SMALL.pool, "draft:4/target")
    log = simulate(Scenario(tables=SMALL, cost=easy_cost(SMALL.trace)), policy, "it")
    assert len(log.steps["kind"]) > 60
    # A draft that ends with an end-of-sequence token has no room either; here the budget alone leaves none.
    assert len(policy.asked) == len(set(policy.asked)) <= 6


def why(policy, tables=SMALL, cost=None, batch=2, decide_s=None):
    asked = AskedInStep(
        policy=make_policy(policy, tables.pool),
        name=policy,
        setting=RunSetting(cost=cost or easy_cost(tables.trace), batch=batch),
        prefill_before=(True,) * len(tables.pool.members),
        decide_s=decide_s or DecideSeconds.of_step(0.0),
    )
    return tables.in_step.why_looped(asked)


def test_a_run_that_needs_the_loop_says_why():
    assert not why("draft:4/target")
    assert why("adaptive") == "policy adaptive does not say that pending tokens alone decide"
    grows = DecideSeconds(batches=(1, 4), seconds=(0.1, 0.2))
    assert why("plain", decide_s=grows).startswith("what a decision of policy plain takes depends on how many")
    longest = Terms()
    longest.longest = {"draft"}
    assert why("plain", cost=longest) == "cost terms charges each row of a batch as the longest one"
    assert not why("plain", cost=longest, batch=1)


def test_steps_are_played_once_for_all_batches_and_costs(monkeypatch):
    tables, played = TrieTables(SMALL.trace), []
    play = InStepReplay._play
    monkeypatch.setattr(InStepReplay, "_play", lambda self, asked: played.append(asked) or play(self, asked))
    for batch, cost, policy in product(
        (1, 2, 5), (easy_cost(SMALL.trace), Terms()), ("plain", "svip", "draft:4/mid:6/target")
    ):
        simulate(Scenario(tables=tables, cost=cost, batch=batch), make_policy(policy, tables.pool), "it")
    assert len(played) == 3


class Changes(Terms):
    times = 1.0

    def forward_s(self, model, **of):
        return self.times * super().forward_s(model, **of)


def test_a_policy_and_a_cost_of_somebody_else_may_change_between_runs():
    window, cost = [0], Changes()
    policy = Says(lambda seen: Verify("target") if seen.num_pending else Draft("draft", window[0]))
    plain = Says(lambda _: Verify("target"))
    for window[0], cost.times, one in product((2, 5), (1.0, 3.0), (policy, plain)):
        scenario = Scenario(tables=SMALL, cost=cost, batch=2)
        same(came_of(scenario, one), came_of(scenario, one, stepwise=True))


class Otherwise(TrieTables):
    """Its world may answer otherwise."""

    def world(self, cost, **options):
        world = super().world(cost, **options)
        return type("Otherwise", (type(world),), {})(
            tables=self, pool=self.pool, cost=cost, fallback=None, now_s=options.get("now_s")
        )


def test_a_world_of_somebody_else_is_asked():
    assert Otherwise(SMALL.trace).in_step is None


def test_what_is_wrong_with_a_policy_names_its_request():
    tables = small()
    scenario = Scenario(tables=tables, cost=easy_cost(tables.trace))
    for decide, message in (
        (lambda seen: seen.tag and Verify("target"), "policy it, request r0: decide raised .*not at tag"),
        (lambda seen: Draft("draft", 1), "no room to draft"),
        (lambda seen: 1 / seen.num_pending, "decide raised ZeroDivisionError"),
        (lambda seen: Verify("draft"), "request r0, .*no progress|nothing left"),
    ):
        with pytest.raises(PolicyError, match=message):
            simulate(scenario, Says(decide), "it")


def test_an_answer_that_is_not_recorded_to_its_end_is_for_the_loop():
    tables = TrieTables(trace_of(request_of(VIEWS, budget=7)))
    scenario, policy = Scenario(tables=tables, cost=easy_cost(tables.trace)), make_policy("draft:2/target", tables.pool)
    one, other = (came_of(scenario, policy, stepwise=stepwise) for stepwise in (False, True))
    same(one, other)
    assert one[0].requests["divergent_tokens"].tolist() == [3]


def test_a_cost_that_does_not_know_an_operation_says_so_as_in_the_loop():
    cost = Terms(most=20)
    with pytest.raises(CostRangeError, match=re.escape("holds 2")):
        simulate(Scenario(tables=SMALL, cost=cost), make_policy("draft:4/target", SMALL.pool), "it")


class Counts(Chain):
    """A chain that keeps what it was asked."""

    about = About(lossless=True, by_pending=True)

    def __init__(self, pool, spec):
        super().__init__(pool, spec)
        self.asked = []

    def decide(self, seen):
        self.asked.append((seen.num_pending, seen.waiting("target"), seen.has_room))
        return super().decide(seen)


@given(st.data())
def test_strung_together_they_are_the_steps_of_a_session(data):
    stops = data.draw(st.booleans())
    tables = data.draw(contexts() if stops else logs())
    policy = data.draw(texts(tables.pool, stops=stops))
    fixed = rounds_of(tables, make_policy(policy, tables.pool), seed=3)
    ids = [request.request_id for request in tables.trace.requests]
    # The same rounds serve requests of any length: those that came before must not matter.
    for _ in range(data.draw(st.integers(1, 4))):
        check_request(tables, fixed, policy, data.draw(st.sampled_from(ids)), data.draw(st.integers(1, 26)))
