"""What if a drafter agreed with the target more often, or less: a recording with some decisions flipped.

Let r be the share of known decisions in which a drafter writes the target's token. A shift of its acceptance by d > 0
turns each rejection into an agreement with probability d / (1 - r), one by d < 0 each agreement into a rejection with
probability -d / r: the share becomes r + d, and easy text remains easier. Flips are drawn by (seed, request, drafter)
and by place: other requests do not matter, and a larger shift of the same sign flips all that a smaller one does.
Rounds of an imported recording end earlier, or are kept whole one token further.

Letters: R rounds of one drafter in one request, K known decisions of theirs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError
from .contexts.meta import TrieMeta
from .contexts.trie import LazyRequest, Trie, TrieRequest
from .rounds.rounds import OPEN_DRAFTED, UNKNOWN_DRAFTED, DrafterInfo, Rounds, RoundsMeta, RoundsRequest, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """How decisions of one drafter flip."""

    to_agreement: float  # probability that a rejection becomes an agreement, 0 to 1
    to_refusal: float  # probability that an agreement becomes a rejection, 0 to 1

    def turns(self, agrees: NDArray[np.bool_], draws: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which decisions flip, by one number from [0, 1) for each; a larger shift flips these and more."""
        return draws < np.where(agrees, self.to_refusal, self.to_agreement)


def turning(name: str, num_agreed: int, num_known: int, shift: float) -> Turning:
    """How the decisions of drafter `name` flip, of which `num_agreed` of `num_known` are agreements.

    Raises:
        ValueError: nothing known, or a share of agreement outside [0, 1].
    """
    if not num_known:
        instead = "state another acceptance by paceline trace make --acceptance"
        raise ArgumentError(
            f"`shift_acceptance` must leave out {name}: the recording holds no decision of it; {instead}"
        )
    share = num_agreed / num_known
    if not -share <= shift <= 1.0 - share:
        rule = f"must keep the acceptance of {name}, {share:.4f}, within [0, 1]"
        raise ArgumentError(f"`shift_acceptance` {rule}, got {shift:+g}")
    if shift > 0:
        return Turning(to_agreement=min(shift / (1.0 - share), 1.0), to_refusal=0.0)
    return Turning(to_agreement=0.0, to_refusal=min(-shift / share, 1.0) if shift else 0.0)


def turnings_of(
    shifts: Mapping[str, float], names: Sequence[str], counts: Callable[[str], tuple[int, int]]
) -> dict[str, Turning]:
    """How decisions flip by drafter, for changed acceptance; `counts` returns (agreements, known).

    Raises:
        ValueError: an unknown drafter, a share outside [0, 1], no decision known.
    """
    for name in shifts:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ArgumentError(f"`shift_acceptance` must name a drafter of the recording ({known}), got {name!r}")
    return {name: turning(name, *counts(name), shifts[name]) for name in names if shifts.get(name)}


def shifted_name(name: str, shifts: Mapping[str, float]) -> str:
    """The name of a recording with its shifts."""
    words = ", ".join(f"{drafter} acceptance {shift:+g}" for drafter, shift in shifts.items() if shift)
    return f"{name} ({words})" if words else name


def keyed_draws(seed: int, request_id: str, drafter: str, count: int) -> NDArray[np.float64]:
    """`count` numbers from [0, 1) that depend only on the key; fewer are the first of more."""
    return keyed_generator(f"{seed}/{drafter}/{request_id}").random(count)


def keyed_generator(key: str) -> np.random.Generator:
    """Random numbers that depend only on the key."""
    digest = blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decisions:
    """The decisions of rounds: each accepted token, and the rejection that ended the round, if any."""

    row: NDArray[np.int64]  # [K] round of each decision
    depth: NDArray[np.int64]  # [K] of the token in its round, 0 at the first drafted one
    position: NDArray[np.int64]  # [K] of the token in the output
    agrees: NDArray[np.bool_]  # [K] whether it is the target's


def shifted_rounds(
    meta: RoundsMeta, requests: Sequence[RoundsRequest], shifts: Mapping[str, float], seed: int
) -> tuple[RoundsRequest, ...]:
    """The requests with known decisions flipped; see `Recording.shifted`."""
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
            # If rounds contradict each other, the one that started last counts: it is assigned last.
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
    """Decisions of rounds of a text of `length` tokens, without the last token, whose round may have ended with it."""
    last = length - 1
    kept = np.minimum(rounds.accepted, last - rounds.start).astype(np.int64)
    known = kept + (~rounds.censored(drafter.window) & (rounds.start + rounds.accepted < last))
    row = np.repeat(np.arange(len(known)), known)
    depth = np.arange(len(row)) - np.repeat(np.cumsum(known) - known, known)
    return _Decisions(row=row, depth=depth, position=rounds.start[row] + depth, agrees=depth < kept[row])


