"""What sharing and speculation make each other worth: the interaction term, with an interval over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...reports.interval import Interval, mean_interval

MORE, LESS, OPEN = "more", "less", "as much, or chance hides it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two changes, alone and together, of the same requests.

    Attributes:
        without: speed-up by speculation without sharing.
        together: the same with it.
        gain: by sharing, without speculation.
        term: `together / without`, which equals what sharing gains with speculation over what it gains without. Above
            1 each makes the other worth more.
    """

    without: Interval
    together: Interval
    gain: Interval
    term: Interval

    @property
    def words(self) -> str:
        """Whether speculation is worth more or less beside sharing, if the 95% interval says so."""
        low, high = self.term.bounds
        return MORE if low > 1.0 else LESS if high < 1.0 else OPEN


def interaction(
    neither: Sequence[float], speculation: Sequence[float], sharing: Sequence[float], both: Sequence[float]
) -> Interaction:
    """The term of durations, each by seed in the same order, of runs that met the same requests.

    Ratios are taken seed by seed, so what chance does to all four runs alike is in none of them.

    Args:
        neither: seconds without speculation and sharing.
        speculation: with speculation alone.
        sharing: with sharing alone.
        both: with both.

    Raises:
        ValueError: fewer than two seeds.
    """
    without = [a / b for a, b in zip(neither, speculation, strict=True)]
    together = [a / b for a, b in zip(sharing, both, strict=True)]
    gain = [a / b for a, b in zip(neither, sharing, strict=True)]
    terms = [a / b for a, b in zip(together, without, strict=True)]
    each = {"without": without, "together": together, "gain": gain, "term": terms}
    return Interaction(**{name: mean_interval(values) for name, values in each.items()})
