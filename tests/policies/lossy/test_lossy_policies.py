"""Policies that may leave the target's text: the contract, bad options, and where they become lossless."""

import pytest
from paceline.decoding.rules import Deferral, Equilibrium
from paceline.policies import Draft, Member, Pool, Verify, check_policy, make_policy
from paceline.policies.about import Observable, about_of
from paceline.policies.check import EOS, ToyWorld

from ...decoding.script import run
from .watching import POOL, blocks_of, watched

TEXTS = (
    "via-sd",
    "via-sd,draft=mid,tokens=1,accept=1.0,escalate=0.99",
    "via-sd,draft=ngram,slim=draft,escalate=0",
    "via-sd,guard=0.2",
    "via-sd,budget=20",
    "via-sd,budget=1000,guard=1.0,tokens=9",
    "cascade",
    "cascade,draft=ngram,eps=1.0",
    "cascade,rule=chow,eps=0.5",
    "cascade,rule=diff,draft=slim",
    "cascade,rule=opt,tokens=1",
    "pyramid-sd",
    "pyramid-sd,tau_q=1.0,tau_t=1.0,tokens=1,gather=9",
    "early-commit",
    "early-commit,high=0.2,middle=0.1,low=0,draft=mid",
    "entropy-patch",
    "entropy-patch,theta=2.5,most=3,draft=slim",
    "typical",
    "typical,draft=ngram,tokens=1,eps=1.0,delta=0.05",
    "equilibrium",
    "equilibrium,generator=9,discriminator=0.05,eta=0.1,rounds=1",
)
# Where the formula says that nothing but the target's own tokens is kept.
STRICTEST = (
    "cascade,eps=0",
    "cascade,rule=chow,eps=0",
    "pyramid-sd,tau_q=1.0,tau_t=0",
    "pyramid-sd,tau_q=0.5,tau_t=0,tokens=2,gather=7",
    "early-commit,high=1.0,middle=1.0,low=1.0",
    "entropy-patch,theta=0,most=1",
    "via-sd-lossless",
    "via-sd-lossless,escalate=1.0,tokens=2,slim=mid",
    "via-sd-lossless,draft=ngram,slim=draft",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_lossy_policies_keep_the_contract(text, seed):
    report = check_policy(lambda pool: make_policy(text, pool), name=text, seed=seed)
    assert report.num_tokens >= report.num_requests
    assert not about_of(make_policy(text, POOL)).lossless


@pytest.mark.parametrize("text", STRICTEST)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_strictest_settings_commit_the_trunk(text, seed):
    assert check_policy(lambda pool: make_policy(text, pool), name=text, seed=seed).lossless


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cascade", Deferral("token", 0.2)),
        ("cascade,rule=opt,eps=0.5", Deferral("opt", 0.5)),
        ("equilibrium,rounds=3", Equilibrium(rounds=3)),
    ],
)
def test_two_level_policies_judge_every_draft_by_their_rule(text, rule):
    watch, _ = watched(make_policy(text, POOL))
    for draft, end in blocks_of(watch):
        assert draft.step == Draft("draft", 5)
        assert end.step == Verify("target", rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("via-sd,accept=0.3", r"escalate must be in \[0, accept=0.3\), got 0.3"),
        ("via-sd,accept=1.2", r"accept must be in \(0, 1\], got 1.2"),
        ("via-sd,tokens=0", "draft tokens must be >= 1, got 0"),
        ("via-sd,guard=0", r"guard must be in \(0, 1\], got 0.0"),
        ("via-sd,budget=0", r"budget must be in \(0, 1000\] divergences per 1,000 tokens, got 0.0"),
        ("via-sd,slim=target", "policy via-sd needs a verifier between 'draft' and 'target', got 'target'"),
        ("via-sd,slim=draft", "policy via-sd needs a verifier between 'draft' and 'target', got 'draft'"),
        (
            "via-sd,draft=slim",
            "policy via-sd needs a verifier between 'slim' and the target; the pool has ngram, draft",
        ),
        ("via-sd,slim=nobody", "unknown model 'nobody'"),
        ("via-sd-lossless,escalate=0", r"escalate must be in \(0, 1\], got 0.0"),
        ("via-sd-lossless,draft=slim", "policy via-sd-lossless needs a verifier between 'slim' and the target"),
        ("cascade,rule=best", "rule must be one of chow, diff, opt, token, got 'best'"),
        ("cascade,eps=1.5", r"eps must be in \[0, 1\], got 1.5"),
        ("cascade,rule=chow,draft=ngram", "policy cascade,rule=chow needs a drafter with probabilities of its own"),
        ("cascade,draft=target", "draft must be a member below the target, got 'target'"),
        ("pyramid-sd,gather=0", "gather must be >= 1, got 0"),
        ("pyramid-sd,tau_q=2", r"tau_q must be in \[0, 1\], got 2.0"),
        ("pyramid-sd,tau_t=-1", r"tau_t must be in \[0, 1\], got -1.0"),
        ("pyramid-sd,draft=ngram", "policy pyramid-sd needs a drafter with probabilities of its own, 'ngram' has none"),
        ("early-commit,low=0.85", "thresholds must fall: 0 <= low <= middle <= high <= 1, got low=0.85, middle=0.8"),
        ("early-commit,high=0.95,middle=0.99", "thresholds must fall"),
        ("early-commit,draft=ngram", "policy early-commit needs a drafter with probabilities of its own"),
        ("entropy-patch,theta=-1", "theta must be >= 0, got -1.0"),
        ("entropy-patch,most=0", "draft tokens must be >= 1, got 0"),
        ("typical,eps=0", r"eps must be in \(0, 1\], got 0.0"),
        ("typical,delta=1.5", r"delta must be in \(0, 1\], got 1.5"),
        ("typical,tokens=0", "draft tokens must be >= 1, got 0"),
        ("typical,draft=target", "draft must be a member below the target, got 'target'"),
        ("equilibrium,eta=0", "eta must be > 0 and finite, got 0.0"),
        ("equilibrium,draft=ngram", "policy equilibrium needs a drafter with probabilities of its own"),
    ],
)
def test_bad_options_are_one_line(text, rule):
    with pytest.raises(ValueError, match=rule) as caught:
        make_policy(text, POOL)
    assert "\n" not in str(caught.value)


