"""Running estimates every policy may read: seconds of a forward, and how far two members agree.

Exponential moving averages: k new values with mean m move an average e to e + (1 - (1 - alpha)^k) (m - e), which for
k = 1 is the usual rule. The agreement of a pair is kept in the two forms SpecRouter's SimScore needs
(arXiv:2505.07680): the rate of accepted tokens, and 1 - E[total variation distance].
"""

from collections.abc import Sequence

from .pool import Pool

# Longest run of tokens that enters an average at once; the weights of longer ones differ by less than rounding.
LONGEST_RUN = 512


class Estimates:
    """What the loop has seen. Mutated by the loop only; policies read.

    Attributes:
        wanted: whether some policy has looked. The loop takes nothing in before: most policies never ask, and keeping
            averages for nobody costs a fifth of a replay.

    Raises:
        ValueError: alpha outside (0, 1].
    """

    __slots__ = ("_agreement", "_pool", "_seconds", "_similarity", "_weights", "wanted")

    def __init__(self, pool: Pool, *, alpha: float = 0.05) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}")
        self.wanted = False
        self._pool = pool
        self._weights = [1.0 - (1.0 - alpha) ** count for count in range(LONGEST_RUN + 1)]
        self._seconds: list[dict[tuple[int, int], float]] = [{} for _ in pool.members]
        self._agreement: list[dict[int, float]] = [{} for _ in pool.members]
        self._similarity: list[dict[int, float]] = [{} for _ in pool.members]

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int) -> float | None:
        """Seconds of one forward of `model` over `new_tokens` tokens of `num_rows` requests; None if never seen."""
        return self._seconds[self._pool.level(model)].get((num_rows, new_tokens))

    def agreement(self, drafter: str, verifier: str) -> float | None:
        """Rate, 0 to 1, at which `verifier` kept a token `drafter` stood behind; None if never seen."""
        return self._agreement[self._pool.level(verifier)].get(self._pool.level(drafter))

    def similarity(self, drafter: str, verifier: str) -> float | None:
        """SimScore, 1 - E[TVD], 0 to 1; None if never seen."""
        return self._similarity[self._pool.level(verifier)].get(self._pool.level(drafter))

    def note_forwards(self, level: int, forwards: Sequence[tuple[int, int, int, float]]) -> None:
        """Take in the forwards of an operation: rows, new tokens, repeats and seconds of each shape."""
        seconds = self._seconds[level]
        for num_rows, new_tokens, repeats, taken in forwards:
            key = (num_rows, new_tokens)
            old = seconds.get(key)
            if old is None:
                seconds[key] = taken
            elif old != taken:
                seconds[key] = old + self._weights[min(repeats, LONGEST_RUN)] * (taken - old)

    def note_judged(self, proposers: list[int], verifier: int, num_accepted: int, tvd: tuple[float, ...]) -> None:
        """Take in one verification.

        Args:
            proposers: levels that stood behind the judged tokens, in order.
            verifier: level that judged.
            num_accepted: leading tokens it kept.
            tvd: per judged token up to and including the first refused one.
        """
        count = min(num_accepted + 1, len(proposers))
        start = 0
        while start < count:
            proposer = proposers[start]
            end = start + 1
            while end < count and proposers[end] == proposer:
                end += 1
            accepted = min(num_accepted, end) - start
            self._blend(self._agreement[verifier], proposer, accepted / (end - start), end - start)
            distance = sum(tvd[start:end])
            # NaN (a model-free drafter has no distribution) is the only value that differs from itself.
            if distance == distance:
                self._blend(self._similarity[verifier], proposer, 1.0 - distance / (end - start), end - start)
            start = end

    def _blend(self, table: dict[int, float], key: int, mean: float, count: int) -> None:
        old = table.get(key)
        weight = self._weights[min(count, LONGEST_RUN)]
        table[key] = mean if old is None else old + weight * (mean - old)
