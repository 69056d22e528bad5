"""What members draft and judge is what they would without a cache, whoever sat out, lost memory or is broken beside."""

import copy
import dataclasses
from functools import lru_cache
from itertools import pairwise
from math import inf, isnan, nan
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.base.files import shipped
from paceline.decoding.results import Deferred, Failed
from paceline.decoding.session import Session
from paceline.decoding.world import DRAFTS, VERIFIES, Op
from paceline.policies import ConfidenceBelow, Draft, PolicyError, Ratio, Verify
from paceline.policies.fixed import Chain
from paceline.reports.summary import summarise_run
from paceline.runtime.distances import Distances, Judgement, NonFiniteLogitsError, OpDistances
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.views import view
from paceline.runtime.state import CacheDesyncError
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.columns import UNITS
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling

from ..decoding.strategies import legal_steps
from ..tiny_models import EOS, VOCABULARY, tiny_pool_of_four
from . import offline
from .conftest import ALPHABET, noisy
from .offline import COUPLED, GREEDY, REJECTION, Decides, Offline, chosen, decoded, in_double, watched, with_models

CHAIN = "draft:2/mid:3/target"
TRUNCATED = Sampling(mode="rejection", temperature=0.9, seed=3, top_k=5, top_p=0.8)


def test_catching_up_is_one_forward_over_all_that_was_missed(tiny_pool):
    """A member that sat out for fifty tokens."""
    pool, first = dataclasses.replace(in_double(tiny_pool), eos_token_ids=()), []
    chain = Chain(loaded_pool(pool), CHAIN)

    def note(world, level, items, results):
        if level == 1 and not first:
            ((session, _),) = items
            assert session.cached[level] == 0
            first.append(len(session.tail(0)) + len(results.rows[0].tokens) - 1)

    late = Decides(lambda seen: Verify("target") if seen.num_emitted < 50 else chain.decide(seen))
    done = Offline(pool, late, offline.PROMPTS[:1], num_tokens=60, world=watched(note)).run()
    fed = done.log.ops["new_tokens"][done.log.ops["level"] == 1]
    assert fed[0] == first[0] > 50
    assert (fed[1:] < 12).all()


# -- copies


def copies(*tokens):
    """Copies the same tokens in every round."""
    draft = Draft("ngram", len(tokens), copy=tokens)
    return Decides(lambda seen: Verify("target") if seen.num_pending or not seen.has_room else draft)


def test_copied_tokens_are_judged_as_any_draft(tiny_pool):
    copying = Offline(tiny_pool, copies(3, 1, 4, 1, 5)).run(batch=3)
    assert copying.failed == {}
    assert copying.texts == Offline(tiny_pool, "plain").run().texts
    assert copying.log.steps["drafted"].max() == 5


def test_ids_that_no_member_knows_are_refused_in_both_worlds(tiny_pool):
    size = tiny_pool.target.model.config.vocab_size
    with pytest.raises(PolicyError, match=rf"policy .+, request .+, step Draft\(.*: .* ids below {size}, got {size}$"):
        Offline(tiny_pool, copies(1, size)).run(batch=2)
    trace = read_trace(shipped("recordings", "pico.trace"))
    told = r"policy copies, request code-0001, step Draft\(.*: draft copy must hold ids below 1,536, got 1536$"
    with pytest.raises(PolicyError, match=told):
        simulate(Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace)), copies(1_536), "copies")


# -- distances


class Looked(torch.Tensor):
    """The verifier's distributions; counts how often they are read."""

    looks = 0

    def __getitem__(self, index):
        Looked.looks += 1
        return super().__getitem__(index)


