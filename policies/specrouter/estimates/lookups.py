"""How often a lookup finds something to copy, and what one takes."""

from math import sqrt

from ..constants import RouterConstants


class Lookups:
    """Running counts of every tag and of all. Mutated by `note`.

    Args:
        constants: of the policy.

    Attributes:
        seconds: of one lookup, in the mean; those that find nothing take them too.
    """

    def __init__(self, constants: RouterConstants) -> None:
        self._memory, self._shared = constants.lookup_memory, constants.lookup_tries
        self._all = [0.0, 0.0]  # tries and finds
        self._by_tag: dict[str, list[float]] = {}
        self.seconds = 0.0

    def note(self, tag: str, *, found: bool, seconds: float) -> None:
        """Take in one lookup for a request of this tag."""
        for counts in (self._all, self._by_tag.setdefault(tag, [0.0, 0.0])):
            if counts[0] > self._memory:
                counts[:] = [count * (1.0 - 1.0 / self._memory) for count in counts]
            counts[0] += 1.0
            counts[1] += found
        self.seconds += (seconds - self.seconds) / self._all[0]

    def rate(self, tag: str, errors: float) -> float:
        """The share that finds something in a tag, raised by so many standard errors, 0 to 1."""
        tries, finds = self._all
        rate = (finds + 1.0) / (tries + 2.0)
        own, found = self._by_tag.get(tag, (0.0, 0.0))
        rate = (found + self._shared * rate) / (own + self._shared)
        known = own + min(tries, self._shared) + 1.0
        return min(1.0, rate + errors * sqrt(rate * (1.0 - rate) / known))
