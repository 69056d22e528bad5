"""Turns of a batch: about one round of every request that runs, for which a choice is made once for all of them.

Rows of a batch that draft different windows hold each other up, so what is best for a batch is chosen for all its rows.
"""


class BatchTurns:
    """Counts rounds as they begin. Mutated by `begins`.

    Attributes:
        num_turns: that have begun.
    """

    __slots__ = ("_left", "num_turns")

    def __init__(self) -> None:
        self._left = 0
        self.num_turns = 0

    def begins(self, num_running: int) -> bool:
        """A round begins while so many requests run: whether it is the first of a turn, which has as many rounds."""
        first = self._left <= 0
        if first:
            self._left = num_running
            self.num_turns += 1
        self._left -= 1
        return first