def test_distances_read_like_a_tuple_and_those_left_are_worked_out_by_the_first_look():
    """Of two requests: a token that the verifier wrote itself and one without distribution; then all kinds."""
    equal, far, broken = torch.tensor([[0.0, 0.0], [5.0, -5.0], [nan, 0.0]])
    verifier = torch.zeros(7, 2)
    verifier[4] = torch.tensor([-5.0, 5.0])
    rows = [Judgement(0, [far, None], [True, False]), Judgement(3, [equal, far, broken, equal], [False] * 4)]
    op, Looked.looks = OpDistances(verifier.as_subclass(Looked), rows), 0
    first, second = Distances(op, 0, 2), Distances(op, 1, 4)
    second.cut(3)
    first.cut(9)
    assert (len(first), len(second), Looked.looks) == (2, 3, 0)
    values = tuple(second)
    assert len(op.of(1)) == 3  # the fourth was not worked out
    assert values == pytest.approx((0.0, 1.0, 1.0), abs=1e-3)  # without finite logits the request fails anyway
    assert first[0] == 0.0
    assert isnan(first[1])
    assert Looked.looks == 1
    assert second == values
    assert (second[-1], second[:2]) == (values[-1], values[:2])
    assert (repr(second), hash(second)) == (repr(values), hash(values))
    with pytest.raises(IndexError):
        second[3]
    second.cut(1)
    assert tuple(second) == values[:1]
    with pytest.raises(IndexError):
        second[1]


def test_the_distance_of_members_of_two_widths_is_that_of_the_wider_one_as_a_recording_has_it():
    logits = torch.tensor(np.random.default_rng(0).normal(size=(2, 4000, 8)))
    theirs, verifier = logits[0].float(), logits[1]
    recorded = view([theirs, verifier], sampling=GREEDY, noise=None).tvd[0]
    op = OpDistances(verifier, [Judgement(0, list(theirs), [False] * len(theirs))])
    assert op.of(0) == UNITS.round(recorded).tolist()


# -- what breaks one request


BAD = "q"
# Only "bad" holds the letter whose embedding is broken; those after it take over its row.
PROMPTS = (
    Prompt(request_id="long", text="hello there, how do you do, how do you"),
    Prompt(request_id="bad", text="the qu"),
    Prompt(request_id="short", text="a"),
    Prompt(request_id="next", text="pace line"),
    Prompt(request_id="last", text="b c"),
)


def broken(model, value=nan):
    """A copy of the model in which one letter's embedding holds `value`."""
    other = copy.deepcopy(model)
    other.model.embed_tokens.weight[ALPHABET.index(BAD)] = value
    return other


@pytest.fixture(scope="module")
def silent(tiny_pool):
    """No member ever writes the broken letter: its logit is the mean of two others', and `modules` mute it."""
    pools = {kind: in_double(tiny_pool) for kind in ("fused", "modules")}
    muted = torch.tensor([ALPHABET.index(BAD)])
    for kind, pool in pools.items():
        for member in pool.members[1:]:
            head = member.model.lm_head
            head.weight[muted] = (head.weight[1] + head.weight[2]) / 2
            if kind == "modules":
                head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, muted, -1e4))
    return pools


def stops(pool):
    return Chain(loaded_pool(pool), "draft:4/target", stop=ConfidenceBelow(0.4))


def lenient(pool):
    return Decides(lambda seen: Verify("target", Ratio(0.5)) if seen.num_pending else Draft("draft", 3))


@pytest.mark.parametrize(
    ("name", "policy", "sampling", "cache", "forward"),
    [
        ("target", "plain", GREEDY, "slots", "fused"),
        ("draft", "draft:3/target", GREEDY, "mask", "modules"),
        ("draft", CHAIN, COUPLED, "slots", "modules"),
        ("mid", CHAIN, REJECTION, "mask", "modules"),
        ("target", CHAIN, TRUNCATED, "slots", "modules"),
        ("draft", stops, GREEDY, "slots", "fused"),
        ("target", stops, GREEDY, "mask", "fused"),
        ("target", lenient, COUPLED, "mask", "modules"),
        ("target", lenient, REJECTION, "slots", "modules"),
    ],
)
@pytest.mark.one_in(3)
def test_a_request_with_broken_logits_fails_alone(silent, name, policy, sampling, cache, forward):
    pool, options = silent[forward], {"sampling": sampling, "forward": forward, "memory": Memory(cache=cache)}
    other = with_models(pool, **{name: broken(pool.member(name).model)})
    made, expected = ((policy(each) if callable(policy) else policy) for each in (other, pool))
    done = Offline(other, made, PROMPTS, **options).run(batch=3)
    assert list(done.failed) == ["bad"]
    assert isinstance(done.failed["bad"], NonFiniteLogitsError)
    assert str(done.failed["bad"]).startswith(f"model {name}, request bad: the logits at output position ")
    assert (done.log.requests["failed"] != "").tolist() == [False, True, False, False, False]
    sound = Offline(pool, expected, [PROMPTS[0], *PROMPTS[2:]], **options).run()
    assert [done.texts[0], *done.texts[2:]] == sound.texts


