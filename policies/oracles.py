"""Policies that see the future of a recording: the best windows, the best chains, and how they are planned.

They bound all policies that choose among the same rounds, and regret is measured against them. An *attempt* runs one
round of a chain from any *position* (tokens of the answer, counted on the trunk); the chain decides and the world
answers as in a run, on a copy of the session.

A plan is a cheapest way through an answer, by seconds at batch 1. A state is a position and how many tokens of it each
member's cache lacks; an action is a round, its seconds those with warm caches plus the catch-up of its members. A*
(Hart, Nilsson & Raphael 1968) expands states in order of the seconds spent plus a lower bound on those to come: dynamic
programming over positions alone, in which only a member's first forward ever is charged for catching up. Letters: N
tokens of the answer, K members whose first forward the bound charges.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations, product
from math import inf
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import check_least, check_within
from ..decoding.legal_steps import check_step
from ..decoding.pool import Pool
from ..decoding.request_text import RequestText
from ..decoding.results import Drafted, Judged, Results
from ..decoding.rules import Signal
from ..decoding.seen import Observation, ServerLoad
from ..decoding.session import Session
from ..decoding.steps import Draft, Outcome, Step, Verify
from ..decoding.world import World
from .about import OWN, About
from .blocks import drafter_of
from .chain_text import ChainSpec
from .fixed import Chain

# Of a session, inherited ones included.
ALL_SLOTS = (*RequestText.__slots__, *Session.__slots__)

# What a view shows in addition to its session.
Around = tuple[ServerLoad, Callable[[Session, int], Signal]]


class Feed(NamedTuple):
    """The first forward of one member in a round, if its cache lacked nothing but the last token of the context."""

    level: int  # of the member, which has weights
    new_tokens: int  # fed to the forward, >= 1
    held_tokens: int  # in its cache before, >= 0
    lacking: int  # tokens its cache lacks after the round, the last one of the context not counted


class Round(NamedTuple):
    """One round of a chain from a position."""

    chain: Chain  # decides its every step
    num_emitted: int  # tokens it commits, >= 1
    warm_s: float  # its seconds at batch 1, if no cache lacked anything but the last token of the context
    # one per member with weights that runs; a cache that lacks more makes the first forward larger
    feeds: tuple[Feed, ...]


def answered(*rounds: Round | None) -> list[Round]:
    """Those for which the recording holds all."""
    return [choice for choice in rounds if choice is not None]


@dataclass(slots=True, eq=False)
class Attempt:
    """One round while it is tried. Mutated by `climb` and `finish`."""

    session: Session
    _world: World
    _around: Around
    _drawn: bool
    _position: int  # where the round begins
    _known: bool = True
    _seconds: float = 0.0
    _started: dict[int, tuple[int, int]] = field(default_factory=dict)
    _seen: Observation = field(init=False)
    _prefill: Verify = field(init=False)

    def __post_init__(self) -> None:
        self._seen = Observation(self.session, *self._around)
        self._prefill = Verify(self.session.pool.target)

    def fork(self) -> "Attempt":
        """A copy of the round so far, to be continued in another way."""
        session = copied(self.session)
        session.tokens, session.places = session.tokens[:], session.places[:]
        session.drafters, session.judges = session.drafters[:], session.judges[:]
        session.emitted, session.cached = session.emitted[:], session.cached[:]
        begun = dict(self._started)
        return Attempt(
            session, self._world, self._around, self._drawn, self._position, self._known, self._seconds, begun
        )

    def climb(self, chain: Chain, top: int) -> bool:
        """Run steps of `chain` up to the next verification by level `top`; whether there was one.

        There is none where the target comes first, or something was not recorded.
        """
        while (decided := self._decided(chain)) is not None:
            level = decided[1]
            if level > top:
                return False
            self._take(*decided)
            if level == top:
                return self._known
        return False

    def finish(self, chain: Chain) -> Round | None:
        """Run steps of `chain` until the target commits; None where something was not recorded.

        A prefill that is due before any step is a round of its own; one that a draft waits for is part of that round.
        """
        session = self.session
        target = session.pool.target_level
        if session.prefills_first:
            self._take(self._prefill, target)
        else:
            level = -1
            while level != target and (decided := self._decided(chain)) is not None:
                level = decided[1]
                self._take(*decided)
        if not self._known:
            return None
        whole = session.num_prompt + len(session.emitted) - 1
        feeds = [Feed(level, *fed, whole - session.cached[level]) for level, fed in self._started.items()]
        return Round(chain, len(session.emitted) - self._position, self._seconds, tuple(feeds))

    def _decided(self, chain: Chain) -> tuple[Step, int] | None:
        """The next step of `chain` and its level; None if it was not recorded, or a prefill ended the answer."""
        session = self.session
        if not self._known or session.done:
            return None
        step = chain.decide(self._seen)
        level = check_step(session, step)
        if session.prefills_before(step, level):
            self._take(self._prefill, session.pool.target_level)
            if session.done or not self._known:
                return None
        return step, level

    def _take(self, step: Step, level: int) -> None:
        session = self.session
        if level not in self._started and not session.pool.members[level].model_free:
            self._started[level] = session.feed(level, verify=isinstance(step, Verify))
        results: Results
        if isinstance(step, Draft):
            results = self._world.draft(level, [(session, step)])
        elif isinstance(step, Verify):
            results = self._world.verify(level, [(session, step)])
        else:
            raise ValueError(f"a chain of an oracle drafts and verifies, got {step}")
        row, duration_s = results.rows[0], results.duration_s
        if isinstance(step, Draft) and isinstance(row, Drafted):
            session.drafted(step, level, row, duration_s=duration_s, num_rows=1)
        elif isinstance(step, Verify) and isinstance(row, Judged):
            session.judged(step, level, row, duration_s=duration_s, num_rows=1)
        else:
            raise TypeError(f"{step} must not be answered with {row}")
        self._known = self._drawn or not row.num_modelled
        self._seconds += duration_s


def copied(session: Session) -> Session:
    """A session that shares its lists with the first one."""
    # By hand, since copy.copy takes several times as long and every round that is tried needs a copy.
    other = Session.__new__(Session)
    for name in ALL_SLOTS:
        setattr(other, name, getattr(session, name))
    return other


ForwardSeconds = Callable[[int, int, int], float]


class Answer(NamedTuple):
    """A request and its trunk of N tokens."""

    session: Session  # before its first step; never stepped itself
    tokens: list[int]  # `[N]`
    places: list[int]  # `[N + 1]` the world's places of the contexts after 0 to N tokens


class Foreseen(NamedTuple):
    """What a recording shows: a world to try rounds in, and every request's text."""

    world: World  # tries rounds; its own, since requests stay open in it
    answers: dict[str, Answer]  # by request id
    drawn: bool  # whether what it draws is what a run of the same seed draws, and so part of the future


