"""The window of least seconds per token of one level over another.

Letters: L members, N the longest window, v(k) seconds of a forward over k tokens, E(n) tokens of a round of window n.
"""

from math import inf
from operator import sub

from ..speed import Floats


class RoundSeconds:
    """What a search over chains goes by, as lists: it reads single figures, which arrays are slow at. Final.

    Args:
        rates, seconds, entry_s, drafting, undrafted: as of `specrouter.search.Figures`.

    Attributes:
        rates, seconds, entry_s: those, as lists.
        step_s: `[L]` by how much a forward grows with a token at least.
    """

    def __init__(
        self, rates: Floats, seconds: Floats, entry_s: Floats, drafting: float = 1.0, undrafted: float = 1.0
    ) -> None:
        self.rates: list[list[float]] = rates.tolist()
        self.seconds: list[list[float]] = seconds.tolist()
        self.entry_s: list[float] = entry_s.tolist()
        self.drafting, self.undrafted = drafting, undrafted
        # Infinite seconds are those of an unknown member.
        self.step_s = [min(map(sub, row[1:], row)) if row[0] < inf else 0.0 for row in self.seconds]

    def round(self, below: int, level: int, below_s: float, least_s: float, *, beyond: int = 0) -> tuple[int, float]:
        """The window of least (n tau + v(n + 1)) / E(n) over tau = `below_s`, and those seconds per token.

        (0, `least_s`) where none is less than that. Windows up to N + `beyond` count, where v goes on along its last
        slope.
        """
        rate, forward_s = self.rates[below][level], self.seconds[level]
        added_s = below_s + self.step_s[level]
        window, tokens, power = 0, self.undrafted, self.drafting * rate
        for width in range(1, len(forward_s)):
            if least_s * power <= added_s:
                return window, least_s
            tokens += power
            power *= rate
            token_s = (width * below_s + forward_s[width]) / tokens
            if token_s < least_s:
                window, least_s = width, token_s
        if not beyond:
            return window, least_s
        slope, widest = max(0.0, forward_s[-1] - forward_s[-2]), len(forward_s) - 1
        for more in range(1, beyond + 1):
            if least_s * power <= added_s:
                break
            tokens += power
            power *= rate
            token_s = ((widest + more) * below_s + forward_s[-1] + more * slope) / tokens
            if token_s < least_s:
                window, least_s = widest + more, token_s
        return window, least_s