@pytest.mark.parametrize(
    ("name", "sampling", "value"),
    [
        ("draft", GREEDY, inf),
        ("target", GREEDY, -inf),
        ("target", COUPLED, inf),
        ("draft", REJECTION, inf),
        ("draft", TRUNCATED, nan),
        ("target", TRUNCATED, inf),
    ],
)
def test_any_logit_that_is_no_number_fails_every_request_by_name(tiny_pool, name, sampling, value):
    model = copy.deepcopy(tiny_pool.member(name).model)
    model.lm_head.weight[3] = value
    done = Offline(with_models(tiny_pool, **{name: model}), CHAIN, PROMPTS[2:], sampling=sampling).run(batch=2)
    assert sorted(done.failed) == ["last", "next", "short"]
    first = int(name != "target")  # the target writes the first token, and the draft what follows
    for request_id, error in done.failed.items():
        assert str(error).startswith(f"model {name}, request {request_id}: the logits at output position {first} ")


def test_outputs_hold_the_failed_and_the_log_gives_the_reason(silent):
    other = with_models(silent["fused"], target=broken(silent["fused"].target.model))
    outputs, log = decoded(other, "draft:3/target", PROMPTS, num_tokens=12, batch=3)
    assert [output.request_id for output in outputs] == [prompt.request_id for prompt in PROMPTS]
    assert [output.finish_reason == "error" for output in outputs] == [False, True, False, False, False]
    assert outputs[1].error == log.requests["failed"][1]
    assert outputs[1].error.startswith(
        "model target, request bad: the logits at output position 0 or after it hold NaN"
    )
    assert outputs[1].tokens == ()
    assert summarise_run(log).failed == 1


def spoil_fed(manager, level, state):
    state.fed[level][0] += 1


def spoil_cache(manager, level, state):
    manager.caches[level].roll_back("short", manager.caches[level].length("short") - 1)


def spoil_text(manager, level, state):
    del state.fed[level][-1]


def spoil_both(manager, level, state):
    manager.roll_back(state, level, len(state.fed[level]) - 1)


def spoil_row(manager, level, state):
    rows = manager.caches[level].rows
    rows["short"] = rows["long"]


@pytest.mark.parametrize(
    ("spoil", "cache", "problem"),
    [
        (spoil_fed, "slots", "holds another text"),
        (spoil_cache, "slots", r"holds \d+ tokens, but was fed \d+"),
        (spoil_cache, "mask", r"holds \d+ tokens, but was fed \d+"),
        (spoil_text, "mask", r"holds \d+ tokens, but was fed \d+"),
        (spoil_both, "mask", r"holds \d+ tokens, not \d+"),
        (spoil_row, "slots", ""),
        (spoil_row, "mask", ""),
    ],
)
def test_debug_mode_finds_a_cache_out_of_step(silent, spoil, cache, problem):
    ops, pool, policy = [], silent["fused"], "plain" if spoil is spoil_row else "draft:3/target"

    def note(world, level, items, results):
        ops.append(level)
        if len(ops) == 3:
            spoil(world.manager, max(world.manager.caches), world.manager.states["short"])

    done = Offline(pool, policy, PROMPTS, world=watched(note), memory=Memory(cache=cache)).run(batch=3)
    assert all(isinstance(error, CacheDesyncError) for error in done.failed.values())
    with pytest.raises(CacheDesyncError, match=f"request short: the cache of target {problem}"):
        raise done.failed["short"]
    if spoil is not spoil_row:
        assert list(done.failed) == ["short"]
        sound = Offline(pool, policy, PROMPTS).run(batch=3).texts
        assert [*done.texts[:2], *done.texts[3:]] == [*sound[:2], *sound[3:]]


