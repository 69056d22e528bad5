"""What each level of a deep chain keeps and drops: early rejection, and the calls of the target that it saves.

A token is *rejected early* when a member between the drafter and the target rejects it, so that the target never sees
it (SpecRouter, arXiv:2505.07680, leaves open how much of the rejection happens where). Everything a verification drops
counts: the rejected token and those after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from paceline.decoding.results import VERIFY
from paceline.reports.panels import Panel, by_category
from paceline.runs.log import RunLog
from paceline.sim.simulate import Scenario

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import (
    ALL,
    TARGET_ALONE,
    calls_per_token,
    chain,
    drafters_of,
    recording_of,
    replayed,
    scenario_of,
    speed_up_of,
    steps_of,
    tags_of,
)

# Windows of the handovers, the last one before the target. The deepest add up to the shipped recording's reach, 16.
WINDOWS = {2: (3, 6), 3: (3, 5, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCounts:
    """Counts of one level's judged tokens."""

    judged: int  # tokens it judged
    accepted: int  # how many of those were accepted

    @property
    def dropped(self) -> int:
        """The rejected token in each verification, and those after it."""
        return self.judged - self.accepted

    @property
    def kept_share(self) -> float:
        """Accepted of judged, 0 to 1; 0 if it judged none."""
        return self.accepted / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One chain, run over the recording."""

    members: tuple[str, ...]  # of the chain, smallest first
    name: str  # in the notation of chains
    log: RunLog  # of the run
    speed_up: float  # over the target alone

    @property
    def judges(self) -> tuple[str, ...]:
        """All members but the drafter."""
        return self.members[1:]

    def judged(self, member: str, tag: str = ALL) -> LevelCounts:
        """The counts of `member` in requests of `tag`."""
        steps = self.log.steps
        chosen = self._verifies(member) & steps_of(self.log, tag)
        return LevelCounts(judged=int(steps["judged"][chosen].sum()), accepted=int(steps["accepted"][chosen].sum()))

    def early_share(self, tag: str = ALL) -> float:
        """Share of all dropped tokens that members in between dropped; 0 to 1."""
        between = sum(self.judged(member, tag).dropped for member in self.members[1:-1])
        everywhere = between + self.judged(self.members[-1], tag).dropped
        return between / everywhere if everywhere else 0.0

    def calls_per_token(self, tag: str = ALL) -> float:
        """Forwards of the target per token committed."""
        return calls_per_token(self.log, tag)

    def _verifies(self, member: str) -> NDArray[np.bool_]:
        level = self.log.meta["members"].index(member)
        found: NDArray[np.bool_] = (self.log.steps["kind"] == VERIFY) & (self.log.steps["level"] == level)
        return found


def run(setting: ExperimentSetting) -> Finding:
    """Replay every chain of three and four levels, and the two-level chains they deepen."""
    trace = recording_of(setting)
    scenario = scenario_of(setting, trace)
    chains = _chains(scenario)
    if not chains:
        names = ", ".join(scenario.tables.pool.names)
        raise ValueError(f"recording {trace.meta.name}: models must be three or more, got {names}")
    plain = replayed(scenario, TARGET_ALONE)

    def ran(members: tuple[str, ...], windows: Sequence[int]) -> Ran:
        name = chain(members, windows)
        log = replayed(scenario, name)
        return Ran(members=members, name=name, log=log, speed_up=speed_up_of(log, plain))

    deep = [ran(members, WINDOWS[len(members) - 1]) for members in chains]
    # The same drafter and the same last window without the members between.
    shallow = {one.name: ran((one.members[0], one.members[-1]), WINDOWS[len(one.members) - 1][-1:]) for one in deep}
    tags = tags_of(trace)
    return Finding(
        question="Where in a chain of three or four levels are tokens rejected, and what does that save the target?",
        tables=(
            table(
                "tokens by the level that judged them", [_level(one, member) for one in deep for member in one.judges]
            ),
            table("calls of the target, and how many are saved", [_calls(one, shallow[one.name]) for one in deep]),
            table("by tag; saved against the target alone", [row for one in deep for row in _by_tag(one, tags)]),
        ),
        panels=_panels(deep, tags),
        answer=_answer(deep, shallow, tags),
    )


def _chains(scenario: Scenario) -> list[tuple[str, ...]]:
    """All of three levels, then all of four; model-free drafters come first, as in pools."""
    below, pool = drafters_of(scenario), scenario.tables.pool
    verifying = [member.name for member in pool.members if member.verifies]
    pairs = [(a, b, pool.target) for a, b in combinations(below, 2) if b in verifying]
    longer = [(a, *rest) for rest in pairs for a in below[: below.index(rest[0])] if rest[0] in verifying]
    return [*pairs, *longer]


def _level(one: Ran, member: str) -> list[Cell]:
    found = one.judged(member)
    early = found.dropped / int(one.log.steps["drafted"].sum()) * 100 if member != one.members[-1] else None
    return [
        table_cell("chain", one.name if member == one.judges[0] else ""),
        table_cell("judge", member),
        table_cell("judged", found.judged),
        table_cell("accepted", found.accepted),
        table_cell("acceptance", found.kept_share * 100, "%", 1),
        table_cell("dropped", found.dropped),
        table_cell("dropped early, of all drafted", early, "%", 1),
    ]


def _calls(one: Ran, two: Ran) -> list[Cell]:
    calls = one.calls_per_token()
    return [
        table_cell("chain", one.name),
        table_cell("rejected early", one.early_share() * 100, "%", 1),
        table_cell("calls per token", calls, digits=3),
        table_cell("saved against the target alone", (1 - calls) * 100, "%", 1),
        table_cell("saved against two levels", (1 - calls / two.calls_per_token()) * 100, "%", 1),
        table_cell("the two levels", two.name),
        table_cell("speed-up", one.speed_up, "x", 2),
        table_cell("speed-up of two levels", two.speed_up, "x", 2),
    ]


def _by_tag(one: Ran, tags: Sequence[str]) -> Iterator[list[Cell]]:
    early, saved = "rejected early, %", "target calls saved, %"
    yield [
        table_cell("chain", one.name),
        table_cell("figure", early),
        *(table_cell(t, one.early_share(t) * 100, digits=1) for t in tags),
    ]
    calls = (table_cell(tag, (1 - one.calls_per_token(tag)) * 100, digits=1) for tag in tags)
    yield [table_cell("chain", ""), table_cell("figure", saved), *calls]


def _panels(deep: Sequence[Ran], tags: Sequence[str]) -> tuple[Panel, ...]:
    of_depth = {
        words: [one for one in deep if len(one.members) == depth]
        for depth, words in ((3, "three levels"), (4, "four levels"))
    }

    def panels(title: str, y_label: str, read: Callable[[Ran, str], float], *, most_bars: int = 0) -> Iterator[Panel]:
        """One for each depth, with bars if there are no more chains than that."""
        for depth, chains in of_depth.items():
            if chains:
                y = {one.name: [read(one, tag) for tag in tags] for one in chains}
                kind: Literal["bar", "scatter"] = "bar" if len(chains) <= most_bars else "scatter"
                yield by_category(f"{title}, {depth}", y_label, tags, y, kind=kind)

    return (
        *panels("dropped early", "% of all dropped tokens", lambda one, tag: one.early_share(tag) * 100, most_bars=3),
        *panels("calls of the target", "calls per token", Ran.calls_per_token),
    )


def _answer(deep: Sequence[Ran], shallow: dict[str, Ran], tags: Sequence[str]) -> str:
    most = max(deep, key=Ran.early_share)
    fewest = min(deep, key=Ran.calls_per_token)
    pays = [one for one in deep if one.speed_up > shallow[one.name].speed_up]
    fastest = max(deep, key=lambda one: one.speed_up)
    by_tag = {tag: fastest.early_share(tag) for tag in tags}
    two = max(shallow.values(), key=lambda one: one.speed_up)
    return (
        f"Members between drop {min(one.early_share() for one in deep):.0%} to {most.early_share():.0%} of all dropped "
        f"tokens before the target sees them "
        f"(most in {most.name}). "
        f"{fewest.name} calls the target least, {fewest.calls_per_token():.3f} times a token. "
        f"{len(pays)} of {len(deep)} chains are faster than their drafter with the same last window and nothing "
        f"between; the fastest, {fastest.name}, reaches {fastest.speed_up:.2f}x, and the best of those two-level "
        f"chains, {two.name}, reaches {two.speed_up:.2f}x. {_told_by_tag(by_tag)}"
    )


def _told_by_tag(shares: Mapping[str, float]) -> str:
    """Where early rejection is rare and where it is common, in the fastest chain."""
    low, high = min(shares, key=lambda tag: shares[tag]), max(shares, key=lambda tag: shares[tag])
    if shares[low] == shares[high]:
        return f"In the fastest, early rejection is as common in all text ({shares[low]:.0%})."
    return (
        f"In the fastest, early rejection is rarest in {low} ({shares[low]:.0%}) and most common in {high} "
        f"({shares[high]:.0%})."
    )
