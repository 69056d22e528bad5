"""One policy object, two worlds: replaying a recording and running the models take the same steps.

Every step of every request is compared: what was asked, drafted, judged, accepted, added and emitted, the tokens each
forward was fed, and the committed text; then what the policies saw.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from paceline.decoding.legal_steps import Policy
from paceline.decoding.prompt_lookup import LookupRule
from paceline.decoding.seen import Start
from paceline.policies import (
    Band,
    Commit,
    Divergence,
    Draft,
    EntropyAbove,
    GapBelow,
    ProductBelow,
    Ratio,
    RefusalAbove,
    Typical,
    Verify,
    Vouched,
    make_policy,
)
from paceline.policies.fixed import Chain
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.runtime.threads import Memory
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import synthetic_cost
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from paceline.traces.meta import Closure, Sampling

from ..runtime.offline import decoded
from ..tiny_models import random_prompts, tiny_pool_of_four

LOOKUPS = (
    LookupRule(max_match=2, occurrence="first"),
    LookupRule(min_match=2, max_match=4, occurrence="first"),
    LookupRule(min_match=1, max_match=12, occurrence="last"),
    LookupRule(max_match=3, occurrence="longest"),
)
SAMPLINGS = (Sampling(mode="greedy"), Sampling(mode="coupled", temperature=0.8, seed=7))
# The last one holds the end-of-sequence token, for lookups to copy.
PROMPTS = (*random_prompts(4, seed=2), Prompt(request_id="ends", text="t5 t0 t9 t5 t0 t9 t5"))
# What policies plan with in place of measured seconds, which are other ones in each world.
COSTS = "costs=draft:1/mid:2/slim:3/target:6"
# A head of another drafter and target of these names; where it stops, it stops in both worlds.
HEAD = Path(__file__).parents[1] / "policies" / "learned" / "head.json"
REFUSAL = RefusalAbove(chance=0.5, bias=-2.0, prob=9.0, root_entropy=0.3, gap=3.0, place=0.5)
POLICIES = {
    text: lambda pool, text=text: make_policy(text, pool)
    for text in (
        "plain",
        "draft:4/target",
        "draft:2/mid:4/target",
        "draft:1/mid:2/slim:3/target",
        "slim:3/target",
        "ngram",
        "ngram:2/draft:2/mid:3/target",
        "adaptive,most=8",
        "confident,most=8",
        "confident,most=8,draft=mid,below=0.7",
        f"two-level,most=8,warmup=2,every=2,{COSTS}",
        "two-level,most=8,warmup=2,every=2",
        "adaedl,most=8",
        "svip,most=8",
        f"specdec++,head={HEAD},most=8,h=0.8",
        "ngram-model,tokens=4",
        "suffix,most=6,factor=2,least=0",
        "suffix,draft=draft,window=3,score=0.8,store=64,most=6",
        "banditspec,reward=tokens,arms=target@draft:4/target@draft:2/mid:4/target@ngram:3/target",
        f"banditspec,kind=exp3,seed=1,arms=target@mid:4/target@draft:2/slim:4/target,{COSTS}",
        "hedgespec,window=4,every=3,reward=tokens",
        f"hedgespec,window=4,every=2,{COSTS}",
        f"cas-spec,most=4,warmup=1,every=2,{COSTS}",
        "cas-spec,most=4,warmup=1,every=2",
        "cs-drafting,first=2,second=2,inner=1,copy=2",
        "cs-drafting,models=1,first=3,copy=3",
        "hispec,tokens=2,gather=4",
        f"polybasic,most=4,warmup=1,every=2,{COSTS}",
        "polybasic,most=4,warmup=1,every=2",
        "consensus,tokens=2,most=6",
        "consensus,voters=ngram@draft@slim,tokens=2,most=4",
        f"specrouter,every=2,most=8,{COSTS}",
        "specrouter,every=2,most=8",
        "via-sd-lossless,tokens=4",
        "per-tag,default=draft:4/target,a=mid:3/target",
        "goodput,most=6,explore=3",
        "slo,loaded=2,most=6",
        "autotune,trial=1,explore=0.3",
        f"autotune,arms=target@draft:2..4/target@draft:2/mid:3/target,trial=1,seed=3,{COSTS}",
        "off-under-load,at=3",
        "off-under-load,table=1:3/3:1/5:0,draft=mid",
        f"guarded,policy=draft:4/target,trial=2,retry=3,{COSTS}",
        f"per-turn,policy=draft:4/target,then=draft:1/target,after=1,window=2,{COSTS}",
        "per-turn,policy=draft:4/target,by=acceptance,least=0.5,after=1,window=2",
    )
} | {
    "entropy": lambda pool: Chain(pool, "draft:8/target", stop=EntropyAbove(2.0)),
    "gap": lambda pool: Chain(pool, "mid:8/target", stop=GapBelow(0.1)),
    "refusal": lambda pool: Chain(pool, "mid:8/target", stop=REFUSAL),
    "product": lambda pool: Chain(pool, "slim:8/target", stop=ProductBelow(0.1)),
}
COMPARED_STEPS = (
    *("op", "request", "kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted"),
    *("escalated", "prefill", "part", "refused"),
)
STARTS = (Start.prefill, Start.draft)
COMPARED_OPS = ("kind", "level", "num_rows", "num_forwards", "new_tokens")


class Watched:
    """Passes on to a policy, and writes down what it saw."""

    def __init__(self, policy):
        self._policy = policy
        self.seen, self.learnt = [], []

    def decide(self, seen):
        pending = seen.pending
        caches = tuple(seen.cached(name) for name in seen.pool.names)
        plain = tuple((token.token, token.drafter, token.judge) for token in pending)
        load = seen.load
        latest = tuple(map(tuple, (load.batch, load.num_forwards, load.new_tokens, load.duration_s)))
        load = (load.now_s, load.num_running, load.num_waiting, load.context_tokens, latest)
        view = (seen.request_id, seen.remaining, seen.room, caches, load, plain)
        self.seen.append((view, [token.signal for token in pending]))
        return self._policy.decide(seen)

    def learn(self, outcome):
        self.learnt.append((outcome._replace(tvd=()), outcome.tvd))
        self._policy.learn(outcome)


class Wanderer(Policy):
    """Any legal steps, drawn with a seed; `most` bounds the pending tokens, so that a small recording holds them."""

    def __init__(self, pool, *, seed, most, rules=(), commits=False):
        self._random = Random(seed)
        self._pool, self._most, self._rules, self._commits = pool, most, rules, commits

    def decide(self, seen):
        steps = self._drafts(seen) + self._verifies(seen)
        if self._commits and seen.num_pending:
            steps.append(Commit(self._random.randint(1, seen.num_pending)))
        return self._random.choice(steps)

    def _drafts(self, seen):
        room = min(self._most - seen.num_pending, seen.room)
        return [Draft(name, self._random.randint(1, room)) for name in self._pool.names[1:-1] if room > 0]

    def _verifies(self, seen):
        verifies = [Verify("target")]
        verifies += [
            Verify(name)
            for name in self._pool.names[2:-1]
            if (seen.waiting(name) or not seen.num_pending) and seen.num_pending < self._most
        ]
        for rule in self._rules:
            verifies += [Verify(verify.model, rule) for verify in verifies[:3] if seen.num_pending]
        return verifies


class Thrifty:
    """Weighs seconds, as the clock, the load and outcomes tell them."""

    def __init__(self, pool):
        self._spent = dict.fromkeys(pool.names, 0.0)

    def decide(self, seen):
        if seen.num_pending or seen.room < 1:
            return Verify("target")
        known = [seen.load.duration_s[seen.pool.level(name)] for name in ("draft", "mid")]
        late = seen.load.now_s % 4 > known[0] + 2 * known[1]
        return Draft("mid" if late else "draft", 1 + int(self._spent["target"]) % 3)

    def learn(self, outcome):
        self._spent[outcome.step.model] += outcome.duration_s


class Cycle(Policy):
    """The same steps over and over, those that are legal: smaller and larger members write and judge in turns."""

    def __init__(self, steps):
        self._steps = steps
        self._next = {}

    def decide(self, seen):
        for _ in self._steps:
            index = self._next.get(seen.request_id, 0)
            self._next[seen.request_id] = (index + 1) % len(self._steps)
            step = self._steps[index]
            if seen.room > 0 if isinstance(step, Draft) else seen.waiting(step.model):
                return step
        return Verify("target")


@pytest.fixture(scope="module")
def monotone(tmp_path_factory):
    return tables_of(tmp_path_factory, PROMPTS, Closure(kind="monotone", reach=9, run=4), num_tokens=16)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Every context within five tokens of the trunk, and answers of five tokens: no step can leave this record."""
    return tables_of(tmp_path_factory, random_prompts(12, seed=3), Closure(kind="full", reach=5, run=5), num_tokens=5)


