"""Steps that follow one another without a change of the batch: each takes a fixed time more than the one before.

Letter: j steps done, of those that are left.
"""

from bisect import bisect_left, bisect_right


class Jump:
    """What a replica is about to run, or has begun to run. Mutated as steps are written down.

    Attributes:
        start_ps: when the first of the steps begins.
        first_ps: how long it takes, >= 0.
        increment_ps: how much longer each one takes than the one before.
        num_steps: >= 1.
    """

    __slots__ = ("first_ps", "increment_ps", "num_steps", "start_ps")

    def __init__(self, start_ps: int, first_ps: int, increment_ps: int = 0, num_steps: int = 1) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.increment_ps = increment_ps
        self.num_steps = num_steps

    @property
    def end_ps(self) -> int:
        """When the last of the steps ends."""
        return self.start_ps + self.lasts_ps(self.num_steps)

    def lasts_ps(self, steps: int) -> int:
        """How long the first so many steps take."""
        return steps * self.first_ps + self.increment_ps * (steps * (steps - 1) // 2)

    def done(self, at_ps: int, *, inclusive: bool) -> int:
        """How many steps, the last one apart, have ended before an instant, or until it if that is inclusive."""
        find = bisect_right if inclusive else bisect_left
        return find(range(1, self.num_steps), at_ps - self.start_ps, key=self.lasts_ps)

    def drop(self, steps: int) -> None:
        """Leave out the first so many steps."""
        self.start_ps += self.lasts_ps(steps)
        self.first_ps += self.increment_ps * steps
        self.num_steps -= steps
