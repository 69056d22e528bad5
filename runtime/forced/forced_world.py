"""A world whose forwards are those of real models, while what comes of an operation is another world's say.

The models do all that decoding asks of them: forwards over as many tokens and contexts, cache writes, rollbacks, the
choice of tokens from logits, distances where a policy looks. Then the *decisions* replace what they said.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, overload

from ...arguments import ArgumentError
from ...decoding.contract import Draft
from ...decoding.results import Drafted, DraftResults, Judged, VerifyResults
from ...decoding.rules.draft_stops import Stop, token_factor
from ...decoding.rules.signal import Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem, World
from ...traces.meta import Sampling
from ..executor.verify_processor import Chunk
from ..world import TorchWorld
from .forced_pool import ForcedPool
from .forced_sampler import ForcedSampler, Told


class ForcedWorld(TorchWorld):
    """Takes the seconds from models and the decisions from elsewhere. The clock leaves out what deciding takes.

    A place of a session is the models' own; the decisions see the session with theirs.

    Args:
        pool: a member's index is its level.
        sampling: greedy or coupled, as the decisions were recorded.
        further: as of `TorchWorld`.
    """

    _decisions: World

    def __init__(self, *, pool: ForcedPool, sampling: Sampling, **further: Any) -> None:  # noqa: ANN401 - see there
        self._sampler = ForcedSampler(sampling)
        super().__init__(pool=pool, sampling=sampling, sampler=self._sampler, **further)
        self._vocab_size = pool.vocab_size
        self._theirs: dict[str, dict[int, int]] = {}  # by request, the decisions' place for each of ours

    def follow(self, decisions: World) -> None:
        """Take what is drafted and accepted from a world whose pool has the same levels, before any request opens."""
        self._decisions = decisions

    def open(self, session: Session) -> None:
        """See `TorchWorld`."""
        with self.clock.paused():
            self._decisions.open(session)
            theirs = session.place
        super().open(session)
        self._theirs[session.request_id] = {session.place: theirs}

    def close(self, session: Session) -> None:
        """See `TorchWorld`."""
        super().close(session)
        with self.clock.paused():
            self._decisions.close(session)
            del self._theirs[session.request_id]

    def signal(self, session: Session, index: int) -> Signal:
        """See `TorchWorld`; worked out from logits, and then what the decisions know."""
        super().signal(session, index)
        with self.clock.paused(), self._as_decided([session]):
            return self._decisions.signal(session, index)

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """See `TorchWorld`."""
        with self.clock.paused():
            with self._as_decided([session for session, _ in items]):
                decided = [row for row in self._decisions.draft(level, items).rows if isinstance(row, Drafted)]
            if self.pool.members[level].model is not None:
                items = self._told_to_draft(items, decided)
            else:
                items = [(session, self._told_to_copy(session, step)) for session, step in items]
        ran = super().draft(level, items)
        with self.clock.paused():
            rows = [
                self._drafted(session, row, told) if isinstance(row, Drafted) else row
                for (session, _), row, told in zip(items, ran.rows, decided, strict=True)
            ]
        return ran._replace(rows=rows)

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> VerifyResults:
        """See `TorchWorld`; raises ArgumentError for a lossy rule, which looks at the logits themselves."""
        with self.clock.paused():
            for session, step in items:
                if not step.rule.lossless:
                    raise ArgumentError(f"a forced run must be of lossless steps, got {step} of {session.request_id}")
            with self._as_decided([session for session, _ in items]):
                decided = [row for row in self._decisions.verify(level, items).rows if isinstance(row, Judged)]
            self._sampler.told = {
                session.request_id: Told(0, self._safe_ids(session, [told.own_token]), told.num_accepted)
                for (session, _), told in zip(items, decided, strict=True)
            }
        ran = super().verify(level, items, chunks)
        with self.clock.paused():
            rows = [
                self._judged(session, row, told) if isinstance(row, Judged) else row
                for (session, _), row, told in zip(items, ran.rows, decided, strict=True)
            ]
        return ran._replace(rows=rows)

    def check_ahead(self) -> None:
        """Raises ValueError: outcomes are decided for one step of a request at a time."""
        raise ValueError("nobody works ahead in a forced run")

    def check_tree(self, level: int) -> None:
        """Raises ValueError: decisions are forced on runs of tokens only."""
        raise ValueError("a forced run drafts no token trees")

    def _told_to_draft(self, items: Sequence[DraftItem], decided: Sequence[Drafted]) -> list[DraftItem]:
        """The steps with which the models draft as many tokens as was decided."""
        self._sampler.told = {}
        steps = []
        for (session, step), told in zip(items, decided, strict=True):
            start = len(session.emitted) + len(session.tokens)
            self._sampler.told[session.request_id] = Told(start, self._safe_ids(session, told.tokens))
            stop: Any = None if step.stop is None else _Unending(step.stop)
            steps.append((session, Draft(step.model, len(told.tokens), stop)))
        return steps

    def _told_to_copy(self, session: Session, step: Draft) -> Draft:
        """The step with ids of the models' vocabulary, if it says what to copy."""
        return step if step.copy is None else replace(step, copy=tuple(self._safe_ids(session, step.copy)))

    def _drafted(self, session: Session, row: Drafted, told: Drafted) -> Drafted:
        places = row.places[: len(told.tokens)]
        self._theirs[session.request_id].update(zip(places, told.places, strict=True))
        return told._replace(places=places)

    def _judged(self, session: Session, row: Judged, told: Judged) -> Judged:
        self._theirs[session.request_id][row.own_place] = told.own_place
        return told._replace(own_place=row.own_place, tvd=_DecidedDistances(row.tvd, told.tvd))

    @contextmanager
    def _as_decided(self, sessions: Sequence[Session]) -> Iterator[None]:
        """Within it, sessions have the decisions' places; places that are pending no longer are forgotten."""
        ours = [(session, session.place, session.places) for session in sessions]
        for session, place, places in ours:
            theirs = self._theirs[session.request_id]
            session.place, session.places = theirs[place], [theirs[each] for each in places]
        try:
            yield
        finally:
            for session, place, places in ours:
                pending = zip(places, session.places, strict=True)
                self._theirs[session.request_id] = {place: session.place, **dict(pending)}
                session.place, session.places = place, places

    def _safe_ids(self, session: Session, tokens: Sequence[int]) -> list[int]:
        """Ids of the models' vocabulary in place of the recorded ones, none of which ends a text."""
        safe = []
        for token in tokens:
            within = token % self._vocab_size
            while within in session.eos:
                within = (within + 1) % self._vocab_size
            safe.append(within)
        return safe


@dataclass(frozen=True, slots=True)
class _Unending:
    """A stop that looks as the one it stands for does, and leaves the end to the number of tokens."""

    stop: Stop

    def factor(self, signal: Signal, index: int) -> float:
        return token_factor(self.stop)(signal, index)

    def holds(self, signal: Signal, product: float) -> bool:
        self.stop.holds(signal, product)
        return False


class _DecidedDistances(Sequence[float]):
    """Distances as decided, for which the real ones are worked out as well when somebody looks."""

    def __init__(self, real: Sequence[float], decided: Sequence[float]) -> None:
        self._real = real
        self._decided = tuple(decided)

    def __len__(self) -> int:
        return len(self._decided)

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...

    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        self._real[:1]  # which works all of them out
        return self._decided[index]