def tables_of(tmp_path_factory, prompts, closure, *, num_tokens, pool=None):
    folder = tmp_path_factory.mktemp("recordings")
    return [
        TrieTables(
            record(
                pool or tiny_pool_of_four(),
                prompts,
                sampling=sampling,
                closure=closure,
                max_new_tokens=num_tokens,
                out=folder / f"{sampling.mode}.trace",
            )
        )
        for sampling in SAMPLINGS
    ]


def both_worlds(build, tables, prompts, *, batch=1, cache="slots", pool=None, start=Start.prefill):
    """(committed tokens by request, run log, what the policy saw), replayed and run."""
    pool, trace = pool or tiny_pool_of_four(), tables.trace
    prices = synthetic_cost(trace.meta.model_names)
    watched = Watched(build(recorded_pool(trace)))
    tokens = {}
    log = simulate(Scenario(tables=tables, cost=prices, batch=batch, start=start), watched, "p", outputs=tokens)
    assert log.steps["modelled"].sum() == 0
    rewatched = Watched(build(loaded_pool(pool)))
    given = {"sampling": trace.meta.sampling, "num_tokens": trace.requests[0].max_new_tokens, "start": start}
    given |= {"batch": batch, "memory": Memory(cache=cache), "prices": prices, "debug": True}
    outputs, run = decoded(pool, rewatched, prompts, **given)
    return (tokens, log, watched), ({output.request_id: list(output.tokens) for output in outputs}, run, rewatched)