def test_a_pool_without_the_member_is_refused():
    alone = Pool((Member(name="target"),))
    pair = Pool((Member(name="draft"), Member(name="target")))
    foreign = Pool((Member(name="draft", drafts_only=True), Member(name="target")))
    for name in ("via-sd", "via-sd-lossless", "pyramid-sd"):
        with pytest.raises(ValueError, match=f"policy {name} needs a verifier between 'draft' and the target"):
            make_policy(name, pair)
    for name in ("early-commit", "entropy-patch", "equilibrium", "pyramid-sd"):
        for pool in (alone, foreign):
            with pytest.raises(
                ValueError, match=f"policy {name} needs a drafter with probabilities of its own; the pool has"
            ):
                make_policy(name, pool)
    middle = Pool((Member(name="draft"), Member(name="mid", drafts_only=True), Member(name="target")))
    with pytest.raises(ValueError, match="policy via-sd needs a middle member that can verify, 'mid' cannot"):
        make_policy("via-sd,slim=mid", middle)


def test_what_they_have_to_see():
    assert Observable.text in about_of(make_policy("via-sd,guard=0.5", POOL)).observes
    assert Observable.text not in about_of(make_policy("via-sd", POOL)).observes
    assert Observable.distances in about_of(make_policy("cascade,rule=opt", POOL)).observes


def test_an_end_of_text_inside_a_block_ends_the_request():
    for text in TEXTS:
        session = run(make_policy(text, POOL), budget=60, world=ToyWorld(POOL, ends=0.3, seed=5))
        assert session.emitted.index(EOS) == len(session.emitted) - 1
