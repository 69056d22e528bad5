"""CAS-Spec: a cascade of drafters that is routed by acceptance and seconds (Dynamic Tree Cascade).

Ning et al. 2025 (arXiv:2510.26843). Drafts of different members follow each other in a round (a horizontal
cascade: later tokens survive less often and are left to smaller members), and a smaller member may draft for a larger
one that judges (a vertical cascade). The router takes, piece by piece, the member and length of most expected gain.
Acceptance follows a <- 0.7 a + 0.3 a_recent, over the last 20 rounds. Our pools judge one line of tokens, so the tree
is a chain. Where we could not follow the text we chose: the gain is least expected seconds per token of the whole round
so far, with acceptance independent along it, and pieces are added while that falls. Since it depends on estimates only,
which move every 20 rounds, the pieces of a round are chosen then and not at every step. Members take turns in a
warm-up, and later one of them in turn gets `refresh` rounds after every estimate: without, a member that began badly
keeps its rate for good.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation, found_nothing
from ...decoding.pool import Pool
from ..about import About
from ..parts.member_seconds import MemberSeconds

WARMUP_WINDOW = 4
# What is tried of drafts below another member: their lengths, and how many of them.
JUDGED_DRAFTS = (1, 2, 3, 4, 6, 8)
JUDGED_TIMES = (1, 2, 3, 4, 6)
PRIOR = 0.5  # acceptance of a pair that was never seen

_Plan = tuple[Draft | Verify, ...]


class CasSpec:
    """Drafts of several members after and below each other, as long as each piece is expected to pay.

    Args:
        pool: the members.
        most: most tokens drafted ahead of the target, 1 to 1,000; a member that judges them may add one.
        every: rounds between two estimates, 1 to 1,000,000; the paper has 20.
        recent: share of the recent rate in a new estimate, above 0 to 1; the paper has 0.3.
        warmup: rounds of each member below the target with the target, window 4, before the first plan, 1 to 1,000,000.
        refresh: such rounds of one member in turn after each estimate, 0 to `every`.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

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
        check_within("most", most, "[1, 1,000]")  # far beyond any that pays, since every shorter one is weighed too
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
                # A member that has nothing to judge, for a lookup found nothing, writes what it would have added.
                return step if step.__class__ is Draft else self._writes_one[step.model]
        return self._verify

    def learn(self, outcome: Outcome) -> None:
        """Note who endorsed what was judged; every so many rounds, estimate and plan."""
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
        """Share the verdict out among those who endorsed the judged tokens, the last `num_judged`."""
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
    """Where a request stands in its round."""

    plan: _Plan
    position: int = 0  # of its next step
    pieces: list[tuple[str, int]] = field(default_factory=list)  # who endorses the pending tokens, oldest first

    def next_verifier(self, target: str) -> str:
        """Who would judge what the step just taken has drafted."""
        later = self.plan[self.position : self.position + 1]
        return later[0].model if later and later[0].__class__ is Verify else target


class _Planned(NamedTuple):
    """A round as far as it is planned.

    Attributes:
        tokens: expected, the target's own among them.
        seconds: of it.
        survival: chance that all so far is kept.
        width: tokens expected to be pending.
    """

    tokens: float = 1.0
    seconds: float = 0.0
    survival: float = 1.0
    width: float = 0.0


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