def assert_same(replayed, run):
    tokens, log, watched = replayed
    run_tokens, run_log, rewatched = run
    assert tokens == run_tokens
    for name in COMPARED_STEPS:
        np.testing.assert_array_equal(log.steps[name], run_log.steps[name], err_msg=name)
    for name in COMPARED_OPS:
        np.testing.assert_array_equal(log.ops[name], run_log.ops[name], err_msg=name)
    assert [seen for seen, _ in watched.seen] == [seen for seen, _ in rewatched.seen]
    assert [learnt for learnt, _ in watched.learnt] == [learnt for learnt, _ in rewatched.learnt]
    numbers, run_numbers = (
        [number for _, signals in world.seen for signal in signals for number in signal]
        for world in (watched, rewatched)
    )
    assert_close(numbers, run_numbers, rtol=1.01 * LOG_PROBS.step, atol=1.01 * ENTROPIES.step)
    distances, run_distances = ([tvd for _, row in world.learnt for tvd in row] for world in (watched, rewatched))
    assert_close(distances, run_distances, rtol=0.0, atol=1.01 * UNITS.step)


def assert_close(recorded, run, *, rtol, atol):
    """Equal, but for a few numbers that fp32 noise moves over a border of the grid they are rounded to."""
    np.testing.assert_allclose(recorded, run, rtol=rtol, atol=atol)
    assert sum(map(differ, recorded, run)) <= 2 + 0.05 * len(run)


def differ(a, b):
    return a != b and not (np.isnan(a) and np.isnan(b))


