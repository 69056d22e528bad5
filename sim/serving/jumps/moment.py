"""What time it is in a run, and whose turn: of what happens at one instant, replicas come by index, after arrivals."""


class Moment:
    """Mutated by whoever drives the run.

    Attributes:
        now_ps: the instant of what is being done; never goes back.
    """

    __slots__ = ("_turn", "_turn_ps", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self._turn_ps = -1
        self._turn = -1

    def take_turn(self, index: int, at_ps: int) -> None:
        """What a replica does at an instant is being done."""
        self.now_ps = at_ps
        if (at_ps, index) > (self._turn_ps, self._turn):
            self._turn_ps, self._turn = at_ps, index

    def passed(self, index: int) -> bool:
        """Whether what a replica does at this instant has been done; a request that follows another one may ask so."""
        return self._turn_ps == self.now_ps and index <= self._turn
