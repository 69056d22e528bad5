"""What each level of a deep chain keeps and drops: early rejection, and the calls of the target that it saves.

A token is *rejected early* when a member between the drafter and the target drops it, so that the target never sees it
(SpecRouter, arXiv:2505.07680, leaves open how much of the rejection happens where). Everything a verification drops
counts: the token refused and those behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...decoding.ledger import VERIFY
from ...runs.log import RunLog
from ..finding import Cell, Column, Finding, Panel, Rows, Series, Setting
from ..replays import ALL, TARGET_ALONE, drafters_of, recording_of, replayed, scenario_of, speed_of, steps_of, tags_of

# Windows of the handovers, the last one before the target. The deepest add up to the shipped recording's reach, 16.
WINDOWS = {2: (3, 6), 3: (3, 5, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one level of a chain did with the tokens it looked at.

    Attributes:
        judged: tokens it looked at.
        accepted: of those, how many stayed.
    """

    judged: int
    accepted: int

    @property
    def dropped(self) -> int:
        """The token refused in each verification, and those behind it."""
        return self.judged - self.accepted

    @property
    def kept_share(self) -> float:
        """Accepted of judged, 0 to 1; 0 if it judged none."""
        return self.accepted / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One chain, run over the recording.

    Attributes:
        members: of the chain, smallest first.
        name: in the notation of chains.
        log: of the run.
        speed_up: over the target alone.
    """

    members: tuple[str, ...]
    name: str
    log: RunLog
    speed_up: float

    def judged(self, member: str, tag: str = ALL) -> Judged:
        """What `member` did in requests of `tag`."""
        steps = self.log.steps
        chosen = self._verifies(member) & steps_of(self.log, tag)
        return Judged(judged=int(steps["judged"][chosen].sum()), accepted=int(steps["accepted"][chosen].sum()))

    def early_share(self, tag: str = ALL) -> float:
        """Dropped by members between, of all that any member dropped; 0 to 1."""
        between = sum(self.judged(member, tag).dropped for member in self.members[1:-1])
        everywhere = between + self.judged(self.members[-1], tag).dropped
        return between / everywhere if everywhere else 0.0

    def calls_per_token(self, tag: str = ALL) -> float:
        """Forwards of the target per token committed."""
        chosen = steps_of(self.log, tag)
        calls = int((self._verifies(self.members[-1]) & chosen).sum())
        return calls / int(self.log.steps["emitted"][chosen].sum())

    def _verifies(self, member: str) -> NDArray[np.bool_]:
        level = self.log.meta["members"].index(member)
        found: NDArray[np.bool_] = (self.log.steps["kind"] == VERIFY) & (self.log.steps["level"] == level)
        return found


def run(setting: Setting) -> Finding:
    """Replay every chain of three and four levels, and the two-level chains they deepen."""
    trace = recording_of(setting)
    scenario = scenario_of(setting, trace)
    members = (*drafters_of(scenario), scenario.tables.pool.target)
    chains = _chains(members, free={member.name for member in scenario.tables.pool.members if member.model_free})
    if not chains:
        raise ValueError(f"recording {trace.meta.name}: models must be three or more, got {', '.join(members)}")
    plain = speed_of(replayed(scenario, TARGET_ALONE)).tokens_per_s

    def ran(chain: tuple[str, ...], windows: Sequence[int]) -> Ran:
        name = _notation(chain, windows)
        log = replayed(scenario, name)
        return Ran(members=chain, name=name, log=log, speed_up=speed_of(log).tokens_per_s / plain)

    deep = [ran(chain, WINDOWS[len(chain) - 1]) for chain in chains]
    # The same drafter and the same last window without the members between.
    shallow = {one.name: ran((one.members[0], one.members[-1]), WINDOWS[len(one.members) - 1][-1:]) for one in deep}
    tags = tags_of(trace)
    return Finding(
        question="Where in a chain of three or four levels are tokens rejected, and what does that save the target?",
        tables=(_levels(deep), _calls(deep, shallow), _by_tag(deep, tags)),
        panels=_panels(deep, tags),
        answer=_answer(deep, shallow, tags),
    )


def _chains(members: Sequence[str], free: set[str]) -> list[tuple[str, ...]]:
    """All of three levels, then all of four; drafters without a model only ever stand first in order, as in pools."""
    *below, target = members
    verifying = [name for name in below if name not in free]
    pairs = [(a, b, target) for index, a in enumerate(below) for b in below[index + 1 :] if b in verifying]
    longer = [(a, *rest) for rest in pairs for a in below[: below.index(rest[0])] if rest[0] in verifying]
    return [*pairs, *longer]


def _notation(chain: Sequence[str], windows: Sequence[int]) -> str:
    handed = [f"{name}:{window}" for name, window in zip(chain, windows, strict=False)]
    return "/".join([*handed, chain[-1]])


def _levels(deep: Sequence[Ran]) -> Rows:
    rows: list[tuple[Cell, ...]] = []
    for one in deep:
        drafted = int(one.log.steps["drafted"].sum())
        for place, member in enumerate(one.members[1:], start=1):
            found = one.judged(member)
            early = found.dropped / drafted * 100 if member != one.members[-1] else None
            name = one.name if place == 1 else ""
            cells = (found.judged, found.accepted, found.kept_share * 100, found.dropped, early)
            rows.append((name, member, *cells))
    heads = (Column(name="chain"), Column(name="judge"), Column(name="judged"), Column(name="accepted"))
    shares = (
        Column(name="acceptance", unit="%", digits=1),
        Column(name="dropped"),
        Column(name="dropped early, of all drafted", unit="%", digits=1),
    )
    return Rows(title="tokens by the level that judged them", columns=(*heads, *shares), rows=tuple(rows))


def _calls(deep: Sequence[Ran], shallow: dict[str, Ran]) -> Rows:
    rows = []
    for one in deep:
        two, calls = shallow[one.name], one.calls_per_token()
        saved = (1 - calls) * 100, (1 - calls / two.calls_per_token()) * 100
        rows.append((one.name, one.early_share() * 100, calls, *saved, two.name, one.speed_up, two.speed_up))
    columns = (
        Column(name="chain"),
        Column(name="rejected early", unit="%", digits=1),
        Column(name="calls per token", digits=3),
        Column(name="saved against the target alone", unit="%", digits=1),
        Column(name="saved against two levels", unit="%", digits=1),
        Column(name="the two levels"),
        Column(name="speed-up", unit="x", digits=2),
        Column(name="speed-up of two levels", unit="x", digits=2),
    )
    return Rows(title="calls of the target, and how many are saved", columns=columns, rows=tuple(rows))


def _by_tag(deep: Sequence[Ran], tags: Sequence[str]) -> Rows:
    rows: list[tuple[Cell, ...]] = []
    for one in deep:
        rows.append((one.name, "rejected early, %", *(one.early_share(tag) * 100 for tag in tags)))
        rows.append(("", "target calls saved, %", *((1 - one.calls_per_token(tag)) * 100 for tag in tags)))
    columns = (Column(name="chain"), Column(name="figure"), *(Column(name=tag, digits=1) for tag in tags))
    return Rows(title="by tag; saved against the target alone", columns=columns, rows=tuple(rows))


def _panels(deep: Sequence[Ran], tags: Sequence[str]) -> tuple[Panel, ...]:
    three = [one for one in deep if len(one.members) == 3]
    four = [one for one in deep if len(one.members) == 4]
    shown = [(f"{depth} levels", chains) for depth, chains in (("three", three), ("four", four)) if chains]
    x = tuple(float(index) for index in range(len(tags)))
    early = [
        Panel(
            title=f"dropped early, {depth}",
            x_label="",
            y_label="% of all dropped tokens",
            kind="bar" if len(chains) < 4 else "scatter",
            categories=tuple(tags),
            series=tuple(
                Series(name=one.name, x=x, y=tuple(one.early_share(tag) * 100 for tag in tags)) for one in chains
            ),
        )
        for depth, chains in shown
    ]
    calls = [
        Panel(
            title=f"calls of the target, {depth}",
            x_label="",
            y_label="calls per token",
            kind="scatter",
            categories=tuple(tags),
            series=tuple(
                Series(name=one.name, x=x, y=tuple(one.calls_per_token(tag) for tag in tags)) for one in chains
            ),
        )
        for depth, chains in shown
    ]
    return (*early, *calls)


def _answer(deep: Sequence[Ran], shallow: dict[str, Ran], tags: Sequence[str]) -> str:
    most = max(deep, key=Ran.early_share)
    fewest = min(deep, key=Ran.calls_per_token)
    pays = [one for one in deep if one.speed_up > shallow[one.name].speed_up]
    fastest = max(deep, key=lambda one: one.speed_up)
    by_tag = {tag: fastest.early_share(tag) for tag in tags}
    two = max(shallow.values(), key=lambda one: one.speed_up)
    return (
        f"Of all tokens that are dropped, refused ones and those behind them, members between drop "
        f"{min(one.early_share() for one in deep):.0%} to {most.early_share():.0%} before the target sees them "
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
