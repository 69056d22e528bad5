"""Both worlds take the same steps with a drafter from the target's states."""

import pytest
from paceline.policies import Commit, Draft, Verify
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import prompts_of
from paceline.runtime.recording.recorder import record
from paceline.studies.agree import agree
from paceline.traces.meta import Closure, Sampling

from .feature_pools import CHAINS, COUPLED, PROMPTS, written


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("pool"), members=("ngram", "mid", "slim", "target")))


@pytest.mark.parametrize(
    ("sampling", "batch", "cache"), [(Sampling(mode="greedy"), 4, "mask"), (COUPLED, 1, "slots")], ids=str
)
def test_both_worlds_take_the_same_steps(pool, shared, sampling, batch, cache):
    def recorded(out):
        closure = Closure(kind="monotone", reach=16, run=16)
        record(pool, prompts_of(PROMPTS), sampling=sampling, closure=closure, max_new_tokens=14, out=out)

    recording = shared(f"features-{sampling.mode}.trace", recorded)
    asked = {"sampling": sampling, "max_new_tokens": 14, "batch": batch, "cache": cache}
    found = agree(pool, PROMPTS, CHAINS, recording=recording, **asked)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    for one in found.policies:
        assert one.left is None
        assert one.num_steps > 20


def test_lossy_judges_between_agree_as_far_as_it_is_recorded(pool):
    found = agree(pool, PROMPTS[:3], ["via-sd", "cascade"], max_new_tokens=10, batch=4, reach=8, run=8)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    assert sum(one.num_steps for one in found.policies) > 10


@pytest.mark.parametrize("sampling", [None, COUPLED])
def test_lossy_judges_agree_to_the_end_in_a_full_closure(pool, sampling):
    found = agree(
        pool, PROMPTS[:3], ["via-sd", "cascade"], sampling=sampling, max_new_tokens=4, closure="full", reach=4
    )
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    assert all(one.left is None for one in found.policies)


def test_a_policy_that_leaves_the_recording_is_told_so(pool):
    with pytest.raises(ValueError, match="policy feature:6/target leaves the recording"):
        agree(pool, PROMPTS, ["feature:6/target"], max_new_tokens=20, reach=3)


@pytest.mark.parametrize(
    ("policy", "reach", "run"),
    [
        ("feature:4/target", 4, 0),
        ("feature:2/mid:3/target", 5, 2),
        ("ngram:3/feature:4/target", 7, 3),
        ("feature:2/mid:3/slim:4/target", 9, 5),
    ],
)
def test_the_closure_holds_what_its_reach_and_run_promise(pool, policy, reach, run):
    found = agree(pool, PROMPTS[:3], [policy], max_new_tokens=16, reach=reach, run=run)
    assert found.agree


class CommitsUnread:
    """Drafts two tokens, and commits one that the target has not read: what it has judged falls behind."""

    def __init__(self, pool):
        self.pool = pool

    def decide(self, seen):
        last = seen.last
        if seen.num_pending and last is not None and isinstance(last.step, Draft):
            return Commit(1)
        if seen.num_pending > 2 or seen.room < 1:
            return Verify(self.pool.target)
        return Draft("feature", 2)

    def learn(self, outcome):
        pass


def test_what_was_committed_without_the_target_is_not_judged(pool):
    found = agree(pool, PROMPTS, [CommitsUnread], max_new_tokens=5, closure="full", reach=5)
    assert found.agree, found.policies[0].difference
    assert found.policies[0].left is None
    assert found.policies[0].num_steps > 20
