"""Polybasic speculation: of two or three levels, the members and windows of least seconds per token by its theorem.

Wang et al. 2025 (arXiv:2510.26527), Lemma 3.1. For models M_1 (the target) to M_n (the drafter), T_i seconds of a
forward of M_i and L_i tokens per forward of it, N tokens take

    T = sum_{i < n} (N / L_i) T_i + beta (N / L_{n-1}) T_n

beta the forwards of the drafter to one of M_{n-1}. Their second theorem, on when another model pays, is this sum with
it and without, so comparing all chains of two and three levels says the same. We read summaries of the paper. How L_i
depends on windows it may say elsewhere; ours: tokens that are committed in the end, by which the sum is what a run
takes, with acceptance a (of the drafter by the level above) and b (of the middle by the target) independent along a
draft. With k tokens drafted, so beta = k, the middle hands on E = 1 + a + ... + a^k a forward; g are gathered.

    two levels:    L_1 = 1 + a + ... + a^k
    three levels:  m = max(g, E),   L_1 = (1 - b^(m+1)) / (1 - b),   L_2 = L_1 E / m

m leaves out that the last forward before the target may overshoot. Acceptance of every pair and the seconds are running
averages; all windows are weighed every few rounds, a forward's seconds at the width that it would have.
"""

from collections import deque
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...arguments import check_least, check_within
from ...decoding.contract import ONE_STEP, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.acceptance_rate import RunningRatio, acceptance_rate, judged
from ..parts.member_seconds import MemberSeconds
from ..speed import round_tokens

FIRST = {2: (4,), 3: (4, 6)}  # windows while members take turns, by the number of levels

_Floats = NDArray[np.float64]


class Polybasic:
    """The chain of two or three levels that should take least per token, chosen anew every so many rounds.

    Lookups take no part: they find much or nothing, so one rate overrates them. All chains take turns at first, and
    later one of them after each choice: without, a pair that began badly would keep its rate for good.

    Args:
        pool: the members.
        most: longest window of either level, 1 to 64.
        warmup: rounds of each chain before the first choice, 1 to 1,000,000.
        every: rounds between two choices, 1 to 1,000,000.
        refresh: rounds of one chain in turn after each choice, 0 to `every`.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        most_pending: tokens it may have pending, at most.
        chain: of the last choice, in notation.

    Raises:
        ValueError: an option out of range, or no model below the target.
    """

    about: ClassVar[About] = About(
        paper="Polybasic Speculative Decoding, arXiv:2510.26527",
        lossless=True,
        members="a model below the target, better two",
    )

    def __init__(
        self,
        pool: Pool,
        *,
        most: int = 12,
        warmup: int = 2,
        every: int = 16,
        refresh: int = 1,
        memory: int = 64,
        costs: str | None = None,
    ) -> None:
        check_within("most", most, "[1, 64]")  # all windows up to it are weighed, two by two
        check_within("warmup", warmup, ONE_STEP)
        check_within("every", every, ONE_STEP)
        check_within("refresh", refresh, f"[0, every={every}]")
        check_least("memory", memory, 1)
        self._pool, self._most, self._every, self._refresh = pool, most, every, refresh
        self._ladders = _ladders(pool)
        self.most_pending = 2 * most
        self._seconds = MemberSeconds(pool, costs, memory=memory)
        self._rates: dict[tuple[str, str], RunningRatio] = {
            pair: acceptance_rate(memory=memory) for ladder in self._ladders for pair in pairwise(ladder)
        }
        self._made: dict[str, Chain] = {}
        first = {levels: tuple(min(window, most) for window in windows) for levels, windows in FIRST.items()}
        turns = [self._chain(ladder, first[len(ladder)]) for ladder in self._ladders]
        self._turns = deque(turns)
        self._due = deque(chain for chain in turns for _ in range(warmup))
        self._until_choice = len(self._due)
        self._best = turns[0]
        self._playing: dict[str, Chain] = {}

    @property
    def chain(self) -> str:
        """The chain of the last choice; before it, the first one that takes its turn."""
        return str(self._best.spec)

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain."""
        chain = self._playing.get(seen.request_id)
        if chain is None:
            chain = self._playing[seen.request_id] = self._due.popleft() if self._due else self._best
        return chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Follow seconds and acceptance; every so many rounds, choose."""
        self._seconds.charge(outcome)
        step = outcome.step
        if isinstance(step, Verify) and outcome.num_judged:
            members = self._playing[outcome.request_id].spec.members
            drafter = members[members.index(step.model) - 1]
            self._rates[drafter, step.model].note(*judged(outcome))
        if outcome.num_emitted:
            del self._playing[outcome.request_id]
            self._until_choice -= 1
            if not self._until_choice:
                self._choose()

    def _choose(self) -> None:
        """The least of all chains and windows; the target alone where none takes less."""
        best_s = self._seconds.verify_s(self._pool.target, 1) or 0.0
        best: tuple[tuple[str, ...], tuple[int, ...]] = ((self._pool.target,), ())
        for ladder in self._ladders:
            seconds = self._expected(ladder)
            if seconds is not None and seconds.min() < best_s:
                best_s = float(seconds.min())
                place = np.unravel_index(int(seconds.argmin()), seconds.shape)
                best = (ladder, tuple(int(window) + 1 for window in place))
        self._best = self._chain(*best)
        self._until_choice = self._every
        self._due.extend([self._turns[0]] * self._refresh)
        self._turns.rotate(-1)

    def _expected(self, ladder: tuple[str, ...]) -> _Floats | None:
        """Seconds per token of its windows by the theorem; None while seconds of a member are not known."""
        most = self._most
        draft_s = [self._seconds.draft_s(ladder[0], k) for k in range(1, most + 1)]
        verify_s = [[self._seconds.verify_s(name, width) for width in range(1, most + 3)] for name in ladder[1:]]
        if None in draft_s or any(None in line for line in verify_s):
            return None
        rates = [self._rates[pair].rate for pair in pairwise(ladder)]
        return seconds_per_token(rates, np.array(draft_s, dtype=float), np.array(verify_s, dtype=float))

    def _chain(self, members: tuple[str, ...], windows: tuple[int, ...]) -> Chain:
        below = [f"{name}:{window}" for name, window in zip(members, windows, strict=False)]
        text = "/".join([*below, members[-1]])
        if text not in self._made:
            self._made[text] = Chain(self._pool, text)
        return self._made[text]


