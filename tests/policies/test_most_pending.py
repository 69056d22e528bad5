"""What a policy says of how many tokens it may have pending is a bound."""

from pathlib import Path

import pytest
from paceline.policies import check_policy, make_policy

HEAD = Path(__file__).parent / "learned" / "head.json"
TEXTS = {
    "draft:4/target": 4,
    "draft:3/mid:6/target": 9,
    "two-level,most=5": 5,
    "adaptive,most=6": 6,
    "confident,below=0": 12,
    "adaedl,threshold=0,step=0,most=9": 9,
    "svip,h=9": 12,
    f"specdec++,head={HEAD},h=1,most=9": 9,
    "tree,shape=3x2": 9,
    "tree-dynamic,beams=3,depth=4,tokens=11": 11,
    "ngram,tokens=3": 3,
    "ngram-model,tokens=2,window=5": 5,
    "suffix,most=4,factor=4": 4,
    "suffix,draft=draft,window=5,most=3": 5,
    "banditspec,arms=target@draft:3/mid:4/target": 7,
    "hedgespec,window=3": 7,
    "cas-spec,most=6": 7,
    "cs-drafting": 38,
    "cs-drafting,models=1,first=4,copy=3": 9,
    "cs-drafting,first=1,second=1,inner=1,copy=2": 5,
    "hispec,tokens=3,gather=6": 9,
    "polybasic,most=5": 10,
    "consensus,tokens=3,most=6": 7,
    "consensus,voters=draft@mid@slim,tokens=2,most=4": 6,
    "typical,tokens=4": 4,
    "via-sd,tokens=7": 8,
    "via-sd-lossless,tokens=7": 8,
    "cascade,tokens=6": 6,
    "pyramid-sd,tokens=3,gather=6": 9,
    "early-commit,tokens=3": 3,
    "entropy-patch,theta=9,most=7": 7,
    "equilibrium,tokens=4": 4,
    "pearl,window=3": 6,
    "pearl,most=5": 10,
    "dsi": 16,
    "pipespec,window=2": 10,
    "pipespec,middle=mid,window=3": 10,
    "goodput,most=5": 5,
    "slo,most=7,start=7": 7,
    "autotune,arms=target@draft:3/mid:4/target": 7,
    "off-under-load,policy=draft:5/target": 5,
    "off-under-load,table=1:6/9:2": 6,
    "guarded,policy=draft:5/target": 5,
    "per-turn,policy=draft:3/target,then=draft:5/target,least=9,after=1": 5,
    "per-tag,default=draft:2/target,a=draft:8/target": 8,
}


class Watched:
    """Keeps the most tokens that a policy had pending."""

    def __init__(self, policy, counts):
        self.policy, self.counts = policy, counts

    def decide(self, seen):
        self.counts.append(seen.num_pending)
        return self.policy.decide(seen)

    def learn(self, outcome):
        self.policy.learn(outcome)


@pytest.mark.parametrize(("text", "most"), TEXTS.items(), ids=TEXTS)
def test_no_more_is_pending_than_a_policy_says(text, most):
    counts, said = [], set()

    def build(pool):
        policy = make_policy(text, pool)
        said.add(policy.most_pending)
        return Watched(policy, counts)

    check_policy(build, name=text)
    assert said == {most}
    assert 0 < max(counts) <= most
