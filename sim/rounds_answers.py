"""Answers from an imported recording: rounds are looked up, and what no round shows is drawn.

A drafted token is either the target's own or a rejected one. This follows from rounds, or is drawn from the fitted
hazard when it is drafted and counted as modelled; after a rejected token nothing is drawn, since the target rejects all
of it. Verification then compares tokens, and models nothing.

A drafter that stopped by itself in a recorded round stops there again: the draft is no longer than its own, and where
it drafted nothing the answer is an empty draft. A round at a drawn place, not logged there, counts as modelled.

The tokens of a text whose ids were not logged are its positions, counted from 1: sufficient where tokens are only
compared with others of the same position. `place` is 1 after a token of the target's text and 0 after any other. A
round starts at an output position, and its tokens have depths, from 0.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import InitVar, dataclass, field
from math import nan
from typing import NamedTuple, Self

import numpy as np

from ..decoding.prompt_lookup import looked_up
from ..decoding.results import Drafted, Judged, made
from ..decoding.rules import NO_SIGNAL, Signal
from ..decoding.session import Session
from ..decoding.steps import Draft, Verify
from ..traces.meta import MOST
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.rounds import TARGET_ALONE, DrafterInfo, Form, Rounds, RoundsMeta, RoundsRequest
from .difficulty import Beside, BesideOutcome
from .hazard import Hazard, fit_lengths
from .recorded import Replayed, UnrecordedContextError, recorded_rule

REFUSED, AGREED, UNKNOWN = range(3)
WHOLE = MOST  # length of a draft that does not stop by itself: all that is requested


class _Round(NamedTuple):
    accepted: int  # accepted tokens
    refused: bool  # whether a rejection was seen after them
    num_drafted: int  # tokens after which the drafter stopped by itself; `WHOLE` if it did not
    placed: bool  # whether the log does not have its place

    @property
    def num_known(self) -> int:
        return self.accepted + self.refused


MOST_FRESH = 1 << 21  # tokens of texts of kept states, some 200 MB
_NOTHING = np.zeros(0, np.int32)
_NO_ROUNDS = Rounds(start=_NOTHING, accepted=_NOTHING, drafted=_NOTHING)
_NO_ROUND = _Round(accepted=0, refused=False, num_drafted=WHOLE, placed=False)


class KnownTokens(ABC):
    """Recorded facts of one drafter's tokens in one request with a text of `num_tokens`.

    `refused` has for each recorded round whether a rejection was seen after its accepted tokens; `window` is the most
    tokens the drafter drafts, None if unknown.
    """

    def __init__(self, rounds: Rounds, refused: list[bool], window: int | None, num_tokens: int) -> None:
        short = rounds.short(window, num_tokens)
        drafted = zip(rounds.drafted.tolist(), short, strict=True)
        stops = [count if stopped else WHOLE for count, stopped in drafted]
        columns = (rounds.accepted.tolist(), refused, stops, rounds.where_placed.tolist())
        found = map(_Round._make, zip(*columns, strict=True))
        self._rounds: dict[int, _Round] = dict(zip(rounds.start.tolist(), found, strict=True))

    @abstractmethod
    def agrees(self, start: int, depth: int) -> bool | None:
        """Whether token `depth` of a round started at `start` is the target's, if all before it are; None: unknown."""

    @abstractmethod
    def num_agreed(self, start: int) -> int:
        """Leading tokens of a round started at `start` that are known to be the target's."""

    @abstractmethod
    def num_placed(self, start: int, first: int, last: int) -> int:
        """Number of tokens `first` to `last` - 1 of a round started at `start` that only placed rounds show."""

    @abstractmethod
    def beside(self, start: int, depth: int) -> Beside | None:
        """Outcome of rounds that started elsewhere at token `depth` of a round started at `start`; None: unknown."""

    def num_drafted(self, start: int) -> int | None:
        """Tokens after which the drafter itself stops in a round started at `start`; None where no round started."""
        found = self._rounds.get(start)
        return None if found is None else found.num_drafted

    @property
    def says_nothing(self) -> bool:
        """Whether no round is known."""
        return not self._rounds

    def was_placed(self, start: int) -> bool:
        """Whether the round at `start` was placed there."""
        return self._rounds.get(start, _NO_ROUND).placed