def test_a_drafter_that_never_agrees_thrashes_and_the_target_alone_does_not(tiny_pool):
    """As slow as the target and never right: five forwards a token where one would do. Plain is itself the measure."""
    _, log = decoded(with_models(tiny_pool, mid=noisy(tiny_pool.target.model, 3.0, seed=8)), "mid:4/target", PROMPTS)
    assert log.steps["accepted"].sum() < 0.2 * log.steps["judged"].sum()
    assert (log.requests["times_plain"] > 1).all()
    assert summarise_run(log).thrashed == len(PROMPTS)
    _, log = decoded(tiny_pool, "plain", PROMPTS)
    assert np.isnan(log.requests["times_plain"]).all()
    assert summarise_run(log).thrashed == 0


# -- any legal steps on any requests in any company, with preemptions between


def explain_draft(session, row, choose):
    """Each token is what its drafter chooses after those before it."""
    context = session.tail(0)
    for token in row.tokens:
        assert token == choose(context)
        context.append(token)


def explain_verdict(session, level, row, choose):
    """Kept is what the judge would have chosen itself, and its own token follows."""
    context = session.tail(0)
    first = session.num_prompt + len(session.emitted) + session.first_unjudged(level)
    wanted = [choose(context[:end]) for end in range(first, len(context) + 1)]
    kept = next((index for index, token in enumerate(context[first:]) if token != wanted[index]), len(wanted) - 1)
    assert (row.num_accepted, row.own_token) == (kept, wanted[kept])


MOST_RUNNING, BUDGET = 4, 14
SAMPLINGS = {sampling.mode: sampling for sampling in (GREEDY, COUPLED, REJECTION)}
# The longest take more than one step of slots, so that what a member has to catch up with may, too.
TEXTS = st.builds(
    lambda length, seed: tuple(Random(seed).choices(range(1, VOCABULARY), k=length)),
    st.integers(1, 20) | st.integers(60, 70),
    st.integers(0, 99),
)


@lru_cache
def pool():
    return in_double(tiny_pool_of_four())


@lru_cache
def members():
    return loaded_pool(pool())


@lru_cache
def world_of(mode, cache, forward):
    """Worlds are emptied after each example, so that models are prepared once."""
    memory = Memory(cache=cache, dead_share=0.3)
    return TorchWorld(pool=pool(), sampling=SAMPLINGS[mode], memory=memory, forward=forward, debug=True)


@lru_cache(maxsize=100_000)
def choice(level, mode, request_id, num_prompt, context):
    return chosen(pool().members[level].model, context, num_prompt, request_id, SAMPLINGS[mode])


