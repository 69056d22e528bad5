"""Every policy of the registry keeps the contract and its bound; what policies say of themselves binds them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.legal_steps import Policy
from paceline.decoding.rules import ProductBelow
from paceline.policies import (
    Commit,
    Divergence,
    Draft,
    Exact,
    Member,
    PolicyError,
    Pool,
    Ratio,
    Typical,
    Verify,
    check_policy,
    make_policy,
)
from paceline.policies.about import About, StepWatch, WatchedPolicy, about_of, decides_by_pending, runs_target_alone
from paceline.policies.by_name import own_policies
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.policies.fixed import Chain, Confident, Plain
from paceline.policies.windows import Adaptive
from paceline.sim.recorded import recorded_pool

from ..decoding.script import Script, run
from ..decoding.strategies import chains, pools
from ..sim.tries.small_traces import Script as Steps
from ..sim.tries.small_traces import replay, request_of, trace_of
from ..sim.tries.test_lossy import VIEWS
from .making import seen_of

ANY_POOL = """
two-level banditspec banditspec,kind=exp3 hedgespec cas-spec polybasic goodput slo,loaded=1 autotune,trial=2
off-under-load,at=2 guarded,policy=two-level per-turn,policy=two-level per-tag,default=two-level
"""
PENDING_DECIDES = "target plain draft:4/target draft:3/mid:6/target confident svip hispec chain,spec=draft:2/target"
MORE_DECIDES = "adaptive two-level adaedl goodput off-under-load cas-spec consensus per-tag,default=plain"
HEAD = Path(__file__).parent / "learned" / "head.json"
SPECS = {
    "specdec++": f"specdec++,head={HEAD}",
    "chain": "chain,spec=draft:3/mid:5/target",
    "per-tag": "per-tag,default=draft:4/target,a=mid:3/target",
    "per-turn": "per-turn,policy=draft:4/target",
    "guarded": "guarded,policy=draft:4/target",
}
VARIANTS = f"""
target draft:4/target ngram:4/target ngram:2/draft:3/mid:4/slim:6/target draft:1/mid:1/slim:1/target
adaptive,start=1,up=5,down=9,most=7 adaptive,draft=ngram adaptive,start=3,up=0,down=0
confident,below=0.0,most=3 confident,below=1.0,draft=slim confident,draft=ngram
ngram,tokens=1 ngram-model,draft=slim,tokens=1,window=9
suffix,store=0,factor=3,least=0 suffix,draft=mid,window=7,score=0.5,most=3,store=64
two-level,draft=ngram,warmup=1,every=1,memory=1 two-level,draft=mid,start=16,warmup=3,every=2
two-level,costs=draft:5/mid:6/slim:7/target:5,warmup=1,every=2
adaedl,threshold=1.0,step=0 adaedl,draft=slim,threshold=0,wanted=0.5,step=0.5,most=3 adaedl,draft=ngram
svip,h=0.1 svip,draft=mid,h=9,most=1 specdec++,head={HEAD},h=0,most=3 guarded,policy=specdec++(head={HEAD},h=1)
tree,shape=0+0.0+0.2+1,draft=mid tree,shape=2x2,through=slim guarded,policy=tree(shape=3x1)
tree-dynamic,beams=1,depth=1,tokens=1 tree-dynamic,beams=3,depth=7,tokens=40,through=mid
banditspec,kind=exp3,seed=3,explore=1.0 banditspec,arms=target@ngram:3/draft:2/mid:4/target,explore=0
banditspec,reward=tokens,arms=slim:2/target banditspec,costs=draft:1/mid:3/slim:4/target:10
hedgespec,window=1,every=2,memory=1,seed=5 hedgespec,reward=tokens,window=9
hedgespec,costs=draft:1/mid:3/slim:4/target:10
cas-spec,most=1,every=1,recent=1.0,warmup=1 cas-spec,most=20,costs=draft:1/mid:3/slim:4/target:90
cs-drafting,models=1 cs-drafting,draft=mid,middle=slim,first=1,second=2,inner=3,copy=1
hispec,draft=ngram,middle=slim,tokens=1,gather=1
polybasic,most=1,warmup=1,every=1,memory=1 polybasic,most=20,refresh=0,costs=draft:1/mid:3/slim:4/target:90
consensus,voters=ngram@draft@mid@slim,tokens=2,most=3 consensus,voters=ngram@slim,tokens=1,most=1
pearl,window=1 pearl,draft=ngram,window=9 pearl,most=2 pearl,costs=draft:1/mid:2/slim:4/target:9
pearl,draft=ngram,start=3,costs=draft:1/mid:2/slim:4/target:9
dsi,draft=mid,start=1,most=2,memory=1 pipespec,window=1 pipespec,draft=ngram,middle=slim,window=6
goodput,draft=ngram,most=3,start=1 goodput,draft=mid,explore=2,memory=1
slo,loaded=1,margin=0.5,start=2,up=1,down=2,most=5,draft=slim
autotune,arms=target@draft:1..2/mid:3/target@ngram:5/target,trial=1,explore=0.5
autotune,seed=4,change=0.01,memory=2,costs=draft:1/mid:3/slim:4/target:10
off-under-load,policy=adaptive,at=4 off-under-load,policy=banditspec(kind=exp3),at=3
off-under-load,table=1:6/2:0/3:2/16:1,draft=ngram
per-tag,default=plain,a=guarded+policy=two-level++most=8,b=ngram-model
per-turn,policy=adaptive,by=acceptance,least=1,after=1,window=1
per-turn,policy=draft:2/mid:4/target,then=ngram-model(tokens=3),least=9,after=2,window=2
per-turn,policy=cas-spec,by=speed,costs=draft:1/mid:3/slim:4/target:10,after=1,window=3
guarded,policy=banditspec+kind=exp3,trial=1,retry=1,margin=3
guarded,policy=cas-spec+warmup=1,trial=2,retry=3,margin=9,costs=draft:1/mid:3/slim:4/target:10
guarded,policy=hedgespec+every=2,trial=2,retry=3,margin=9
"""


def texts():
    """Every policy of ours but the oracles, which no toy world can show the future."""
    return [SPECS.get(name, name) for name, cls in own_policies().items() if not about_of(cls).oracle]


def check_contract(text):
    report = check_policy(lambda pool: make_policy(text, pool), name=text, seed=1)
    assert report.says_lossless is not None
    assert not report.contradicted
    assert report.num_tokens >= report.num_requests


@pytest.mark.parametrize("text", texts())
def test_policies_keep_the_contract_and_commit_the_trunk_if_they_say_so(text):
    check_contract(text)


@pytest.mark.parametrize("text", VARIANTS.split())
@pytest.mark.one_in(3)
def test_their_options_keep_the_contract(text):
    check_contract(text)


@pytest.mark.parametrize("text", ANY_POOL.split())
@settings(max_examples=3)
@given(data=st.data())
@pytest.mark.one_in(2)
def test_policies_that_choose_suit_any_pool_with_a_drafter(text, data):
    pool = data.draw(pools(least=2))
    report = check_policy(lambda pool: make_policy(text, pool), name=text, pool=pool, seed=data.draw(st.integers(0, 9)))
    assert report.lossless


def test_every_policy_of_ours_says_what_it_is():
    for name, cls in own_policies().items():
        about = about_of(cls)
        assert about is not None, name
        assert about.members, name


@settings(max_examples=10)
@given(st.data())
def test_chains_over_any_pool_commit_the_trunk(data):
    pool = data.draw(pools())
    spec = data.draw(chains(pool))
    stop = data.draw(st.sampled_from([None, ProductBelow(0.3)]))
    assert check_policy(lambda pool: Chain(pool, spec, stop=stop), name=spec, pool=pool).lossless


class Watched:
    """Looks on while a chain decides: what is judged must be what the level below kept, and enough of it."""

    def __init__(self, pool, spec):
        self.chain = Chain(pool, spec)
        self.members, self.windows = self.chain.spec.members, self.chain.spec.windows
        self.pool = pool

    def decide(self, seen):
        step = self.chain.decide(seen)
        if isinstance(step, Verify) and seen.num_pending:
            self.watch(seen, self.members.index(step.model), seen.waiting(step.model))
        return step

    def watch(self, seen, index, waiting):
        below = self.pool.level(self.members[index - 1])
        judged = seen.pending[seen.num_pending - waiting :]
        assert all(self.pool.level(token.judge) >= below for token in judged)
        found_nothing = seen.last.num_drafted == 0 and isinstance(seen.last.step, Draft)
        assert index == 1 or waiting >= self.windows[index - 1] or seen.room == 0 or found_nothing

    def learn(self, outcome):
        assert outcome.num_drafted <= self.windows[0] if self.windows else outcome.num_drafted == 0


@settings(max_examples=10)
@given(st.data())
def test_a_level_judges_only_what_the_level_below_kept(data):
    pool = data.draw(pools())
    spec = data.draw(chains(pool))
    check_policy(lambda pool: Watched(pool, spec), name=spec, pool=pool, seed=data.draw(st.integers(0, 99)))


def outcome_of(*, judged, accepted):
    """Of a verification by the target, for the one request."""
    script = Script(Draft("draft", judged), *[Verify("target")] * 30)
    run(script, budget=30)
    verdict = script.learnt[1]
    return verdict._replace(
        num_judged=judged, num_accepted=accepted, refused_at=None if accepted == judged else accepted, done=False
    )


def test_confident_drafts_end_at_the_first_unsure_token():
    pool, short = check_pool(), 0

    class Watching(Confident):
        def decide(self, seen):
            nonlocal short
            probs = [token.signal.prob for token in seen.pending]
            assert all(prob >= 0.6 for prob in probs[:-1])
            if probs and len(probs) < 6 and seen.room:
                assert probs[-1] < 0.6
                short += 1
            return super().decide(seen)

    check_policy(lambda pool: Watching(pool, below=0.6, most=6), pool=pool)
    assert short > 10


class CommitsAll(Policy):
    """The least careful policy there is: never verifies."""

    def __init__(self, pool):
        pass

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 4)


class TestCheckPolicy:
    def test_requests_that_end_with_a_commit_make_room_for_the_next(self):
        report = check_policy(CommitsAll)
        assert not report.lossless
        assert report.num_steps >= 2 * report.num_requests, "every request drafted and committed"

    def test_lossy_rules_are_told_from_lossless_ones(self):
        class Lossy(CommitsAll):
            def decide(self, seen):
                return Verify("target", Ratio(0.1)) if seen.num_pending else Draft("draft", 4)

        assert not check_policy(Lossy).lossless

    def test_a_policy_that_is_not_what_it_says_is_told(self):
        class Claims(CommitsAll):
            about = About(lossless=True)

        class Admits(CommitsAll):
            about = About(lossless=False)

        assert check_policy(Claims).contradicted
        assert not check_policy(Admits).contradicted
        assert not check_policy(CommitsAll).contradicted

    def test_a_policy_that_never_gets_on_is_stopped(self):
        class Lazy(CommitsAll):
            def decide(self, seen):
                return Draft("ngram", 1) if seen.room else Verify("target")

        with pytest.raises(PolicyError, match=r"policy lazy, request r\d+, step .*: no progress in 8 steps"):
            check_policy(Lazy, name="lazy")

    def test_it_offers_another_pool(self):
        seen = []
        pool = Pool((Member(name="small"), Member(name="large")))
        check_policy(lambda pool: seen.append(pool) or make_policy("small:2/large", pool), pool=pool)
        assert set(seen) == {pool}


def test_toy_models_end_texts_and_disagree():
    pool = check_pool()
    world = ToyWorld(pool, ends=0.1)
    contexts = [[first, second] for first in range(1, 20) for second in range(1, 20)]
    written = [[world.next_token(level, context) for level in range(5)] for context in contexts]
    assert 5 < sum(row[-1] == EOS for row in written) < 100
    rates = [sum(row[level] == row[-1] for row in written) / len(written) for level in range(5)]
    assert rates == sorted(rates)
    assert 0.1 < rates[1] < 0.6


# By how many tokens may be pending at most, which each of them comes near.
MOST_PENDING = {
    3: "ngram,tokens=3 early-commit,tokens=3",
    4: "draft:4/target suffix,most=4,factor=4 typical,tokens=4 equilibrium,tokens=4 ensemble,tokens=4",
    5: "two-level,most=5 ngram-model,tokens=2,window=5 suffix,draft=draft,window=5,most=3 goodput,most=5 "
    "cs-drafting,first=1,second=1,inner=1,copy=2 guarded,policy=draft:5/target off-under-load,policy=draft:5/target "
    "per-turn,policy=draft:3/target,then=draft:5/target,least=9,after=1",
    6: "adaptive,most=6 consensus,voters=draft@mid@slim,tokens=2,most=4 cascade,tokens=6 pearl,window=3 "
    "off-under-load,table=1:6/9:2",
    7: "banditspec,arms=target@draft:3/mid:4/target autotune,arms=target@draft:3/mid:4/target hedgespec,window=3 "
    "cas-spec,most=6 consensus,tokens=3,most=6 entropy-patch,theta=9,most=7 slo,most=7,start=7",
    8: "via-sd,tokens=7 via-sd-lossless,tokens=7 per-tag,default=draft:2/target,a=draft:8/target",
    9: "draft:3/mid:6/target adaedl,threshold=0,step=0,most=9 tree,shape=3x2 cs-drafting,models=1,first=4,copy=3 "
    f"specdec++,head={HEAD},h=1,most=9 hispec,tokens=3,gather=6 pyramid-sd,tokens=3,gather=6",
    10: "polybasic,most=5 pearl,most=5 pipespec,window=2 pipespec,middle=mid,window=3",
    11: "tree-dynamic,beams=3,depth=4,tokens=11",
    12: "confident,below=0 svip,h=9",
    16: "dsi",
    38: "cs-drafting",
}


class Bound:
    """Keeps the most tokens that a policy had pending."""

    def __init__(self, policy, counts):
        self.policy, self.counts = policy, counts

    def decide(self, seen):
        self.counts.append(seen.num_pending)
        return self.policy.decide(seen)

    def learn(self, outcome):
        self.policy.learn(outcome)


@pytest.mark.parametrize(("text", "most"), [(text, most) for most, row in MOST_PENDING.items() for text in row.split()])
@pytest.mark.one_in(5)
def test_no_more_is_pending_than_a_policy_says(text, most):
    counts = []
    check_policy(lambda pool: Bound(make_policy(text, pool), counts), name=text)
    assert make_policy(text, check_pool()).most_pending == most
    assert 0 < max(counts) <= most


@pytest.mark.parametrize(
    ("step", "inexact", "lossy"),
    [
        (Draft("draft", 2), False, False),
        (Verify("target"), False, False),
        (Verify("mid", Exact()), False, False),
        (Verify("mid", Ratio(0.5)), True, False),
        (Verify("target", Typical(0.3, 0.2)), True, True),
        (Verify("target", Ratio(0.2)), True, True),
        (Verify("target", Divergence(0.2)), True, True),
        (Commit(1), True, True),
    ],
    ids=str,
)
def test_which_steps_are_lossy(step, inexact, lossy):
    watch = StepWatch("target")
    for seen in (Draft("draft", 1), step, Verify("target")):
        watch.note(seen)
    assert (watch.inexact, watch.lossy) == (inexact, lossy)


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ([Verify("mid", Ratio(0.5))], False),
        ([Verify("mid", Ratio(0.5)), Verify("mid", Typical(0.3, 0.2)), Verify("slim")], False),
        ([Verify("mid", Ratio(0.5)), Verify("slim", Ratio(0.5))], True),
        ([Verify("target", Ratio(0.5))], True),
        ([Commit(1)], True),
    ],
    ids=str,
)
def test_under_rejection_sampling_one_lossy_member_below_the_target_is_not_lossy(steps, drawn):
    watch = StepWatch("target")
    for step in (Draft("draft", 1), *steps, Verify("target")):
        watch.note(step)
    assert watch.lossy_drawn is drawn


def test_a_watched_policy_does_what_it_does_unwatched():
    trace = trace_of(request_of(VIEWS, budget=5))
    steps = [Draft("draft", 2), Verify("target", Ratio(0.75))]
    watch = StepWatch("target")
    pool = recorded_pool(trace)
    plain, watched = Steps(pool, steps), WatchedPolicy(Steps(pool, steps), watch)
    assert replay(trace, plain)[1] == replay(trace, watched)[1]
    assert watch.lossy


def test_the_target_alone_says_so():
    pool = check_pool()
    assert [
        text
        for text in ("target", "plain", "draft:4/target", "adaptive", "confident", "ngram:3/target")
        if runs_target_alone(make_policy(text, pool))
    ] == ["target", "plain"]


def test_what_a_class_says_does_not_bind_one_that_decides_otherwise():
    pool = check_pool()

    class Looks(Plain):
        def decide(self, seen):
            return super().decide(seen)

    class Learns(Chain):
        def learn(self, outcome):
            pass

    class Renamed(Plain):
        """Decides as before."""

    class Says(Looks):
        about = About(lossless=True, target_alone=True)

    assert not runs_target_alone(Looks(pool))
    assert not runs_target_alone(Learns(pool, "target"))
    assert runs_target_alone(Renamed(pool))
    assert runs_target_alone(Says(pool))
    assert not runs_target_alone(object())
    plain = Plain(pool)
    plain.decide = Plain(pool).decide
    assert not runs_target_alone(plain)


def test_fixed_policies_say_that_pending_tokens_decide():
    for texts, expected in ((PENDING_DECIDES, True), (MORE_DECIDES, False)):
        for text in texts.split():
            assert decides_by_pending(make_policy(text, check_pool())) == expected, text


def test_any_method_may_decide_otherwise():
    pool = check_pool()

    class Blocks(Confident):
        def block(self, seen):
            return super().block(seen)

    class Options(Confident):
        def __init__(self, pool):
            super().__init__(pool, most=2)

    class Windows(Confident):
        @property
        def _draft(self):
            return self.drafts.pop()

        @_draft.setter
        def _draft(self, draft):
            self.drafts = [draft]

    assert not decides_by_pending(Blocks(pool))
    assert not decides_by_pending(Windows(pool))
    assert decides_by_pending(Options(pool))
    patched = Confident(pool)
    patched.judge = Confident(pool).judge
    assert not decides_by_pending(patched)


def windows(*accepted, **options):
    """The window of an adaptive policy after each round of the given accepted counts, from full drafts."""
    policy = Adaptive(check_pool(), **options)
    found = [policy.decide(seen_of()).tokens]
    for count in accepted:
        policy.learn(outcome_of(judged=found[-1], accepted=min(count, found[-1])))
        found.append(policy.decide(seen_of()).tokens)
    return found


def test_the_window_follows_acceptance_within_one_and_most_for_each_request():
    assert windows(99, 99, 0, 1, 99) == [4, 6, 8, 7, 6, 8]
    assert windows(99, 99, 99, most=7) == [4, 6, 7, 7]
    assert windows(0, 0, 0, start=2) == [2, 1, 1, 1]
    policy = Adaptive(check_pool())
    policy.learn(outcome_of(judged=4, accepted=4))
    assert policy.decide(seen_of(request_id="r8")).tokens == 4


COSTS = "costs=draft:1/mid:2/slim:4/target:6"


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("pearl", 4),
        ("pearl,most=2", 2),
        ("dsi,start=7", 7),
        ("pearl,window=12", 12),
        (f"pearl,{COSTS}", 6),
        (f"pearl,most=3,{COSTS}", 3),
        (f"pearl,draft=ngram,start=3,{COSTS}", 3),  # a lookup costs nothing, which gives no ratio
        (f"dsi,draft=slim,{COSTS}", 2),  # 6 / 4, rounded up
    ],
)
def test_the_first_window_of_who_works_ahead(text, window):
    assert make_policy(text, check_pool()).window == window