@pytest.mark.parametrize(
    ("policy", "index"),
    [  # each policy in one of the two samplings, the next one in the other; the rest in `make slow`
        pytest.param(
            policy, index, marks=[pytest.mark.slow] * ((place + index) % 2), id=f"{policy}-{SAMPLINGS[index].mode}"
        )
        for place, policy in enumerate(POLICIES)
        for index in (0, 1)
    ],
)
@pytest.mark.one_in(2)
def test_shipped_policies_take_the_same_steps(monotone, policy, index):
    assert_same(*both_worlds(POLICIES[policy], monotone[index], PROMPTS, start=STARTS[index]))


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize(
    ("policy", "index", "batch"),
    [
        ("plain", 0, 5),
        ("draft:2/mid:4/target", 0, 2),
        ("draft:2/mid:4/target", 1, 5),
        ("draft:1/mid:2/slim:3/target", 0, 3),
        ("ngram:2/draft:2/mid:3/target", 1, 3),
        ("adaptive,most=8", 0, 4),
        ("confident,most=8", 1, 3),
        ("product", 0, 5),
        ("hedgespec,window=4,every=3,reward=tokens", 0, 4),
        (f"cas-spec,most=4,warmup=1,every=2,{COSTS}", 1, 3),
        ("cs-drafting,first=2,second=2,inner=1,copy=2", 0, 4),
        (f"polybasic,most=4,warmup=1,every=2,{COSTS}", 1, 3),
        ("consensus,tokens=2,most=6", 0, 5),
        (f"specrouter,every=2,most=8,{COSTS}", 0, 2),
        ("specrouter,every=2,most=8", 1, 5),
        ("per-tag,default=draft:4/target,a=mid:3/target", 1, 4),
        ("goodput,most=6,explore=3", 0, 4),
        ("slo,loaded=2,most=6", 1, 3),
        ("autotune,trial=1,explore=0.3", 0, 3),
        ("off-under-load,at=3", 1, 4),
        ("off-under-load,table=1:3/3:1/5:0,draft=mid", 0, 5),
    ],
)
@pytest.mark.one_in(3)
def test_batches_take_the_same_steps(monotone, policy, index, batch, cache):
    replayed, run = both_worlds(POLICIES[policy], monotone[index], PROMPTS, batch=batch, cache=cache)
    assert_same(replayed, run)
    assert run[1].ops["num_rows"].max() == batch


@pytest.mark.parametrize(("batch", "cache"), [(1, "slots"), (3, "mask")])
def test_a_policy_that_weighs_seconds_takes_the_same_steps(monotone, batch, cache):
    replayed, run = both_worlds(Thrifty, monotone[0], PROMPTS, batch=batch, cache=cache)
    assert_same(replayed, run)
    for part in ("start_s", "duration_s"):
        np.testing.assert_array_equal(replayed[1].ops[part], run[1].ops[part])
    for instant in ("first_token_at_s", "finished_at_s"):
        np.testing.assert_array_equal(replayed[1].requests[instant], run[1].requests[instant])
    assert len(set(run[1].steps["asked"].tolist())) > 2


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "coupled"])
@pytest.mark.parametrize(("seed", "cache"), [(0, "slots"), (1, "mask")])
def test_any_legal_exact_steps_of_a_batch_are_taken_alike(full, seed, index, cache):
    prompts = random_prompts(12, seed=3)
    build = lambda pool: Wanderer(pool, seed=seed, most=5)  # noqa: E731
    replayed, run = both_worlds(build, full[index], prompts, batch=4, cache=cache)
    assert_same(replayed, run)
    assert replayed[1].requests["divergent_tokens"].sum() == 0


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "coupled"])
@pytest.mark.parametrize("seed", range(4))
def test_any_legal_exact_steps_are_taken_alike(full, seed, index):
    prompts = random_prompts(12, seed=3)
    replayed, run = both_worlds(
        lambda pool: Wanderer(pool, seed=seed, most=5), full[index], prompts, start=STARTS[seed % 2]
    )
    assert_same(replayed, run)
    assert replayed[1].requests["divergent_tokens"].sum() == 0


