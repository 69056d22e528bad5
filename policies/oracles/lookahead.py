"""Foresight by trying: one round of a chain is run through a world from any position, and nothing is committed.

The chain decides, the world answers and the session keeps the rules, as in a run; only the start is made up.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ...decoding.contract import Draft, Step, Verify
from ...decoding.observation import Load, Observation
from ...decoding.pool import Pool
from ...decoding.request_text import RequestText
from ...decoding.results import Drafted, Judged, Results
from ...decoding.session import Session
from ...decoding.signal import Signal
from ...decoding.world import World
from ..chain_notation import ChainSpec
from ..lossless.chain import Chain
from .foresight import Feed, Round, answered

# Of a session, inherited ones included.
ALL_SLOTS = (*RequestText.__slots__, *Session.__slots__)

ForwardSeconds = Callable[[int, int, int], float]
# What a view of a session shows besides it.
Around = tuple[Load, Callable[[Session, int], Signal]]


class Answer(NamedTuple):
    """A request and its trunk of N tokens.

    Attributes:
        session: before its first step; never stepped itself.
        tokens: `[N]`.
        places: `[N + 1]` the world's places of the contexts after 0 to N tokens.
    """

    session: Session
    tokens: list[int]
    places: list[int]


class Lookahead:
    """The `Foresight` of a world whose trunks are known.

    Args:
        pool: the members.
        world: tries the rounds; its own, since requests stay open in it.
        answers: by request id.
        forward_s: seconds of one forward at batch 1 from level, new tokens and tokens held.
        drawn: whether what the world models is part of the future, since a run will meet the same.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        world: World,
        answers: Mapping[str, Answer],
        forward_s: ForwardSeconds,
        drawn: bool = False,
    ) -> None:
        self.request_ids = tuple(answers)
        self.forward_s = forward_s
        self._pool = pool
        self._world = world
        self._drawn = drawn
        self._answers = answers
        self._around: Around = (Load(len(pool.members)), world.signal)
        self._smaller: dict[ChainSpec, list[Chain]] = {}
        for answer in answers.values():
            world.open(answer.session)

    def num_prompt(self, request_id: str) -> int:
        """See `Foresight`."""
        return self._answers[request_id].session.num_prompt

    def num_tokens(self, request_id: str) -> int:
        """See `Foresight`."""
        return len(self._answers[request_id].tokens)

    def round_of(self, request_id: str, position: int, chain: Chain) -> Round | None:
        """See `Foresight`."""
        return self._at(request_id, position).finish(chain)

    def climbs(self, request_id: str, position: int, chain: Chain) -> list[Round]:
        """See `Foresight`."""
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

    def _at(self, request_id: str, position: int) -> "_Attempt":
        """A request placed on its trunk, every cache warm."""
        session, tokens, places = self._answers[request_id]
        session = _copied(session)
        session.emitted = tokens[:position]
        session.place = places[position]
        session.tokens, session.places, session.drafters, session.judges = [], [], [], []
        session.cached = [session.num_prompt + position - 1] * len(session.cached)
        return _Attempt(session, self._world, self._around, drawn=self._drawn)

    def _by_last_window(self, chain: Chain) -> list[Chain]:
        """Variants of a chain: at index w with the last window w, the one it has at index 0 and no larger one."""
        spec = chain.spec
        if spec not in self._smaller:
            *lower, most = spec.windows
            specs = [replace(spec, windows=(*lower, window)) for window in range(1, most)]
            self._smaller[spec] = [chain, *(Chain(self._pool, str(smaller)) for smaller in specs)]
        return self._smaller[spec]


class _Attempt:
    """One round that is being tried. Mutated by `climb` and `finish`."""

    __slots__ = (
        "_around",
        "_drawn",
        "_known",
        "_position",
        "_prefill",
        "_seconds",
        "_seen",
        "_started",
        "_world",
        "session",
    )

    def __init__(self, session: Session, world: World, around: Around, *, drawn: bool) -> None:
        self.session = session
        self._drawn = drawn
        self._world = world
        self._around = around
        self._seen = Observation(session, *around)
        self._seconds = 0.0
        self._known = True
        self._started: dict[int, tuple[int, int]] = {}
        self._prefill = Verify(session.pool.target)
        self._position = len(session.emitted)

    def fork(self) -> "_Attempt":
        """The same round so far, to be ended in another way."""
        session = _copied(self.session)
        session.tokens, session.places = session.tokens[:], session.places[:]
        session.drafters, session.judges = session.drafters[:], session.judges[:]
        session.emitted, session.cached = session.emitted[:], session.cached[:]
        other = _Attempt(session, self._world, self._around, drawn=self._drawn)
        other._seconds, other._known, other._started = self._seconds, self._known, dict(self._started)
        other._position = self._position
        return other

    def climb(self, chain: Chain, top: int) -> bool:
        """Steps of `chain` up to the next verification by level `top`.

        Returns:
            Whether there was one: not where the target comes first, or something was not recorded.
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
        """Steps of `chain` until the target commits; None where something was not recorded.

        A prefill that is due whatever is done is a round of its own; one that a chain's draft waits for is part of it.
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
        """The next step of `chain` and who runs it, the prefill done where that waits for it.

        None where something was not recorded, or the prefill ended the answer.
        """
        session = self.session
        if not self._known or session.done:
            return None
        step = chain.decide(self._seen)
        level = session.check(step)
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


def _copied(session: Session) -> Session:
    """A session that shares its lists with the first one."""
    # By hand, since copy.copy takes several times as long and every round that is tried needs a copy.
    other = Session.__new__(Session)
    for name in ALL_SLOTS:
        setattr(other, name, getattr(session, name))
    return other
