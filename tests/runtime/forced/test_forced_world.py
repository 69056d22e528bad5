"""A forced run takes the steps of a replay, and its models do the work of decoding with them."""

from collections import Counter
from dataclasses import replace

import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.rules import Ratio
from paceline.decoding.seen import Start
from paceline.decoding.steps import Draft, Verify
from paceline.runs.agreement import compare_runs
from paceline.runtime import forced as forced_pool
from paceline.runtime.forced import forced_recording, forced_run
from paceline.runtime.pools.members import loaded_pool
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import made_up_cost
from paceline.studies.record import record
from paceline.studies.setting import named_policy
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling

from ...tiny_models import random_prompts, tiny_pool_of_four
from .forced_pools import tiny_forced_pool

POLICIES = (
    "plain",
    "draft:4/target",
    "draft:3/mid:6/target",
    "draft:2/mid:3/slim:5/target",
    "ngram",
    "suffix,most=6,least=0",
    "adaptive",
    "confident",
    "specrouter",
)
COUPLED = Sampling(mode="coupled", temperature=1.0, seed=3)


def recorded(folder, sampling):
    path = folder / f"{sampling.mode}.trace"
    record(tiny_pool_of_four(), random_prompts(5, seed=4), path, sampling=sampling, max_new_tokens=20, costs=False)
    return read_trace(path)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_forced_pool(tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="module", params=[Sampling(mode="greedy"), COUPLED], ids=lambda sampling: sampling.mode)
def recording(request, pool, tmp_path_factory):
    return forced_recording(recorded(tmp_path_factory.mktemp("trace"), request.param), pool)


class Both:
    """One policy in both worlds, at the same prices."""

    def __init__(self, pool, recording, policy, batch, wrapped=lambda policy: policy):
        tables, cost = TrieTables(recording), made_up_cost(recording.meta.model_names)
        self.tokens = {}
        scenario = Scenario(tables=tables, cost=cost, batch=batch)
        self.in_replay, self.in_run = (
            wrapped(named_policy(policy).build(members)) for members in (tables.pool, loaded_pool(pool))
        )
        self.replay = simulate(scenario, self.in_replay, policy, outputs=self.tokens)
        decisions = tables.world(cost, seed=0, strict=False)
        sessions = list(decisions.sessions(tables.prefill_before(Start.prefill)))
        self.run = forced_run(
            pool,
            self.in_run,
            sessions,
            decisions,
            sampling=recording.meta.sampling,
            trace=recording.meta.name,
            name=policy,
            batch=batch,
            prices=cost,
        )
        self.ran_tokens = {session.request_id: session.emitted for session in sessions}

    @property
    def difference(self):
        return compare_runs(self.replay, self.run, replayed_tokens=self.tokens, ran_tokens=self.ran_tokens).difference


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_forced_run_takes_the_steps_of_the_replay(pool, recording, policy, batch):
    both = Both(pool, recording, policy, batch)
    assert both.difference is None
    assert both.run.meta["forced"] is True
    assert both.run.meta["trace"] == recording.meta.name
    assert both.run.meta["phases"]["forward_s"] > 0


def test_beyond_the_record_a_forced_run_does_what_the_replay_models(pool, recording):
    """Drafts longer than the record is deep have tokens that nobody knows."""
    assert Both(pool, recording, "draft:9/mid:18/target", 2).difference is None


@pytest.mark.parametrize("policy", ["draft:4/target", "draft:3/mid:6/target"])
def test_the_models_run_over_every_token_that_the_replay_counts(pool, recording, policy, monkeypatch):
    fed = Counter()
    wrapped = forced_pool._AnyToken.__call__

    def counted(self, ids, placement, cache, keep):
        logits = wrapped(self, ids, placement, cache, keep)
        fed[self.kv_shape.num_layers] += len(ids)
        kept = range(len(ids))[keep] if isinstance(keep, slice) else keep
        assert logits.shape == (len(kept), pool.vocab_size)
        return logits

    monkeypatch.setattr(forced_pool._AnyToken, "__call__", counted)
    ops = Both(pool, recording, policy, 2).replay.ops
    expected = {
        member.num_layers: ops["new_tokens"][ops["level"] == level].sum() for level, member in enumerate(pool.members)
    }
    assert fed == {layers: count for layers, count in expected.items() if count}


class Noting:
    """Passes on to a policy, and notes what it is shown and told."""

    def __init__(self, policy):
        self.policy = policy
        self.noted = []

    def decide(self, seen):
        self.noted.append([tuple(pending) for pending in ((token.drafter, *token.signal) for token in seen.pending)])
        return self.policy.decide(seen)

    def learn(self, outcome):
        self.noted.append((outcome.num_accepted, outcome.num_emitted, tuple(outcome.tvd)))
        self.policy.learn(outcome)


def test_a_policy_sees_what_was_recorded(pool, recording):
    both = Both(pool, recording, "draft:3/mid:6/target", 2, Noting)
    assert repr(both.in_run.noted) == repr(both.in_replay.noted)  # NaN is not itself


class Lossy:
    """Drafts, and lets everything pass."""

    def __init__(self, rule):
        self.rule = rule

    def decide(self, seen):
        return Verify("target", self.rule) if seen.pending else Draft("draft", 2)

    def learn(self, outcome):
        pass


def test_a_lossy_step_is_refused(pool, recording):
    with pytest.raises(ArgumentError, match="a forced run must be of lossless steps, got Verify"):
        Both(pool, recording, "draft:4/target", 1, lambda _: Lossy(Ratio(0.5)))


def test_a_recording_of_other_models_is_refused(pool, recording):
    fewer = replace(recording, meta=recording.meta.model_copy(update={"models": recording.meta.models[1:]}))
    with pytest.raises(ArgumentError, match=r"`recording` must hold as many models as pool tiny forced has, 4 \(draft"):
        forced_recording(fewer, pool)


def test_a_recording_longer_than_the_context_is_refused(tmp_path, recording):
    short = tiny_forced_pool(tmp_path, context_tokens=21)
    with pytest.raises(
        ArgumentError, match="`recording` must fit into the context of pool tiny forced, 21 tokens, got"
    ):
        forced_recording(recording, short)


def test_another_prompt_lookup_is_refused(tmp_path, recording):
    other = tiny_forced_pool(tmp_path, lookup="{ max_match = 2 }")
    with pytest.raises(ArgumentError, match="`recording` must hold the prompt lookup of pool tiny forced"):
        forced_recording(recording, other)
