"""Any legal steps on any requests in any company, with preemptions between: every token is what no cache would say."""

from functools import lru_cache
from itertools import pairwise
from math import inf
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from paceline.decoding.results import Deferred, Failed
from paceline.decoding.session import Session
from paceline.decoding.world import DRAFTS, VERIFIES, Op
from paceline.policies import Draft, Verify
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.sampling import RequestNoise
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

from ...decoding.strategies import legal_steps
from ...tiny_models import EOS, VOCABULARY, tiny_pool_of_four
from ..offline import COUPLED, GREEDY, in_double, logits_after

MOST_RUNNING = 4
BUDGET = 14
REJECTION = Sampling(mode="rejection", temperature=0.9, seed=5)
SAMPLINGS = (GREEDY, COUPLED, REJECTION)

PROMPTS = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=20)


@lru_cache
def pool():
    return in_double(tiny_pool_of_four())


@lru_cache
def members():
    return loaded_pool(pool())


@lru_cache
def world_of(mode, cache, forward):
    """Worlds are emptied after each example, so that models are prepared once."""
    sampling = next(sampling for sampling in SAMPLINGS if sampling.mode == mode)
    memory = Memory(cache=cache, dead_share=0.3)
    return TorchWorld(pool=pool(), sampling=sampling, memory=memory, forward=forward, debug=True)


@lru_cache(maxsize=100_000)
def choice(level, mode, request_id, num_prompt, context):
    """What a member writes after a context, without a cache."""
    scores = logits_after(pool().members[level].model, context)
    if mode == "coupled":
        noise = RequestNoise(seed=COUPLED.seed, request_id=request_id, vocab_size=VOCABULARY)
        scores = scores / COUPLED.temperature + torch.from_numpy(noise.at(len(context) - num_prompt))
    return int(scores.argmax())


