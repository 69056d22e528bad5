"""Explains a gain: what speculation could give at no cost, and what is lost, in terms that add up.

Letters: T tokens of rounds, C forwards of the target, one for each request in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..decoding.results import VERIFY
from ..runs.log import RunLog
from .tables import Grid, table

# Losses in words, in the order of subtraction.
LOSSES = {
    "acceptance": "what is drafted is refused",
    "drafting": "the members below the target take time",
    "width": "the target takes longer for several tokens than for one",
    "batch": "the target's steps have other rows in them than alone",
    "rest": "deciding and waiting",
}
UNKNOWN = "not known where token trees are drafted, or no round is run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentInRounds:
    """Counts of a run's rounds, and where their seconds went."""

    in_rounds: int  # T, tokens without the one of each request that a prefill gives
    calls: int  # C, without those that read a prompt
    judged: int  # drafted tokens that the target judged
    accepted: int  # how many of them were accepted
    target_s: float  # of the target's forwards, except those that read prompts
    below_s: float  # of all other members

    def perfect_s(self, each_s: float) -> float:
        """Seconds of the target if all that it judged is kept, and what lossy policies commit, at `each_s` a call."""
        committed = self.in_rounds - self.accepted - self.calls
        return each_s * self.in_rounds / (1 + (self.judged + committed) / self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent(SpentInRounds):
    """Counts of a run and where its seconds went."""

    tokens: int  # emitted
    duration_s: float  # of the run
    prompts_s: float  # of the target's forwards that read prompts
    # Forwards of the target that read no prompt, by requests in them: how many, mean tokens held, and mean seconds.
    by_rows: Mapping[int, tuple[int, float, float]]
    held_s: float  # seconds of a further token held, among forwards of as many requests

    @classmethod
    def of(cls, log: RunLog) -> Self:
        """Of a run."""
        steps, ops, target = log.steps, log.ops, len(log.meta["members"]) - 1
        by_target = (steps["kind"] == VERIFY) & (steps["level"] == target)
        rounds = by_target & (steps["prefill"] == 0)
        reading = np.zeros(len(ops["kind"]), dtype=bool)
        reading[steps["op"][by_target & (steps["prefill"] == 1)]] = True
        at_target = ops["level"] == target
        seconds = ops["duration_s"].astype(np.float64)
        rows = np.bincount(steps["op"][rounds], minlength=len(seconds))  # that are judged
        read, judged = at_target & reading, at_target & ~reading
        # A request that is judged while others read takes what those take that are judged alone.
        row_s = seconds[judged].sum() / max(1, rows[judged].sum())
        beside_s = np.minimum(rows[read] * row_s, seconds[read]).sum()
        text = log.requests["prompt_tokens"][steps["request"]] + sums_before(steps["request"], steps["emitted"])
        held = np.bincount(steps["op"][rounds], text[rounds] - 1, len(seconds))
        by_rows, held_s = _by_rows(rows[judged], held[judged], seconds[judged])
        return cls(
            tokens=int(steps["emitted"].sum()),
            in_rounds=int(steps["emitted"][steps["prefill"] == 0].sum()),
            calls=int(rounds.sum()),
            judged=int(steps["judged"][rounds].sum()),
            accepted=int(steps["accepted"][rounds].sum()),
            duration_s=float(log.requests["finished_at_s"].max() - log.requests["arrived_at_s"].min()),
            prompts_s=float(seconds[read].sum() - beside_s),
            target_s=float(seconds[judged].sum() + beside_s),
            below_s=float(seconds[~at_target].sum()),
            by_rows=by_rows,
            held_s=held_s,
        )

    def narrow_s(self, alone: Self) -> float:
        """Of `target_s`, what is left if a forward took what one of the target alone did with as many requests.

        Their seconds are a line in the tokens held. By requests they are linear between counts that `alone` has, and
        beyond these rise as from its least count to its most, or not at all if it has one.
        """
        count, own_rows, own_held, own_s = _columns(self)
        _, rows, held, taken_s = _columns(alone)
        bare_s = taken_s - alone.held_s * held
        slope_s = (bare_s[-1] - bare_s[0]) / max(1, rows[-1] - rows[0])
        narrow_s = np.interp(own_rows, rows, bare_s - slope_s * rows) + slope_s * own_rows + alone.held_s * own_held
        return self.target_s * float(count @ narrow_s) / float(count @ own_s)


def _columns(spent: Spent) -> NDArray[np.float64]:
    """`[4, R]` forwards, requests in each, mean tokens held, mean seconds."""
    rows = [(count, rows, held, taken_s) for rows, (count, held, taken_s) in sorted(spent.by_rows.items())]
    return np.array(rows, dtype=np.float64).T


def _by_rows(
    rows: NDArray[np.int64], held: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[dict[int, tuple[int, float, float]], float]:
    """As of `Spent`, from `[N]` forwards."""
    known, place, count = np.unique(rows, return_inverse=True, return_counts=True)
    mean_held, mean_s = (np.bincount(place, each) / count for each in (held, seconds))
    more_held, longer_s = held - mean_held[place], seconds - mean_s[place]
    varies = float(more_held @ more_held)
    by_rows = zip(known.tolist(), zip(count.tolist(), mean_held.tolist(), mean_s.tolist(), strict=True), strict=True)
    return dict(by_rows), float(more_held @ longer_s) / varies if varies else 0.0


def sums_before(groups: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row the sum of earlier values of the same group."""
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(values[order]) - values[order]
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sums -= np.repeat(sums[starts], np.diff(np.append(starts, len(order))))
    found = np.empty_like(sums)
    found[order] = sums
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """The speed-up of perfect acceptance at no cost, and its losses: `perfect` less all losses is `speed_up`."""

    perfect: float
    losses: Mapping[str, float]  # by name, in the order of subtraction; below 0 for a gain
    speed_up: float
    # the acceptance length at which the speed-up is 1, if a round takes what it took here; None: not known
    pays_from: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md)."""
        pays = {} if self.pays_from is None else {"pays_from": self.pays_from}
        return {"perfect": self.perfect, "lost_to": dict(self.losses), "speed_up": self.speed_up} | pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Where the gain of each policy goes; None if it drafts token trees, or runs no round."""

    policies: Mapping[str, Waterfall | None]

    def to_json(self) -> list[dict[str, Any]]:
        """The documented form (docs/compare.md): one object per policy."""
        return [
            {"policy": policy, **({} if found is None else found.to_json())} for policy, found in self.policies.items()
        ]


def waterfall_of(run: Spent, alone: Spent) -> Waterfall | None:
    """Where the gain of a run over the target alone goes; None if no round was run, or all answers end at once.

    A run is priced six times, and the decrease of the speed-up at a price is the loss by what it adds:

    - perfect: all that the target judged is kept, and what lossy policies commit without it, so it is called T / (1 +
      (judged + committed) / C) times, each for what a token of the target alone took, and nothing else takes any time
      but reading prompts.
    - acceptance: it is called as often as it was.
    - drafting: the members below take what they took.
    - width: it takes longer by what its forwards took more than those of the target alone with as many requests.
    - batch: it takes what it took.
    - rest: everything the run took: deciding and waiting. If members ran at the same time it can be a gain.
    """
    if not (run.by_rows and alone.by_rows):
        return None
    each_s = alone.target_s / alone.calls
    perfect_s = run.prompts_s + run.perfect_s(each_s)
    called_s = run.prompts_s + each_s * run.calls
    drafted_s = called_s + run.below_s
    wide_s = drafted_s + run.target_s - run.narrow_s(alone)
    busy_s = run.prompts_s + run.target_s + run.below_s
    alone_rate = alone.tokens / alone.duration_s
    prices_s = (perfect_s, called_s, drafted_s, wide_s, busy_s, run.duration_s)
    speed_ups = [run.tokens / seconds / alone_rate for seconds in prices_s]
    found = waterfall(speed_ups, LOSSES)
    # T tokens in T / length rounds take, after the prompts, what the target alone takes for as many tokens.
    left_s, round_s = run.tokens / alone_rate - run.prompts_s, (run.duration_s - run.prompts_s) / run.calls
    return replace(found, pays_from=run.in_rounds * round_s / left_s) if left_s > 0 else found


def waterfall(speed_ups: Sequence[float], losses: Mapping[str, str]) -> Waterfall:
    """From the speed-ups at each price, the perfect one first, one more than there are `losses`."""
    lost = dict(zip(losses, (before - after for before, after in pairwise(speed_ups)), strict=True))
    return Waterfall(perfect=speed_ups[0], losses=lost, speed_up=speed_ups[-1])


def why_table(why: Why, losses: Mapping[str, str] = LOSSES, *, named: str = "policy", unknown: str = UNKNOWN) -> Grid:
    """A row per policy: the gain of perfect acceptance at no cost, its losses, and what is left.

    `losses` are in words, `named` is the heading of row names, `unknown` the remark on rows without figures.
    """
    remarks = ["perfect: all that is drafted stays, drafts are free, and a verification takes as long as a plain step"]
    remarks += [f"{loss}: {words}" for loss, words in losses.items()]
    if any(found is not None and found.pays_from is not None for found in why.policies.values()):
        remarks.append("pays from: the accept. length at which the speed-up is 1, if a round takes what it took here")
    if any(found is None for found in why.policies.values()):
        remarks.append(f"-: {unknown}")
    return table(
        [_cells(named, policy, losses, found) for policy, found in why.policies.items()],
        texts=(named,),
        title="where the gain goes, at the first seed",
        remarks=remarks,
    )


def _cells(named: str, policy: str, losses: Mapping[str, str], found: Waterfall | None) -> dict[str, str]:
    if found is None:
        return {named: policy, **dict.fromkeys(("perfect", *losses, "speed-up"), "-")}
    lost = {loss: f"{0.0 - round(lost, 2):+.2f}" for loss, lost in found.losses.items()}
    pays = {} if found.pays_from is None else {"pays from": f"{found.pays_from:.2f}"}
    return {named: policy, "perfect": f"{found.perfect:.2f}x", **lost, "speed-up": f"{found.speed_up:.2f}x", **pays}