class Foresight:
    """The future of every request, which only a recording holds.

    Args:
        foreseen: what the recording shows.
        forward_s: seconds of one forward at batch 1 from level, new tokens and tokens held; inf for a forward larger
            than known.

    Attributes:
        request_ids: in the order of the recording.
    """

    def __init__(self, pool: Pool, foreseen: Foreseen, forward_s: ForwardSeconds) -> None:
        self._world, self._answers, self._drawn = foreseen
        self.request_ids = tuple(self._answers)
        self.forward_s = forward_s
        self._pool = pool
        self._around: Around = (ServerLoad(len(pool.members)), self._world.signal)
        self._smaller: dict[ChainSpec, list[Chain]] = {}
        for answer in self._answers.values():
            self._world.open(answer.session)

    def num_prompt(self, request_id: str) -> int:
        """Tokens of the prompt."""
        return self._answers[request_id].session.num_prompt

    def num_tokens(self, request_id: str) -> int:
        """Tokens of the answer, as far as it is recorded."""
        return len(self._answers[request_id].tokens)

    def round_of(self, request_id: str, position: int, chain: Chain) -> Round | None:
        """The round of `chain` from `position` on; None where the recording does not hold all of it.

        Where the run starts with the prefill, the round from position 0 is the prefill, whatever the chain.
        """
        return self._at(request_id, position).finish(chain)

    def climbs(self, request_id: str, position: int, chain: Chain) -> list[Round]:
        """Rounds of a chain of three or more members, by its last window: the one it has, and every smaller one.

        Windows that lead to the same round are one. The list ends at the first round in which the target rejects a
        token, since a longer climb emits no more, and where the recording ends.
        """
        attempt = self._at(request_id, position)
        if attempt.session.prefills_first:
            return answered(attempt.finish(chain))
        top = self._pool.level(chain.spec.members[-2])
        smaller = self._by_last_window(chain)
        rounds: list[Round] = []
        while attempt.climb(chain, top):
            waiting = len(attempt.session.tokens)
            if waiting < len(smaller):
                found = attempt.fork().finish(smaller[waiting])
                if found is None:
                    return rounds
                rounds.append(found)
                if found.num_emitted <= waiting:
                    return rounds
        last = attempt.finish(chain)
        return rounds if last is None else [*rounds, last]

    def _at(self, request_id: str, position: int) -> Attempt:
        session, tokens, places = self._answers[request_id]
        session = copied(session)
        session.emitted = tokens[:position]
        session.place = places[position]
        session.tokens, session.places, session.drafters, session.judges = [], [], [], []
        session.cached = [session.num_prompt + position - 1] * len(session.cached)
        return Attempt(session, self._world, self._around, self._drawn, len(session.emitted))

    def _by_last_window(self, chain: Chain) -> list[Chain]:
        """Variants of a chain: at index w with the last window w, the one it has at index 0 and no larger one."""
        spec = chain.spec
        if spec not in self._smaller:
            *lower, most = spec.windows
            specs = [replace(spec, windows=(*lower, window)) for window in range(1, most)]
            self._smaller[spec] = [chain, *(Chain(self._pool, str(smaller)) for smaller in specs)]
        return self._smaller[spec]