class RoundsKnown(KnownTokens):
    """For a drafter whose tokens depend on where the round started: a round holds only for its own start.

    Arguments as of `KnownTokens`; tokens after the text are unknown.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        refused = ~rounds.censored(window) & (rounds.start + rounds.accepted < num_tokens)
        super().__init__(rounds, refused.tolist(), window, num_tokens)
        self._starts = rounds.start.tolist()

    def agrees(self, start: int, depth: int) -> bool | None:
        found = self._rounds.get(start, _NO_ROUND)
        if depth < found.accepted:
            return True
        return False if found.refused and depth == found.accepted else None

    def num_agreed(self, start: int) -> int:
        return self._rounds.get(start, _NO_ROUND).accepted

    def num_placed(self, start: int, first: int, last: int) -> int:
        found = self._rounds.get(start, _NO_ROUND)
        return max(min(last, found.num_known) - first, 0) if found.placed else 0

    def beside(self, start: int, depth: int) -> Beside | None:
        """See `KnownTokens`: by the round that started last before the token, or at it."""
        position = start + depth
        index = bisect_right(self._starts, position) - 1
        if index < 0 or self._starts[index] == start:
            return None
        other = self._starts[index]
        found, there = self._rounds[other], position - other
        if there < found.accepted:
            return Beside(BesideOutcome.agreed, there)
        if there == found.accepted and there + found.refused:
            return Beside(BesideOutcome.refused if found.refused else BesideOutcome.reached, there)
        # This token is unknown. Where one before it is known, its round is not a new one.
        return Beside(BesideOutcome.reached, depth) if other + found.num_known > start else None


class TokensKnown(KnownTokens):
    """For a drafter that reads tokens only: rounds hold for their positions, in any round.

    The end of a round by the drafter's own rule holds only for its own start. Where two rounds contradict each other (a
    half-precision tie), the one that started later counts. Arguments as of `KnownTokens`.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        bits = bytearray([UNKNOWN]) * (num_tokens + 1)
        placed = bytearray(num_tokens + 1)
        refused = (~rounds.censored(window)).tolist()
        super().__init__(rounds, refused, window, num_tokens)
        for start, found in self._rounds.items():
            bits[start : start + found.accepted] = bytes([AGREED]) * found.accepted
            if found.refused:
                bits[start + found.accepted] = REFUSED
            placed[start : start + found.num_known] = bytes([found.placed]) * found.num_known
        bits[num_tokens] = UNKNOWN  # unknown after the text
        placed[num_tokens:] = b"\0"
        self._bits = bytes(bits)
        self._placed = bytes(placed) if any(placed) else b""

    def agrees(self, start: int, depth: int) -> bool | None:
        position = start + depth
        bit = self._bits[position] if position < len(self._bits) else UNKNOWN
        return None if bit == UNKNOWN else bit == AGREED

    def num_agreed(self, start: int) -> int:
        bits = self._bits
        if start >= len(bits):
            return 0
        unknown, refused = bits.index(UNKNOWN, start), bits.find(REFUSED, start)
        return (unknown if refused < 0 else min(unknown, refused)) - start

    def num_placed(self, start: int, first: int, last: int) -> int:
        return sum(self._placed[start + first : start + last])

    def beside(self, start: int, depth: int) -> Beside | None:
        """See `KnownTokens`: the number of tokens before it known to be the target's, from any round."""
        bits, position = self._bits, min(start + depth, len(self._bits))
        run = position - 1 - max(bits.rfind(UNKNOWN, 0, position), bits.rfind(REFUSED, 0, position))
        return Beside(BesideOutcome.reached, run) if run > depth else None


def known_tokens(request: RoundsRequest, drafter: DrafterInfo) -> KnownTokens:
    """Recorded facts of `drafter` in `request`; none if it never ran there."""
    rounds = request.rounds.get(drafter.name)
    if rounds is None:
        return RoundsKnown(_NO_ROUNDS, None, 0)
    kind = RoundsKnown if drafter.by_start else TokensKnown
    return kind(rounds, drafter.window, request.length(drafter.name))


