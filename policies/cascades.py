"""Policies of several drafters in one round: `cs-drafting`, `polybasic` and `cas-spec`, and what is ours in each.

CS-Drafting (Chen et al. 2023, arXiv:2312.11462). Letters: member 0 is the target, 1 to n its drafters by falling size,
n the lookup; k_ij are tokens that member j drafts for member i.

    iteration(i): for j = i + 1 to n: while fewer than k_i,i+1 + ... + k_ij tokens are there, iteration(j);
                  then member i reviews them all and adds one of its own

The matrices are those of the released code, k_0 = (5, 14, 10), k_1 = (1, 10), k_2 = (10) for two models and a lookup,
(13, 10) and (10) for one; its k_02 is counted from k_01 on. Its lowest member (MaG) copies behind the longest match and
continues with bigrams; ours is the pool's prompt lookup, once per iteration: where it finds nothing, the reviewer
writes one token. Drafters review exactly, the paper's with lenience. An iteration that has no room left goes to the
target as it is.

Polybasic (Wang et al. 2025, arXiv:2510.26527), Lemma 3.1. For models M_1 (the target) to M_n (the drafter), T_i seconds
of a forward, L_i tokens per forward and beta forwards of the drafter to one of M_{n-1}, N tokens take

    T = sum_{i < n} (N / L_i) T_i + beta (N / L_{n-1}) T_n

All chains of two and three levels are compared by it, which is equivalent to their second theorem. We read summaries of
the paper, so L_i is ours: committed tokens, with acceptance a (of the drafter by the level above) and b (of the middle
by the target) independent along a draft. With k = beta tokens drafted the middle passes on E = 1 + a + ... + a^k a
forward; g are gathered.

    two levels:    L_1 = 1 + a + ... + a^k
    three levels:  m = max(g, E),   L_1 = (1 - b^(m+1)) / (1 - b),   L_2 = L_1 E / m

m leaves out that the last forward before the target may overshoot. Seconds are those at the width of a forward.

CAS-Spec (Ning et al. 2025, arXiv:2510.26843; docs/policies.md). Ours: the gain of a piece is least expected seconds per
token of the whole round so far, with acceptance independent along it; members take turns in a warm-up, and one in turn
after every estimate, since one that began badly would otherwise keep its rate.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import check_least, check_within
from ..decoding.pool import Pool
from ..decoding.seen import Observation, found_nothing
from ..decoding.steps import ONE_STEP, Draft, Outcome, Step, Verify
from .about import About, round_tokens
from .blocks import RunningRatio, acceptance_rate, judged, lookup_member, next_verifier, sure_drafter, verifiers_between
from .estimates import MemberSeconds
from .fixed import Chain

FIRST_WINDOWS = {1: 13, 2: 5}  # k_01, by the number of drafting models


class CsDrafting:
    """Vertical and horizontal cascade of one or two models over prompt lookup.

    Args:
        pool: must hold a model-free member.
        draft: the smaller drafting model; default the smallest.
        middle: the larger one, which reviews the other's drafts; default the smallest verifier above `draft`.
        models: drafting models, 1 or 2; default 2 where the pool has them.
        first: tokens endorsed by the largest drafting model, 1 to 1,000,000; default 5, of one model 13.
        second: of two models, tokens of the smaller one that follow them, 1 to 1,000,000.
        inner: of two models, tokens that the smaller drafts for the larger at a time, 1 to 1,000,000.
        copy: longest copy, at every place where the lookup is asked, 1 to 1,000,000.

    Attributes:
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: an option out of range or of another number of models, or a pool without the members.
    """

    about = About(
        paper="CS-Drafting, arXiv:2312.11462",
        lossless=True,
        members="a model-free member and a drafter that can verify, better two",
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        middle: str | None = None,
        models: int | None = None,
        first: int | None = None,
        second: int = 14,
        inner: int = 1,
        copy: int = 10,
    ) -> None:
        lookup, drafter = lookup_member(pool, "cs-drafting"), sure_drafter(pool, draft, "cs-drafting")
        if models is None:
            models = 2 if middle is not None or verifiers_between(pool, drafter) else 1
        check_within("models", models, "[1, 2]")
        first = FIRST_WINDOWS[models] if first is None else first
        for name, tokens in (("first", first), ("second", second), ("inner", inner), ("copy", copy)):
            check_within(name, tokens, ONE_STEP)
        rows: tuple[tuple[int, ...], ...] = ((first, copy), (copy,))
        drafters: tuple[str, ...] = (drafter,)
        if models == 2:
            drafters = (next_verifier(pool, middle, drafter, "cs-drafting"), drafter)
            rows = ((first, second, copy), (inner, copy), (copy,))
        elif middle is not None:
            raise ValueError(f"middle is for models=2, got {middle!r} with models=1")
        self._names = (pool.target, *drafters, lookup)
        self._upto = [tuple(accumulate(row)) for row in rows]
        self._reviews = [Verify(name) for name in self._names[:-1]]
        self._writes_one = [Draft(name, 1) for name in self._names[1:-1]]
        self._copies = Draft(lookup, copy)
        self.most_pending = _most_before_review(self._upto, copy)

    def decide(self, seen: Observation) -> Step:
        """The next step of the innermost unfinished iteration."""
        if not seen.has_room:
            return self._reviews[0]
        reviewer = 0
        while True:
            drafter = self._next_drafter(seen, reviewer)
            if drafter is None:
                break
            if drafter == len(self._reviews):
                return self._copies
            reviewer = drafter
        if reviewer == 0 or seen.waiting(self._names[reviewer]):
            return self._reviews[reviewer]
        return self._writes_one[reviewer - 1]

    def learn(self, outcome: Outcome) -> None:
        """A fixed cascade learns nothing."""

    def _next_drafter(self, seen: Observation, reviewer: int) -> int | None:
        """Index of the member that drafts next in the iteration of `reviewer`; None if its review is due."""
        written = seen.waiting(self._names[reviewer])
        for drafter, upto in enumerate(self._upto[reviewer], reviewer + 1):
            if written - seen.waiting(self._names[drafter]) < upto:
                asked = drafter == len(self._reviews) and seen.last is not None and seen.last.step is self._copies
                return None if asked else drafter
        return None


def _most_before_review(upto: list[tuple[int, ...]], copy: int) -> int:
    """Most tokens that the outermost iteration has pending, from the innermost outwards.

    A member's iterations follow each other until its sum is reached, so the last begins just below it at most.
    """
    most = copy
    gains: list[int] = []  # of one iteration of each drafting model, the largest first: the review adds a token
    for sums in reversed(upto):
        *models, last = sums
        most = max((total - 1 + gain for total, gain in zip(models, gains, strict=True)), default=0)
        most = max(most, min(most, last - 1) + copy)
        gains.insert(0, most + 1)
    return most


FIRST_BLOCKS = {2: (4,), 3: (4, 6)}  # windows while members take turns, by the number of levels

_Floats = NDArray[np.float64]


class Polybasic:
    """The chain of two or three levels with the least predicted seconds per token, chosen every `every` rounds.

    Lookups are not used: they find much or nothing, so one rate overrates them. All chains take turns at first, and
    later one of them after each choice; otherwise a pair that began badly would keep its rate for good.

    Args:
        most: longest window of either level, 1 to 64.
        warmup: rounds of each chain before the first choice, 1 to 1,000,000.
        every: rounds between two choices, 1 to 1,000,000.
        refresh: rounds of one chain in turn after each choice, 0 to `every`.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

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
        check_within("most", most, "[1, 64]")  # all pairs of windows up to it are compared
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
        first = {levels: tuple(min(window, most) for window in windows) for levels, windows in FIRST_BLOCKS.items()}
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
        """Note seconds and acceptance; choose when due."""
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
    rate = rates[1]  # L_1 = 1 + a + ... + a^m for any m >= 0, by its closed form
    of_target = judged_tokens + 1.0 if rate == 1.0 else (1.0 - rate ** (judged_tokens + 1.0)) / (1.0 - rate)
    of_middle = of_target * handed[:, None] / judged_tokens  # L_2
    target_s = verify_s[1, np.rint(judged_tokens).astype(int)]  # over m tokens and the position of its own
    return np.asarray(target_s / of_target + lowest_s[:, None] / of_middle)


