"""Imported recordings with some decisions turned over: rounds that end earlier, or are kept whole one token further.

Letters: R rounds of one drafter in one request, K known decisions of theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..shifted_decisions import Turning, keyed_draws, turnings_of
from .meta import DrafterInfo, RoundsMeta
from .rounds import OPEN_DRAFTED, UNKNOWN_DRAFTED, Rounds, RoundsRequest, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decisions:
    """What rounds know, decision by decision: each token kept, and the refusal that ended the round if one did.

    Attributes:
        row: `[K]` round of each decision.
        depth: `[K]` of the token in its round, 0 at the first drafted one.
        position: `[K]` of the token in the output.
        agrees: `[K]` whether it is the target's.
    """

    row: NDArray[np.int64]
    depth: NDArray[np.int64]
    position: NDArray[np.int64]
    agrees: NDArray[np.bool_]


def shifted_requests(
    meta: RoundsMeta, requests: Sequence[RoundsRequest], shifts: Mapping[str, float], seed: int
) -> tuple[RoundsRequest, ...]:
    """The requests with known decisions turned over; see `Recording.shifted`."""
    drafters = {drafter.name: drafter for drafter in meta.drafters}

    def counts(name: str) -> tuple[int, int]:
        num_agreed, num_known = np.sum([(0, 0), *_counts(requests, drafters[name])], axis=0).tolist()
        return num_agreed, num_known

    turnings = turnings_of(shifts, meta.drafter_names, counts)
    shifted = [(drafters[name], how) for name, how in turnings.items()]
    return tuple(_shift_request(request, shifted, seed) for request in requests)


def _counts(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> Iterator[tuple[int, int]]:
    """Agreements and decisions of each request; a token drafter decides once per position."""
    for request in requests:
        if drafter.name not in request.rounds:
            continue
        length = request.length(drafter.name)
        known = _decisions(request.rounds[drafter.name], drafter, length)
        agrees = known.agrees
        if not drafter.by_start:
            # Of rounds that contradict each other the one that started later is believed: the last to be assigned.
            bits = np.full(length, -1, np.int8)
            bits[known.position] = agrees
            agrees = bits[bits >= 0] == 1
        yield int(agrees.sum()), len(agrees)


def _shift_request(request: RoundsRequest, turnings: Sequence[tuple[DrafterInfo, Turning]], seed: int) -> RoundsRequest:
    shifted = dict(request.rounds)
    for drafter, how in turnings:
        if drafter.name not in shifted:
            continue
        length = request.length(drafter.name)
        rounds = shifted[drafter.name]
        known = _decisions(rounds, drafter, length)
        if drafter.by_start:
            draws = keyed_draws(seed, request.request_id, drafter.name, len(known.row))
        else:
            draws = keyed_draws(seed, request.request_id, drafter.name, length)[known.position]
        turned = how.turns(known.agrees, draws)
        cut = _turn(rounds, known, turned)
        shifted[drafter.name] = cut if drafter.by_start else _with_rests(cut, rounds, drafter, known, turned)
    return replace(request, rounds=shifted)


def _decisions(rounds: Rounds, drafter: DrafterInfo, length: int) -> _Decisions:
    """What rounds of a text of `length` tokens know; the last token is left out, its round may have ended with it."""
    last = length - 1
    kept = np.minimum(rounds.accepted, last - rounds.start).astype(np.int64)
    known = kept + (~rounds.censored(drafter.window) & (rounds.start + rounds.accepted < last))
    row = np.repeat(np.arange(len(known)), known)
    depth = np.arange(len(row)) - np.repeat(np.cumsum(known) - known, known)
    return _Decisions(row=row, depth=depth, position=rounds.start[row] + depth, agrees=depth < kept[row])


def _turn(rounds: Rounds, known: _Decisions, turned: NDArray[np.bool_]) -> Rounds:
    """Rounds that end at their first new refusal, or are kept up to a refusal that turned over, and perhaps farther."""
    accepted, drafted = rounds.accepted.copy(), rounds.drafted.copy()
    refused = turned & known.agrees
    np.minimum.at(accepted, known.row[refused], known.depth[refused].astype(np.int32))
    ended = known.row[refused]
    drafted[ended] = np.where(drafted[ended] == OPEN_DRAFTED, UNKNOWN_DRAFTED, drafted[ended])
    whole = known.row[turned & ~known.agrees]
    accepted[whole] += 1
    # Nothing is known of what a round would have kept after it, but that the drafter went on.
    drafted[whole] = np.where(drafted[whole] == accepted[whole], drafted[whole], OPEN_DRAFTED)
    return replace(rounds, accepted=accepted, drafted=drafted)


def _with_rests(
    cut: Rounds, rounds: Rounds, drafter: DrafterInfo, known: _Decisions, turned: NDArray[np.bool_]
) -> Rounds:
    """The cut rounds, and what the old ones said after a new refusal: a token drafter's tokens answer for themselves.

    Each rest is a round of its own, started after the refusal, unless a round starts there or nothing is left.
    """
    refused = turned & known.agrees
    row, start = known.row[refused], known.position[refused] + 1
    follows = np.zeros(len(row), dtype=np.bool_)
    follows[:-1] = row[1:] == row[:-1]
    ends = np.where(follows, np.roll(start, -1) - 1, rounds.start[row] + rounds.accepted[row])
    rest = ends - start
    whole = ~follows & rounds.censored(drafter.window)[row]
    # A draft from here would have been as long as any other: how much of the old one is left says nothing of it.
    drafted = np.where(whole, OPEN_DRAFTED, UNKNOWN_DRAFTED)
    fits = ~(whole & (rest == 0)) & ~np.isin(start, rounds.start)
    # Of rests that start alike, the one whose round started last is believed.
    kept = np.flatnonzero(fits)[::-1]
    kept = kept[np.unique(start[kept], return_index=True)[1]]
    rests = Rounds(
        start=start[kept].astype(np.int32),
        accepted=rest[kept].astype(np.int32),
        drafted=drafted[kept].astype(np.int32),
        placed=None if rounds.placed is None else rounds.placed[row[kept]],
    )
    both = joined((cut, rests))
    return both.at(np.argsort(both.start, kind="stable"))
