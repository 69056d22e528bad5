"""Which pieces a round of a cascade is made of, from acceptance and seconds; see `cas_spec`.

Letters: E expected tokens of the round with the target's own, S its seconds, P chance that all so far is kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from .member_seconds import MemberSeconds

# What is tried of drafts below another member: their lengths, and how many of them.
JUDGED_DRAFTS = (1, 2, 3, 4, 6, 8)
JUDGED_TIMES = (1, 2, 3, 4, 6)
PRIOR = 0.5  # acceptance of a pair that was never seen


class _Round(NamedTuple):
    """A round as far as it is planned; `width` are the tokens expected to be pending."""

    tokens: float = 1.0
    seconds: float = 0.0
    survival: float = 1.0
    width: float = 0.0


class CascadePlanner:
    """Acceptance of every pair of members, and the plan that follows from it.

    Args:
        pool: the members.
        seconds: of forwards.
        most: longest piece and most tokens pending.
        recent: share of the recent rate in a new estimate.
    """

    def __init__(self, pool: Pool, seconds: MemberSeconds, *, most: int, recent: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._most = most
        self._recent = recent
        self._rates: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def note(self, drafter: str, verifier: str, num_taken: int, num_asked: int) -> None:
        """Of `num_asked` tokens `drafter` stood behind, `verifier` kept `num_taken`."""
        taken, asked = self._counts.get((drafter, verifier), (0, 0))
        self._counts[drafter, verifier] = (taken + num_taken, asked + num_asked)

    def estimate(self) -> None:
        """Move the rates towards those since the last estimate."""
        for pair, (taken, asked) in self._counts.items():
            if asked:
                rate = taken / asked
                old = self._rates.get(pair, rate)
                self._rates[pair] = old + self._recent * (rate - old)
        self._counts.clear()

    def plan(self) -> tuple[Draft | Verify, ...]:
        """Piece by piece while expected seconds per token fall; none if the target alone is best."""
        target_s = [self._seconds.verify_s(self._pool.target, width + 1) or 0.0 for width in range(self._most + 1)]
        planned, steps = _Round(), list[Draft | Verify]()
        ceiling = self._pool.target_level - 1
        best = target_s[0]
        while True:
            taken = None
            for level in range(ceiling + 1):
                for piece, after in self._pieces(level, planned):
                    value = (after.seconds + target_s[round(after.width)]) / after.tokens
                    if value < best:
                        best, taken = value, (level, piece, after)
            if taken is None:
                return tuple(steps)
            ceiling, piece, planned = taken
            steps += piece.steps()

    def _pieces(self, level: int, before: _Round) -> Iterator[tuple["_Piece", _Round]]:
        """What the member may add: a draft of its own, or drafts by a smaller member that it judges one by one."""
        name = self._pool.names[level]
        most = self._most - round(before.width)
        rate = self._rates.get((name, self._pool.target), PRIOR)
        draft_s = self._seconds.draft_s(name, 1)
        for n in range(1, most + 1):
            piece_s = self._seconds.draft_s(name, n)
            if piece_s is not None:
                yield _Piece(name, n), _after(before, rate, n, piece_s)
        if not self._pool.members[level].verifies:
            return
        for lower in self._pool.names[:level]:
            pair = self._rates.get((lower, name), PRIOR)
            for n in JUDGED_DRAFTS:
                # Before it has judged for the first time, a verification is taken to cost what a drafted token does.
                lower_s = self._seconds.draft_s(lower, n)
                verify_s = self._seconds.verify_s(name, n + 1) or draft_s
                if n >= most or lower_s is None or verify_s is None:
                    break
                kept = sum(pair**k for k in range(n + 1))
                for times in JUDGED_TIMES:
                    if (times - 1) * kept + n + 1 > most:  # the last of them is kept whole at best
                        break
                    after = _after(before, rate, times * kept, times * (lower_s + verify_s))
                    yield _Piece(lower, n, name, times), after


class _Piece(NamedTuple):
    """A draft, or `times` drafts that `judge` verifies one by one."""

    drafter: str
    tokens: int
    judge: str | None = None
    times: int = 1

    def steps(self) -> list[Draft | Verify]:
        draft = Draft(self.drafter, self.tokens)
        return [draft] if self.judge is None else [draft, Verify(self.judge)] * self.times


def _after(before: _Round, rate: float, count: float, seconds: float) -> _Round:
    """The round with `count` more tokens that the target keeps at `rate` each: P (a + ... + a^count) more are kept."""
    survival = rate**count
    kept = count if rate >= 1.0 else rate * (1.0 - survival) / (1.0 - rate)
    return _Round(
        before.tokens + before.survival * kept,
        before.seconds + seconds,
        before.survival * survival,
        before.width + count,
    )
