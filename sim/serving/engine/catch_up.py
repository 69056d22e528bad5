"""How a member below the target reads what its cache lacks: in chunks of the token budget, before it runs."""

from typing import cast

from ....decoding.results import Forward
from ....decoding.world import DraftOp, Op, VerifyOp
from ..clock import to_s
from .served_session import ServedSession
from .served_world import EngineWorld


def behind(op: Op, budget: int) -> bool:
    """Whether the rows of an operation might have to be fed more than `budget` tokens; mostly they are caught up."""
    level, most = op.level, 0
    for session, _ in op.items:
        text = session.num_prompt + len(session.emitted)
        most += text + len(session.tokens) - min(session.cached[level], text - 1)
    return most > budget


def within_budget(op: Op, budget: int) -> tuple[Op, Op | None]:
    """An operation whose rows, all caught up, are fed at most `budget` tokens, or one row; and one with the others."""
    left, count = budget, 0
    for session in _sessions(op):
        left -= _least(session, op.level, drafts=isinstance(op, DraftOp))
        if left < 0 and count:
            break
        count += 1
    if count == len(op.items):
        return op, None
    if isinstance(op, DraftOp):
        return DraftOp(op.level, op.items[:count]), DraftOp(op.level, op.items[count:])
    return VerifyOp(op.level, op.items[:count]), VerifyOp(op.level, op.items[count:])


def catch_up(world: EngineWorld, op: Op, budget: int) -> tuple[int, list[Forward]]:
    """Run forwards of at most `budget` tokens until what the rows of an operation are still to be fed is no more.

    Sessions learn what their caches hold now. Rows are served in their order.

    Returns:
        Picoseconds, and forwards.
    """
    level, drafts = op.level, isinstance(op, DraftOp)
    sessions = _sessions(op)
    spare = {session: _spare(session, level, drafts=drafts) for session in sessions}
    total = sum(spare.values()) + sum(_least(session, level, drafts=drafts) for session in sessions)
    duration_ps, forwards = 0, list[Forward]()
    while total > budget and sum(spare.values()) > 0:
        left = budget
        chunks = []
        for session in sessions:
            chunk = min(spare[session], left)
            if chunk:
                session.chunk, session.chunk_level = chunk, level
                chunks.append(session)
                left -= chunk
        world.catch_up(level, chunks)
        for session in chunks:
            session.cached[level] += session.chunk
            spare[session] -= session.chunk
            session.chunk = 0
        duration_ps += world.duration_ps
        forwards.append((len(chunks), budget - left, 1, to_s(world.duration_ps)))
        total -= budget - left
    return duration_ps, forwards


def _sessions(op: Op) -> list[ServedSession]:
    return [cast(ServedSession, item[0]) for item in op.items]


def _needed(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that a cache must hold so that a forward is fed only what it drafts after, or judges."""
    if drafts:
        return session.context_tokens - 1
    return session.num_text + session.first_unjudged(level) - 1


def _least(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that a caught up row is fed."""
    return session.context_tokens - _needed(session, level, drafts=drafts)


def _spare(session: ServedSession, level: int, *, drafts: bool) -> int:
    """Tokens that may be read before."""
    return max(_needed(session, level, drafts=drafts) - session.cached[level], 0)
