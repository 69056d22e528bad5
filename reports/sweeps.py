"""The results of a sweep: which cells failed, and the settings that are best by one figure or by several.

A setting is a cell without its seed; its figures are means over seeds. A setting is on the front where no other one is
at least as good by every objective, and better by one (Pareto).
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import ge
from statistics import fmean
from typing import Any, ClassVar

from ..base.errors import ArgumentError, counted, known_are
from ..runs.cells import CellsPlayed
from .comparison import comparison_title, shared_remarks
from .intervals import Interval, OverTags, geometric_interval, mean_interval, paired, with_ends
from .limits import TYPED, Limit, figure_named, limits_of
from .load import OF_ALL
from .page import Pictured
from .panels import AnyPanel, Panel, Section, Series, ranking
from .rates import three_digits
from .serving import Promises
from .serving_tables import rejecting_fewest, served_title
from .side_by_side import SideBySide
from .tables import Grid, Printed, table

LEAST = "min:"  # before an objective of which less is better
SEED, ERROR, NOTES = "seed", "error", "notes"
REJECTED = "rejected"
UNSERVED = (REJECTED, "unfinished")  # requests that are in no latency, shown where there are some
MOST_SHOWN = 40  # rows of a front that are printed
_NUMBERED = re.compile(r"\S*\d\S*")  # a word with a number: a figure, a chain with its windows
MOST_DRAWN = 15  # settings in a figure of one objective
# The least of several uncertain figures is too low, and more so in a resample: drawn from the requests of smollm2.
OF_WORST = (
    "±: of the worst tag too narrow where tags have few requests: of 2 or 3 of each it held in 65 to 71 of 100 draws, "
    "of 20 in 92 to 95"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepDone(Printed, CellsPlayed):
    """The outcome of the cells of a sweep, or of a shard."""

    folder: str

    def lines(self) -> Sequence[str]:
        parts = [f"{self.kept:,} stood there before", f"{self.played:,} played"]
        parts += [f"{len(self.failed):,} failed"] if self.failed else []
        parts += [f"{self.missing:,} not played"] if self.missing else []
        return [f"{self.folder}: {counted(self.total, 'cell')}, {', '.join(parts)}", *self._whys()]

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("folder", "total", "kept", "played", "missing")}
        return counts | {"failed": self.to_dicts(), "lost": [{"cell": cell, "why": why} for cell, why in self.lost]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each cell that failed."""
        return [{"cell": cell, "why": why} for cell, why in self.failed]

    def _whys(self) -> list[str]:
        lines = []
        for word, cells in (("failed", self.failed), ("lost, to be played again", self.lost)):
            reasons: dict[str, list[str]] = {}
            for cell, why in cells:
                reasons.setdefault(why, []).append(cell)
            for why, named in reasons.items():
                more = f" and {len(named) - 1:,} more" if len(named) > 1 else ""
                lines.append(f"{word}: {named[0]}{more}: {why}")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A figure, and which way is better."""

    figure: str
    most: bool  # whether more is better

    @classmethod
    def parse(cls, text: str, known: Collection[str]) -> "Objective":
        """Read `FIGURE`, of which more is better, or `min:FIGURE`; raises ArgumentError for an unknown one."""
        figure = figure_named(text.removeprefix(LEAST), known, argument="objective")
        return cls(figure=figure, most=not text.startswith(LEAST))

    @property
    def name(self) -> str:
        """The figure's name, as typed."""
        return TYPED.get(self.figure, self.figure)

    @property
    def text(self) -> str:
        """The objective, as typed."""
        return self.name if self.most else f"{LEAST}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFigures:
    """One setting with its figures at each seed."""

    setting: Mapping[str, Any]  # keywords except the seed
    by_seed: Mapping[int, Mapping[str, Any]]  # figures, of one seed at least

    @property
    def seeds(self) -> tuple[Mapping[str, Any], ...]:
        """The figures at each seed."""
        return tuple(self.by_seed.values())

    def mean(self, figure: str) -> float | None:
        """The mean over seeds; None where one of them lacks it."""
        known = [seed[figure] for seed in self.seeds if isinstance(seed.get(figure), int | float)]
        return fmean(known) if len(known) == len(self.seeds) else None

    def shown(self, figure: str) -> str:
        """The mean, with its 95% interval over several seeds."""
        values = [seed[figure] for seed in self.seeds]
        if len(set(values)) == 1:
            return f"{values[0]:,.6g}"
        found = mean_interval(values)
        return f"{found.mean:,.6g} ± {found.half_width:,.3g}"

    def bounds(self, figure: str) -> tuple[float, float] | None:
        """The ends of the 95% interval over seeds; None with one seed."""
        return mean_interval([seed[figure] for seed in self.seeds]).bounds if len(self.seeds) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BestSettings(Pictured):
    """The settings on the front, by the values of `by` that each group has."""

    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    by: tuple[str, ...]
    varied: tuple[str, ...]  # keywords of which the sweep has several values
    found: tuple[SettingFigures, ...]  # of one group after the other, the best by the first objective first
    others: tuple[SettingFigures, ...]  # that keep the limits as well
    remarks: tuple[str, ...]

    def headline(self) -> str:
        aims = ", ".join(one.text for one in self.objectives)
        limits = f"; {', '.join(map(str, self.limits))}" if self.limits else ""
        return f"{'the best by' if len(self.objectives) == 1 else 'the front of'} {aims}{limits}"

    def sections(self) -> Sequence[Section]:
        return [Section(topic="policies", tables=tuple(self.tables()), panels=tuple(self._drawn()))]

    def answer(self) -> Sequence[str]:
        return self.lines() or [
            f"{counted(len(self.found), 'setting')} of {len(self.found) + len(self.others):,} on it"
        ]

    def _drawn(self) -> list[AnyPanel]:
        if not self.found:
            return []
        aims = self.objectives[:2]
        if len(aims) == 1:
            return [self._ranked(aims[0])]
        parts = {"on the front": self.found, "not on it": self.others}
        series = [
            Series(name=name, x=_means(settings, aims[0].figure), y=_means(settings, aims[1].figure))
            for name, settings in parts.items()
        ]
        labels = [f"{aim.name}, {'more' if aim.most else 'less'} is better" for aim in aims]
        return [
            Panel(title="Settings", kind="scatter", x_label=labels[0], y_label=labels[1], series=tuple(series)),
        ]

    def _ranked(self, aim: Objective) -> AnyPanel:
        """The best settings by one objective, each group's own ones filled, with intervals over seeds."""
        settings = sorted(
            [*self.found, *self.others], key=lambda one: one.mean(aim.figure) or 0.0, reverse=aim.most
        )[:MOST_DRAWN]  # fmt: skip
        names = {id(one): ", ".join(str(one.setting.get(name, "")) for name in self.varied) for one in settings}
        return ranking(
            f"{aim.name} of the best settings",
            {names[id(one)]: (one.mean(aim.figure) or 0.0, one.bounds(aim.figure)) for one in settings},
            filled=[names[id(one)] for one in settings if one in self.found],
            told="filled: the best" + (f" for each {', '.join(self.by)}" if self.by else ""),
            bars="bars: 95% interval over seeds",
            style=",.4g",
        )

    def tables(self) -> Sequence[Grid]:
        figures = dict.fromkeys([aim.figure for aim in self.objectives] + [limit.figure for limit in self.limits])
        figures |= dict.fromkeys(name for name in UNSERVED if any(one.mean(name) for one in self.found))
        rows, ends = [], set()
        for place, one in enumerate(self.found[:MOST_SHOWN]):
            named = [*self.by, *(name for name in self.varied if name not in self.by)]
            shown = {name: str(one.setting.get(name, "")) for name in named if name in self.varied or name in self.by}
            rows.append(shown | {TYPED.get(figure, figure): one.shown(figure) for figure in figures})
            group = [one.setting.get(name) for name in self.by]
            if place and self.by and group != [self.found[place - 1].setting.get(name) for name in self.by]:
                ends.add(place - 1)
        more = len(self.found) - MOST_SHOWN
        more_there = [f"{more:,} more are on the front; --json has all"] if more > 0 else []
        alike: dict[str, list[str]] = {}  # notes that differ in a policy or a number stand once
        for note in _notes(self.found[:MOST_SHOWN]):
            alike.setdefault(_NUMBERED.sub("", note), []).append(note)
        notes = [first + (f"; {len(more)} more of this kind" if more else "") for first, *more in alike.values()]
        remarks = [*self.remarks, *notes, *more_there]
        return [table(rows, texts={*self.varied, *self.by}, title=self.headline(), remarks=remarks, lines=ends)]

    def lines(self) -> Sequence[str]:
        """A line if no setting is left."""
        if self.found:
            return []
        return ["no setting keeps these limits" if self.limits else "no setting is left"]

    def to_json(self) -> dict[str, Any]:
        asked = {
            "objectives": [one.text for one in self.objectives],
            "subject_to": [one.to_json() for one in self.limits],
        }
        remarks = [*self.remarks, *_notes(self.found)]
        return {**asked, "by": list(self.by), "settings": self.to_dicts(), "remarks": remarks}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each setting: its keywords, the seeds it was played at, and the mean of each figure."""
        figures = dict.fromkeys(name for one in self.found for seed in one.seeds for name in seed if name != NOTES)
        return [
            {**one.setting, "seeds": len(one.seeds), **{name: one.mean(name) for name in figures}} for one in self.found
        ]


def best_settings(
    rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    *,
    objectives: Sequence[str],
    subject_to: Sequence[str] = (),
    by: Sequence[str] = (),
    varied: Sequence[str] = (),
    missing: int = 0,
) -> BestSettings:
    """The settings than which no other one is better.

    Args:
        rows: keywords and figures of each cell; None if it failed.
        objectives: see `Objective`, at least one.
        subject_to: see `limits_of`; all of them are kept.
        by: keywords; settings are compared with those that have the same values of them.
        varied: keywords of which there are several values.
        missing: cells that were not played.

    Raises:
        ArgumentError: no objective, a figure or a keyword that no cell has, or a bad limit.
    """
    if not objectives:
        raise ArgumentError("`objective` must name a figure, got none")
    settings: dict[str, tuple[Mapping[str, Any], dict[int, Mapping[str, Any] | None]]] = {}
    for keywords, figures in rows:
        setting = {name: value for name, value in keywords.items() if name != SEED}
        settings.setdefault(repr(setting), (setting, {}))[1][keywords.get(SEED, 0)] = figures
    whole = [
        SettingFigures(setting=setting, by_seed={seed: one for seed, one in seeds.items() if one is not None})
        for setting, seeds in settings.values()
        if None not in seeds.values()
    ]
    known = dict.fromkeys(name for one in whole for seed in one.seeds for name in seed if name != NOTES)
    if not known:
        raise ArgumentError(
            f"`folder` has {counted(len(settings), 'setting')}, and none of which all cells have figures"
        )
    aims = tuple(Objective.parse(text, known) for text in objectives)
    limits = tuple(limit for text in subject_to for limit in limits_of(text, known, argument="subject_to"))
    keywords = dict.fromkeys(name for setting, _ in settings.values() for name in setting)
    for name in by:
        if name not in keywords:
            raise ArgumentError(f"`by` must name a keyword of the cells, {known_are(name, keywords)}, got {name!r}")
    asked = [*(one.figure for one in aims), *(one.figure for one in limits)]
    able = [one for one in whole if all(one.mean(name) is not None for name in asked)]
    within = [one for one in able if all(limit.kept(one.mean(limit.figure) or 0.0) for limit in limits)]
    groups: dict[str, list[SettingFigures]] = {}
    for one in within:
        groups.setdefault(repr([one.setting.get(name) for name in by]), []).append(one)
    if any(one.figure not in OF_ALL for one in aims):  # a figure of served requests flatters who rejects some
        groups = {name: rejecting_fewest(group, _rejections(group)) for name, group in groups.items()}
    compared = [one for group in groups.values() for one in group]
    found = tuple(one for group in groups.values() for one in front(group, aims))
    return BestSettings(
        objectives=aims,
        limits=limits,
        by=tuple(by),
        varied=tuple(name for name in varied if name != SEED),
        found=found,
        others=tuple(one for one in compared if one not in found),
        remarks=tuple(_remarks(missing, len(settings), len(whole), len(able), len(within), len(compared))),
    )


def _rejections(group: Sequence[SettingFigures]) -> Callable[[SettingFigures], Mapping[int, float]]:
    """What gives a setting's rejected requests by seed, of those at which all were played; without any, their mean."""
    shared = set.intersection(*(set(one.by_seed) for one in group))

    def rejected(one: SettingFigures) -> Mapping[int, float]:
        counts = {seed: one.by_seed[seed].get(REJECTED) or 0.0 for seed in shared}
        return counts or {0: one.mean(REJECTED) or 0.0}

    return rejected


