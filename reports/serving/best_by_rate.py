"""Which policy is best at each rate of arrivals, where that changes, and what chance leaves open; in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ..interval import mean_interval
from .over_seeds import SeedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What policies are compared by.

    Attributes:
        figure: by its flat name.
        words: what it is called.
        most: whether more of it is better.
    """

    figure: str
    words: str
    most: bool


# By the share of requests, all of which are the same for all policies: over the whole of a run, its rate would also say
# how quickly the last ones drained.
GOODPUT = Aim(figure="slo_share", words="most goodput", most=True)
IN_SYSTEM = Aim(figure="in_system_s", words="least time in the system", most=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best policy at a rate.

    Attributes:
        rate: arrivals per second; None: the workload's own.
        policy: of the best mean; the first of equal ones.
        tied: others as good as it, for all that is known: equal, or with 0 in the 95% interval of the difference of
            the same seeds, which all met the same requests.
        same: those of them whose figure is the very same at every seed.
        aim: what it is best at.
    """

    rate: float | None
    policy: str
    tied: tuple[str, ...]
    same: tuple[str, ...] = ()
    aim: Aim = IN_SYSTEM


def best_at(rate: float | None, rows: Sequence[SeedRow], aim: Aim) -> Best | None:
    """The best of the policies that were run at a rate; None where a figure of one is not known.

    Where all kept the same promises at every seed, goodput tells none of them apart: the time in the system does.
    """
    means = [row.mean(aim.figure) for row in rows]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(rows):
        return None
    best = rows[known.index(max(known) if aim.most else min(known))]
    others = [row for row in rows if row is not best]
    apart = [(row.about.policy, _differences(best, row, aim.figure)) for row in others]
    if aim is GOODPUT and others and not any(any(differences) for _, differences in apart):
        return best_at(rate, rows, IN_SYSTEM)
    return Best(
        rate=rate,
        aim=aim,
        policy=best.about.policy,
        tied=tuple(policy for policy, differences in apart if _hold_zero(differences)),
        same=tuple(policy for policy, differences in apart if not any(differences)),
    )


def in_words(found: Sequence[Best], aim: Aim) -> list[str]:
    """Who is best where, each change of it, and what is not told apart; rates rise."""
    if not found:
        return []
    lines = []
    for by, of_aim in groupby(found, key=lambda best: best.aim):
        parts = []
        for policy, same in groupby(of_aim, key=lambda best: best.policy):
            rates = [best.rate for best in same]
            parts.append(f"{policy} {_span(rates)}")
        tied = "" if by is aim else f"{aim.words}: a tie, all met as many promises; "
        lines.append(f"{tied}{by.words}: {'; '.join(parts)}")
    for low, high in pairwise(found):
        if low.policy != high.policy and low.aim is high.aim:
            lines.append(
                f"between {_rate(low.rate)} and {_rate(high.rate)} the best policy changes from {low.policy} to "
                f"{high.policy}"
            )
    for best in found:
        if best.same:
            lines.append(f"{_span([best.rate])} {_list(best.same, 'and')} did exactly as well as {best.policy}")
        if open_to := [policy for policy in best.tied if policy not in best.same]:
            lines.append(
                f"{_span([best.rate])} chance leaves open whether {best.policy} is better than {_list(open_to, 'or')}"
            )
    return lines


def to_json(found: Sequence[Best]) -> list[Mapping[str, object]]:
    """A row for each rate."""
    return [
        {"rate": best.rate, "by": best.aim.figure, "policy": best.policy, "tied": list(best.tied)} for best in found
    ]


def _differences(best: SeedRow, other: SeedRow, figure: str) -> list[float]:
    """Of the same seeds; a run that chance has no part in stands for every seed."""
    ours, theirs = _by_seed(best, figure), _by_seed(other, figure)
    seeds = sorted({*ours, *theirs})
    only = [next(iter(values.values())) if len(values) == 1 else None for values in (ours, theirs)]
    return [
        (ours[seed] if only[0] is None else only[0]) - (theirs[seed] if only[1] is None else only[1]) for seed in seeds
    ]


def _hold_zero(differences: Sequence[float]) -> bool:
    """Whether they may be none at all: of one seed, what it says; of several, for all that their interval says."""
    if len(differences) == 1:
        return not differences[0]
    low, high = mean_interval(differences).bounds
    return low <= 0 <= high


def _by_seed(row: SeedRow, figure: str) -> dict[int, float]:
    return {run.meta.about.seed: run.flat[figure] for run in row.runs}


def _span(rates: Sequence[float | None]) -> str:
    if rates[0] is None:
        return "at the workload's own rate"
    return f"at {_rate(rates[0])}" if len(rates) == 1 else f"from {rates[0]:g} to {_rate(rates[-1])}"


def _rate(rate: float | None) -> str:
    return "the workload's own rate" if rate is None else f"{rate:g} arrivals/s"


def _list(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
