"""Steps that follow one another without a change of the batch: each takes a fixed time more than the one before.

Letter: j steps done, of those that are left.
"""

from math import isqrt


class Jump:
    """What a replica is about to run, or has begun to run. Mutated as steps are written down.

    Attributes:
        start_ps: when the first of the steps begins.
        first_ps: how long it takes, >= 0.
        increment_ps: how much longer each one takes than the one before.
        num_steps: >= 1.
        end_ps: when the last of the steps ends.
        used_blocks: in the first of them.
    """

    __slots__ = ("end_ps", "first_ps", "increment_ps", "num_steps", "start_ps", "used_blocks")

    def __init__(self, start_ps: int, first_ps: int, increment_ps: int = 0, num_steps: int = 1) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.increment_ps = increment_ps
        self.num_steps = num_steps
        self.used_blocks = 0
        self.end_ps = start_ps + num_steps * first_ps + increment_ps * (num_steps * (num_steps - 1) // 2)

    def lasts_ps(self, steps: int) -> int:
        """How long the first so many steps take."""
        return steps * self.first_ps + self.increment_ps * (steps * (steps - 1) // 2)

    def done(self, at_ps: int, *, inclusive: bool) -> int:
        """How many steps, the last one apart, have ended before an instant, or until it if that is inclusive."""
        span_ps, most = at_ps - self.start_ps + inclusive, self.num_steps - 1
        first, increment = self.first_ps, self.increment_ps
        # Whole steps in the span, of a sum of so many that is a quadratic in them; what roots cut off is put right.
        if increment > 0:
            linear = 2 * first - increment
            steps = (isqrt(linear * linear + 8 * increment * max(span_ps, 0)) - linear) // (2 * increment)
        else:
            steps = span_ps // first if first else most
        steps = min(max(steps, 0), most)
        while steps < most and self.lasts_ps(steps + 1) < span_ps:
            steps += 1
        while steps and self.lasts_ps(steps) >= span_ps:
            steps -= 1
        return steps

    def cut(self, steps: int) -> None:
        """Leave out all but the first so many steps."""
        self.num_steps = steps
        self.end_ps = self.start_ps + self.lasts_ps(steps)

    def drop(self, steps: int) -> None:
        """Leave out the first so many steps."""
        self.start_ps += self.lasts_ps(steps)
        self.first_ps += self.increment_ps * steps
        self.num_steps -= steps
