"""Early commit and entropy patches: what is committed unchecked, and what the target judges."""

from paceline.policies import Commit, Draft, EntropyAbove, Verify, check_policy
from paceline.policies.check import ToyWorld
from paceline.policies.lossy import EarlyCommit, EntropyPatch

from ...decoding.script import run
from .watching import POOL


def test_early_commit_relaxes_as_the_answer_advances():
    seen_thresholds = set()

    class Watching(EarlyCommit):
        def decide(self, seen):
            step = super().decide(seen)
            if seen.num_pending:
                done = seen.num_emitted / (seen.num_emitted + seen.remaining)
                asked = 0.5 if done < 1 / 3 else 0.3 if done < 2 / 3 else 0.1
                sure = min(token.signal.gap for token in seen.pending) >= asked
                assert step == (Commit(seen.num_pending) if sure else Verify("target"))
                seen_thresholds.add((asked, sure))
            return step

    for seed in range(6):
        run(Watching(POOL, tokens=2, high=0.5, middle=0.3, low=0.1), budget=60, world=ToyWorld(POOL, seed=seed))
    assert len(seen_thresholds) == 6


def test_the_target_judges_the_boundaries_of_patches_only():
    boundaries = 0

    class Watching(EntropyPatch):
        def decide(self, seen):
            nonlocal boundaries
            step = super().decide(seen)
            if seen.num_pending:
                surprising = [token.signal.entropy > 1.0 for token in seen.pending]
                assert not any(surprising[:-1])
                if step == Verify("target"):
                    assert surprising == [True]
                    boundaries += 1
                else:
                    assert step == Commit(len(surprising) - surprising[-1])
            else:
                assert step == Draft("draft", 4, EntropyAbove(1.0))
            return step

    for ends in (0.0, 0.2):
        check_policy(lambda pool: Watching(pool, theta=1.0, most=4), name="patch", seed=int(10 * ends))
    assert boundaries > 50