def _remarks(missing: int, settings: int, whole: int, able: int, within: int, compared: int) -> list[str]:
    """Why some settings are not compared, and that the choice makes the best look better."""
    remarks = []
    for count, why in (
        (missing, "not played yet"),
        (settings - whole, "left out: a cell of them failed"),
        (whole - able, "left out: a figure is not known"),
        (able - within, "beyond the limits"),
        (within - compared, "left out: others reject fewer requests"),
    ):
        noun = "cell" if why == "not played yet" else "setting"
        remarks += [f"{counted(count, noun)} {why}"] if count else []
    if able > 1 and compared:
        remarks.append(
            f"in sample: chosen among {able:,} settings by the figures that are shown, which flatters them; "
            "`paceline tune` reports on requests that had no part in the choice"
        )
    return remarks


def _notes(settings: Sequence[SettingFigures]) -> list[str]:
    """What readers of their figures must know of recordings and seconds."""
    texts = [str(seed.get(NOTES) or "") for one in settings for seed in one.seeds]
    return list(dict.fromkeys(note for text in texts for note in text.splitlines()))


def _means(settings: Sequence[SettingFigures], figure: str) -> tuple[float, ...]:
    return tuple(one.mean(figure) or 0.0 for one in settings)


def front(settings: Sequence[SettingFigures], objectives: Sequence[Objective]) -> list[SettingFigures]:
    """Those than which no other one is better, the best by the first objective first; all figures must be known."""
    aimed = [
        (tuple((1 if aim.most else -1) * (one.mean(aim.figure) or 0.0) for aim in objectives), one) for one in settings
    ]
    aimed.sort(key=lambda pair: pair[0], reverse=True)  # a better one never comes after a worse one
    best, found = list[tuple[float, ...]](), list[SettingFigures]()
    for values, one in aimed:
        if best and values == best[-1]:
            found.append(one)
        elif not any(all(map(ge, other, values)) for other in best):
            best.append(values)
            found.append(one)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedHalf:
    """A tuned policy on some of the requests; tokens per second are over tags, the figure it was tuned for."""

    name: str  # whether it was tuned on them
    requests: int
    rate: float  # output tokens per second
    alone: float | None  # of the target alone; None if unknown
    interval: Interval | None  # 95% interval of the rate over requests; None if unknown
    speed_up: Interval | None  # 95% interval over requests of that over the target alone; None if unknown

    @property
    def gain(self) -> float | None:
        """The speed-up, also where its interval is unknown; None where the target alone is."""
        if self.speed_up is not None:
            return self.speed_up.mean
        return self.rate / self.alone if self.alone else None

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "output_tokens_per_s": self.rate,
            "output_tokens_per_s_ci": None if self.interval is None else list(self.interval.bounds),
            "speed_up": self.gain,
            "speed_up_ci": None if self.speed_up is None else list(self.speed_up.bounds),
        }

    def cells(self, words: str) -> dict[str, str]:
        """A row of a table; `words` are the figure's."""
        sure = f" ± {self.interval.half_width:,.1f}" if self.interval is not None and self.interval.half_width else ""
        sure_gain = "" if self.speed_up is None else f" ± {self.speed_up.half_width:.2f}"
        return {
            "requests": self.name,
            "number": f"{self.requests:,}",
            words: f"{self.rate:,.1f}{sure}",
            "over the target alone": "" if self.gain is None else f"{self.gain:.2f}x{sure_gain}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedUnderLoadHalf:
    """A tuned policy that serves, with the acceptance of some of the requests; figures are by seed."""

    name: str  # whether it was tuned on them
    requests: int
    tuned: Mapping[int, float]
    alone: Mapping[int, float] | None  # of the target alone; None without one
    figure: str  # which, by flat name

    @property
    def gain(self) -> Interval | None:
        """Over the target alone, seed by seed; None where that has no figure, or one of 0."""
        if self.alone is None or min(self.alone.values()) <= 0 or min(self.tuned.values()) <= 0:
            return None
        return geometric_interval([own / other for own, other in paired(self.tuned, self.alone)])

    @property
    def shown(self) -> str:
        """The tuned policy's figure, with its 95% interval over seeds."""
        return _over_seeds(self.figure, self.tuned)

    def to_json(self) -> dict[str, Any]:
        gain, figure = self.gain, self.figure
        return {
            "requests": self.requests,
            figure: mean_of(figure, self.tuned.values()),
            f"{figure}_by_seed": {str(seed): value for seed, value in self.tuned.items()},
            f"{figure}_alone": None if self.alone is None else mean_of(figure, self.alone.values()),
            "gain": None if gain is None else gain.mean,
            "gain_ci": None if gain is None or len(self.tuned) < 2 else list(gain.bounds),
        }

    def cells(self, words: str) -> dict[str, str]:
        """A row of a table; `words` are the figure's."""
        return {
            "requests": self.name,
            "number": f"{self.requests:,}",
            words: self.shown,
            "the target alone": "none" if self.alone is None else _over_seeds(self.figure, self.alone),
            "gain": "" if self.gain is None else with_ends(self.gain, "{:.2f}x".format),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuningResult(Pictured):
    """A tuning for any figure."""

    topic: ClassVar[str]  # of its section
    words: str  # the maximised figure
    ranges: str  # the policy's text
    best: str  # with the values that were best on the requests that it was tuned on
    values: Mapping[str, str]  # these, by the name of their range
    trail: tuple[float | None, ...]  # the maximised figure of each trial, in order; None: it failed or is left out
    failed: tuple[str, ...]  # why trials failed or are left out, each reason once
    recording: str
    split: float  # share of each tag that it was tuned on
    split_seed: int
    # of the requests that it was not tuned on, and of the others
    halves: tuple[TunedHalf, TunedHalf] | tuple[TunedUnderLoadHalf, TunedUnderLoadHalf]

    @property
    def trials(self) -> int:
        """The number of trials."""
        return len(self.trail)

    def headline(self) -> str:
        share = f"{100 * self.split:.3g}% of each tag's requests, split seed {self.split_seed}"
        return f"{self.best}, the best of {counted(self.trials, 'trial')} on {share}"

    def sections(self) -> Sequence[Section]:
        curve = learning_curve(self.trail, self.words)
        return [Section(topic=self.topic, tables=tuple(self.tables()), panels=(curve,))]

    def tables(self) -> Sequence[Grid]:
        rows = [half.cells(self.words) for half in self.halves]
        return [table(rows, title=self.headline(), remarks=self._remarks())]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each half."""
        return [{"half": half.name, "policy": self.best, **half.to_json()} for half in self.halves]

    @abstractmethod
    def _remarks(self) -> list[str]: ...

    def _failures(self) -> str:
        return f"trials failed for {counted(len(self.failed), 'reason')}, as {self.failed[0]}" if self.failed else ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuned(TuningResult):
    """The result of a tuning; its figure is tokens per second."""

    topic = "policies"
    over_tags: OverTags  # of tags, the maximised figure
    halves: tuple[TunedHalf, TunedHalf]
    compared: SideBySide  # with the target alone, on the requests that it was not tuned on

    def headline(self) -> str:
        return f"{TuningResult.headline(self)}; {comparison_title(self.compared.meta, self.compared)}"

    def configuration(self) -> Mapping[str, Any]:
        return self.compared.meta

    def _remarks(self) -> list[str]:
        sure = self.halves[0].interval is not None
        few = [OF_WORST] if sure and self.over_tags is OverTags.worst else []
        return [*shared_remarks(self.compared.meta, [self.compared], intervals=sure), *few]

    def lines(self) -> Sequence[str]:
        own = self.halves[0]
        sure = f" ± {own.interval.half_width:,.1f}" if own.interval is not None else ""
        found = f"{self.best}: {own.rate:,.1f}{sure} tokens/s on the requests that it was not tuned on"
        needed = "it needs two requests, or sessions, of each tag, 5 in all"
        unknown = "" if own.interval is not None else f"how sure that is cannot be told: {needed}"
        return [found, *filter(None, [beside_plain(own.speed_up), unknown, self._failures()])]

    def to_json(self) -> dict[str, Any]:
        asked = {name: getattr(self, name) for name in ("ranges", "recording", "split", "split_seed", "trials")}
        found = {"best": self.best, "values": dict(self.values), "over_tags": str(self.over_tags)}
        own, tuned = (half.to_json() for half in self.halves)
        halves = {"not_tuned_on": own, "tuned_on": tuned, "failed": list(self.failed)}
        return {**asked, **found, **halves, "meta": self.compared.meta, "remarks": self._remarks()}


def learning_curve(trail: Sequence[float | None], label: str) -> Panel:
    """The figure of each trial in their order, and the most so far; None if it failed."""
    known = [(float(number), value) for number, value in enumerate(trail, 1) if value is not None]
    numbers, values = zip(*known, strict=True)
    return Panel(
        title="The search, on the requests tuned on",
        x_label="trial",
        y_label=label,
        series=(
            Series(name="best so far", x=numbers, y=tuple(accumulate(values, max))),
            Series(name="trial", x=numbers, y=values),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TunedUnderLoad(TuningResult):
    """The result of a tuning under load."""

    topic = "load"
    figure: str  # the maximised figure, by flat name
    halves: tuple[TunedUnderLoadHalf, TunedUnderLoadHalf]
    workload: str
    cluster: str
    promised: Promises  # service levels that goodput counts
    meta: Mapping[str, Any]  # as of `compare` under load
    remarks: tuple[str, ...]  # remarks that readers of the figures need, a line each

    def headline(self) -> str:
        return f"{TuningResult.headline(self)}; {served_title(self.meta, self.promised.in_words())}"

    def configuration(self) -> Mapping[str, Any]:
        return self.meta

    def _remarks(self) -> list[str]:
        several = max(len(half.tuned) for half in self.halves) > 1
        return [*self.remarks, *(["in brackets: 95% interval over seeds"] if several else [])]

    def lines(self) -> Sequence[str]:
        own = self.halves[0]
        found = f"{self.best}: {own.shown} {self.words}, on requests that it was not tuned on"
        sure = own.gain if len(own.tuned) > 1 else None
        return [found, *filter(None, [beside_plain(sure), self._failures()])]

    def to_json(self) -> dict[str, Any]:
        names = ("ranges", "best", "figure", "recording", "workload", "cluster", "split", "split_seed")
        asked = {name: getattr(self, name) for name in names} | {"values": dict(self.values)}
        own, tuned = (half.to_json() for half in self.halves)
        found = {"trials": self.trials, "failed": list(self.failed)}
        told = {**self.promised.to_json(), "meta": self.meta, "remarks": list(self.remarks)}
        return {**asked, **found, "not_tuned_on": own, "tuned_on": tuned, **told}


def beside_plain(gain: Interval | None) -> str:
    """A remark that a tuned policy is not surely better than the target alone; empty if it is, or if unknown."""
    if gain is None or gain.low > 1:
        return ""
    what = with_ends(gain, "{:.2f}x".format)
    return f"the target alone is better: {what}" if gain.high < 1 else f"the target alone may be as good: {what}"


HIGHEST = "highest_rate_per_s"


def mean_of(figure: str, values: Iterable[float]) -> float:
    """The mean over seeds: for rates, which are above 0, the geometric one, as in `find_rates`."""
    known = [*values]
    return geometric_interval(known).mean if figure == HIGHEST else fmean(known)


def _over_seeds(figure: str, values: Mapping[int, float]) -> str:
    known = [*values.values()]
    if len(known) < 2:
        return three_digits(known[0])
    return with_ends(geometric_interval(known) if figure == HIGHEST else mean_interval(known), three_digits)