WARMUP_WINDOW = 4
# Drafts below another member that are tried: their lengths, and how many of them.
JUDGED_DRAFTS = (1, 2, 3, 4, 6, 8)
JUDGED_TIMES = (1, 2, 3, 4, 6)
PRIOR = 0.5  # acceptance of a pair that was never seen

_Plan = tuple[Draft | Verify, ...]


class CasSpec:
    """Drafts of several members after and below each other, as long as each piece is expected to pay.

    Args:
        most: most tokens drafted ahead of the target, 1 to 1,000; a member that judges them may add one.
        every: rounds between two estimates, 1 to 1,000,000; the paper has 20.
        recent: share of the recent rate in a new estimate, above 0 to 1; the paper has 0.3.
        warmup: rounds of each member below the target with the target, window 4, before the first plan, 1 to 1,000,000.
        refresh: such rounds of one member in turn after each estimate, 0 to `every`.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

    Attributes:
        most_pending: tokens it may have pending, at most.
        plan: steps of a round before the target judges.

    Raises:
        ValueError: an option out of range, or no drafter.
    """

    about: ClassVar[About] = About(
        paper="CAS-Spec, arXiv:2510.26843", lossless=True, members="a drafter below the target, better several"
    )

    def __init__(
        self,
        pool: Pool,
        *,
        most: int = 12,
        every: int = 20,
        recent: float = 0.3,
        warmup: int = 4,
        refresh: int = 1,
        costs: str | None = None,
    ) -> None:
        check_within("most", most, "[1, 1,000]")  # far beyond any that pays, as all shorter ones are compared too
        check_within("every", every, ONE_STEP)
        check_within("warmup", warmup, ONE_STEP)
        check_within("refresh", refresh, f"[0, every={every}]")
        check_within("recent", recent, "(0, 1]")
        if len(pool.members) < 2:
            raise ValueError("policy cas-spec needs a drafter below the target")
        self._every, self._refresh = every, refresh
        self.most_pending = most + 1
        self._verify = Verify(pool.target)
        self._writes_one = {name: Draft(name, 1) for name in pool.names[:-1]}
        self._seconds = MemberSeconds(pool, costs)
        self._planner = CascadePlanner(pool, self._seconds, most=most, recent=recent)
        self._alone: list[_Plan] = [(Draft(name, min(WARMUP_WINDOW, most)),) for name in pool.names[:-1]]
        self._due = deque(plan for plan in self._alone for _ in range(warmup))
        self._until_estimate = len(self._due)
        self._num_estimates = 0
        self._rounds: dict[str, _Round] = {}
        self.plan: _Plan = ()

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's plan that is legal, at the end the target."""
        state = self._rounds.get(seen.request_id)
        if state is None:
            state = self._rounds[seen.request_id] = _Round(self._due.popleft() if self._due else self.plan)
        while state.position < len(state.plan):
            step = state.plan[state.position]
            state.position += 1
            if step.__class__ is Draft and seen.num_pending + step.tokens >= self.most_pending:
                break
            if step.__class__ is Verify and seen.num_pending and seen.waiting(step.model):
                return step
            if seen.room > 0:
                # A member with nothing to judge, as a lookup found nothing, writes its own token.
                return step if step.__class__ is Draft else self._writes_one[step.model]
        return self._verify

    def learn(self, outcome: Outcome) -> None:
        """Note verdicts by endorser; estimate and plan when due."""
        self._seconds.charge(outcome)
        state = self._rounds[outcome.request_id]
        step = outcome.step
        if step.__class__ is Draft:
            if found_nothing(outcome):
                self._planner.note(step.model, state.next_verifier(self._verify.model), 0, 1)
            else:
                state.pieces.append((step.model, outcome.num_drafted))
            return
        if isinstance(step, Verify):
            self._note_judged(step.model, state.pieces, outcome)
        if outcome.num_emitted:
            del self._rounds[outcome.request_id]
            self._until_estimate -= 1
            if not self._until_estimate:
                self._choose()

    def _choose(self) -> None:
        self._planner.estimate()
        self.plan = self._planner.plan()
        self._until_estimate = self._every
        self._due.extend([self._alone[self._num_estimates % len(self._alone)]] * self._refresh)
        self._num_estimates += 1

    def _note_judged(self, verifier: str, pieces: list[tuple[str, int]], outcome: Outcome) -> None:
        """Divide the verdict among the endorsers of the judged tokens, the last `num_judged`."""
        judged: list[tuple[str, int]] = []
        left = outcome.num_judged
        while left > 0:
            piece = pieces.pop()
            judged.append(piece)
            left -= piece[1]
        accepted = outcome.num_accepted
        for model, count in reversed(judged):
            taken = min(accepted, count)
            self._planner.note(model, verifier, taken, min(taken + 1, count))
            accepted -= taken
            if taken < count:
                break
        pieces.append((verifier, outcome.num_accepted + outcome.num_own))


