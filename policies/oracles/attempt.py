"""One round of a chain, tried through a world from any position of a request; nothing is committed.

The chain decides, the world answers and the session keeps the rules, as in a run; only the start is made up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...decoding.contract import Draft, Step, Verify
from ...decoding.legal_steps import check_step
from ...decoding.observation import Load, Observation
from ...decoding.request_tokens import RequestText
from ...decoding.results import Drafted, Judged, Results
from ...decoding.rules.signal import Signal
from ...decoding.session import Session
from ...decoding.world import World
from ..lossless.chain import Chain

# Of a session, inherited ones included.
ALL_SLOTS = (*RequestText.__slots__, *Session.__slots__)

# What a view of a session shows besides it.
Around = tuple[Load, Callable[[Session, int], Signal]]


class Feed(NamedTuple):
    """The first forward of one member in a round, if its cache lacked nothing but the last token of the context.

    Attributes:
        level: of the member, which has weights.
        new_tokens: fed to the forward, >= 1.
        held_tokens: in its cache before, >= 0.
        lacking: tokens its cache lacks after the round, the last one of the context not counted.
    """

    level: int
    new_tokens: int
    held_tokens: int
    lacking: int


class Round(NamedTuple):
    """One round of a chain from a position.

    Attributes:
        chain: that decides every step of it.
        num_emitted: tokens it commits, >= 1.
        warm_s: its seconds at batch 1, if no cache lacked anything but the last token of the context.
        feeds: one per member with weights that runs; a cache that lacks more makes the first forward larger.
    """

    chain: Chain
    num_emitted: int
    warm_s: float
    feeds: tuple[Feed, ...]


def answered(*rounds: Round | None) -> list[Round]:
    """Those that the recording answers for."""
    return [choice for choice in rounds if choice is not None]


@dataclass(slots=True, eq=False)
class Attempt:
    """One round that is being tried. Mutated by `climb` and `finish`."""

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
        """The same round so far, to be ended in another way."""
        session = copied(self.session)
        session.tokens, session.places = session.tokens[:], session.places[:]
        session.drafters, session.judges = session.drafters[:], session.judges[:]
        session.emitted, session.cached = session.emitted[:], session.cached[:]
        begun = dict(self._started)
        return Attempt(
            session, self._world, self._around, self._drawn, self._position, self._known, self._seconds, begun
        )

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
