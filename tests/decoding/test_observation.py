"""What a policy sees of a request."""

from paceline.policies import Draft, Verify

from .script import Script
from .script import run as run_one


class Looks(Script):
    """Follows a script and compares the last pending tokens with all of them."""

    looked_at = 0

    def decide(self, seen):
        everything = seen.pending
        for start in range(seen.num_pending + 1):
            assert seen.pending_from(start) == everything[start:]
            self.looked_at += len(everything) - start
        return super().decide(seen)


def test_the_last_pending_tokens_are_the_end_of_all():
    policy = Looks(*[Draft("draft", 4), Verify("mid"), Draft("draft", 3), Verify("target")] * 40)
    run_one(policy, budget=40)
    assert policy.looked_at > 0