def _ladders(pool: Pool) -> list[tuple[str, ...]]:
    """Members of all chains of two and three levels, models only."""
    below = [member for member in pool.members[:-1] if not member.model_free]
    if not below:
        raise ValueError("policy polybasic needs a model below the target")
    ladders: list[tuple[str, ...]] = [(member.name, pool.target) for member in below]
    return ladders + [(low.name, high.name, pool.target) for low, high in combinations(below, 2) if high.verifies]


def seconds_per_token(rates: Sequence[float], draft_s: _Floats, verify_s: _Floats) -> _Floats:
    """T / N of every choice of windows from 1 to W. Letters: W the longest window, L levels, 2 or 3.

    Args:
        rates: `[L - 1]` acceptance of each level's tokens by the one above, 0 to 1, from the lowest.
        draft_s: `[W]` seconds of a draft of k tokens, at index k - 1.
        verify_s: `[L - 1, W + 2]` seconds of a forward over n positions, at index n - 1, from the lowest verifier.

    Returns:
        `[W]` at index k - 1 for two levels, `[W, W]` at (k - 1, g - 1) for three.
    """
    most = len(draft_s)
    handed = np.array([round_tokens(rates[0], k) for k in range(1, most + 1)])  # E, [W]
    lowest_s = verify_s[0, 1 : most + 1] + draft_s  # of a forward of M_{n-1} with the beta = k of the drafter
    if len(rates) == 1:
        return np.asarray(lowest_s / handed)
    judged_tokens = np.maximum(handed[:, None], np.arange(1.0, most + 1.0))  # m, [W, W]
    of_target = _tokens(rates[1], judged_tokens)  # L_1
    of_middle = of_target * handed[:, None] / judged_tokens  # L_2
    target_s = verify_s[1, np.rint(judged_tokens).astype(int)]  # over m tokens and the position of its own
    return np.asarray(target_s / of_target + lowest_s[:, None] / of_middle)


def _tokens(rate: float, judged_tokens: _Floats) -> _Floats:
    """1 + a + ... + a^m for any m >= 0, by its closed form."""
    if rate == 1.0:
        return judged_tokens + 1.0
    return np.asarray((1.0 - rate ** (judged_tokens + 1.0)) / (1.0 - rate))
