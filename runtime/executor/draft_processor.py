"""Carries out a Draft: a model writes token by token, a lookup copies, a foreign model writes text.

Letters: B requests.
"""

from collections.abc import Mapping, Sequence

from ...decoding.prompt_lookup import looked_up
from ...decoding.results import Deferred, Drafted, Failed
from ...decoding.rules.signal import Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem
from ..pools.loaded_members import LoadedMember
from ..state.request_state import PendingView
from .draft_loop import write
from .errors import NonFiniteLogitsError, without_room
from .executor import Executor
from .foreign_drafter import ForeignDrafter
from .rollback_processor import RollbackProcessor
from .writing import Writing


class DraftProcessor:
    """Mutates caches and request states, no session.

    Args:
        members: by level.
        executor: runs them.
        rollback: prepares their caches.
        foreign: by level, the members with a tokenizer of their own.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        rollback: RollbackProcessor,
        *,
        foreign: Mapping[int, ForeignDrafter],
    ) -> None:
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._foreign = foreign
        target = members[-1].model
        assert target is not None
        self._vocab_size = int(target.config.vocab_size)

    def run(self, level: int, items: Sequence[DraftItem]) -> list[Drafted | Failed | Deferred]:
        """`[B]` what each request drafted, or why not."""
        if self._members[level].model is None:
            return [self._look_up(level, item) for item in items]
        foreign = self._foreign.get(level)
        writings = self._writings(level, items) if foreign is None else foreign.writings(items)
        able = [writing for writing in writings if writing.most > 0]
        counts = [len(writing.feed) for writing in able]
        further = [writing.most - 1 for writing in able]
        refused = self._manager.reserve(level, [writing.state for writing in able], counts, further)
        ready = [writing for writing in able if writing.state.request_id not in refused]
        order = self._manager.cache(level).in_order([writing.state.request_id for writing in ready])
        sampler = self._executor.sampler if foreign is None else foreign.sampler
        write(self._executor, sampler, level, [ready[index] for index in order])
        return [
            without_room(refused[writing.state.request_id])
            if writing.state.request_id in refused
            else self._drafted(level, item, writing)
            for item, writing in zip(items, writings, strict=True)
        ]

    def _writings(self, level: int, items: Sequence[DraftItem]) -> list[Writing]:
        feeds = self._rollback.before(items, level, verify=False)
        writings = []
        for (session, step), feed in zip(items, feeds, strict=True):
            writing = Writing(
                state=self._manager.states[session.request_id],
                feed=feed,
                most=min(step.tokens, session.room),
                position=len(session.emitted) + len(session.tokens),
                eos=session.eos,
                stop=step.stop,
            )
            writings.append(writing)
        return writings

    def _drafted(self, level: int, item: DraftItem, writing: Writing) -> Drafted | Failed:
        session, _ = item
        if writing.broken:
            position = writing.position + len(writing.tokens)
            return Failed(NonFiniteLogitsError(self._members[level].name, session.request_id, position))
        if level in self._foreign:
            tokens = self._foreign[level].drafted(item, writing)
            return self._without_distribution(session, tokens)
        said: Sequence[Signal | None] = writing.said or [None] * len(writing.tokens)
        views = [
            PendingView(token, row, signal)
            for token, row, signal in zip(writing.tokens, writing.rows, said, strict=True)
        ]
        return Drafted(writing.tokens, [writing.state.add(view) for view in views])

    def _look_up(self, level: int, item: DraftItem) -> Drafted | Failed:
        """Copy what followed the newest tokens where they stood before; no forward."""
        session, step = item
        rule = self._members[level].lookup
        assert rule is not None
        unknown = [token for token in step.copy or () if token >= self._vocab_size]
        if unknown:
            return Failed(ValueError(f"draft copy must hold ids below {self._vocab_size:,}, got {unknown[0]}"))
        tokens = looked_up(session.tail(0), step=step, room=session.room, rule=rule)
        return self._without_distribution(session, session.until_end(tokens))

    def _without_distribution(self, session: Session, tokens: list[int]) -> Drafted:
        state = self._manager.states[session.request_id]
        return Drafted(tokens, [state.add(PendingView(token, None)) for token in tokens])
