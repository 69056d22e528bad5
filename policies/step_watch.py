"""Notes what kinds of steps a policy takes: known by what it does, not by what it says."""

from ..decoding.contract import Commit, Outcome, Step, Verify
from ..decoding.observation import Observation
from ..decoding.policy import Policy


class StepWatch:
    """What the steps so far may have done to the text.

    Args:
        target: name of the target.

    Attributes:
        inexact: a Commit was among them, or a verification by a lossy rule at any level.
        lossy: a Commit was among them, or a verification by the target by a lossy rule. Text is then no longer what the
            target would write; below the target a lossy rule changes what is proposed to it.
        lossy_drawn: the same under rejection sampling, where lossy rules at two members below the target are lossy too.
            Above one such member the target is told what its tokens follow; above two it may be told too little,
            since some rules (such as `Vouched`) ask who endorses a token.
    """

    __slots__ = ("_below", "_target", "inexact", "lossy", "lossy_drawn")

    def __init__(self, target: str) -> None:
        self._target = target
        self.inexact = False
        self.lossy = False
        self.lossy_drawn = False
        self._below: set[str] = set()

    def note(self, step: Step) -> None:
        """Take in a step."""
        if isinstance(step, Commit):
            self.inexact = self.lossy = self.lossy_drawn = True
        elif isinstance(step, Verify) and not step.rule.lossless:
            self.inexact = True
            if step.model == self._target:
                self.lossy = self.lossy_drawn = True
            else:
                self._below.add(step.model)
                self.lossy_drawn |= len(self._below) > 1


class WatchedPolicy:
    """Passes on to a policy, and notes its steps.

    Args:
        policy: any.
        watch: told of every step.

    Attributes:
        wrapped, watch: as given.
    """

    def __init__(self, policy: Policy, watch: StepWatch) -> None:
        self.wrapped = policy
        self.watch = watch

    def decide(self, seen: Observation) -> Step:
        """The policy's step."""
        step = self.wrapped.decide(seen)
        self.watch.note(step)
        return step

    def learn(self, outcome: Outcome) -> None:
        """The policy learns."""
        self.wrapped.learn(outcome)
