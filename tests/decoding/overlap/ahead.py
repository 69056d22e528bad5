"""Steps in which members work ahead, written from the contract, and worlds that keep what caches hold as text."""

from itertools import combinations

from paceline.decoding.overlap_run import in_turns
from paceline.policies import Draft, Overlap, Verify
from paceline.policies.check import ToyWorld


def room_of(session):
    ended = bool(session.tokens) and session.tokens[-1] in session.eos
    return 0 if ended else session.budget - len(session.emitted) - len(session.tokens)


def overlaps(session, windows=(1, 2, 4)):
    """Every Overlap that the contract allows now: members of falling level, all but the last ones of which judge."""
    pool, room = session.pool, room_of(session)
    verifiers = [name for name, member in zip(pool.names, pool.members, strict=True) if not member.model_free]
    found = []
    for count in range(1, len(pool.names) + 1):
        for chosen in combinations(reversed(verifiers), count):
            verifies = tuple(Verify(name) for name in chosen)
            if count > 1:
                found.append(Overlap(verifies))
            for name in pool.names[: pool.level(chosen[-1])] if room else ():
                found += [Overlap((*verifies, Draft(name, window))) for window in windows]
    return [step for step in found if nobody_idles(session, step, room)]


def first_unjudged(session, level):
    """Index of the first pending token that nobody at the level or above it endorses; the target judges all."""
    if level == session.pool.target_level:
        return 0
    lower = [index for index, judge in enumerate(session.judges) if judge < level]
    return lower[0] if lower else len(session.judges)


def nobody_idles(session, step, room):
    """Whether every part has a token to judge, or room to write one."""
    firsts = [first_unjudged(session, session.pool.level(part.model)) for part in step.steps]
    return room > 0 or all(first < len(session.tokens) for first in firsts)


class TextWorld(ToyWorld):
    """Toy models with caches that are texts: a member is fed what the session says, and reads what it holds."""

    def __init__(self, pool, **options):
        super().__init__(pool, **options)
        self.held = {}

    def draft(self, level, items):
        results = super().draft(level, items)
        for (session, _), row in zip(items, results.rows, strict=True):
            if row.tokens and not self._pool.members[level].model_free:
                self._feed(session, level, verify=False, more=row.tokens[:-1])
        return results

    def verify(self, level, items):
        results = super().verify(level, items)
        for session, _ in items:
            self._feed(session, level, verify=True, more=[])
        return results

    def check_ahead(self):
        pass

    def overlap(self, levels, items):
        return in_turns(self, levels, items)

    def _feed(self, session, level, *, verify, more):
        new, held = session.feed(level, verify=verify)
        context = session.tail(0)
        cache = self.held.setdefault((session.request_id, level), [])
        assert new >= 1
        assert cache[:held] == context[:held], "a cache holds another text than its session says"
        assert new + held == len(context)
        cache[:] = [*context, *more]

    def check(self, session):
        """Whether what every member holds is the text of its request, as far as the session says it holds any."""
        context = session.tail(0)
        for level in range(len(self._pool.members)):
            count = session.cached[level]
            assert self.held.get((session.request_id, level), [])[:count] == context[:count]
            assert count <= len(self.held.get((session.request_id, level), []))
