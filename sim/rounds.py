"""An imported recording, ready for replay by any number of policies, and the world that replays it, with seconds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isinf

import numpy as np

from ..decoding.pool import Pool
from ..decoding.results import Drafted, Forward
from ..decoding.seen import Start, prefill_before
from ..decoding.session import Session
from ..decoding.world import DraftItem, VerifyItem
from ..policies.about import Observable
from ..policies.chain_text import policies_at_windows
from ..policies.oracles import Answer, Foreseen
from ..runs.log import TextQuality
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.rounds import TARGET_ALONE, RoundsMeta, RoundsRequest
from .charges import Charged, Charges, draft_forwards, total_s
from .cost.base import CostModel
from .hazard import Hazard
from .in_step import InStepReplay
from .recorded import recorded_pool
from .rounds_answers import ON_TRUNK, FreshRounds, RequestRounds, RoundAnswers, started
from .rounds_once import MOST, Automaton, Lead, Pending, check_progress, leads_of
from .world import RecordedWorld

MOST_DRAWN = 4096  # requests, over seeds, whose draws are kept for other runs


class RoundCharges(Charges):
    """Charges recorded rounds by their seconds, and all else by their means.

    Measured seconds have the prefill separately. It is charged with a request's first operation, and no forward is
    charged for the prompt. Where the target runs first, the method that will draft is not known yet: charged is the
    least that any method took until its first token, and the rest of the request's own method with the first draft or
    plain step.

    Drafting in a recorded round takes that round's seconds if at least as many tokens are requested as were drafted
    then; so does the verification after it, if nothing else is pending. Engines draft beyond the end of an answer: a
    draft that replay cuts there is charged by its requested length, up to the window of the engine's rounds, and so is
    its verification. A draft or verification that was not recorded takes the means, scaled by the same drafter's rounds
    of the same request (`CostModel.round_scale`). Operations of several requests are never recorded.
    """

    def __init__(self, cost: CostModel, pool: Pool, meta: RoundsMeta, states: Mapping[str, RequestRounds]) -> None:
        super().__init__(cost, pool)
        self._drafters = {drafter.name: drafter for drafter in meta.drafters}
        self._target = meta.target
        self._states = states

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> Charged:
        """See `Charges`: the prefill if it comes first, then a forward for each token."""
        if len(items) > 1:
            return super().draft(level, items, drafted)
        forwards = self._draft(self._states[items[0][0].request_id], items[0], drafted[0], level)
        return forwards, total_s(forwards)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> Charged:
        """See `Charges`: the prefill if it comes first, then one forward."""
        if len(items) > 1:
            return super().verify(level, items)
        session = items[0][0]
        forwards = self._verify(self._states[session.request_id], session, level)
        return forwards, total_s(forwards)

    def _draft(self, state: RequestRounds, item: DraftItem, drafted: Drafted, level: int) -> list[Forward]:
        session, step = item
        asked = step.tokens
        name = self._names[level]
        forwards = self._prefill(state, session, name)
        own = self._own_round(state.request, session, name, asked)
        state.verify_s, state.num_cut = None, 0
        count = len(drafted.tokens)
        if own is None:
            if count == session.room:  # cut by the end of the answer, not by the drafter's own rule
                state.num_cut = max(min(asked, self._longest(state.request, name)) - count, 0)
            charged = draft_forwards(self._cost, name, [item], [drafted], level)
            factor = self._draft_factor(state, session, name, charged, count)
            return forwards + [(rows, new, repeats, each_s * factor) for rows, new, repeats, each_s in charged]
        if not session.tokens:
            state.verify_s, state.verified_from = own[1], len(session.emitted)
        # The log may have the seconds of drafting nothing.
        return [*forwards, (1, 1, count, own[0] / count) if count else (1, 0, 1, own[0])]

    def _verify(self, state: RequestRounds, session: Session, level: int) -> list[Forward]:
        if not session.emitted and not session.tokens:
            methods = (TARGET_ALONE, *state.request.rounds)  # the least of all counts, 0 if none was measured
            starts_s = (start_s for method in methods if (start_s := self._start_s(state.request, method)))
            if started_s := min(starts_s, default=0.0):
                state.started_s = started_s
                return [(1, session.num_prompt, 1, started_s)]
        forwards = self._prefill(state, session, TARGET_ALONE)
        new_tokens, held = session.feed(level, verify=True)
        if not held:  # the prompt was charged; the first verification needs its last token
            new_tokens -= session.num_prompt - 1
            held = session.num_prompt - 1
        seconds = state.verify_s if state.verified_from == len(session.emitted) else None
        state.verify_s = None
        if seconds is None and not session.tokens:
            own = self._cost.round_s(session.request_id, len(session.emitted), TARGET_ALONE)
            seconds = None if own is None else own[1]
        if seconds is None:
            width = new_tokens + state.num_cut
            seconds = self._cost.forward_s(self._target, num_rows=1, new_tokens=width, context_tokens=held)
            if session.tokens:
                drafter = session.pool.names[session.drafters[-1]]
                seconds *= self._cost.round_scale(session.request_id, drafter).verifying
        state.num_cut = 0
        return [*forwards, (1, new_tokens, 1, seconds)]

    def _draft_factor(
        self, state: RequestRounds, session: Session, drafter: str, charged: list[Forward], count: int
    ) -> float:
        """Factor on the mean seconds `charged` for a draft of `count` tokens that was not recorded."""
        scale = self._cost.round_scale(session.request_id, drafter)
        factor = scale.drafting * (1.0 + state.num_cut / count if state.num_cut else 1.0)
        seconds = factor * sum(repeats * each_s for _, _, repeats, each_s in charged)
        most_s = scale.most_draft_s
        if not isinf(most_s):
            recorded = self._cost.round_s(session.request_id, len(session.emitted) + len(session.tokens), drafter)
            most_s = most_s if recorded is None else recorded[0]
        return factor * most_s / seconds if seconds > most_s else factor

    def _prefill(self, state: RequestRounds, session: Session, method: str) -> list[Forward]:
        if state.prefilled:
            return []
        state.prefilled = True
        if state.started_s:
            rest_s = self._start_s(state.request, method) - state.started_s
            return [(1, 0, 1, rest_s)] if rest_s > 0 else []  # seconds of the operation, outside forwards
        seconds = self._cost.prefill_s(session.request_id, method)
        return [(1, session.num_prompt, 1, seconds)] if seconds else []

    def _start_s(self, request: RoundsRequest, method: str) -> float:
        """Seconds that a method took until its first token, or its first round if that came before; 0 if unknown."""
        seconds = self._cost.prefill_s(request.request_id, method)
        if method != TARGET_ALONE:
            return seconds
        own = self._cost.round_s(request.request_id, 0, TARGET_ALONE)
        return 0.0 if own is None else seconds + own[1]

    def _longest(self, request: RoundsRequest, drafter: str) -> int:
        """Most tokens that the drafter drafts in a round: its window, else the most drafted or accepted here."""
        window, rounds = self._drafters[drafter].window, request.rounds.get(drafter)
        if window is not None or rounds is None or not len(rounds.start):
            return window or 0
        return int(max(rounds.drafted.max(), rounds.accepted.max()))

    def _own_round(
        self, request: RoundsRequest, session: Session, drafter: str, asked: int
    ) -> tuple[float, float] | None:
        """Seconds of the round recorded where this draft starts, if that fits `asked` tokens; else None."""
        rounds = request.rounds.get(drafter)
        if rounds is None or (session.drafters and session.pool.names[session.drafters[-1]] == drafter):
            return None
        start = len(session.emitted) + len(session.tokens)
        index = int(np.searchsorted(rounds.start, start))
        if index == len(rounds.start) or rounds.start[index] != start:
            return None
        drafted, window = int(rounds.drafted[index]), self._drafters[drafter].window
        if drafted < 0:
            drafted = window or asked  # the requested length is unknown
        stopped = drafted < (window or 1)  # by its own rule, so at any requested length
        if not drafted <= asked or not (stopped or asked <= max(drafted, window or 0)):
            return None
        return self._cost.round_s(request.request_id, start, drafter)


class RoundsWorld(RoundAnswers, RecordedWorld):
    """Answers operations from an imported recording and charges seconds from a cost model.

    `hazard` draws what no round shows; None makes the first unknown an error.
    """

    def __init__(
        self, *, trace: RoundsRecording, fresh: FreshRounds, pool: Pool, cost: CostModel, hazard: Hazard | None
    ) -> None:
        super().__init__(trace=trace, fresh=fresh, num_free=pool.num_free, hazard=hazard)
        self._recording, self._pool = trace, pool
        by_rounds = cost.knows_rounds
        self._charges = RoundCharges(cost, pool, trace.meta, self._open) if by_rounds else Charges(cost, pool)
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}

    def session(self, request_id: str, prefill_before: tuple[bool, ...]) -> Session:
        state = self._open[request_id] = self._fresh.of(request_id, waits=any(prefill_before))
        return started(state).session(self._pool, request_id, prefill_before)

    def foresee(self, request_id: str) -> list[int]:
        """Prepare to try any round of a request from any position; returns its text, the longest of all methods."""
        state = self._open[request_id]
        state.foresee()
        return state.trunk

    def paths(self, automaton: Automaton, session: Session) -> Iterator[list[Lead]]:
        request, budget = self._open[session.request_id], session.budget
        state, position, done = automaton.bare, 0, False
        if session.prefills_first:
            yield [automaton.prefilled]
            state, position, done = automaton.prefilled.after, 1, request.ending([0], 0) is not None
        while not done and position < budget:
            path = self._walked(automaton, session, state, position)
            if path is None:  # a lookup, or what only the loop refuses
                session.emitted = request.trunk[:position]
                path = leads_of(automaton, self, session, state)
            yield path
            state, position = path[-1].after, position + path[-1].emitted
            done = position >= request.num_tokens
        session.emitted = request.trunk[:position]

    def _walked(self, automaton: Automaton, session: Session, state: Pending, position: int) -> list[Lead] | None:
        """As `leads_of`, by comparing with the target's text: from a position of the answer on, nothing pending."""
        request, budget, names = self._open[session.request_id], session.budget, session.pool.names
        pending = kept = idle = 0
        path: list[Lead] = []
        while True:
            room = budget - position - pending
            due = (state.open if room else state.full) or automaton.due(state, has_room=room > 0)
            if not due.walked or (not due.window and due.level != session.pool.target_level):
                return None
            if not due.window:
                break
            request.begin(names[due.level])
            drafter, asked, modelled = due.level - self.num_free, min(due.window, room), 0
            if kept < pending:
                count, _ = self._num_drafted(request, drafter, position, pending, asked)
            else:
                count, agreed, modelled = self._draft(request, drafter, position, pending, asked)
                modelled = max(modelled, count) if request.drawn else modelled
                kept += agreed
            pending += count
            lead = None if modelled else due.leads.get((asked * MOST + count) * 2)
            lead = lead or automaton.lead(due, asked=asked, count=count, modelled=modelled)
            path.append(lead)
            idle = idle + 1 if lead.idle else 0
            check_progress(idle)
            state = lead.after
        # The target's own token is the only one that the end of a text drops.
        own = 1 if position + kept < (request.num_tokens if kept else budget) else 0
        modelled = min(kept + 1, pending) + 1 if request.drawn else 0
        path.append(automaton.lead(due, count=kept, own=own, modelled=modelled))
        return path

    def open(self, session: Session) -> None:
        """Nothing: a request is prepared when its session is made."""

    def close(self, session: Session) -> None:
        """Forget the request, except its divergence from the trunk."""
        state = self._open.pop(session.request_id)
        self._kept.clear()  # no other session replays it
        differ = sum([ours != theirs for ours, theirs in zip(session.emitted, state.trunk, strict=False)])
        self.num_divergent[session.request_id] = differ + abs(state.num_tokens - len(session.emitted))