@dataclass(slots=True, eq=False)
class RequestRounds:
    """The state of a request's replay. Mutated by `begin`, and by charges."""

    request: RoundsRequest  # as recorded
    meta: InitVar[RoundsMeta]  # of the recording
    waits: bool = False  # whether the prefill writes the first token, before any drafter runs
    prompt: tuple[int, ...] = field(init=False)  # ids if known, else as many zeros, at least one
    trunk: list[int] = field(init=False)  # the target's tokens, to the longest of the recorded texts
    refused: int = field(init=False)  # a token that is not the target's
    # of the answer: by the drafter that ran first in it, before that by the target alone
    num_tokens: int = field(init=False)
    known: list[KnownTokens] = field(init=False)  # per drafter of the recording
    prefilled: bool = False  # whether its prefill was charged, whole
    started_s: float = 0.0  # seconds charged for a prefill before its method was known
    # whether a drafter ran without any placed round of this request in the log: all that follows is modelled
    drawn: bool = False
    # measured seconds of the verification of what is pending, None if it was not measured
    verify_s: float | None = None
    # tokens of the last draft that the end of the answer cut off, where its seconds were not measured
    num_cut: int = 0
    verified_from: int = 0  # tokens emitted before the round whose verification it is
    _begun: bool = False
    _all_drawn: set[str] = field(init=False)

    def __post_init__(self, meta: RoundsMeta) -> None:
        request = self.request
        self.prompt = request.prompt or (0,) * max(request.prompt_tokens, 1)
        longest = max(request.num_tokens.values())
        output = list(request.output)
        # Known ids are followed by numbers that are no ids, so that lookups find nothing beyond the log.
        self.trunk = [*output, *range(-longest - 1, -len(output) - 1)] if output else list(range(1, longest + 1))
        self.refused = -1 if output else 0
        self.num_tokens = request.length(TARGET_ALONE)
        self.known = [known_tokens(request, drafter) for drafter in meta.drafters]
        self._all_drawn = {info.name for info in meta.drafters if _is_drawn(request, info, meta.form)}

    def anew(self) -> Self:
        """A copy of a request that has not begun."""
        other = object.__new__(type(self))
        for name in self.__slots__:  # made for each served request, and `copy` takes many times as long
            setattr(other, name, getattr(self, name))
        return other

    def foresee(self) -> None:
        """Prepare to try rounds in any order: the text is the longest one, its prefill charged."""
        self._begun = self.prefilled = True
        self.num_tokens = len(self.trunk)

    def begin(self, drafter: str) -> None:
        """Note that a drafter runs; the first one decides where the answer ends, since its text may differ a little."""
        self.drawn = self.drawn or drafter in self._all_drawn
        if not self._begun:
            self._begun = True
            self.num_tokens = self.request.length(drafter)

    def ending(self, emitted: list[int], num_before: int) -> int | None:
        """See `decoding.request_text.Ending`.

        The loop's prefill writes a token before the method of the answer is known.
        """
        if not num_before and self.waits and not self._begun and len(self.trunk) > 1:
            return None
        return max(self.num_tokens, num_before + 1) if len(emitted) >= self.num_tokens else None


def _is_drawn(request: RoundsRequest, info: DrafterInfo, form: Form) -> bool:
    """Whether the places of all rounds of a drafter in a request were drawn."""
    rounds = request.rounds.get(info.name)
    if info.stated is not None or rounds is None:
        return info.stated is not None or form != "rounds"  # rounds in place of absent ones were drawn too
    return 0 < len(rounds.start) == int(rounds.where_placed.sum())


class UnrecordedRoundError(UnrecordedContextError):
    """Replay without a fallback reached a token of which no recorded round shows whether the target keeps it."""

    NEEDED = "a round that was not recorded; leave out `strict`"


class FreshRounds:
    """States of a recording's requests that have not begun; those that were asked for last are kept."""

    def __init__(self, trace: RoundsRecording) -> None:
        self._meta = trace.meta
        self._requests = {request.request_id: request for request in trace.requests}
        self._kept: dict[tuple[str, bool], RequestRounds] = {}
        self._num_tokens = 0  # of these

    def of(self, request_id: str, *, waits: bool) -> RequestRounds:
        """The state of a request; raises KeyError for one that the recording does not hold."""
        found = self._kept.get((request_id, waits))
        if found is None:
            found = RequestRounds(self._requests[request_id], self._meta, waits=waits)
            self._num_tokens += len(found.trunk)
            if self._num_tokens > MOST_FRESH:
                self._kept, self._num_tokens = {}, len(found.trunk)
            self._kept[request_id, waits] = found
        return found.anew()


ON_TRUNK, OFF_TRUNK = 1, 0
MOST_KEPT = 1 << 18  # drafts, some 80 MB


