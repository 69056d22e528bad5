"""Walks rounds in a request's trie: no session and no policy is asked where all that comes up is recorded.

What the trie does not say at once (a stop rule, a lookup, a context beyond the record) the answers are asked, as in any
replay.
"""

from ...decoding.contract import Draft, Verify
from ...decoding.policy import IDLE_STEPS
from ...decoding.session import Session
from ..tries.answers import UNKNOWN, TrieAnswers
from ..tries.request_tables import RequestTables
from .automaton import MOST, Automaton, Due, Lead, Pending


def check_progress(idle_steps: int) -> None:
    """Raise ValueError after so many steps in a row of which nothing came."""
    if idle_steps >= IDLE_STEPS:
        raise ValueError(f"no progress in {idle_steps} steps: nothing was drafted or judged")


class TrieWalk:
    """A walk through one request after another.

    Args:
        automaton: of the policy.
        answers: of the recording.

    Attributes:
        length: tokens of the recorded answer, once a request has begun.
    """

    def __init__(self, automaton: Automaton, answers: TrieAnswers) -> None:
        self._automaton = automaton
        self._answers = answers
        self._tokens: list[int] = []
        self._places: list[int] = []
        self.length = 0

    def begin(self, session: Session, tables: RequestTables) -> bool:
        """Stand at the start of a request that the answers know by this session.

        Returns:
            Whether its answer is recorded to its end; else nobody can walk it.
        """
        self._session, self._tables, self._eos = session, tables, session.eos
        self._trunk, self._text = tables.trunk, tables.trunk_tokens
        self._position, self._budget, self._target = 0, session.budget, session.pool.target_level
        written = self._text[: session.budget]
        if self._eos:
            written = session.until_end(written)
        self.length = len(written)
        ends = bool(written) and written[-1] in self._eos
        return ends or len(written) == session.budget

    def round(self, state: Pending, position: int, budget: int) -> list[Lead]:
        """What happens from a place of the answer, with nothing pending, up to the next commit by the target.

        Args:
            state: what caches hold.
            position: tokens that are committed, below `length`.
            budget: tokens that the answer may have, above `position`, at most those it was recorded with.
        """
        self.stand(position, budget)
        idle = 0
        path: list[Lead] = []
        while True:
            room = self.room
            due = (state.open if room else state.full) or self._automaton.due(state, has_room=room > 0)
            lead = self._draft(due, room) if due.window else self._judge(due)
            path.append(lead)
            if lead.emitted:
                return path
            idle = idle + 1 if lead.idle else 0
            check_progress(idle)
            state = lead.after

    def stand(self, position: int, budget: int) -> None:
        """Go to a place of the answer, with nothing pending; arguments as of `round`."""
        self._tokens.clear()
        self._places.clear()
        self._position, self._budget = position, budget

    @property
    def room(self) -> int:
        """Tokens that may still be drafted."""
        tokens = self._tokens
        return 0 if tokens and tokens[-1] in self._eos else self._budget - self._position - len(tokens)

    def step(self, due: Due) -> Lead:
        """What comes of a step; what is pending then stays so until `stand`."""
        return self._draft(due, self.room) if due.window else self._judge(due)

    def _draft(self, due: Due, room: int) -> Lead:
        tokens, places, eos = self._tokens, self._places, self._eos
        asked, before = min(due.window, room), len(tokens)
        if not due.walked:
            return self._ask_draft(due, asked)
        at = places[-1] if places else self._trunk[self._position]
        writes, child = self._tables.next_token[due.level], self._tables.child[due.level]
        for _ in range(asked):
            if at < 0:
                del tokens[before:], places[before:]
                return self._ask_draft(due, asked)
            token = writes[at]
            at = child[at]
            tokens.append(token)
            places.append(at)
            if token in eos:
                break
        drafted = len(tokens) - before
        return due.leads.get((asked * MOST + drafted) * 2) or self._automaton.lead(due, asked=asked, drafted=drafted)

    def _judge(self, due: Due) -> Lead:
        if due.level == self._target:
            return self._commit(due)
        tokens, places, first = self._tokens, self._places, due.first
        at = places[first - 1] if first else self._trunk[self._position]
        writes = self._tables.next_token[due.level]
        kept = first
        for token in tokens[first:]:
            if at < 0:
                return self._ask_judge(due)
            if writes[at] != token:
                if token == UNKNOWN:
                    return self._ask_judge(due)
                break
            at = places[kept]
            kept += 1
        if at < 0:
            return self._ask_judge(due)
        return self._keep(due, kept, writes[at], self._tables.child[due.level][at], 0)

    def _keep(self, due: Due, kept: int, own_token: int, own_place: int, modelled: int) -> Lead:
        """A verifier below the target kept so many of the pending tokens, and adds one where there is room."""
        tokens, places = self._tokens, self._places
        del tokens[kept:], places[kept:]
        own = 0
        if self._position + kept < self._budget and not (tokens and tokens[-1] in self._eos):
            tokens.append(own_token)
            places.append(own_place)
            own = 1
        accepted = kept - due.first
        lead = None if modelled else due.leads.get(accepted * 2 + own)
        return lead or self._automaton.lead(due, accepted=accepted, own=own, modelled=modelled)

    def _commit(self, due: Due) -> Lead:
        """The target keeps what is its own text, which is recorded."""
        tokens, position = self._tokens, self._position
        accepted = 0
        for token, written in zip(tokens, self._text[position : position + len(tokens)], strict=False):
            if token != written:
                break
            accepted += 1
        own = 1 if position + accepted < min(self._budget, self.length) else 0
        return due.leads.get(accepted * 2 + own) or self._automaton.lead(due, accepted=accepted, own=own)

    # -- what the recording has to be asked

    def _ask_draft(self, due: Due, asked: int) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Draft)
        free = due.level < self._answers.num_free
        row = self._answers.looked_up(session, step) if free else self._answers.drafted(session, step, due.level)
        self._tokens += row.tokens
        self._places += row.places
        return self._automaton.lead(due, asked=asked, drafted=len(row.tokens), modelled=row.num_modelled)

    def _ask_judge(self, due: Due) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Verify)
        row = self._answers.judged(session, step, due.level)
        return self._keep(due, due.first + row.num_accepted, row.own_token, row.own_place, row.num_modelled)

    def _standing(self, state: Pending) -> Session:
        """The session as it stands now; it has these tokens and places, and nobody changes them by it."""
        session, position = self._session, self._position
        session.budget, session.emitted = self._budget, self._text[:position]
        session.place = self._trunk[position]
        session.tokens, session.places = self._tokens, self._places
        session.drafters, session.judges = list(state.drafters), list(state.judges)
        return session