class RoundsTables:
    """An imported recording; see `ReplayTables`."""

    def __init__(self, trace: RoundsRecording) -> None:
        self.trace = trace
        self.pool = recorded_pool(trace)
        has_text = all(request.output for request in trace.requests)
        self.observables = frozenset({Observable.text}) if has_text else frozenset[Observable]()
        self.default_start = Start.recorded
        windows = {drafter.name: trace.window(drafter) for drafter in trace.meta.drafters}
        self.default_policies = tuple(policies_at_windows(self.pool, windows))
        self._fresh, self._fitted = FreshRounds(trace), Hazard(trace)
        self._by_seed: dict[int, Hazard] = {}
        # A subclass may answer otherwise.
        self.in_step = InStepReplay(self.pool, self.world) if type(self) is RoundsTables else None

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """See `ReplayTables`; the target, and lookups, wait for the prefill if every drafter did."""
        if start is not Start.recorded:
            return prefill_before(start, self.pool)
        drafters = self.trace.meta.drafters
        every = all(drafter.prefilled for drafter in drafters)
        return (*(every,) * self.pool.num_free, *(drafter.prefilled for drafter in drafters), every)

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """See `ReplayTables`; draws are keyed, so that an oracle sees its run's draws, unless that is strict."""
        world = self.world(cost, seed=seed, strict=False)
        answers = {}
        for session in world.sessions(prefill_before):
            text = world.foresee(session.request_id)
            answers[session.request_id] = Answer(session, text, [ON_TRUNK] * (len(text) + 1))
        return Foreseen(world, answers, drawn=not strict)

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> RoundsWorld:
        """See `ReplayTables`; seconds of recorded rounds do not depend on the time."""
        hazard = self._hazard(seed, strict=strict)
        return RoundsWorld(trace=self.trace, fresh=self._fresh, pool=self.pool, cost=cost, hazard=hazard)

    def answers(self, *, seed: int, strict: bool) -> RoundAnswers:
        hazard = self._hazard(seed, strict=strict)
        return RoundAnswers(trace=self.trace, fresh=self._fresh, num_free=self.pool.num_free, hazard=hazard)

    def _hazard(self, seed: int, *, strict: bool) -> Hazard | None:
        """Draws by a seed, the same object for several runs."""
        if strict:
            return None
        if seed not in self._by_seed:
            self._by_seed[seed] = self._fitted.reseeded(seed)
            while len(self._by_seed) > 1 and len(self._by_seed) * len(self.trace.requests) > MOST_DRAWN:
                del self._by_seed[next(iter(self._by_seed))]
        return self._by_seed[seed]