# Members whose first forward the bound charges, smallest first; it doubles with each.
MOST_CHARGED = 4
# In place of inf where numbers are multiplied by zero; more than any run takes.
MOST_SECONDS = 1e15

State = tuple[int, tuple[int, ...]]  # position, and by level the tokens that its cache lacks


class PlannedRounds(NamedTuple):
    """The plan of one request."""

    rounds: dict[int, Round]  # by position, for those that the plan reaches
    seconds: float  # of all of them at batch 1


class Seconds:
    """Seconds of forwards of one request, and what catching up adds to them."""

    def __init__(self, foresight: Foresight) -> None:
        self._forward_s = foresight.forward_s
        self._least: dict[tuple[int, int], list[float]] = {}

    def late_s(self, feed: Feed, missing: int) -> float:
        """Extra seconds of a forward whose cache lacks `missing` tokens more."""
        level, new_tokens, held_tokens, _ = feed
        late = self._forward_s(level, new_tokens + missing, held_tokens - missing)
        return late - self._forward_s(level, new_tokens, held_tokens)

    def early_s(self, feed: Feed) -> float:
        """Most seconds that any lack in its cache may save a forward: measured seconds may fall with new tokens."""
        level, new_tokens, held_tokens, _ = feed
        whole = new_tokens + held_tokens
        least = self._least.get((level, whole))
        if least is None:
            least = [inf] * (whole + 2)
            for new in range(whole, 0, -1):
                least[new] = min(least[new + 1], self._forward_s(level, new, whole - new))
            self._least[level, whole] = least
        return self._forward_s(level, new_tokens, held_tokens) - least[new_tokens]


def least_seconds(foresight: Foresight, request_id: str, rounds: Sequence[Sequence[Round]]) -> PlannedRounds:
    """The rounds of least total seconds from the first token of an answer to its end.

    `rounds` is `[N]`: by position the rounds to choose from, at least one each. Raises ValueError if no path has known
    seconds throughout.
    """
    seconds = Seconds(foresight)
    rounds = [_distinct(offered) for offered in rounds]
    num_prompt = foresight.num_prompt(request_id)
    bound = Bound(rounds, num_prompt, seconds)
    levels = 1 + max((feed.level for offered in rounds for choice in offered for feed in choice.feeds), default=0)
    start: State = (0, (num_prompt - 1,) * levels)
    spent: dict[State, float] = {start: 0.0}
    came: dict[State, tuple[State, Round]] = {}
    queue = [(bound.seconds(start), start)]
    visited: set[State] = set()
    while queue:
        _, state = heappop(queue)
        if state[0] >= len(rounds):
            path, total_s = dict[int, Round](), spent[state]
            while state in came:
                state, choice = came[state]
                path[state[0]] = choice
            return PlannedRounds(path, total_s)
        if state in visited:
            continue
        visited.add(state)
        for choice in rounds[state[0]]:
            after, round_s = _after_round(state, choice, seconds, len(rounds))
            total_s = spent[state] + round_s
            if total_s < spent.get(after, inf):
                spent[after] = total_s
                came[after] = (state, choice)
                heappush(queue, (total_s + bound.seconds(after), after))
    raise ValueError(f"request {request_id}: the cost does not know the seconds of any way through the answer")