class RoundAnswers:
    """Answers for sessions, each of which replays a request; see `RecordedAnswers`.

    `hazard` draws what no round shows; None makes the first unknown an error.

    Attributes:
        num_free: model-free members, which come first in the pool.
        num_reanchored: per session, times replay resumed on the trunk after a Commit had left it.
    """

    def __init__(self, *, trace: RoundsRecording, fresh: FreshRounds, num_free: int, hazard: Hazard | None) -> None:
        self._trace, self._fresh = trace, fresh
        self.num_free = num_free
        self._hazard = hazard
        self._lookup = recorded_rule(trace.meta.ngram)
        self._open: dict[str, RequestRounds] = {}
        self.num_reanchored: dict[str, int] = {}
        self._fewest: dict[int, int] = {}  # by drafter, tokens after which it ever stops by itself in the log
        # results of drafts with nothing rejected before them, by request and all else that they depend on
        self._kept: dict[tuple[str, int, int, int, int, int, bool], Drafted] = {}

    def replay(self, session_id: str, request_id: str) -> Replayed:
        """See `RecordedAnswers`; the prefill writes the first token."""
        state = self._open[session_id] = self._fresh.of(request_id, waits=True)
        return started(state)

    def release(self, session_id: str) -> None:
        self._open.pop(session_id)
        self.num_reanchored.pop(session_id, None)

    def signal(self, session: Session, index: int) -> Signal:
        """Nothing: rounds hold no probabilities."""
        return NO_SIGNAL

    # -- drafting

    def drafted(self, session: Session, step: Draft, level: int) -> Drafted:
        if step.stop is not None:
            raise self._no_probabilities(step)
        state = self._open[session.request_id]
        state.begin(session.pool.names[level])
        drafter, depth, position = level - self.num_free, 0, len(session.emitted)
        asked, room = step.tokens, session.budget - position
        if session.tokens:
            depth, position, room = _run_length(session, level), position + len(session.tokens), session.room
        if asked > room:
            asked = room
        if not self._on_trunk(session):
            if depth and (depth == len(session.places) or session.places[-1 - depth] == ON_TRUNK):
                asked = self._num_drafted(state, drafter, position - depth, depth, asked)[0]
            return Drafted([state.refused] * asked, [OFF_TRUNK] * asked)
        key = (state.request.request_id, drafter, position, depth, asked, state.num_tokens, state.drawn)
        found = self._kept.get(key)
        if found is None:
            wanted, kept, num_modelled = self._draft(state, drafter, position - depth, depth, asked)
            num_modelled = max(num_modelled, wanted) if state.drawn else num_modelled
            refused = wanted - kept
            tokens = state.trunk[position : position + kept] + [state.refused] * refused
            places = [ON_TRUNK] * kept + [OFF_TRUNK] * refused
            found = made(Drafted, (tokens, places, num_modelled, None))
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def looked_up(self, session: Session, step: Draft) -> Drafted:
        """See `RecordedAnswers`; by the log's real tokens."""
        state = self._open[session.request_id]
        on_trunk = self._on_trunk(session)
        answer = [*session.emitted, *session.tokens]
        if answer and min(answer) < 0 and step.copy is None:
            # Rejected tokens, and those after the logged text, have no id: that the lookup finds nothing is modelled.
            self._need_hazard(session, "lookup", len(answer))
            return Drafted([], [], 1)
        context = [*session.prompt, *answer]
        tokens = looked_up(context, step=step, room=session.room, rule=self._lookup)
        places = []
        for token, own in zip(tokens, state.trunk[len(answer) :], strict=False):
            on_trunk = on_trunk and token == own
            places.append(ON_TRUNK if on_trunk else OFF_TRUNK)
        return Drafted(tokens, places)

    def _draft(self, state: RequestRounds, drafter: int, start: int, depth: int, asked: int) -> tuple[int, int, int]:
        """(tokens drafted, leading ones that are the target's, decisions modelled) of at most `asked` tokens.

        They are from `depth` of a round on, all before it the target's.

        Raises:
            UnrecordedRoundError: without a hazard, and no round shows it.
        """
        wanted, modelled = self._num_drafted(state, drafter, start, depth, asked)
        modelled = 0 if depth else modelled
        known, request_id = state.known[drafter], state.request.request_id
        num_agreed = known.num_agreed(start)
        # Tokens after the end of the answer are never used.
        reached = seen = last = max(min(depth + wanted, state.num_tokens - start), depth)
        if known.says_nothing and self._hazard is not None:
            reached = self._hazard.reached(request_id, drafter, start=start, depth=depth, last=last)
            return wanted, reached - depth, modelled + min(reached + 1, last) - depth
        for place in range(max(num_agreed, depth), last):
            agrees = known.agrees(start, place)
            if agrees is None:
                modelled += 1
                if self._hazard is None:
                    raise UnrecordedRoundError(request_id, start + place, "draft")
                least, beside = min(num_agreed, place), known.beside(start, place)
                agrees = self._hazard.agrees(request_id, drafter, start=start, depth=place, known=least, beside=beside)
            if not agrees:
                reached, seen = place, place + 1
                break
        placed = known.num_placed(start, depth, seen)
        if placed and self._hazard is None:
            raise UnrecordedRoundError(request_id, start + depth, "draft")
        return wanted, reached - depth, modelled + placed

    def _num_drafted(self, state: RequestRounds, drafter: int, start: int, depth: int, asked: int) -> tuple[int, int]:
        """(tokens drafted from `depth` of a round on, decisions modelled): all `asked`, unless it stops by itself."""
        stops, modelled = self._stops(state, drafter, start, depth + asked)
        return max(min(asked, stops - depth), 0), modelled

    def _stops(self, state: RequestRounds, drafter: int, start: int, asked: int) -> tuple[int, int]:
        """(tokens after which the drafter stops in a round started at `start`, decisions modelled for it)."""
        if start >= state.num_tokens:
            return WHOLE, 0
        known = state.known[drafter]
        stops = known.num_drafted(start)
        if stops is not None:
            placed = stops == 0 and known.was_placed(start)
            if placed and self._hazard is None:
                raise UnrecordedRoundError(state.request.request_id, start, "draft")
            return stops, int(placed)
        if self._hazard is None:
            if drafter not in self._fewest:
                lengths = fit_lengths(self._trace.requests, self._trace.meta.drafters[drafter])
                self._fewest[drafter] = WHOLE if lengths is None else lengths.fewest
            if asked > self._fewest[drafter]:
                raise UnrecordedRoundError(state.request.request_id, start, "draft")
            return WHOLE, 0
        stops = self._hazard.num_drafted(state.request.request_id, drafter, start=start, asked=asked)
        return (WHOLE, 0) if stops is None else (stops, 1)

    # -- judging

    def judged(self, session: Session, step: Verify, level: int) -> Judged:
        """See `RecordedAnswers`; the target keeps tokens of its own text, then writes its next token."""
        if not step.rule.lossless:
            raise self._no_probabilities(step)
        if session.place != ON_TRUNK:
            self._anchor(session)
        state, places = self._open[session.request_id], session.places
        num_judged = len(places)
        accepted = places.index(OFF_TRUNK) if OFF_TRUNK in places else num_judged
        position, trunk = len(session.emitted) + accepted, state.trunk
        own_token = trunk[position] if position < len(trunk) else state.refused  # then there is no room for it
        num_looked_at = accepted + 1 if accepted < num_judged else num_judged
        # Where rounds were drawn, so were their ends: the verification is modelled.
        num_modelled = num_looked_at + 1 if state.drawn else 0
        return made(Judged, (accepted, own_token, ON_TRUNK, (nan,) * num_looked_at, num_modelled, (), None))

    # -- where a session stands

    def _on_trunk(self, session: Session) -> bool:
        """Whether all pending tokens are the target's; a text that a Commit led off the trunk is re-anchored."""
        if session.places:
            return session.places[-1] == ON_TRUNK
        self._anchor(session)
        return True

    def _anchor(self, session: Session) -> None:
        if session.place != ON_TRUNK:
            self._need_hazard(session, "re-anchor", len(session.emitted))
            session.place = ON_TRUNK
            self.num_reanchored[session.request_id] = self.num_reanchored.get(session.request_id, 0) + 1

    def _need_hazard(self, session: Session, what: str, position: int) -> None:
        if self._hazard is None:
            raise UnrecordedRoundError(session.request_id, position, what)

    def _no_probabilities(self, step: Draft | Verify) -> ValueError:
        meta = self._trace.meta
        return ValueError(
            f"{step} needs probabilities, and recording {meta.name!r} holds none: it was imported from {meta.source}"
        )


def started(state: RequestRounds) -> Replayed:
    """The start of a request, on its trunk."""
    return Replayed(state.request.tag, state.prompt, len(state.trunk), frozenset(), state.ending, ON_TRUNK)


def _run_length(session: Session, level: int) -> int:
    """Number of last pending tokens that this drafter wrote: its round began that far back."""
    drafters = session.drafters
    count = 0
    while count < len(drafters) and drafters[-1 - count] == level:
        count += 1
    return count
