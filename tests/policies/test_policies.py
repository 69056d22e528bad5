"""Every policy of the registry keeps the contract; chains do what their notation says."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.rules import ProductBelow
from paceline.policies import Commit, Draft, Member, PolicyError, Pool, Ratio, Verify, check_policy, make_policy
from paceline.policies.about import About, about_of
from paceline.policies.by_name import own_policies
from paceline.policies.check import EOS, ToyWorld, check_pool
from paceline.policies.fixed import Chain, Confident
from paceline.policies.windows import Adaptive

from ..decoding.script import Script, run
from ..decoding.strategies import chains, pools

HEAD = Path(__file__).parent / "learned" / "head.json"
SPECS = {
    "specdec++": f"specdec++,head={HEAD}",
    "chain": "chain,spec=draft:3/mid:5/target",
    "per-tag": "per-tag,default=draft:4/target,a=mid:3/target",
    "per-turn": "per-turn,policy=draft:4/target",
    "guarded": "guarded,policy=draft:4/target",
}
VARIANTS = (
    "target",
    "draft:4/target",
    "ngram:4/target",
    "ngram:2/draft:3/mid:4/slim:6/target",
    "draft:1/mid:1/slim:1/target",
    "adaptive,start=1,up=5,down=9,most=7",
    "adaptive,draft=ngram",
    "adaptive,start=3,up=0,down=0",
    "confident,below=0.0,most=3",
    "confident,below=1.0,draft=slim",
    "confident,draft=ngram",
    "ngram,tokens=1",
    "ngram-model,draft=slim,tokens=1,window=9",
    "suffix,store=0,factor=3,least=0",
    "suffix,draft=mid,window=7,score=0.5,most=3,store=64",
    "two-level,draft=ngram,warmup=1,every=1,memory=1",
    "two-level,draft=mid,start=16,warmup=3,every=2",
    "two-level,costs=draft:5/mid:6/slim:7/target:5,warmup=1,every=2",
    "adaedl,threshold=1.0,step=0",
    "adaedl,draft=slim,threshold=0,wanted=0.5,step=0.5,most=3",
    "adaedl,draft=ngram",
    "svip,h=0.1",
    f"specdec++,head={HEAD},h=0,most=3",
    f"guarded,policy=specdec++(head={HEAD},h=1)",
    "svip,draft=mid,h=9,most=1",
    "tree,shape=0+0.0+0.2+1,draft=mid",
    "tree,shape=2x2,through=slim",
    "tree-dynamic,beams=1,depth=1,tokens=1",
    "tree-dynamic,beams=3,depth=7,tokens=40,through=mid",
    "guarded,policy=tree(shape=3x1)",
    "banditspec,kind=exp3,seed=3,explore=1.0",
    "banditspec,arms=target@ngram:3/draft:2/mid:4/target,explore=0",
    "banditspec,reward=tokens,arms=slim:2/target",
    "banditspec,costs=draft:1/mid:3/slim:4/target:10",
    "hedgespec,window=1,every=2,memory=1,seed=5",
    "hedgespec,reward=tokens,window=9",
    "hedgespec,costs=draft:1/mid:3/slim:4/target:10",
    "cas-spec,most=1,every=1,recent=1.0,warmup=1",
    "cas-spec,most=20,costs=draft:1/mid:3/slim:4/target:90",
    "cs-drafting,models=1",
    "cs-drafting,draft=mid,middle=slim,first=1,second=2,inner=3,copy=1",
    "hispec,draft=ngram,middle=slim,tokens=1,gather=1",
    "polybasic,most=1,warmup=1,every=1,memory=1",
    "polybasic,most=20,refresh=0,costs=draft:1/mid:3/slim:4/target:90",
    "consensus,voters=ngram@draft@mid@slim,tokens=2,most=3",
    "consensus,voters=ngram@slim,tokens=1,most=1",
    "pearl,window=1",
    "pearl,draft=ngram,window=9",
    "pearl,most=2",
    "pearl,draft=ngram,start=3,costs=draft:1/mid:2/slim:4/target:9",
    "pearl,costs=draft:1/mid:2/slim:4/target:9",
    "dsi,draft=mid,start=1,most=2,memory=1",
    "pipespec,window=1",
    "pipespec,draft=ngram,middle=slim,window=6",
    "goodput,draft=ngram,most=3,start=1",
    "goodput,draft=mid,explore=2,memory=1",
    "slo,loaded=1,margin=0.5,start=2,up=1,down=2,most=5,draft=slim",
    "autotune,arms=target@draft:1..2/mid:3/target@ngram:5/target,trial=1,explore=0.5",
    "autotune,seed=4,change=0.01,memory=2,costs=draft:1/mid:3/slim:4/target:10",
    "off-under-load,policy=adaptive,at=4",
    "off-under-load,policy=banditspec(kind=exp3),at=3",
    "off-under-load,table=1:6/2:0/3:2/16:1,draft=ngram",
    "per-tag,default=plain,a=guarded+policy=two-level++most=8,b=ngram-model",
    "per-turn,policy=adaptive,by=acceptance,least=1,after=1,window=1",
    "per-turn,policy=draft:2/mid:4/target,then=ngram-model(tokens=3),least=9,after=2,window=2",
    "per-turn,policy=cas-spec,by=speed,costs=draft:1/mid:3/slim:4/target:10,after=1,window=3",
    "guarded,policy=banditspec+kind=exp3,trial=1,retry=1,margin=3",
    "guarded,policy=cas-spec+warmup=1,trial=2,retry=3,margin=9,costs=draft:1/mid:3/slim:4/target:10",
    "guarded,policy=hedgespec+every=2,trial=2,retry=3,margin=9",
)


def texts():
    """Every policy of ours but the oracles, which no toy world can show the future."""
    return [SPECS.get(name, name) for name, cls in own_policies().items() if not about_of(cls).oracle]


@pytest.mark.parametrize("text", [*texts(), *VARIANTS])
@pytest.mark.parametrize("seed", [0, 1])
def test_policies_keep_the_contract_and_commit_the_trunk_if_they_say_so(text, seed):
    report = check_policy(lambda pool: make_policy(text, pool), name=text, seed=seed)
    assert report.says_lossless is not None
    assert not report.contradicted
    assert report.num_tokens >= report.num_requests


@pytest.mark.parametrize(
    "text",
    [
        "two-level",
        "banditspec",
        "banditspec,kind=exp3",
        "hedgespec",
        "cas-spec",
        "polybasic",
        "goodput",
        "slo,loaded=1",
        "autotune,trial=2",
        "off-under-load,at=2",
        "guarded,policy=two-level",
        "per-turn,policy=two-level",
        "per-tag,default=two-level",
    ],
)
@settings(max_examples=8)
@given(data=st.data())
def test_policies_that_choose_suit_any_pool_with_a_drafter(text, data):
    pool = data.draw(pools(least=2))
    report = check_policy(lambda pool: make_policy(text, pool), name=text, pool=pool, seed=data.draw(st.integers(0, 9)))
    assert report.lossless


def test_every_policy_of_ours_says_what_it_is():
    for name, cls in own_policies().items():
        about = about_of(cls)
        assert about is not None, name
        assert about.members, name


def test_oracles_are_refused_by_the_check():
    with pytest.raises(ValueError, match="policy oracle-window sees ahead, which only a recording can grant"):
        check_policy(lambda pool: make_policy("oracle-window", pool), name="oracle-window")


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


@given(st.data())
def test_a_level_judges_only_what_the_level_below_kept(data):
    pool = data.draw(pools())
    spec = data.draw(chains(pool))
    check_policy(lambda pool: Watched(pool, spec), name=spec, pool=pool, seed=data.draw(st.integers(0, 99)))


def test_a_three_level_chain_climbs_when_its_windows_are_full():
    """Pinned on one request of the toy models: (kind, model, accepted) of its first steps."""
    policy = Chain(check_pool(), "draft:2/mid:3/target")
    told = []
    policy.learn = lambda outcome: told.append((type(outcome.step).__name__, outcome.step.model, outcome.num_accepted))
    run(policy, budget=8)
    models = [model for kind, model, _ in told if kind == "Verify"]
    kept = 0
    for kind, model, accepted in told[:-1]:
        if kind == "Verify":
            kept = kept + accepted + 1 if model == "mid" else 0
        else:
            assert kept < 3, "the target judges before more is drafted"
    assert models.count("mid") >= models.count("target") >= 2


class TestAdaptive:
    def windows(self, *accepted, **options):
        """The window after each round of the given accepted counts, from full drafts."""
        policy = Adaptive(check_pool(), **options)
        seen = type("Seen", (), {"num_pending": 0, "last": None, "request_id": "r7"})()
        windows = [policy.decide(seen).tokens]
        for count in accepted:
            policy.learn(outcome_of(judged=windows[-1], accepted=min(count, windows[-1])))
            windows.append(policy.decide(seen).tokens)
        return windows

    def test_the_window_follows_acceptance(self):
        assert self.windows(99, 99, 0, 1, 99) == [4, 6, 8, 7, 6, 8]

    def test_the_window_stays_within_one_and_most(self):
        assert self.windows(99, 99, 99, most=7) == [4, 6, 7, 7]
        assert self.windows(0, 0, 0, start=2) == [2, 1, 1, 1]

    def test_each_request_has_its_own_window(self):
        policy = Adaptive(check_pool())
        policy.learn(outcome_of(judged=4, accepted=4))
        other = type("Seen", (), {"num_pending": 0, "last": None, "request_id": "r8"})()
        assert policy.decide(other).tokens == 4

    @pytest.mark.parametrize(
        ("options", "rule"),
        [
            ({"start": 0}, r"start must be in \[1, most=16\], got 0"),
            ({"start": 9, "most": 8}, r"start must be in \[1, most=8\], got 9"),
            ({"up": -1}, "up and down must be >= 0, got up=-1, down=1"),
            ({"draft": "target"}, "draft must be a member below the target, got 'target'"),
            ({"draft": "nobody"}, "unknown model 'nobody'"),
        ],
    )
    def test_options_out_of_range_are_refused(self, options, rule):
        with pytest.raises(ValueError, match=rule):
            Adaptive(check_pool(), **options)


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


class CommitsAll:
    """The least careful policy there is: never verifies."""

    def __init__(self, pool):
        pass

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 4)

    def learn(self, outcome):
        pass


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
    """Else the checks above would see neither end nor refusal."""
    pool = check_pool()
    world = ToyWorld(pool, ends=0.1)
    contexts = [[first, second] for first in range(1, 20) for second in range(1, 20)]
    written = [[world.next_token(level, context) for level in range(5)] for context in contexts]
    assert 5 < sum(row[-1] == EOS for row in written) < 100
    rates = [sum(row[level] == row[-1] for row in written) / len(written) for level in range(5)]
    assert rates == sorted(rates)
    assert 0.1 < rates[1] < 0.6