class ExecutorMachine(RuleBasedStateMachine):
    """Sessions are driven by hand: an operation may take any of those for which its kind of step is legal."""

    def __init__(self):
        super().__init__()
        self.running, self.num_opened = [], 0

    @initialize(
        mode=st.sampled_from([*SAMPLINGS]),
        cache=st.sampled_from(["slots", "mask"]),
        forward=st.sampled_from(["fused", "modules"]),
        share=st.none() | st.floats(1.0, 4.0),
        prompts=st.lists(TEXTS, min_size=1, max_size=MOST_RUNNING),
    )
    def begin(self, mode, cache, forward, share, prompts):
        self.mode, self.world = mode, world_of(mode, cache, forward)
        self.manager = self.world.manager
        alone = 128 * sum(2 * member.kv_bytes_per_token for member in pool().members)
        self.manager._limits = {} if share is None else {torch.device("cpu"): int(share * alone)}
        for prompt in prompts:
            self.open(prompt)

    @precondition(lambda self: len(self.running) < MOST_RUNNING)
    @rule(prompt=TEXTS)
    def open(self, prompt):
        self.num_opened += 1
        name, eos = f"r{self.num_opened}", frozenset({EOS})
        session = Session(pool=members(), request_id=name, tag="", prompt=prompt, budget=BUDGET, eos=eos)
        self.world.open(session)
        self.running.append(session)

    @precondition(lambda self: self.running)
    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 12))
    def steps(self, seed, count):
        """Operations in a row, drawn from a seed: the choices of an operation are too many to be drawn one by one."""
        rng = Random(seed)
        for _ in range(count):
            if self.running:
                op = self.any_op(rng)
                self.execute(op, self.chunks(op, rng))

    def any_op(self, rng):
        by_group = {}
        for session in rng.sample(self.running, rng.randint(1, len(self.running))):
            for step in legal_steps(session, commits=False):
                group = (members().level(step.model), isinstance(step, Verify))
                by_group.setdefault(group, {}).setdefault(session, []).append(step)
        level, verify = rng.choice(sorted(by_group))
        items = [(session, rng.choice(steps)) for session, steps in by_group[level, verify].items()]
        return Op(VERIFIES if verify else DRAFTS, level, items)

    def chunks(self, op, rng):
        """Of others' texts, which a judge may read beside what it judges, but never to the last token."""
        found, busy = [], [session for session, _ in op.items]
        for session in self.running if op.kind == VERIFIES and not self.manager._limits else ():
            left = session.num_prompt + len(session.emitted) - session.cached[op.level] - 1
            if left > 0 and not session.tokens and all(session is not each for each in busy) and rng.random() < 0.5:
                found.append((session, rng.randint(1, left)))
        return found

    def execute(self, op, chunks):
        before = {session.request_id: session.tail(0) for session, _ in op.items}
        results = self.world.verify(op.level, op.items, chunks) if chunks else op.run(self.world)
        for session, count in chunks:
            session.cached[op.level] += count
        for (session, step), row in zip(op.items, results.rows, strict=True):
            assert not isinstance(row, Failed), row.error
            drawn, name, num_prompt = self.mode == "rejection", session.request_id, session.num_prompt
            choose = lambda text: choice(op.level, self.mode, name, num_prompt, tuple(text))  # noqa: B023, E731
            if isinstance(row, Deferred):
                assert self.manager._limits
                assert session.cached == [0] * len(members().members)
                assert session.tail(0) == before[name]
            elif op.kind == VERIFIES:
                if not drawn:
                    explain_verdict(session, op.level, row, choose)
                session.judged(step, op.level, row, duration_s=0.0, num_rows=1)
            else:
                assert len(row.tokens) <= min(step.tokens, session.room)
                assert EOS not in row.tokens[:-1]
                if pool().members[op.level].model is not None and not drawn:
                    explain_draft(session, row, choose)
                session.drafted(step, op.level, row, duration_s=0.0, num_rows=1)
        for session in [session for session in self.running if session.done]:
            self.leave(session)

    def leave(self, session):
        self.world.close(session)
        self.running.remove(session)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.manager.give_up(data.draw(st.sampled_from(self.running)).request_id)

    @precondition(lambda self: len(self.running) > 1)
    @rule(data=st.data())
    def cancel(self, data):
        self.leave(data.draw(st.sampled_from(self.running)))

    @rule()
    def truncate(self):
        self.manager._truncate(self.manager.caches.values())

    @invariant()
    def caches_hold_what_sessions_say_and_nothing_for_those_who_left(self):
        if not hasattr(self, "manager"):
            return
        names = {session.request_id for session in self.running}
        assert set(self.manager.states) == names
        for session in self.running:
            self.manager.check(session)
            assert set(session.places) <= set(self.manager.states[session.request_id].views)
        for cache in self.manager.caches.values():
            rows = cache.rows.values()
            assert set(cache.rows) <= names
            assert len(set(rows)) == len(rows)
            assert all(row < cache.num_rows for row in rows)
            for name in cache.rows:
                slots = cache.live_slots_of(name)
                assert all(a < b for a, b in pairwise(slots))
                assert not slots or slots[-1] < cache.capacity
            assert cache._kv[:, list(rows)].isfinite().all()
        assert self.manager.held_bytes <= self.manager._limits.get(torch.device("cpu"), inf)

    def teardown(self):
        for session in [*self.running]:
            self.leave(session)
        if hasattr(self, "manager"):
            self.manager.caches.clear()
            self.manager.evicted.clear()


TestAnyLegalSteps = ExecutorMachine.TestCase
TestAnyLegalSteps.settings = settings(
    stateful_step_count=15, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.filter_too_much]
)
