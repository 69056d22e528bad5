"""Carries out a Draft: a model writes token by token, a lookup copies, a foreign model writes text.

Letters: B requests.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...decoding.prompt_lookup import looked_up
from ...decoding.results import Deferred, Drafted, Failed
from ...decoding.rules.signal import Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem
from ..pools.loaded_members import LoadedMember
from ..state.errors import KVMemoryError
from ..state.request_state import PendingView
from .draft_loop import first_logits, go_on, write
from .errors import NonFiniteLogitsError, without_room
from .executor import Executor
from .foreign_drafter import ForeignDrafter
from .rollback_processor import RollbackProcessor
from .sampler import Sampler
from .writing import Writing


class TextWriter(Protocol):
    """A member that writes by forwards of its own kind."""

    def write(self, sampler: Sampler, writings: Sequence[Writing]) -> None:
        """Fill `tokens` of every writing, which are in the order of the cache's rows."""


class DraftProcessor:
    """Mutates caches and request states, no session.

    Args:
        members: by level.
        executor: runs them.
        rollback: prepares their caches.
        foreign: by level, the members with a tokenizer of their own.
        readers: by level, the member that reads the target's states, if there is one.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        rollback: RollbackProcessor,
        *,
        foreign: Mapping[int, ForeignDrafter],
        readers: Mapping[int, TextWriter] | None = None,
    ) -> None:
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._foreign = foreign
        self._readers = readers or {}
        target = members[-1].model
        assert target is not None
        self._vocab_size = int(target.config.vocab_size)

    def run(self, level: int, items: Sequence[DraftItem]) -> list[Drafted | Failed | Deferred]:
        """`[B]` what each request drafted, or why not."""
        if self._members[level].model is None:
            return [self._look_up(level, item) for item in items]
        foreign = self._foreign.get(level)
        if self._executor.sharing.on and foreign is None:
            return self._run_sharing(level, items)
        writings = self._writings(level, items) if foreign is None else foreign.writings(items)
        able = [writing for writing in writings if writing.most > 0]
        counts = [writing.state.at_once(level, len(writing.feed)) for writing in able]
        further = [len(writing.feed) - count + writing.most - 1 for writing, count in zip(able, counts, strict=True)]
        refused = self._manager.reserve(level, [writing.state for writing in able], counts, further)
        ready = [writing for writing in able if writing.state.request_id not in refused]
        sampler = self._executor.sampler if foreign is None else foreign.sampler
        reader = self._readers.get(level)
        if reader is None:
            write(self._executor, sampler, level, self._ordered(level, ready))
        else:
            reader.write(sampler, self._ordered(level, ready))
        return [
            without_room(refused[writing.state.request_id])
            if writing.state.request_id in refused
            else self._drafted(level, item, writing)
            for item, writing in zip(items, writings, strict=True)
        ]

    def _run_sharing(self, level: int, items: Sequence[DraftItem]) -> list[Drafted | Failed | Deferred]:
        """As `run`, with a prefix cache: what only some requests of the operation need to read, only these do."""
        able = [item for item in items if min(item[1].tokens, item[0].room) > 0]
        writings: dict[str, Writing] = {}
        started: dict[str, Tensor] = {}
        refused: dict[str, KVMemoryError | None] = {}
        for wave in self._executor.sharing.waves(level, able):
            found = self._executor.sharing.find(level, [session for session, _ in wave])
            made = self._writings(level, wave)
            writings |= {writing.state.request_id: writing for writing in made}
            fed = [(writing.state, len(writing.feed)) for writing in made]
            further = [writing.most - 1 for writing in made]
            refused |= self._executor.sharing.begin(level, found, fed, further, kept=started)
            asked = [each for each in made if each.state.request_id not in refused]
            ready = self._ordered(level, asked)
            if ready:
                logits = first_logits(self._executor, level, ready)
                started |= {each.state.request_id: row for each, row in zip(ready, logits.unbind(), strict=True)}
                sound = logits.amax(dim=-1).isfinite().tolist()
                broken = [each.state.request_id for each, whole in zip(ready, sound, strict=True) if not whole]
                self._executor.sharing.absorb(level, [each.state for each in asked], broken)
        refused |= self._reserve_rest(level, [writings[name] for name in started])
        going = self._ordered(level, [writings[name] for name in started if name not in refused])
        if going:
            logits = torch.stack([started[each.state.request_id] for each in going])
            go_on(self._executor, self._executor.sampler, level, going, logits)
        nothing = Drafted([], [])
        return [
            without_room(refused[name])
            if name in refused
            else (self._drafted(level, item, writings[name]) if name in writings else nothing)
            for item in items
            for name in [item[0].request_id]
        ]

    def _reserve_rest(self, level: int, started: Sequence[Writing]) -> dict[str, KVMemoryError | None]:
        """Room for the forwards after the first, which another wave, or the end of one, may have taken away."""
        more = [writing for writing in started if writing.most > 1]
        done = [writing.state.request_id for writing in started if writing.most == 1]
        further = [writing.most - 2 for writing in more]
        return self._manager.reserve(level, [writing.state for writing in more], [1] * len(more), further, kept=done)

    def _ordered(self, level: int, writings: Sequence[Writing]) -> list[Writing]:
        """In the order of the cache's rows."""
        order = self._manager.cache(level).in_order([writing.state.request_id for writing in writings])
        return [writings[index] for index in order]

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