class Bound:
    """A lower bound on the seconds left, by position and by which members have never run.

    `rounds` is `[N]`: by position the rounds to choose from.
    """

    def __init__(self, rounds: Sequence[Sequence[Round]], num_prompt: int, seconds: Seconds) -> None:
        self._num_prompt = num_prompt
        charged = sorted({feed.level for offered in rounds for choice in offered for feed in choice.feeds})
        self._bits = {level: 1 << index for index, level in enumerate(charged[:MOST_CHARGED])}
        masks = 1 << len(self._bits)
        missing = [[not mask & bit for bit in self._bits.values()] for mask in range(masks)]
        self._missing = np.array(missing, dtype=np.float64).reshape(masks, len(self._bits)).T
        table = np.zeros((len(rounds) + 1, masks))
        for position in range(len(rounds) - 1, -1, -1):
            table[position] = self._least(rounds[position], position, table, seconds)
        self._table: list[list[float]] = table.tolist()

    def seconds(self, state: State) -> float:
        """A lower bound on all that may follow `state`."""
        position, lacking = state
        if position >= len(self._table) - 1:
            return 0.0
        empty = self._num_prompt - 1 + position
        return self._table[position][sum([bit for level, bit in self._bits.items() if lacking[level] != empty])]

    def _least(
        self, offered: Sequence[Round], position: int, table: NDArray[np.float64], seconds: Seconds
    ) -> NDArray[np.float64]:
        """`[2^K]` the fewest seconds from a position on, by which of the K charged members have run."""
        priced = [self._priced(choice, seconds) for choice in offered]
        least_s = np.array([least for least, _, _ in priced])
        first_s = np.array([first for _, _, first in priced]).reshape(len(priced), len(self._bits))
        runs = np.array([bits for _, bits, _ in priced])
        after = np.minimum([position + choice.num_emitted for choice in offered], len(table) - 1)
        have_run = np.arange(table.shape[1]) | runs[:, None]
        ahead_s = table[after[:, None], have_run]
        best: NDArray[np.float64] = (least_s[:, None] + first_s @ self._missing + ahead_s).min(axis=0)
        return best

    def _priced(self, choice: Round, seconds: Seconds) -> tuple[float, int, list[float]]:
        """(least seconds, members that run as bits, per charged member the seconds its first forward ever adds)."""
        least_s, runs = choice.warm_s, 0
        firsts = dict.fromkeys(self._bits, 0.0)
        for feed in choice.feeds:
            early_s = seconds.early_s(feed)
            least_s -= early_s
            if feed.level in firsts:
                runs |= self._bits[feed.level]
                firsts[feed.level] = min(seconds.late_s(feed, feed.held_tokens) + early_s, MOST_SECONDS)
        return least_s, runs, list(firsts.values())


def _after_round(state: State, choice: Round, seconds: Seconds, num_tokens: int) -> tuple[State, float]:
    """The state after a round, and the round's seconds in `state`. All ends are one state."""
    position, lacking = state
    after = [missing + choice.num_emitted for missing in lacking]
    round_s = choice.warm_s
    for feed in choice.feeds:
        if lacking[feed.level]:
            round_s += seconds.late_s(feed, lacking[feed.level])
        after[feed.level] = feed.lacking
    position += choice.num_emitted
    return (position, tuple(after)) if position < num_tokens else (num_tokens, ()), round_s


def _distinct(offered: Sequence[Round]) -> list[Round]:
    """Of rounds with the same feeds and end the cheapest, the first among equals."""
    best: dict[tuple[int, frozenset[Feed]], Round] = {}
    for choice in offered:
        key = (choice.num_emitted, frozenset(choice.feeds))
        if key not in best or choice.warm_s < best[key].warm_s:
            best[key] = choice
    return list(best.values())


WINDOWS = "[1, 1,000]"  # tokens; far beyond what is recorded, since every window shorter than the longest is tried too
# Windows below the last one, in chains of three and more members.
LOWER_WINDOWS = (1, 2, 3, 4, 6, 8)


