"""What an operation costs where the recording holds seconds of its rounds: these, and their means for all else.

Measured seconds have the prefill apart. It is charged with a request's first operation, and no forward is charged for
the prompt. Where the target goes first, nobody knows yet which method will draft: the least is charged that any method
took until its first token, and the rest of its own method's with the first draft or plain step.

Drafting in a recorded round takes that round's seconds if at least as many tokens are asked for as were drafted then;
so does the verification after it, if nothing else is pending. Engines do not know where an answer will end and draft
beyond it: a draft that replay cuts there is charged as what was asked for, up to the window of the engine's rounds, and
so is its verification. A draft or verification that was not recorded takes the means, as the same drafter's rounds of
the same request compare to them (`RoundCost.round_scale`).
"""

from math import isinf

import numpy as np

from ...decoding.results import Drafted, Forward
from ...decoding.session import Session
from ...decoding.world import DraftItem
from ...traces.rounds.meta import DrafterInfo
from ...traces.rounds.rounds import TARGET_ALONE, RoundsRequest
from ..charges import draft_forwards
from ..cost.base import RoundCost
from .request_rounds import RequestRounds


class RoundCharges:
    """Charges operations of one request each; mutates what its state says of seconds.

    Args:
        cost: knows recorded rounds.
        drafters: of the recording.
        target: by name.
    """

    def __init__(self, cost: RoundCost, drafters: tuple[DrafterInfo, ...], target: str) -> None:
        self._cost = cost
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._target = target

    def draft(self, state: RequestRounds, item: DraftItem, drafted: Drafted, level: int) -> list[Forward]:
        """The forwards of a Draft by a recorded drafter: the prefill if it comes first, then one for each token."""
        session, step = item
        asked = step.tokens
        name = session.pool.names[level]
        forwards = self._prefill(state, session, name)
        own = self._own_round(state.request, session, name, asked)
        state.verify_s, state.num_cut = None, 0
        count = len(drafted.tokens)
        if own is None:
            if count == session.room:  # cut by the end of the answer, and not by the drafter's own rule
                state.num_cut = max(min(asked, self._longest(state.request, name)) - count, 0)
            charged = draft_forwards(self._cost, name, [item], [drafted], level)
            factor = self._draft_factor(state, session, name, charged, count)
            return forwards + [(rows, new, repeats, each_s * factor) for rows, new, repeats, each_s in charged]
        if not session.tokens:
            state.verify_s, state.verified_from = own[1], len(session.emitted)
        # The log may say what it took to draft nothing.
        return [*forwards, (1, 1, count, own[0] / count) if count else (1, 0, 1, own[0])]

    def verify(self, state: RequestRounds, session: Session, level: int) -> list[Forward]:
        """The forwards of a Verify by the target: the prefill if it comes first, then one."""
        if not session.emitted and not session.tokens:
            started_s = self._least_start_s(state.request)
            if started_s:
                state.started_s = started_s
                return [(1, session.num_prompt, 1, started_s)]
        forwards = self._prefill(state, session, TARGET_ALONE)
        new_tokens, held = session.feed(level, verify=True)
        if not held:  # the prompt is paid for; its last token is what the first verification needs
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
        """By how much a draft of `count` tokens that was not recorded differs from the mean seconds `charged`."""
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
            return [(1, 0, 1, rest_s)] if rest_s > 0 else []  # seconds of the operation, and of no forward
        seconds = self._cost.prefill_s(session.request_id, method)
        return [(1, session.num_prompt, 1, seconds)] if seconds else []

    def _start_s(self, request: RoundsRequest, method: str) -> float:
        """Seconds that a method took until its first token, or its first round if that came before; 0 if unknown."""
        seconds = self._cost.prefill_s(request.request_id, method)
        if method != TARGET_ALONE:
            return seconds
        own = self._cost.round_s(request.request_id, 0, TARGET_ALONE)
        return 0.0 if own is None else seconds + own[1]

    def _least_start_s(self, request: RoundsRequest) -> float:
        """The least of all methods; 0 if none was measured."""
        methods = (TARGET_ALONE, *request.rounds)
        return min((seconds for method in methods if (seconds := self._start_s(request, method))), default=0.0)

    def _longest(self, request: RoundsRequest, drafter: str) -> int:
        """Most tokens that the drafter drafts in a round: its window, else what it was seen to draft or keep here."""
        window, rounds = self._drafters[drafter].window, request.rounds.get(drafter)
        if window is not None or rounds is None or not len(rounds.start):
            return window or 0
        return int(max(rounds.drafted.max(), rounds.accepted.max()))

    def _own_round(
        self, request: RoundsRequest, session: Session, drafter: str, asked: int
    ) -> tuple[float, float] | None:
        """Seconds of the round recorded where this draft starts, if as much was asked for then; else None."""
        rounds = request.rounds.get(drafter)
        if rounds is None or (session.drafters and session.pool.names[session.drafters[-1]] == drafter):
            return None
        start = len(session.emitted) + len(session.tokens)
        index = int(np.searchsorted(rounds.start, start))
        if index == len(rounds.start) or rounds.start[index] != start:
            return None
        drafted, window = int(rounds.drafted[index]), self._drafters[drafter].window
        if drafted < 0:
            drafted = window or asked  # nobody knows how much was asked for
        stopped = drafted < (window or 1)  # by itself, so that it would have done so whatever was asked for
        if not drafted <= asked or not (stopped or asked <= max(drafted, window or 0)):
            return None
        return self._cost.round_s(request.request_id, start, drafter)
