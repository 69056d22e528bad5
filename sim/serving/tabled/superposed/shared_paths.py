"""Paths that several replicas of a run share, since their policies are equal."""

from .....decoding.policy import Policy
from .....decoding.pool import Pool
from ....fixed.rounds import FixedRounds
from ....recorded_answers import RecordedAnswers
from .round_paths import RoundPaths


class SharedPaths:
    """Makes `RoundPaths` for policies of one run, the same for policies of the same class with equal attributes."""

    def __init__(self) -> None:
        self._made: list[tuple[Policy, RoundPaths]] = []

    def of(self, policy: Policy, name: str, pool: Pool, answers: RecordedAnswers) -> RoundPaths:
        """Paths of a policy; arguments and errors as of `FixedRounds`. Pool and answers are those of the run."""
        for other, paths in self._made:
            if _are_equal(policy, other):
                return paths
        paths = RoundPaths(FixedRounds(policy=policy, name=name, pool=pool, answers=answers), pool)
        self._made.append((policy, paths))
        return paths


def _are_equal(policy: Policy, other: Policy) -> bool:
    ours, theirs = getattr(policy, "__dict__", None), getattr(other, "__dict__", None)
    if type(policy) is not type(other) or ours is None:
        return False
    try:
        return bool(ours == theirs)
    except ValueError:  # of arrays, of which nobody can say in a word whether they are equal
        return False