def _turn(rounds: Rounds, known: _Decisions, turned: NDArray[np.bool_]) -> Rounds:
    """Rounds that end at their first new rejection, or are kept up to a flipped one, and perhaps farther."""
    accepted, drafted = rounds.accepted.copy(), rounds.drafted.copy()
    refused = turned & known.agrees
    np.minimum.at(accepted, known.row[refused], known.depth[refused].astype(np.int32))
    ended = known.row[refused]
    drafted[ended] = np.where(drafted[ended] == OPEN_DRAFTED, UNKNOWN_DRAFTED, drafted[ended])
    whole = known.row[turned & ~known.agrees]
    accepted[whole] += 1
    # Unknown is what a round would have kept after it; the drafter had continued.
    drafted[whole] = np.where(drafted[whole] == accepted[whole], drafted[whole], OPEN_DRAFTED)
    return replace(rounds, accepted=accepted, drafted=drafted)


def _with_rests(
    cut: Rounds, rounds: Rounds, drafter: DrafterInfo, known: _Decisions, turned: NDArray[np.bool_]
) -> Rounds:
    """The cut rounds, and rests of the old ones after a new rejection, on which a token drafter does not depend.

    Each rest is a round of its own, started after the rejection, unless a round starts there or nothing is left.
    """
    refused = turned & known.agrees
    row, start = known.row[refused], known.position[refused] + 1
    follows = np.zeros(len(row), dtype=np.bool_)
    follows[:-1] = row[1:] == row[:-1]
    ends = np.where(follows, np.roll(start, -1) - 1, rounds.start[row] + rounds.accepted[row])
    rest = ends - start
    whole = ~follows & rounds.censored(drafter.window)[row]
    # A draft from here would have had the usual length, not that of the rest.
    drafted = np.where(whole, OPEN_DRAFTED, UNKNOWN_DRAFTED)
    fits = ~(whole & (rest == 0)) & ~np.isin(start, rounds.start)
    # Of rests with the same start, the one whose round started last is kept.
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


def shifted_tries(
    meta: TrieMeta, requests: Sequence[TrieRequest], shifts: Mapping[str, float], seed: int
) -> tuple[TrieRequest, ...]:
    """The requests with decisions of the trunk flipped when their tries are read; see `Recording.shifted`."""
    # Agreements of each model on all trunks, and trunk contexts that wrote a token.
    agreed, known = np.zeros(len(meta.models), dtype=np.int64), 0
    for request in requests if any(shifts.values()) else ():
        agrees = request.trie.agreement
        agreed += np.count_nonzero(agrees, axis=1)
        known += agrees.shape[1]

    def counts(name: str) -> tuple[int, int]:
        return int(agreed[meta.model_names.index(name)]), known

    turnings = turnings_of(shifts, meta.model_names[:-1], counts)
    by_model = {meta.model_names.index(name): how for name, how in turnings.items()}
    shifted = tuple(LazyRequest.of(one, partial(_shifted_trie, meta, one, by_model, seed)) for one in requests)
    if meta.vocab_size <= 2 * len(meta.models) + len(meta.eos_token_ids):
        for request in shifted:  # raise now, not in a replay, if tokens do not suffice
            _ = request.trie
    return shifted


def _shifted_trie(meta: TrieMeta, record: TrieRequest, turnings: Mapping[int, Turning], seed: int) -> Trie:
    trie = record.trie
    nodes = trie.trunk[:-1]
    next_token = trie.next_token.copy()
    for model, how in turnings.items():
        agrees = trie.agreement[model]
        draws = keyed_draws(seed, record.request_id, meta.model_names[model], len(nodes))
        turned = how.turns(agrees, draws)
        agreeing, refused = nodes[turned & ~agrees], nodes[turned & agrees]
        next_token[model, agreeing] = next_token[-1, agreeing]
        for node in refused.tolist():
            taken = {*trie.next_token[:, node].tolist(), *next_token[:, node].tolist(), *meta.eos_token_ids}
            # No model writes the first token that is not taken, so no context after it is recorded.
            free = next((token for token in range(meta.vocab_size) if token not in taken), None)
            if free is None:
                raise ValueError(f"vocab_size must leave a token that no model writes, got {meta.vocab_size}")
            next_token[model, node] = free
    return replace(trie, next_token=next_token, ranks=None)