@pytest.mark.parametrize("rule", LOOKUPS, ids=lambda rule: f"{rule.min_match}-{rule.max_match}-{rule.occurrence}")
@pytest.mark.one_in(2)
def test_lookups_of_every_rule_copy_alike(tmp_path_factory, rule):
    """The rule travels from the pool into the recording, and both worlds copy by it."""
    pool = tiny_pool_of_four(lookup=rule)
    closure = Closure(kind="monotone", reach=9, run=4)
    tables = tables_of(tmp_path_factory, PROMPTS, closure, num_tokens=24, pool=pool)[0]
    ngram = tables.trace.meta.ngram
    assert (ngram.min_match, ngram.max_match, ngram.occurrence) == (rule.min_match, rule.max_match, rule.occurrence)
    for policy in ("ngram", "ngram:2/draft:2/mid:3/target"):
        replayed, run = both_worlds(POLICIES[policy], tables, PROMPTS, pool=pool)
        assert_same(replayed, run)
        assert (run[1].steps["drafted"] > 0).any()


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "coupled"])
def test_a_larger_member_endorses_a_token_that_a_smaller_one_judges(full, index):
    """What it said stays the measure of the next verifier's distance."""
    steps = [Draft("draft", 1), Draft("slim", 1), Verify("mid"), Verify("target")]
    replayed, run = both_worlds(lambda pool: Cycle(steps), full[index], random_prompts(12, seed=3))
    assert_same(replayed, run)
    judges = [token[2] for (*_, pending), _ in run[2].seen for token in pending]
    assert {"draft", "mid", "slim"} == set(judges)


@pytest.mark.parametrize(("index", "batch"), [(0, 1), (0, 4), (1, 3)], ids=str)
@pytest.mark.parametrize(
    "rule",
    [Ratio(0.4), Typical(0.3, 0.3), Ratio(0.6), Divergence(0.3), Band(0.8, 0.5), Vouched(2)],
    ids=lambda rule: type(rule).__name__,
)
def test_lossy_steps_are_taken_alike_where_the_record_holds_them(full, rule, index, batch):
    prompts = random_prompts(12, seed=3)
    build = lambda pool: Wanderer(pool, seed=2, most=5, rules=(rule,), commits=True)  # noqa: E731
    replayed, run = both_worlds(build, full[index], prompts, batch=batch)
    assert_same(replayed, run)
    assert replayed[1].requests["divergent_tokens"].sum() > 0
    assert (run[1].steps["escalated"].sum() > 0) == isinstance(rule, Band)


LOSSY = (
    "via-sd,tokens=3",
    "via-sd,tokens=2,draft=mid,accept=0.9,escalate=0.7",
    "via-sd,tokens=3,slim=mid,guard=0.1",
    "via-sd,tokens=3,budget=100",
    "via-sd-lossless,tokens=3,escalate=0.6",
    "cascade,tokens=3,eps=0.4",
    "cascade,tokens=3,rule=opt,eps=0.5",
    "cascade,tokens=3,rule=diff,eps=0.3",
    "cascade,tokens=3,rule=chow,eps=0.9",
    "pyramid-sd,tokens=2,gather=3",
    "early-commit,tokens=2,high=0.3,middle=0.1,low=0",
    "entropy-patch,theta=3.4,most=3",
    "equilibrium,tokens=3",
    "ensemble,tokens=3",
    "typical,tokens=3",
    "typical,tokens=2,draft=mid,eps=0.3,delta=0.5",
)


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "coupled"])
@pytest.mark.parametrize("policy", LOSSY)
@pytest.mark.one_in(2)
def test_lossy_policies_take_the_same_steps(full, policy, index):
    build = lambda pool: make_policy(policy, pool)  # noqa: E731
    replayed, run = both_worlds(build, full[index], random_prompts(12, seed=3), batch=1 + index)
    assert_same(replayed, run)