class Oracle(ABC):
    """A policy that sees ahead.

    Plans are made for batch 1 and without seconds for decisions; a larger batch follows the same plans.
    """

    def __init__(self, pool: Pool) -> None:
        self._alone = Chain(pool, pool.target)
        self._plans: dict[str, PlannedRounds] | None = None
        self._running: dict[str, Chain] = {}

    @abstractmethod
    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """The rounds to choose from at a position, at least one."""

    def foresee(self, foresight: Foresight) -> dict[str, float]:
        """Plan every request, before the first step; returns the seconds of each at batch 1."""
        self._running.clear()
        self._plans = {}
        for name in foresight.request_ids:
            offered = [self.rounds(foresight, name, position) for position in range(foresight.num_tokens(name))]
            self._plans[name] = least_seconds(foresight, name, offered)
        return {name: plan.seconds for name, plan in self._plans.items()}

    def decide(self, seen: Observation) -> Step:
        """As the chain planned for this round; after the recorded answer, the target alone.

        Raises ValueError if `foresee` was not called.
        """
        request_id = seen.request_id
        chain = self._running.get(request_id)
        if chain is None:
            if self._plans is None:
                raise ValueError("an oracle sees ahead, which only a recording allows")
            planned = self._plans[request_id].rounds.get(seen.num_emitted)
            chain = self._running[request_id] = self._alone if planned is None else planned.chain
        return chain.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """End a round that has committed."""
        if outcome.num_emitted:
            self._running.pop(outcome.request_id, None)


class OracleWindow(Oracle):
    """The window of each round that makes the answer cheapest, seen in the recording.

    Args:
        draft: the drafter; default the smallest model.
        most: longest window, 1 to 1,000; the target alone is always among the choices.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about: ClassVar[About] = About(
        paper=f"{OWN}: the least seconds that any choice of windows can take",
        lossless=True,
        members="a member below the target",
        oracle=True,
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, most: int = 16) -> None:
        check_within("most", most, WINDOWS)
        drafter = drafter_of(pool, draft)
        super().__init__(pool)
        self._chains = [Chain(pool, f"{drafter}:{window}/{pool.target}") for window in range(1, most + 1)]

    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """The target alone and every window."""
        chains = (self._alone, *self._chains)
        return answered(*[foresight.round_of(request_id, position, chain) for chain in chains])


class OracleChain(Oracle):
    """The chain of each round that makes the answer cheapest, seen in the recording.

    The set: the target alone; each member in front of it with every window up to `most`; chains of three and more
    members in which the last window is any up to `most` and those before it are 1, 2, 3, 4, 6 or 8, up to `most`.

    Args:
        most: longest window, 1 to 1,000.
        levels: most members of a chain, >= 2. Planning takes several times as long with each.

    Raises:
        ValueError: an option out of range, or a pool that has nothing below its target.
    """

    about: ClassVar[About] = About(
        paper=f"{OWN}: the least seconds that any choice of chains can take",
        lossless=True,
        members="a member below the target",
        oracle=True,
    )

    def __init__(self, pool: Pool, *, most: int = 16, levels: int = 3) -> None:
        check_within("most", most, WINDOWS)
        check_least("levels", levels, 2)
        if not pool.target_level:
            raise ValueError(f"the pool has no member below its target {pool.target}")
        super().__init__(pool)
        below = pool.names[:-1]
        flat = [f"{name}:{window}/{pool.target}" for name in below for window in range(1, most + 1)]
        self._flat = [self._alone, *(Chain(pool, spec) for spec in flat)]
        self._tall = [
            Chain(pool, spec) for size in range(2, min(levels, len(pool.names))) for spec in _tall(pool, size, most)
        ]

    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """All of the set; of chains with three members and more, those by their last window."""
        found = answered(*[foresight.round_of(request_id, position, chain) for chain in self._flat])
        for chain in self._tall:
            found += foresight.climbs(request_id, position, chain)
        return found


def _tall(pool: Pool, size: int, most: int) -> Iterator[str]:
    """Chains of `size` members below the target whose last window is `most`."""
    names = [member.name for member in pool.members[:-1]]
    lower = [window for window in LOWER_WINDOWS if window <= most]
    for members in combinations(names, size):
        if not all(pool.members[pool.level(name)].verifies for name in members[1:]):
            continue
        for windows in product(lower, repeat=size - 1):
            parts = [f"{name}:{window}" for name, window in zip(members, (*windows, most), strict=True)]
            yield "/".join([*parts, pool.target])