class ExecutorMachine(RuleBasedStateMachine):
    """Sessions are driven by hand: an operation may take any of those for which its kind of step is legal."""

    def __init__(self):
        super().__init__()
        self.running = []
        self.num_opened = 0

    @initialize(
        mode=st.sampled_from([sampling.mode for sampling in SAMPLINGS]),
        cache=st.sampled_from(["slots", "mask"]),
        forward=st.sampled_from(["fused", "modules"]),
        share=st.none() | st.floats(1.0, 4.0),
        prompts=st.lists(PROMPTS, min_size=1, max_size=MOST_RUNNING),
    )
    def begin(self, mode, cache, forward, share, prompts):
        self.mode = mode
        self.world = world_of(mode, cache, forward)
        self.manager = self.world.manager
        alone = 64 * sum(2 * member.kv_bytes_per_token for member in pool().members)
        self.manager._limits = {} if share is None else {torch.device("cpu"): int(share * alone)}
        for prompt in prompts:
            self.open(prompt)

    @precondition(lambda self: len(self.running) < MOST_RUNNING)
    @rule(prompt=PROMPTS)
    def open(self, prompt):
        self.num_opened += 1
        session = Session(
            pool=members(),
            request_id=f"r{self.num_opened}",
            tag="",
            prompt=tuple(prompt),
            budget=BUDGET,
            eos=frozenset({EOS}),
        )
        self.world.open(session)
        self.running.append(session)

    @precondition(lambda self: self.running)
    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 12))
    def steps(self, seed, count):
        """Operations in a row, drawn from a seed: the choices of an operation are too many to be drawn one by one."""
        rng = Random(seed)
        for _ in range(count):
            if self.running:
                self.execute(self.any_op(rng))

    def any_op(self, rng):
        chosen = rng.sample(self.running, rng.randint(1, len(self.running)))
        by_group = {}
        for session in chosen:
            for step in legal_steps(session, commits=False):
                group = (members().level(step.model), isinstance(step, Verify))
                by_group.setdefault(group, {}).setdefault(session, []).append(step)
        level, verify = rng.choice(sorted(by_group))
        items = [(session, rng.choice(steps)) for session, steps in by_group[level, verify].items()]
        return Op(VERIFIES if verify else DRAFTS, level, items)

    def execute(self, op):
        before = {session.request_id: session.tail(0) for session, _ in op.items}
        results = op.run(self.world)
        assert len(results.rows) == len(op.items)
        for (session, step), row in zip(op.items, results.rows, strict=True):
            assert not isinstance(row, Failed), row.error
            if isinstance(row, Deferred):
                assert self.manager._limits
                assert session.cached == [0] * len(members().members)
                assert session.tail(0) == before[session.request_id]
            elif op.kind == VERIFIES:
                self.check_verdict(session, op.level, row)
                session.judged(step, op.level, row, duration_s=0.0, num_rows=1)
            else:
                self.check_draft(session, step, op.level, row)
                session.drafted(step, op.level, row, duration_s=0.0, num_rows=1)
        for session in [session for session in self.running if session.done]:
            self.world.close(session)
            self.running.remove(session)

    def check_draft(self, session, step, level, row):
        assert isinstance(step, Draft)
        assert len(row.tokens) <= min(step.tokens, session.room)
        assert EOS not in row.tokens[:-1]
        if pool().members[level].model is not None and self.mode != "rejection":
            context = session.tail(0)
            for token in row.tokens:
                assert token == choice(level, self.mode, session.request_id, session.num_prompt, tuple(context))
                context.append(token)

    def check_verdict(self, session, level, row):
        if self.mode == "rejection":
            return
        first = session.num_prompt + len(session.emitted) + session.first_unjudged(level)
        context = session.tail(0)
        wanted = [
            choice(level, self.mode, session.request_id, session.num_prompt, tuple(context[:end]))
            for end in range(first, len(context) + 1)
        ]
        kept = next((index for index, token in enumerate(context[first:]) if token != wanted[index]), len(wanted) - 1)
        assert (row.num_accepted, row.own_token) == (kept, wanted[kept])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data):
        session = data.draw(st.sampled_from(self.running))
        self.manager.give_up(session.request_id)

    @precondition(lambda self: len(self.running) > 1)
    @rule(data=st.data())
    def cancel(self, data):
        session = data.draw(st.sampled_from(self.running))
        self.world.close(session)
        self.running.remove(session)

    @rule()
    def truncate(self):
        self.manager._truncate(self.manager.caches.values())

    @invariant()
    def caches_hold_what_sessions_say(self):
        for session in self.running:
            self.manager.check(session)
            places = self.manager.states[session.request_id].views
            assert set(session.places) <= set(places)

    @invariant()
    def nothing_is_held_for_those_who_left(self):
        if not hasattr(self, "manager"):
            return
        names = {session.request_id for session in self.running}
        assert set(self.manager.states) == names
        for cache in self.manager.caches.values():
            assert set(cache.rows) <= names
            assert len(set(cache.rows.values())) == len(cache.rows)
            assert all(row < cache.num_rows for row in cache.rows.values())
            for name in cache.rows:
                slots = cache.live_slots_of(name)
                assert all(a < b for a, b in pairwise(slots))
                assert not slots or slots[-1] < cache.capacity
            assert cache._kv[:, list(cache.rows.values())].isfinite().all()
        assert self.manager.held_bytes <= self.manager._limits.get(torch.device("cpu"), inf)

    def teardown(self):
        for session in self.running:
            self.world.close(session)
        if hasattr(self, "manager"):
            self.manager.caches.clear()
            self.manager.evicted.clear()


def machine_settings(examples, steps):
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=slow)


def test_any_legal_steps():
    run_state_machine_as_test(ExecutorMachine, settings=machine_settings(15, 15))


@pytest.mark.slow
def test_any_legal_steps_many_times():
    run_state_machine_as_test(ExecutorMachine, settings=machine_settings(600, 25))
