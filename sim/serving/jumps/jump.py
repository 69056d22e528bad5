"""Steps that follow one another without a change of the batch: each takes a fixed time more than the one before.

Letter: j steps done, of those that are left.
"""

from math import sqrt


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
        self.end_ps = start_ps + (first_ps if num_steps == 1 else self.lasts_ps(num_steps))

    def lasts_ps(self, steps: int) -> int:
        """How long the first so many steps take."""
        return steps * self.first_ps + self.increment_ps * (steps * (steps - 1) // 2)

    def done(self, at_ps: int, *, inclusive: bool) -> int:
        """How many steps, the last one apart, have ended before an instant, or until it if that is inclusive."""
        span_ps, most = at_ps - self.start_ps + inclusive, self.num_steps - 1
        if span_ps <= self.first_ps:
            return 0
        # So many steps last a quadratic in them, whose root is nearly right; what is rounded off is put right.
        linear = 2 * self.first_ps - self.increment_ps
        root = linear + sqrt(max(0, linear * linear + 8 * self.increment_ps * span_ps))
        steps = min(int(4 * span_ps / root), most) if root > 0 else most
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
