"""A decision about speculation: the draft length at each number of running requests, its gain, and its uncertainty."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Self

from ..base.errors import counted
from .comparison import comparison_title, shared_remarks, told_apart
from .ledger import BARE, LedgerLine, Pasteable, RecommendationLedger, Recommended, Standing
from .panels import HeatMap, Section
from .side_by_side import SideBySide
from .summary import Summary
from .tables import Grid, between, flat_rows, table


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLength:
    """A draft length at a number of running requests, on the requests that were not used for the choice."""

    draft_tokens: int  # K; 0: no speculation
    speed_up: float | None  # over the target alone
    speed_up_ci: tuple[float, float] | None  # its 95% interval over requests or sessions
    speed_up_range: tuple[float, float] | None  # at the ends of the cost's range
    tokens_per_s: float
    tuned_on: float | None  # its speed-up on the requests that the choice was made on
    policy: str  # as `compare` takes it

    @classmethod
    def of(cls, compared: SideBySide, row: Summary, draft_tokens: int, *, tuned_on: SideBySide) -> Self:
        """A row of a comparison; `tuned_on` is that of the other requests."""
        interval, same = compared.speed_up_interval(row), [one for one in tuned_on.ranked() if one.policy == row.policy]
        alone = draft_tokens == 0
        return cls(
            draft_tokens=draft_tokens,
            speed_up=compared.speed_up(row),
            speed_up_ci=None if interval is None or alone else interval.bounds,
            speed_up_range=None if alone else compared.speed_up_range(row),
            tokens_per_s=compared.output_tokens_per_s(row),
            tuned_on=tuned_on.speed_up(same[0]) if same else None,
            policy=row.policy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBatch:
    """The best draft length at a number of running requests."""

    batch: int
    chosen: int  # K
    tied: tuple[int, ...]  # other K that cannot be told apart from it, maybe 0
    open_between: bool  # whether drafting cannot be told apart from none, or has no known gain on other requests
    open_by_cost: bool  # whether the cost's range is the reason
    over_present: float | None  # tokens per second of the choice over those of the present K
    candidates: tuple[DraftLength, ...]  # the fastest first, on the requests that were not used for the choice
    set_tokens: int | None = None  # K that the setting drafts at this number; None: no setting, or never reached

    @classmethod
    def of(
        cls,
        batch: int,
        chosen_on: SideBySide,
        *,
        candidates: tuple[DraftLength, ...],
        chosen: int,
        windows: Mapping[str, int],
        present: int | None,
    ) -> Self:
        """From the comparisons of both halves; `windows` is K by policy, for all except the target alone."""
        best, *others = chosen_on.ranked()
        # Of too few requests no interval is known: nothing can be told apart.
        tied = [row for row in others if chosen_on.over(best, row) is None or not told_apart(chosen_on, best, row)]
        ks = tuple(sorted(windows.get(row.policy, 0) for row in tied))
        open_between = 0 in ks or (chosen == 0 and bool(ks))
        by_cost = open_between and any(
            not chosen_on.ranks_alike(best, row) for row in tied if 0 in (chosen, windows.get(row.policy, 0))
        )
        own = next(one for one in candidates if one.draft_tokens == chosen)
        # Where the target alone has no seconds nothing says that drafting gains.
        lost = own.draft_tokens > 0 and (own.speed_up is None or own.speed_up <= 1)
        now = [one.tokens_per_s for one in candidates if one.draft_tokens == present]
        return cls(
            batch=batch,
            chosen=chosen,
            tied=ks,
            open_between=open_between or lost,
            open_by_cost=by_cost,
            over_present=own.tokens_per_s / now[0] if now else None,
            candidates=candidates,
        )

    @property
    def own(self) -> DraftLength:
        """The chosen one."""
        return next(one for one in self.candidates if one.draft_tokens == self.chosen)

    @property
    def drafted(self) -> int:
        """K that the setting drafts at this number; without one, the chosen K."""
        return self.chosen if self.set_tokens is None else self.set_tokens

    @property
    def has_alone(self) -> bool:
        """Whether the target alone could be replayed, which every gain is over."""
        return any(one.draft_tokens == 0 for one in self.candidates)

    def when_set(self) -> str:
        """What the setting does at this number: its speed over that of the target alone, by the cost."""
        found = [one.speed_up for one in self.candidates if one.draft_tokens == self.set_tokens]
        gain = "unknown" if not found or found[0] is None else f"{found[0]:.2f}x"
        return f"{gain} at {self.batch:,} (K = {self.set_tokens})"


def _numbers(batches: Iterable[AtBatch]) -> str:
    return ", ".join(f"{each.batch:,}" for each in batches)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recommendation(Recommended):
    """Draft lengths by running requests; prints as `paceline recommend` does."""

    meta: dict[str, Any]  # as of a sweep, of the requests that were not used for the choice
    drafter: str
    present: int | None  # K that is set now
    batches: tuple[AtBatch, ...]
    bare: bool  # whether the cost is a lower bound only, at which no setting is named
    setting: Pasteable | None  # to paste, for rows where K can be told from none; None: there are none
    open_because: str | None  # why nothing can be pasted although such rows exist
    advice: tuple[str, ...]  # what to measure for the others
    compared: tuple[SideBySide, ...]  # by number of running requests, the comparisons behind the figures
    ledger: RecommendationLedger

    def headline(self) -> str:
        return comparison_title(self.meta, self.compared[0])

    def sections(self) -> Sequence[Section]:
        return [Section(topic="policies", tables=tuple(self.tables()), panels=(self._heat(),))]

    def _heat(self) -> HeatMap:
        lengths = sorted({one.draft_tokens for each in self.batches for one in each.candidates if one.draft_tokens})
        knows = all(one.speed_up is not None for each in self.batches for one in each.candidates)
        speeds = [
            {one.draft_tokens: one.speed_up if knows else one.tokens_per_s for one in each.candidates}
            for each in self.batches
        ]
        figure = "Speed-up" if knows else "Output tokens/s"
        return HeatMap(
            title=f"{figure} by draft length of {self.drafter} and by running requests",
            x_label="running requests",
            y_label="draft tokens K",
            columns=tuple(f"{each.batch:,}" for each in self.batches),
            rows=tuple(map(str, lengths)),
            values=tuple(tuple(speed.get(length) for speed in speeds) for length in lengths),
            value_label="speed-up over the target alone" if knows else "output tokens/s",
            marked=frozenset(
                (lengths.index(each.chosen), column) for column, each in enumerate(self.batches) if each.chosen
            ),
            least=1.0 if knows else None,
        )

    def answer(self) -> Sequence[str]:
        is_set = self.setting is not None
        told = groupby(
            self.batches, key=lambda each: (each.drafted, is_set and (each.open_between or each.set_tokens is None))
        )
        words = []
        for length, each in [(length, [*group]) for (length, is_left_out), group in told if not is_left_out]:
            batches = f"{each[0].batch:,}" + (f" to {each[-1].batch:,}" if len(each) > 1 else "")
            drafts = f"draft {counted(length, 'token')}" if length else "do not draft"
            words.append(f"{drafts} at {batches} running" + (f": {_gains(each)}" if length else ""))
        if self.setting is not None:
            return [*words, *self._open()]
        first, *advice = self._open()
        return [first, *(f"the fastest on these requests: {one}" for one in words), *advice]

    def tables(self) -> Sequence[Grid]:
        return [recommendation_table(self)]

    def lines(self) -> Sequence[str]:
        return [*self._open(), *([] if self.setting is None else ["", *self.setting.lines()])]

    def _open(self) -> list[str]:
        """What is not decided: of all rows, or, beside a setting, of those that it is not for."""
        if self.bare:
            return [f"no setting is named: {BARE}", *self.advice]
        unsettled = [each for each in self.batches if each.open_between]
        why = f"at {_numbers(unsettled)} running, K cannot be told from none" if unsettled else ""
        if alone := [each for each in unsettled if not each.chosen]:
            why += f"; the target alone came out best at {_numbers(alone)}"
        if self.setting is None:
            reasons = [one for one in (self.open_because, why) if one]
            return [f"no setting is named: {reasons[0]}", *reasons[1:], *self.advice]
        if not unsettled:
            return []
        # An engine has no row to leave out: it drafts at these numbers as at those beside them.
        there = ", ".join(each.when_set() for each in unsettled if each.set_tokens)
        set_there = f"; there its gain, by this cost, is {there}" if there else ""
        return [f"{why}; the setting is for the others{set_there}", *self.advice]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/recommend.md): every candidate with its figures, and what is chosen."""
        return {
            "meta": self.meta,
            "drafter": self.drafter,
            "present": self.present,
            "batches": [asdict(each) for each in self.batches],
            "setting": None if self.setting is None else self.setting.to_json(),
            "advice": [*self.advice, *([] if self.open_because is None else [self.open_because])],
            **self.ledger.to_json(),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each candidate."""
        return flat_rows(
            [
                {"batch": each.batch, "chosen": one.draft_tokens == each.chosen, **asdict(one)}
                for each in self.batches
                for one in each.candidates
            ]
        )


def _gains(each: Sequence[AtBatch]) -> str:
    found = [one for at in each for one in at.candidates if one.draft_tokens == at.drafted]
    gains = [one.speed_up for one in found if one.speed_up is not None]
    if not gains:
        return "gain unknown"
    span = " to ".join(dict.fromkeys(f"{end:.2f}x" for end in (min(gains), max(gains))))
    return f"{span} the speed of the target alone"


def replayed_candidates(
    batches: Sequence[AtBatch], told_on: Sequence[SideBySide], *, first: int
) -> tuple[LedgerLine, ...]:
    """The lines of a ledger for replays without arrivals, numbered from `first` on; rejected ones last."""
    found = [
        (each.batch, one.policy, Standing.feasible, _standing_of(each, one), {**asdict(one), "batch": each.batch})
        for each in batches
        for one in each.candidates
    ]
    for each, compared in zip(batches, told_on, strict=True):
        for line in compared.meta["left_out"]:
            policy, _, reason = line.partition(" is left out: ")
            if reason:
                found.append((each.batch, policy, Standing.refused, reason, {}))
    return tuple(
        LedgerLine(number=number, policy=policy, batch=batch, standing=standing, reason=reason, figures=figures)
        for number, (batch, policy, standing, reason, figures) in enumerate(found, start=first)
    )


def _standing_of(each: AtBatch, one: DraftLength) -> str:
    if one is each.own:
        return "the fastest on the requests that the choice was made on"
    if one.draft_tokens in each.tied:
        return f"cannot be told apart from K = {each.chosen} by these requests or this cost"
    return f"{one.tokens_per_s / each.own.tokens_per_s:.3f} of the tokens per second of K = {each.chosen}"


def recommendation_table(found: Recommendation) -> Grid:
    """The chosen draft length at each number of running requests, and its gain on other requests."""
    tuned, told = found.meta["requests_tuned_on"], found.meta["requests"]
    remarks = [
        f"K: tokens that {found.drafter} drafts in a round; chosen on {counted(tuned, 'request')}, gain on the other "
        f"{told:,}",
        *shared_remarks(found.meta, found.compared),
    ]
    return table(
        [_cells(found, each) for each in found.batches],
        title=comparison_title(found.meta, found.compared[0]),
        remarks=remarks,
    )


def _cells(found: Recommendation, each: AtBatch) -> dict[str, str]:
    own = each.own
    gain = "unknown" if own.speed_up is None else f"{own.speed_up:.2f}x"
    if own.speed_up_ci is not None:
        gain += f" ± {(own.speed_up_ci[1] - own.speed_up_ci[0]) / 2:.2f}"
    cells = {"running": f"{each.batch:,}", "K": str(each.chosen), "gain": gain}
    if any(one.own.speed_up_range is not None for one in found.batches):
        cells["range of cost"] = between(own.speed_up_range)
    cells["not told apart"] = ", ".join(map(str, each.tied)) or "none"
    if found.present is not None:
        cells["over present"] = "" if each.over_present is None else f"{each.over_present:.2f}x"
    return cells
