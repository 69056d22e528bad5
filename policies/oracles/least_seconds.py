"""The cheapest way through an answer: dynamic programming over trunk positions and caches.

A state is a position and how many tokens of it each member's cache lacks; an action is a round, and its seconds are
those of the round with warm caches plus what the catch-up of its members adds. So prefill, catch-up and the end of the
answer are all inside, and the seconds are those of a run at batch 1.

The states are too many to visit. A* (Hart, Nilsson & Raphael 1968) visits few: it takes first what is cheapest by the
seconds spent plus a bound from below on those to come, and the first end it reaches is the optimum. The bound is the
dynamic programming over positions alone, in which catching up is free but the first forward ever of a member is not.

Letters: N tokens of the answer, K members whose first forward the bound charges.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .attempt import Feed, Round
from .foresight import Foresight

# Members whose first forward the bound charges, smallest first; it doubles with each.
MOST_CHARGED = 4
# In place of inf where numbers are multiplied by zero; more than any run takes.
MOST_SECONDS = 1e15

State = tuple[int, tuple[int, ...]]  # position, and by level how many tokens its cache lacks


class Plan(NamedTuple):
    """What to do in one request.

    Attributes:
        rounds: by position, for those that the plan comes to.
        seconds: of all of them at batch 1.
    """

    rounds: dict[int, Round]
    seconds: float


class Seconds:
    """Seconds of forwards of one request, and what catching up adds to them."""

    def __init__(self, foresight: Foresight) -> None:
        self._forward_s = foresight.forward_s
        self._least: dict[tuple[int, int], list[float]] = {}

    def late_s(self, feed: Feed, missing: int) -> float:
        """What a forward costs more if its cache lacks `missing` tokens more."""
        level, new_tokens, held_tokens, _ = feed
        late = self._forward_s(level, new_tokens + missing, held_tokens - missing)
        return late - self._forward_s(level, new_tokens, held_tokens)

    def early_s(self, feed: Feed) -> float:
        """What a forward costs less, at most, whatever its cache lacks: measured seconds may fall with new tokens."""
        level, new_tokens, held_tokens, _ = feed
        whole = new_tokens + held_tokens
        least = self._least.get((level, whole))
        if least is None:
            least = [inf] * (whole + 2)
            for new in range(whole, 0, -1):
                least[new] = min(least[new + 1], self._forward_s(level, new, whole - new))
            self._least[level, whole] = least
        return self._forward_s(level, new_tokens, held_tokens) - least[new_tokens]


def least_seconds(foresight: Foresight, request_id: str, rounds: Sequence[Sequence[Round]]) -> Plan:
    """The rounds of least total seconds from the first token of an answer to its end.

    Args:
        foresight: of the request.
        request_id: the request.
        rounds: `[N]` by position what may be done there, at least one each.

    Raises:
        ValueError: there is no way whose seconds are all known.
    """
    seconds = Seconds(foresight)
    rounds = [_distinct(offered) for offered in rounds]
    num_prompt = foresight.num_prompt(request_id)
    bound = Bound(rounds, num_prompt, seconds)
    levels = 1 + max((feed.level for offered in rounds for choice in offered for feed in choice.feeds), default=0)
    start: State = (0, (num_prompt - 1,) * levels)
    spent: dict[State, float] = {start: 0.0}
    came: dict[State, tuple[State, Round]] = {}
    queue = [(bound.seconds(start), start)]
    visited: set[State] = set()
    while queue:
        _, state = heappop(queue)
        if state[0] >= len(rounds):
            return Plan(_path(came, state), spent[state])
        if state in visited:
            continue
        visited.add(state)
        for choice in rounds[state[0]]:
            after, round_s = _after_round(state, choice, seconds, len(rounds))
            total_s = spent[state] + round_s
            if total_s < spent.get(after, inf):
                spent[after] = total_s
                came[after] = (state, choice)
                heappush(queue, (total_s + bound.seconds(after), after))
    raise ValueError(f"request {request_id}: the cost does not know the seconds of any way through the answer")


class Bound:
    """The fewest seconds that can be left, by position and by which members have never run.

    Args:
        rounds: `[N]` by position what may be done there.
        num_prompt: tokens of the prompt.
        seconds: of forwards.
    """

    def __init__(self, rounds: Sequence[Sequence[Round]], num_prompt: int, seconds: Seconds) -> None:
        self._num_prompt = num_prompt
        charged = sorted({feed.level for offered in rounds for choice in offered for feed in choice.feeds})
        self._bits = {level: 1 << index for index, level in enumerate(charged[:MOST_CHARGED])}
        masks = 1 << len(self._bits)
        missing = [[not mask & bit for bit in self._bits.values()] for mask in range(masks)]
        self._missing = np.array(missing, dtype=np.float64).reshape(masks, len(self._bits)).T
        table = np.zeros((len(rounds) + 1, masks))
        for position in range(len(rounds) - 1, -1, -1):
            table[position] = self._least(rounds[position], position, table, seconds)
        self._table: list[list[float]] = table.tolist()

    def seconds(self, state: State) -> float:
        """Of all that may follow `state`, the least."""
        position, lacking = state
        if position >= len(self._table) - 1:
            return 0.0
        empty = self._num_prompt - 1 + position
        return self._table[position][sum([bit for level, bit in self._bits.items() if lacking[level] != empty])]

    def _least(
        self, offered: Sequence[Round], position: int, table: NDArray[np.float64], seconds: Seconds
    ) -> NDArray[np.float64]:
        """`[2^K]` the fewest seconds from a position on, by which of the K charged members have run."""
        priced = [self._priced(choice, seconds) for choice in offered]
        least_s = np.array([least for least, _, _ in priced])
        first_s = np.array([first for _, _, first in priced]).reshape(len(priced), len(self._bits))
        runs = np.array([bits for _, bits, _ in priced])
        after = np.minimum([position + choice.num_emitted for choice in offered], len(table) - 1)
        have_run = np.arange(table.shape[1]) | runs[:, None]
        ahead_s = table[after[:, None], have_run]
        best: NDArray[np.float64] = (least_s[:, None] + first_s @ self._missing + ahead_s).min(axis=0)
        return best

    def _priced(self, choice: Round, seconds: Seconds) -> tuple[float, int, list[float]]:
        """(least seconds, members that run as bits, per charged member what its first forward ever adds)."""
        least_s, runs = choice.warm_s, 0
        firsts = dict.fromkeys(self._bits, 0.0)
        for feed in choice.feeds:
            early_s = seconds.early_s(feed)
            least_s -= early_s
            if feed.level in firsts:
                runs |= self._bits[feed.level]
                firsts[feed.level] = min(seconds.late_s(feed, feed.held_tokens) + early_s, MOST_SECONDS)
        return least_s, runs, list(firsts.values())


def _after_round(state: State, choice: Round, seconds: Seconds, num_tokens: int) -> tuple[State, float]:
    """The state after a round, and the round's seconds in `state`. All ends are one state."""
    position, lacking = state
    after = [missing + choice.num_emitted for missing in lacking]
    round_s = choice.warm_s
    for feed in choice.feeds:
        if lacking[feed.level]:
            round_s += seconds.late_s(feed, lacking[feed.level])
        after[feed.level] = feed.lacking
    position += choice.num_emitted
    return (position, tuple(after)) if position < num_tokens else (num_tokens, ()), round_s


def _distinct(offered: Sequence[Round]) -> list[Round]:
    """Of rounds that feed the same and end alike the cheapest, the first among equals."""
    best: dict[tuple[int, frozenset[Feed]], Round] = {}
    for choice in offered:
        key = (choice.num_emitted, frozenset(choice.feeds))
        if key not in best or choice.warm_s < best[key].warm_s:
            best[key] = choice
    return list(best.values())


def _path(came: dict[State, tuple[State, Round]], state: State) -> dict[int, Round]:
    rounds: dict[int, Round] = {}
    while state in came:
        state, choice = came[state]
        rounds[state[0]] = choice
    return rounds