@dataclass(slots=True)
class _Round:
    """A request's place in its round."""

    plan: _Plan
    position: int = 0  # of its next step
    pieces: list[tuple[str, int]] = field(default_factory=list)  # by endorser, of pending tokens

    def next_verifier(self, target: str) -> str:
        """The member that would judge what the last step drafted."""
        later = self.plan[self.position : self.position + 1]
        return later[0].model if later and later[0].__class__ is Verify else target


class _Planned(NamedTuple):
    tokens: float = 1.0  # expected, the target's own included
    seconds: float = 0.0  # of it
    survival: float = 1.0  # chance that all so far is kept
    width: float = 0.0  # tokens expected to be pending


class _Piece(NamedTuple):
    """A draft, or `times` drafts that `judge` verifies one by one."""

    drafter: str
    tokens: int
    judge: str | None = None
    times: int = 1

    def steps(self) -> list[Draft | Verify]:
        draft = Draft(self.drafter, self.tokens)
        return [draft] if self.judge is None else [draft, Verify(self.judge)] * self.times


class CascadePlanner:
    """Acceptance of every pair of members, and the plan that follows from it.

    `most` is the longest piece and most tokens pending, `recent` the share of the recent rate in a new estimate.
    """

    def __init__(self, pool: Pool, seconds: MemberSeconds, *, most: int, recent: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._most = most
        self._recent = recent
        self._rates: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def note(self, drafter: str, verifier: str, num_taken: int, num_asked: int) -> None:
        """Of `num_asked` tokens endorsed by `drafter`, `verifier` kept `num_taken`."""
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
        planned, steps = _Planned(), list[Draft | Verify]()
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

    def _pieces(self, level: int, before: _Planned) -> Iterator[tuple[_Piece, _Planned]]:
        """Pieces that the member may add: its own draft, or drafts by a smaller member that it judges one by one."""
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
                # Before its first verification, one is taken to cost as much as a drafted token.
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


def _after(before: _Planned, rate: float, count: float, seconds: float) -> _Planned:
    """The round with `count` more tokens that the target keeps at `rate` each: P (a + ... + a^count) more are kept."""
    survival = rate**count
    kept = count if rate >= 1.0 else rate * (1.0 - survival) / (1.0 - rate)
    return _Planned(
        before.tokens + before.survival * kept,
        before.seconds + seconds,
        before.survival * survival,
        before.width + count,
    )
